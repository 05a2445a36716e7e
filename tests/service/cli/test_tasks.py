"""The command line and running tasks: exec, actions, files, restarts, signals."""

import json
import os
import pty
import signal
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from storage.records.base import SECOND
from tests import forks
from tests.forks import Forked, environment
from tests.parts.runner.world import until_gone
from tests.service.daemon import Steward
from tests.time_limits import HAPPENS_WITHIN

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
TEXT = "echo one >$NOMAD_TASK_DIR/f; echo two >>$NOMAD_TASK_DIR/f; exec sleep 600"


def lingering(job_id: str = "linger", driver: str = "raw_exec") -> Any:
    task = {
        "Name": "main",
        "Driver": driver,
        "Config": {"command": "/bin/sh", "args": ["-c", TEXT]},
        "KillTimeout": SECOND,
        "Actions": [{"Name": "say", "Command": "/bin/echo", "Args": ["hello", "there"]}],
    }
    return {"ID": job_id, "TaskGroups": [{"Name": "web", "Tasks": [task]}]}


@pytest.fixture
async def alloc_id(steward: Steward) -> str:
    (found,) = await steward.run_job(lingering())
    return str(found["ID"])


@asynccontextmanager
async def at_a_terminal(steward: Steward, *words: str) -> AsyncIterator[tuple[int, Forked]]:
    """Run a command in a terminal; yield the terminal's other end, and the process."""
    master, slave = pty.openpty()
    process = await forks.open_process(
        words,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(STEWARD_ADDR=steward.address),
        own_session=True,
    )
    os.close(slave)
    try:
        with trio.fail_after(HAPPENS_WITHIN):
            yield master, process
    finally:
        await process.aclose()
        os.close(master)


async def until_shown(master: int, text: str) -> str:
    """Return the content of a terminal, as soon as it contains a string."""
    shown = ""
    while text not in shown:
        await trio.lowlevel.wait_readable(master)
        shown += os.read(master, 65536).decode()
    return shown


async def test_exec_command_behaves_like_a_local_command(steward: Steward, alloc_id: str) -> None:
    script = "cat; echo oh >&2; exit 5"
    done = await steward.cli("alloc", "exec", alloc_id[:8], "sh", "-c", script, stdin="in")
    assert (done.stdout, done.stderr, done.returncode) == (b"in", b"oh\n", 5)


async def test_command_that_cannot_run_is_reported(steward: Steward, alloc_id: str) -> None:
    done = await steward.cli("exec", alloc_id, "/no/such")
    assert b"no such file or directory" in done.stderr
    assert done.returncode == 1


async def test_an_action_of_a_job_is_run(steward: Steward, alloc_id: str) -> None:
    done = await steward.cli("job", "action", "-job", "linger", "say")
    assert (done.stdout, done.returncode) == (b"hello there\n", 0)
    unknown = await steward.cli("job", "action", "-alloc", alloc_id, "nope")
    assert b"action nope not found in task main" in unknown.stderr


async def test_a_terminal_reaches_the_command(steward: Steward, alloc_id: str) -> None:
    async with at_a_terminal(steward, "alloc", "exec", alloc_id, "sh") as (master, process):
        os.write(master, b"tty; echo $((40 + 2))\n")
        shown = await until_shown(master, "42")
        assert "/dev/pts/" in shown
        os.write(master, b"trap 'exit 3' INT; echo re''ady; while :; do sleep 0.1; done\n")
        await until_shown(master, "ready")
        os.write(master, b"\x03")
        assert await process.wait() == 3


async def test_a_shell_in_a_sandbox_has_job_control(steward: Steward) -> None:
    (node,) = await steward.get("/v1/nodes")
    if not node["Drivers"]["exec"]["Healthy"]:
        pytest.skip(node["Drivers"]["exec"]["HealthDescription"])
    (alloc,) = await steward.run_job(lingering(driver="exec"))
    job = b"sh -c 'echo begi''ns; exec sleep 600'\n"
    async with at_a_terminal(steward, "alloc", "exec", alloc["ID"], "sh", "-i") as (master, shell):
        os.write(master, b"echo rea''dy\n")
        shown = await until_shown(master, "ready\r")
        for key, status in ((b"\x03", 128 + signal.SIGINT), (b"\x1a", 128 + signal.SIGTSTP)):
            os.write(master, job)
            shown += await until_shown(master, "begins")
            os.write(master, key)
            os.write(master, b"echo stat''us $?\n")
            shown += await until_shown(master, f"status {status}")
        os.write(master, b"kill -9 %1; fg; exit 6\n")
        assert await shell.wait() == 6
    assert "tty" not in shown, shown
    assert "job control" not in shown, shown


async def test_exec_through_the_socket_of_the_operators(steward: Steward, alloc_id: str) -> None:
    address = f"unix://{steward.data_dir}/steward.sock"
    words = ("alloc", "exec", "--address", address, alloc_id, "sh", "-c", "cat; exit 3")
    done = await steward.cli(*words, stdin="in")
    assert (done.stdout, done.returncode) == (b"in", 3), done.stderr


async def test_exec_ends_with_a_command_that_leaves_input_unread(
    steward: Steward, alloc_id: str
) -> None:
    words = ("alloc", "exec", alloc_id, "sh", "-c", "head -c 2; exit 5")
    done = await steward.cli(*words, stdin="in" * 4_000_000)
    assert (done.stdout, done.returncode) == (b"in", 5), done.stderr


async def test_exec_session_can_be_left(steward: Steward, alloc_id: str) -> None:
    async with at_a_terminal(steward, "alloc", "exec", alloc_id, "cat") as (master, process):
        before = termios.tcgetattr(master)
        os.write(master, b"hello\n")
        await until_shown(master, "hello\r\nhello")
        assert termios.tcgetattr(master) != before
        os.write(master, b"~.")
        assert await process.wait() == 0
        assert termios.tcgetattr(master) == before


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_aborted_exec_session_restores_the_terminal(
    steward: Steward, alloc_id: str, number: int, status: int
) -> None:
    async with at_a_terminal(steward, "alloc", "exec", alloc_id, "cat") as (master, process):
        before = termios.tcgetattr(master)
        os.write(master, b"hello\n")
        await until_shown(master, "hello\r\nhello")
        process.send_signal(number)
        assert await process.wait() == status
        assert termios.tcgetattr(master) == before


async def test_interrupted_display_restores_the_terminal(
    steward: Steward, alloc_id: str, tmp_path: Path
) -> None:
    file = tmp_path / "more.json"
    file.write_text(json.dumps({**lingering("more"), "Type": "batch"}))
    async with at_a_terminal(steward, "job", "run", str(file)) as (master, process):
        before = termios.tcgetattr(master)
        shown = await until_shown(master, "running")
        assert HIDE_CURSOR in shown
        process.send_signal(signal.SIGINT)
        await until_shown(master, SHOW_CURSOR)
        assert await process.wait() == 130
        assert termios.tcgetattr(master) == before


async def test_files_are_listed_and_printed(steward: Steward, alloc_id: str) -> None:
    listed = await steward.cli("alloc", "fs", alloc_id, "main")
    assert b"local/" in listed.stdout
    printed = await steward.cli("alloc", "fs", alloc_id, "main/local/f")
    assert printed.stdout == b"one\ntwo\n"
    end = await steward.cli("alloc", "fs", "-n", "1", alloc_id, "main/local/f")
    assert end.stdout == b"two\n"
    described = await steward.cli("alloc", "fs", "-stat", "-json", alloc_id, "main/local/f")
    assert json.loads(described.stdout)["Size"] == 8
    missing = await steward.cli("alloc", "fs", alloc_id, "nope")
    assert b"no such file or directory" in missing.stderr


async def test_a_task_is_restarted_and_sent_a_signal(steward: Steward, alloc_id: str) -> None:
    path = f"/v1/allocation/{alloc_id}"
    done = await steward.cli("alloc", "restart", alloc_id)
    assert done.returncode == 0, done.stderr
    await steward.until(path, lambda alloc: alloc["TaskStates"]["main"]["Restarts"] == 1)
    wrong = await steward.cli("alloc", "signal", "-s", "SIGTERM", alloc_id, "nope")
    assert b"no task 'nope'" in wrong.stderr
    await steward.until(path, lambda alloc: alloc["TaskStates"]["main"]["State"] == "running")
    done = await steward.cli("alloc", "signal", "-s", "SIGTERM", alloc_id, "main")
    assert done.returncode == 0, done.stderr
    shown = await steward.until(path, lambda item: "Terminated" in _types(item)[-3:])
    assert "Signaling" in _types(shown)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("FOO", "there is no signal 'FOO': use a name such as SIGTERM"),
        ("SIGHUPP", "there is no signal 'SIGHUPP': did you mean SIGHUP?"),
        ("9", "there is no signal '9': did you mean SIGKILL?"),
    ],
)
async def test_an_unknown_signal_is_not_sent(
    steward: Steward, alloc_id: str, name: str, told: str
) -> None:
    done = await steward.cli("alloc", "signal", "-s", name, alloc_id)
    assert (done.returncode, done.stderr.decode()) == (1, f"steward: {told}\n")
    assert "Signaling" not in _types(await steward.get(f"/v1/allocation/{alloc_id}"))


async def test_the_warning_in_a_header_is_printed(steward: Steward, alloc_id: str) -> None:
    path = f"/v1/client/allocation/{alloc_id}/signal"
    done = await steward.cli("operator", "api", "-d", '{"Signal": "SIGCONT", "Tsk": "x"}', path)
    assert done.returncode == 0
    assert done.stderr.decode() == 'warning: unknown field "Tsk" is ignored\n'


async def test_logs_of_an_unknown_task_are_an_error(steward: Steward, alloc_id: str) -> None:
    del alloc_id
    for words in (("logs", "linger", "nope"), ("job", "logs", "-f", "-task", "nope", "linger")):
        done = await steward.cli(*words)
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr == b"steward: the job has no task 'nope'; its tasks are main\n"


def _types(allocation: Any) -> list[str]:
    return [event["Type"] for event in allocation["TaskStates"]["main"]["Events"]]


async def test_a_stopped_allocation_is_replaced(steward: Steward, alloc_id: str) -> None:
    done = await steward.cli("alloc", "stop", alloc_id)
    assert done.returncode == 0, done.stderr
    found = await steward.get("/v1/job/linger/allocations")
    assert len(found) == 2


async def test_an_interrupt_ends_the_command(steward: Steward, alloc_id: str) -> None:
    process = await forks.open_process(
        ["exec", alloc_id, "sh", "-c", "echo $$; exec sleep 600"],
        stdin=forks.PIPE,
        stdout=forks.PIPE,
        env=environment(STEWARD_ADDR=steward.address),
    )
    assert process.stdout is not None
    assert process.stdin is not None
    async with process.stdout, process.stdin:
        pid = int(await process.stdout.receive_some())
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
    with trio.fail_after(HAPPENS_WITHIN):
        await until_gone(pid)


async def test_services_are_listed_shown_and_deregistered(steward: Steward) -> None:
    job = lingering("shop")
    offered = {"Name": "web", "Provider": "nomad", "Address": "::1", "PortLabel": "8080"}
    job["TaskGroups"][0]["Services"] = [{**offered, "Tags": ["green", "fast"]}]
    assert b"No services" in (await steward.cli("service", "list")).stdout
    await steward.run_job(job)
    listed = await steward.cli("service", "list")
    assert listed.stdout.splitlines()[-1].split() == [b"web", b"default", b"green,fast"]
    (instance,) = json.loads((await steward.cli("service", "info", "-json", "web")).stdout)
    shown = (await steward.cli("service", "info", "web")).stdout.decode().splitlines()[-1]
    assert shown.split()[:3] == ["shop", "[::1]:8080", "green,fast"]
    assert instance["ID"] in shown
    hidden = await steward.cli("service", "info", "-filter", '"red" in Tags', "web")
    assert b'no instance of the service "web" is registered' in hidden.stderr
    done = await steward.cli("service", "delete", "web", instance["ID"])
    assert done.returncode == 0
    assert b"No services" in (await steward.cli("service", "list")).stdout
