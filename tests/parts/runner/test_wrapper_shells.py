"""The wrapper in each shell and with each form of a bundle."""

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from daemon.runner.drivers.slurm import bundle, submission
from daemon.runner.drivers.slurm.commands import SlurmCommands
from storage.records.base import SECOND
from storage.records.task import Template
from storage.store import Store
from tests.fakes.slurm.world import FakeSlurm, fake_slurm
from tests.parts.runner.pool import PoolWorld, open_pool, settings
from tests.parts.runner.world import batch, script

# Programs that a wrapper and the tasks of these tests use, apart from `bash`.
_PROGRAMS = (
    *("cat", "chmod", "curl", "dd", "du", "env", "find", "gzip", "head", "id", "ls", "mkdir"),
    *("mkfifo", "mv", "printf", "readlink", "rm", "seq", "setsid", "sh", "sleep", "stat", "tail"),
    *("tar", "uname", "wc"),
)
_MARKED = ("curl", "tar")  # programs that log their calls
_BUSYBOX, _MKSH = shutil.which("busybox"), shutil.which("mksh")
# The first line of the wrapper, and whether its host also has bash.
_SHELLS = {
    "sh": ("#!/bin/sh", False),
    "sh and bash": ("#!/bin/sh", True),
    "bash as sh": ("#!/bin/bash --posix", True),
    **({"busybox": (f"#!{_BUSYBOX} sh", False)} if _BUSYBOX else {}),
    **({"mksh": (f"#!{_MKSH}", False)} if _MKSH else {}),
}
_SPEAKING = ("sh and bash", "bash as sh")  # shells that need no curl
_BARE = ("mksh",)  # shells that get only archives, because `printf` is a program


def programs(directory: Path, *, has_bash: bool, is_logged: bool = False) -> str:
    """Return a PATH on which hosts find only some programs.

    Calls of `_MARKED`, or of all programs, are logged with their arguments in the file `calls`.
    """
    directory.mkdir()
    for name in (*_PROGRAMS, *(["bash"] * has_bash)):
        found = shutil.which(name, path=submission.PATH)
        assert found is not None, name
        if name in _MARKED or (is_logged and name != "bash"):
            log = f'echo {name} "$*" >>{directory.parent}/calls\n'
            (directory / name).write_text(f'#!/bin/sh\n{log}exec {found} "$@"\n')
            (directory / name).chmod(0o755)
        else:
            (directory / name).symlink_to(found)
    return str(directory)


def calls(directory: Path) -> str:
    """Return the logged calls, one per line."""
    log = directory / "calls"
    return log.read_text() if log.exists() else ""


def use_shell(monkeypatch: pytest.MonkeyPatch, first_line: str) -> None:
    """Run wrappers in a shell."""
    run = SlurmCommands.run

    async def changed(
        self: SlurmCommands, program: str, *words: str, stdin: bytes = b"", **more: Any
    ) -> str:
        stdin = stdin.replace(b"#!/bin/sh", first_line.encode(), 1)
        return await run(self, program, *words, stdin=stdin, **more)

    monkeypatch.setattr(SlurmCommands, "run", changed)


@pytest.fixture(params=_SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run wrappers in each shell; return its name."""
    name: str = request.param
    first_line, has_bash = _SHELLS[name]
    use_shell(monkeypatch, first_line)
    monkeypatch.setattr(submission, "PATH", programs(tmp_path / "bin", has_bash=has_bash))
    return name


@pytest.fixture(params=["script", "archive"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Send bundles in each form; return its name."""
    name: str = request.param
    if name == "archive":
        monkeypatch.setattr(bundle, "_LONGEST_SCRIPT", 0)
    return name


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    with fake_slurm(tmp_path / "slurm") as opened:
        yield opened


@pytest.fixture
async def world(
    store: Store, tmp_path: Path, slurm: FakeSlurm, shell: str
) -> AsyncIterator[PoolWorld]:
    """Open a pool whose wrappers run in a shell."""
    async with open_pool(store, slurm, settings(tmp_path)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("true", ""),
        ("printf 'no newline'", "no newline"),
        (r"printf '\303\244 \000 end\n'", "ä \0 end\n"),
        (r"printf '\000'", "\0"),
        ("seq 1 900", "".join(f"{number}\n" for number in range(1, 901))),
        ("seq 1 60000", "".join(f"{number}\n" for number in range(1, 60001))),
        ("echo begun; sleep 0.6; echo ended", "begun\nended\n"),
    ],
    ids=["nothing", "text", "NUL byte", "only NUL", "4 KiB", "300 KiB", "later"],
)
@pytest.mark.usefixtures("form")
async def test_output_arrives_complete(world: PoolWorld, text: str, output: str) -> None:
    one = await world.place(batch(script(f"{text}; echo err >&2")))
    alloc = await world.until_done(one)
    assert alloc.client_status == "complete"
    assert world.output(one, kind="stderr") == "err\n"
    assert not output or world.output(one) == output


async def test_output_of_a_process_that_outlives_the_task_is_not_awaited(world: PoolWorld) -> None:
    one = await world.place(batch(script("echo text; setsid sleep 30 & exit 3")))
    await world.until_done(one)
    assert world.output(one) == "text\n"
    assert ("Terminated", "Exit Code: 3") in world.told(one)


async def test_variables_and_signals_are_those_of_a_new_session(world: PoolWorld) -> None:
    text = "env; kill -s PIPE $$"
    one = await world.place(batch(script(text, env={"A": "ä 'x'"})))
    await world.until_done(one)
    names = {line.partition("=")[0] for line in world.output(one).splitlines()}
    assert "A=ä 'x'\n" in world.output(one)
    assert not names & {"SHLVL", "OLDPWD", "STEWARD_CLAIM", "STEWARD_MADE", "STEWARD_JOB"}
    assert ("Terminated", "Exit Code: 141, Signal: 13") in world.told(one)


async def test_running_task_can_be_stopped(world: PoolWorld) -> None:
    text = "trap 'echo told; exit 7' INT; echo begun; while :; do sleep 0.05; done"
    one = await world.place(batch(script(text, kill_timeout=60 * SECOND)))
    await world.until_printed(one, "begun")
    await world.stop(one)
    await world.until_done(one)
    assert world.output(one) == "begun\ntold\n"
    assert ("Terminated", "Exit Code: 7") in world.told(one)


async def test_files_have_their_content_and_permissions(world: PoolWorld) -> None:
    template = Template(
        embedded_tmpl="it's ä\n\n", dest_path="local/a b/x", perms="0640", change_mode="noop"
    )
    text = (
        "cat 'local/a b/x'; stat -c '%a %F' 'local/a b/x' ../alloc/data ../alloc/tmp local secrets"
    )
    one = await world.place(batch(script(text, templates=[template])))
    alloc = await world.until_done(one)
    assert alloc.client_status == "complete"
    lines = world.output(one).splitlines()
    assert lines[:2] == ["it's ä", ""]
    assert lines[2] == "640 regular file"
    assert all(line.endswith(" directory") for line in lines[3:])


async def test_script_needs_no_tar_and_bash_needs_no_curl(
    world: PoolWorld, shell: str, form: str, tmp_path: Path
) -> None:
    one = await world.place(batch(script("echo text; sleep 0.5")))
    await world.until_done(one)
    assert world.output(one) == "text\n"
    is_archive = form == "archive" or shell in _BARE
    assert ("tar " in calls(tmp_path)) == is_archive
    assert ("curl " in calls(tmp_path)) == (is_archive or shell not in _SPEAKING)


async def test_executable_file_needs_an_archive(world: PoolWorld, tmp_path: Path) -> None:
    template = Template(
        embedded_tmpl="#!/bin/sh\necho run\n", dest_path="local/x", perms="0755", change_mode="noop"
    )
    one = await world.place(batch(script("exec local/x", templates=[template])))
    await world.until_done(one)
    assert world.output(one) == "run\n"
    assert "tar " in calls(tmp_path)


async def test_secrets_are_no_arguments_of_programs(
    world: PoolWorld, shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logging").mkdir()
    path = programs(tmp_path / "logging" / "bin", has_bash=_SHELLS[shell][1], is_logged=True)
    monkeypatch.setattr(submission, "PATH", path)
    template = Template(embedded_tmpl="hidden", dest_path="secrets/x", change_mode="noop")
    text = "cat secrets/x; sleep 0.5"
    one = await world.place(batch(script(text, templates=[template], env={"KEY": "hidden"})))
    await world.until_done(one)
    assert world.output(one) == "hidden"
    logged = calls(tmp_path / "logging")
    assert "setsid " in logged
    assert "hidden" not in logged
    assert not re.search("[0-9a-f]{64}", logged)  # the random part of a claim or secret


async def test_exit_status_does_not_depend_on_the_removal_of_the_directory(
    world: PoolWorld, slurm: FakeSlurm, tmp_path: Path
) -> None:
    remover = tmp_path / "bin" / "rm"
    remover.unlink()
    remover.write_text('#!/bin/sh\n/bin/rm "$@"\n[ "$1" != -rf ]\n')
    remover.chmod(0o755)
    one = await world.place(batch(script("exit 0")))
    await world.until_done(one)
    # No event reports the end of the job in the cluster.
    while (job := slurm.jobs()[0])["state"] in ("RUNNING", "COMPLETING"):  # noqa: ASYNC110
        await trio.sleep(0.01)
    assert job["state"] == "COMPLETED"
