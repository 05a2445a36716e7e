"""Job files with one mistake each: the first screen names the cause, and the exit status shows how
far the command got.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from tests.service.daemon import Steward

FILES = Path(__file__).with_name("mistakes")
SCREEN = 24  # lines
AT_ONCE = 2


class Told(NamedTuple):
    """The exit status of a command and its first screen."""

    status: int
    parts: tuple[str, ...]


def refused(*parts: str) -> dict[str, Told]:
    """Return the results for jobs that no node can ever run: both commands refuse them."""
    return {"validate": Told(1, parts), "run": Told(1, parts)}


def unplaced(*parts: str, then: str = "1 allocation not placed") -> dict[str, Told]:
    """Return the results for jobs that no node can run now: a warning, then no placement."""
    return {"validate": Told(0, parts), "run": Told(2, (*parts, then))}


def failing(warning: tuple[str, ...], *parts: str) -> dict[str, Told]:
    """Return the results for jobs that fail when they run: exit status 1, with any warning."""
    return {"validate": Told(0, warning), "run": Told(1, (*warning, *parts))}


MISTAKES = {
    "typo_key": refused("typo_key.hcl:4,5-10", '"cuont"', 'Did you mean "count"?'),
    "typo_block": refused("typo_block.hcl:11,7-15", '"resorces"', 'Did you mean "resources"?'),
    "typo_exec": refused('task "t"', 'unknown key "arg"', 'did you mean "args"?'),
    "typo_config": refused('task "t"', 'unknown key "arg"', 'did you mean "args"?'),
    "wrong_type": refused("wrong_type.hcl:4,14-17", "a number is required", 'count = "two"'),
    "wrong_type_mem": refused("wrong_type_mem.hcl:12,19-23", "a number is required", '"64MB"'),
    "wrong_type_args": refused("config.args must be a list of string", 'the string "-l"'),
    "driver": refused('"dokcer" is unknown', 'did you mean "docker"?', "there are exec"),
    "brace": refused("brace.hcl:3,13-14", "Unclosed configuration block"),
    "noname": refused("noname.hcl:1,5-6", "Missing name for job"),
    "notask": refused("notask.hcl:2,3-8", 'Group "g" has no task', 'task "NAME"'),
    "oneline": refused("oneline.hcl:4,27-28", "Single-line block syntax", "multi-line block"),
    "cron": refused('"61 * * * *"', "'61' in the minute field", "0-59"),
    "undeclared_var": refused("undeclared_var.hcl:12,16-24", "nothere", 'variable "nothere" {}'),
    "driver_docker": unplaced("no podman socket", "systemctl enable --now podman.socket"),
    "constraint": unplaced("${attr.kernel.name} = windows", "has linux"),
    "constraint_attr": unplaced('no node has the attribute "cpu.archh"', '"cpu.arch"?'),
    "dc": unplaced("no node is in datacenter eu-1: the nodes are in dc1"),
    "memory": unplaced("asks for 999999 MiB of memory", "the largest node has "),
    "command": failing(("no program /usr/bin/nonesuch",), "1 failed", "could not be found"),
    "artifact": failing((), "http://127.0.0.1:21999/none.tgz", "Connection refused"),
    "user": failing(('no user "nosuch"',), "1 failed", "unknown user nosuch"),
}
# Terms of other programs, which must not occur in Steward's texts.
FOREIGN = ("<nil>", "error occurred", "sub-exception", "(status 500)", "Traceback", "[Errno")


def test_every_file_has_an_expected_message() -> None:
    assert MISTAKES.keys() == {path.stem for path in FILES.glob("*.hcl")}


async def faults(steward: Steward, name: str, verb: str, told: Told) -> list[str]:
    """Return the faults in the first screen of a command about a file, compared with `told`."""
    done = await steward.cli(verb, str(FILES / f"{name}.hcl"))
    lines = (done.stderr + done.stdout).decode().splitlines()
    screen = "\n".join(lines[:SCREEN])
    missing = [part for part in told.parts if part not in screen]
    foreign = [word for word in FOREIGN if word in screen]
    if done.returncode == told.status and not missing and not foreign:
        return []
    about = f"{verb} {name}: status {done.returncode}, missing {missing}, foreign {foreign}"
    return [f"{about}\n{screen}"]


async def test_first_screen_names_the_cause_of_each_mistake(steward: Steward) -> None:
    found: list[str] = []
    limit = trio.CapacityLimiter(AT_ONCE)

    async def look(name: str, verb: str, told: Told) -> None:
        async with limit:
            found.extend(await faults(steward, name, verb, told))

    async with trio.open_nursery() as nursery:
        for name, commands in MISTAKES.items():
            for verb, told in commands.items():
                nursery.start_soon(look, name, verb, told)
    assert found == []


@pytest.mark.parametrize("name", ["artifact", "constraint"])
async def test_explain_names_the_cause_later(steward: Steward, name: str) -> None:
    ran = await steward.cli("run", str(FILES / f"{name}.hcl"))
    assert ran.returncode in (1, 2)
    job = {"artifact": "art", "constraint": "cons"}[name]
    shown = (await steward.cli("job", "explain", job)).stdout.decode()
    cause = {"artifact": "http://127.0.0.1:21999/none.tgz", "constraint": "kernel.name"}[name]
    assert cause in "\n".join(shown.splitlines()[:SCREEN])
    assert not any(word in shown for word in FOREIGN)


async def test_static_port_in_use_is_reported_at_submission(steward: Steward) -> None:
    port = steward.address.rpartition(":")[2]
    text = (FILES / "command.hcl").read_text()
    network = f'group "g" {{\n network {{\n port "http" {{\n static = {port}\n }}\n }}\n'
    given = text.replace('group "g" {', network).replace("/usr/bin/nonesuch", "/bin/true")
    for verb in ("validate", "plan", "run"):
        done = await steward.cli(verb, "-", stdin=given)
        assert done.stderr.decode().count('port "http" is in use: a program of user') == 1, verb
