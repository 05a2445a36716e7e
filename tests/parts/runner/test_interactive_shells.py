"""Interactive shells on a terminal: job control, signals, size and exit status.

Every test runs with `raw_exec`, and in the sandbox of `exec` with and without a system call filter.
"""

import re
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from daemon.launcher.client import Launcher
from daemon.runner.core.driver import Driver
from daemon.runner.drivers import cgroup_v2
from daemon.runner.drivers.exec import ExecDriver
from daemon.runner.drivers.process_group import ProcessGroups
from daemon.runner.drivers.process_scan import ProcessScanner
from daemon.runner.drivers.raw_exec import RawExecDriver
from storage.store import Store
from tests.parts.runner.conftest import discard, end_all_of
from tests.parts.runner.test_exec_sessions import Client, talking
from tests.parts.runner.world import World, open_world, script, service, until_gone

WITHIN = 30  # seconds
LINGER = "exec sleep 600"
BASH = ["/bin/bash", "--norc", "--noprofile", "-i"]
SHELLS = [["/bin/sh", "-i"], *([BASH] if shutil.which("bash") else [])]
ERRORS = ("cannot set", "no job control", "turned off", "ioctl", "access tty", "process group")


@pytest.fixture(params=["raw_exec", "exec", "exec without a filter"])
async def started(
    store: Store,
    data_dir: Path,
    launcher: Launcher,
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[World, str]]:
    """A node with the driver, and an allocation whose task runs."""
    groups: ProcessGroups = cgroup_v2.find(data_dir) or ProcessScanner()
    config: dict[str, object] = {"command": "/bin/sh", "args": ["-c", f"echo up; {LINGER}"]}
    if request.param == "raw_exec":
        drivers: dict[str, Driver] = {"raw_exec": RawExecDriver(groups, {}, launcher)}
    else:
        driver = ExecDriver(groups, {}, launcher, unfiltered=True)
        if trouble := driver.fingerprint().trouble:
            pytest.skip(f"exec: {trouble}")
        drivers = {"exec": driver}
        if request.param != "exec":
            config |= {"seccomp": "off"}
    async with open_world(store, data_dir, drivers=drivers) as world:
        alloc_id = await world.place(
            service(script("", driver=request.param.split()[0], config=config))
        )
        await world.until_printed(alloc_id, "up")
        yield world, alloc_id
    end_all_of(data_dir)
    discard(data_dir)


@asynccontextmanager
async def session(started: tuple[World, str], command: Sequence[str]) -> AsyncIterator[Client]:
    """Run a command on a terminal during the block, and then until the command ends."""
    client = Client()
    with trio.move_on_after(WITHIN) as limit:
        async with talking(*started, command, client, tty=True):
            yield client
    assert not limit.cancelled_caught, repr(client.seen())


def result(client: Client) -> int:
    return int(client.others[-1]["result"].get("exit_code", 0))


@pytest.fixture(params=SHELLS, ids=lambda shell: str(shell[0]))
def shell(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


@pytest.mark.parametrize("status", [0, 3])
async def test_status_of_a_shell_is_the_status_of_its_exit(
    started: tuple[World, str], shell: list[str], status: int
) -> None:
    async with session(started, shell) as client:
        client.type("echo rea''dy\n")
        await client.until_seen("ready")
        client.type(f"exit {status}\n")
    assert result(client) == status, client.seen()
    assert not [text for text in ERRORS if text in client.seen()], client.seen()


async def test_a_shell_that_reads_the_end_of_input_has_the_last_status(
    started: tuple[World, str], shell: list[str]
) -> None:
    async with session(started, shell) as client:
        # Bash loses an end of input that arrives before the prompt.
        client.type("PS1=pro''mpt; (exit 7)\n")
        await client.until_seen("prompt")
        client.end_input()
    assert result(client) == 7, client.seen()


async def test_jobs_are_stopped_and_continued(started: tuple[World, str], shell: list[str]) -> None:
    async with session(started, shell) as client:
        client.type("sh -c 'echo begi''ns; kill -STOP $$; echo go''es on; exit 9'\n")
        await client.until_seen("begins")
        client.type("echo stat''us $?\n")
        await client.until_seen(f"status {128 + signal.SIGSTOP}")
        client.type("jobs; fg\n")
        await client.until_seen("goes on")
        client.type("echo en''ded $?\n")
        await client.until_seen("ended 9")
        client.type("exit 4\n")
    assert re.search(r"Stopped", client.seen()), client.seen()
    assert result(client) == 4, client.seen()


async def test_a_typed_stop_stops_the_job_and_not_the_shell(
    started: tuple[World, str], shell: list[str]
) -> None:
    async with session(started, shell) as client:
        client.type("sh -c 'echo begi''ns; exec sleep 600'\n")
        await client.until_seen("begins")
        client.type("\x1a")
        client.type("echo stat''us $?\n")
        await client.until_seen(f"status {128 + signal.SIGTSTP}")
        # A shell refuses to exit once if a job is stopped.
        client.type("kill -9 %1; fg; exit 6\n")
    assert result(client) == 6, client.seen()


async def test_ctrl_c_ends_the_foreground_job_and_not_the_shell(
    started: tuple[World, str], shell: list[str]
) -> None:
    async with session(started, shell) as client:
        client.type("sh -c 'echo begi''ns; exec sleep 600'\n")
        await client.until_seen("begins")
        client.type("\x03")
        client.type("echo stat''us $?\n")
        await client.until_seen(f"status {128 + signal.SIGINT}")
        client.type("exit 5\n")
    assert result(client) == 5, client.seen()


async def test_ctrl_c_ends_a_command_without_a_shell(started: tuple[World, str]) -> None:
    command = ["/bin/sh", "-c", "echo ready; exec sleep 600"]
    async with session(started, command) as client:
        await client.until_seen("ready")
        client.type("\x03")
    assert result(client) == 128 + signal.SIGINT


async def test_ctrl_c_reaches_the_handler_of_a_command(started: tuple[World, str]) -> None:
    text = "trap 'echo caught; exit 8' INT; echo ready; while :; do sleep 0.05; done"
    async with session(started, ["/bin/sh", "-c", text]) as client:
        await client.until_seen("ready")
        client.type("\x03")
    assert "caught" in client.seen()
    assert result(client) == 8


async def test_a_new_size_reaches_the_foreground_job(
    started: tuple[World, str], shell: list[str]
) -> None:
    text = 'trap "stty size; exit" WINCH; echo rea""dy; while :; do sleep 0.05; done'
    async with session(started, shell) as client:
        client.type(f"sh -c '{text}'\n")
        await client.until_seen("ready\r")
        client.say({"tty_size": {"height": 41, "width": 103}})
        await client.until_seen("41 103")
        client.type("exit 2\n")
    assert result(client) == 2, client.seen()


async def test_the_command_leads_its_session_and_has_the_terminal(
    started: tuple[World, str],
) -> None:
    text = "read -r pid name state parent group session tty foreground rest </proc/$$/stat; "
    text += 'echo "ids $pid $group $session $foreground"; : </dev/tty && echo opened'
    async with session(started, ["/bin/sh", "-c", text]) as client:
        pass
    match = re.search(r"ids (\d+) (\d+) (\d+) (\d+)", client.seen())
    assert match is not None, client.seen()
    assert len(set(match.groups())) == 1, client.seen()
    assert "opened" in client.seen()


async def test_no_process_remains_if_the_client_leaves_a_shell_that_ignores_signals(
    started: tuple[World, str], shell: list[str]
) -> None:
    world, alloc_id = started
    before = set((await world.runner.usage(alloc_id)).tasks["main"].pids)
    async with session(started, shell) as client:
        client.type("trap '' HUP TERM INT; echo rea''dy\n")
        await client.until_seen("ready")
        during = set((await world.runner.usage(alloc_id)).tasks["main"].pids)
        client.leave()
    assert during > before
    for pid in during - before:
        await until_gone(int(pid))
