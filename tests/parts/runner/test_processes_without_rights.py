"""A daemon without permissions for its tasks starts, limits, measures, recovers and kills them."""

import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from daemon.config.data_directory import alloc_dir
from daemon.launcher.client import Launcher
from daemon.launcher.messages import AllocDirLayout, TaskDirLayout
from daemon.runner.core.driver import Attempt, ExitResult, TaskHandle
from daemon.runner.drivers.process_scan import ProcessScanner
from daemon.runner.drivers.raw_exec import RawExecDriver
from daemon.runner.task_containment import TaskCgroups
from storage.records.task import Resources
from tests.parts.launcher.conftest import ALLOCATION
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.test_limits import MULTIPLY, TAKE_MEMORY
from tests.parts.runner.world import alive
from tests.unprivileged import SKIPPED, Work, run

SMALL = Resources(memory_mb=32)
_NEW_MOUNTS, _ALONE = 0x20000, 0x44000  # linux/sched.h, linux/mount.h: recursive and private
MOST = 20  # processes of a task
# Ignores all initial signals of the daemon, with a child in a separate session.
STUBBORN = "trap '' INT TERM; setsid sleep 600 & while :; do sleep 600 & wait $!; done"


def driver_of(launcher: Launcher, holding: TaskCgroups, *, scans: bool = False) -> RawExecDriver:
    groups = ProcessScanner() if scans else holding.groups
    if isinstance(groups, ProcessScanner) is not scans:
        pytest.skip("this host permits no new control groups")
    return RawExecDriver(groups, {}, launcher, holding.bounds, MOST)


async def attempt(launcher: Launcher, data_dir: Path, text: str, number: int = 0) -> Attempt:
    """Return an attempt at a script, in the allocation whose directories the first call creates."""
    if not number:
        rooms = [TaskDirLayout(task="main", driver="raw_exec", user="daemon", is_seen=True)]
        assert await launcher.lay_out(ALLOCATION, AllocDirLayout(rooms=rooms, about=b"{}")) == {}
    directory = f"{alloc_dir(data_dir)}/{ALLOCATION}"
    return Attempt(
        alloc_id=ALLOCATION,
        task="main",
        number=number,
        directory=directory,
        config={"command": "/bin/sh", "args": ["-c", text], "work_dir": "/"},
        env={
            "NOMAD_ALLOC_ID": ALLOCATION,
            "NOMAD_TASK_NAME": "main",
            "NOMAD_ALLOC_DIR": f"{directory}/alloc",
            "PATH": "/usr/bin:/bin",
        },
        resources=SMALL,
    )


@asynccontextmanager
async def watched(running: TaskHandle) -> AsyncIterator[list[ExitResult]]:
    """Yield a list that gets the exit of the task; at the end of the block, wait for the task."""
    ends: list[ExitResult] = []

    async def wait() -> None:
        ends.append(await running.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        yield ends


async def until_many(running: TaskHandle, least: int) -> list[int]:
    """Return the processes of a task as soon as there are this many."""
    while len(found := (await running.usage()).processes) < least:  # noqa: ASYNC110  # nobody rings
        await trio.sleep(0.01)
    return [*found]


async def until_alone(running: TaskHandle) -> int:
    """Return the main process of a task, when no other process of its start is left."""
    while len(found := await until_many(running, 1)) > 1:  # noqa: ASYNC110  # nobody rings
        await trio.sleep(0.01)
    return found[0]


def are_gone(pids: list[int]) -> bool:
    return not any(map(alive, pids))


async def _ends_by_a_signal(
    launcher: Launcher, data_dir: Path, holding: TaskCgroups, *, scans: bool
) -> None:
    driver = driver_of(launcher, holding, scans=scans)
    running = await driver.start(await attempt(launcher, data_dir, "exec sleep 600"))
    pid = await until_alone(running)
    with pytest.raises(PermissionError):
        os.kill(pid, signal.SIGTERM)
    async with watched(running) as ends:
        await running.signal("SIGTERM")
    assert [(exit_result.signal, exit_result.code) for exit_result in ends] == [
        (signal.SIGTERM, 143)
    ]
    assert are_gone([pid])


async def ends_by_a_signal(launcher: Launcher, data_dir: Path, holding: TaskCgroups) -> None:
    await _ends_by_a_signal(launcher, data_dir, holding, scans=False)


async def ends_by_a_signal_without_groups(
    launcher: Launcher, data_dir: Path, holding: TaskCgroups
) -> None:
    await _ends_by_a_signal(launcher, data_dir, holding, scans=True)


ends_by_a_signal_without_groups.scans = True  # find the processes by a scan


async def _is_killed_with_all_it_started(
    launcher: Launcher, data_dir: Path, holding: TaskCgroups, *, scans: bool
) -> None:
    driver = driver_of(launcher, holding, scans=scans)
    running = await driver.start(await attempt(launcher, data_dir, STUBBORN))
    pids = await until_many(running, 3)
    await running.pause()
    await running.resume()
    async with watched(running) as ends:
        assert await running.stop("SIGTERM", 0.2) == ""
    assert ends[0].signal == signal.SIGKILL
    assert are_gone(pids)
    # Its groups were removed with it, so the next attempt creates them again.
    again = await driver.start(await attempt(launcher, data_dir, "exit 3", 1))
    assert (await again.wait()).code == 3


async def is_killed_with_all_it_started(
    launcher: Launcher, data_dir: Path, holding: TaskCgroups
) -> None:
    await _is_killed_with_all_it_started(launcher, data_dir, holding, scans=False)


async def is_killed_with_all_it_started_without_groups(
    launcher: Launcher, data_dir: Path, holding: TaskCgroups
) -> None:
    await _is_killed_with_all_it_started(launcher, data_dir, holding, scans=True)


is_killed_with_all_it_started_without_groups.scans = True  # find the processes by a scan


async def is_found_again(launcher: Launcher, data_dir: Path, holding: TaskCgroups) -> None:
    driver = driver_of(launcher, holding)
    given = await attempt(launcher, data_dir, "exec sleep 600")
    assert await driver.adopt(given, b"") is None
    running = await driver.start(given)
    pid = await until_alone(running)
    running.release()
    again = await driver_of(launcher, holding).start(given)  # a second start finds the running task
    assert await until_many(again, 1) == [pid]
    again.release()
    adopted = await driver_of(launcher, holding).adopt(given, b"")
    assert adopted is not None
    async with watched(adopted) as ends:
        await adopted.stop("SIGINT", 60)
    assert ends[0].signal == signal.SIGINT
    ended = await driver_of(launcher, holding).adopt(given, b"")
    assert ended is not None
    assert (await ended.wait()).signal == signal.SIGINT


def hide_processes() -> None:
    """Enter a mount namespace in which users see only their own processes; or skip the test."""
    library = ctypes.CDLL(None, use_errno=True)
    if (
        library.unshare(_NEW_MOUNTS)
        or library.mount(b"none", b"/", None, _ALONE, None)
        or library.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=invisible")
    ):
        sys.stderr.write(f"no such mount here: {os.strerror(ctypes.get_errno())}")
        sys.exit(SKIPPED)


async def is_looked_at_where_processes_are_hidden(
    launcher: Launcher, data_dir: Path, holding: TaskCgroups
) -> None:
    running = await driver_of(launcher, holding).start(
        await attempt(launcher, data_dir, "exec sleep 600")
    )
    pid = await until_alone(running)
    assert str(pid) not in os.listdir("/proc")
    assert (await running.usage()).processes[pid].rss > 0
    async with watched(running) as ends:
        await running.stop("SIGTERM", 60)
    assert ends[0].signal == signal.SIGTERM


is_looked_at_where_processes_are_hidden.before = hide_processes  # called as root


async def is_destroyed_by_its_claims(
    launcher: Launcher, data_dir: Path, holding: TaskCgroups
) -> None:
    driver = driver_of(launcher, holding)
    given = await attempt(launcher, data_dir, STUBBORN)
    running = await driver.start(given)
    pids = await until_many(running, 3)
    running.release()
    await driver_of(launcher, holding).destroy(ALLOCATION, given.directory)
    assert are_gone(pids)


async def is_held_to_its_memory(launcher: Launcher, data_dir: Path, holding: TaskCgroups) -> None:
    if not holding.bounds.held["memory"].startswith("cgroup"):
        pytest.skip("no control group limits the memory of tasks here")
    running = await driver_of(launcher, holding).start(
        await attempt(launcher, data_dir, TAKE_MEMORY)
    )
    assert (await running.wait()).oom_killed


async def is_held_to_its_processes(
    launcher: Launcher, data_dir: Path, holding: TaskCgroups
) -> None:
    if "processes" not in holding.bounds.held:
        pytest.skip("no control group limits the processes of tasks here")
    running = await driver_of(launcher, holding).start(await attempt(launcher, data_dir, MULTIPLY))
    end = await running.wait()
    assert end.code
    assert not end.oom_killed


async def has_no_more_than_the_group_above(
    launcher: Launcher, data_dir: Path, holding: TaskCgroups
) -> None:
    """The daemon creates groups and adds processes, but their common limits belong to root."""
    for place in holding.above:
        can = {name for name in os.listdir(place) if os.access(place / name, os.W_OK)}
        files = {name for name in can if (place / name).is_file()}
        assert files <= {"cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "tasks"}
        with pytest.raises(PermissionError):
            (place.parent / "mine").mkdir()


@needs_root
@pytest.mark.parametrize(
    "work",
    [
        ends_by_a_signal,
        ends_by_a_signal_without_groups,
        is_killed_with_all_it_started,
        is_killed_with_all_it_started_without_groups,
        is_found_again,
        is_looked_at_where_processes_are_hidden,
        is_destroyed_by_its_claims,
        is_held_to_its_memory,
        is_held_to_its_processes,
        has_no_more_than_the_group_above,
    ],
)
def test_tasks_run_under_an_unprivileged_daemon(work: Work) -> None:
    run(work)
