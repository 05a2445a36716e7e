"""Tasks outlive the daemon, no matter when it is killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
import trio

from daemon.config.data_directory import alloc_dir
from daemon.launcher.client import Launcher
from daemon.runner import node
from daemon.runner.core.driver import Attempt, TaskHandle
from daemon.runner.core.task_dir import CLAIM
from daemon.runner.drivers import cgroup_v2
from daemon.runner.drivers.process_scan import ProcessScanner
from daemon.runner.drivers.raw_exec import RawExecDriver
from storage.queries import nodes
from storage.store import open_store
from tests import claim_files, launchers
from tests.parts.runner.conftest import unmount_all_below
from tests.parts.runner.killable_node import alloc_id_in
from tests.parts.runner.world import (
    Pipe,
    World,
    alive,
    batch,
    kill_quietly,
    open_world,
    place_job,
    purge_job,
    script,
    service,
    state_of,
    until_gone,
)
from tests.samples import NOW

ROOT = Path(__file__).parents[3]


@contextmanager
def daemon(data_dir: Path, point: str, text: str) -> Iterator[subprocess.Popen[str]]:
    """Run a daemon in a separate process; it is dead at the end of the block."""
    command = [sys.executable, "-m", "tests.parts.runner.killable_node", str(data_dir), point, text]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@asynccontextmanager
async def reopened(data_dir: Path, **settings: object) -> AsyncIterator[World]:
    """Open a node on the data of an earlier daemon."""
    async with (
        open_store(data_dir, cluster_id="cluster", now=NOW) as store,
        open_world(store, data_dir, **settings) as world,
    ):
        yield world


def told_running(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"


def attempts(data_dir: Path) -> list[str]:
    """Return the lines that each start of the task has written."""
    return (data_dir / "starts").read_text().splitlines()


def counted(data_dir: Path, text: str) -> str:
    """Return a script that writes down its pid at each start."""
    return f"echo $$ >>{data_dir}/starts; {text}"


@pytest.mark.parametrize("point", ["recorded", "unrecorded"])
async def test_running_task_is_recovered_with_the_same_pid(
    data_dir: Path, pipe: Pipe, point: str
) -> None:
    alloc_id = alloc_id_in(data_dir)
    text = counted(data_dir, f"echo $$ >{pipe.path}; exec sleep 600")
    with daemon(data_dir, point, text):
        pid = int(await pipe.line())
    async with reopened(data_dir) as world:
        alloc = await world.until_status(alloc_id, "running")
        assert (alloc.client.task_states or {})["main"].restarts == 0
        assert alive(pid)
        await world.stop(alloc_id)
        await world.until_done(alloc_id)
        assert world.types(alloc_id)[-3:] == ["Killing", "Terminated", "Killed"]
    assert not alive(pid)
    assert attempts(data_dir) == [str(pid)]


@pytest.mark.parametrize("point", ["recorded", "unrecorded"])
async def test_task_that_ended_without_the_daemon_has_its_real_exit_code(
    data_dir: Path, pipe: Pipe, point: str
) -> None:
    alloc_id = alloc_id_in(data_dir)
    go = Pipe(data_dir / "go")
    text = counted(data_dir, f"echo $$ >{pipe.path}; read x <{go.path}; exit 7")
    with daemon(data_dir, point, text):
        pid = int(await pipe.line())
    (data_dir / "go").write_text("go\n")
    await until_gone(pid)
    async with reopened(data_dir) as world:
        await world.until(alloc_id, lambda _: "Restarting" in world.types(alloc_id))
        assert world.types(alloc_id)[2:5] == ["Started", "Terminated", "Restarting"]
        assert world.events(alloc_id)[3].exit_code == 7
    assert attempts(data_dir)[0] == str(pid)


class Away(msgspec.Struct):
    """A task that ended while no daemon ran, as the next daemon reports it."""

    started_at: int
    ended_at: int
    opened_at: int
    said: int  # the time of the end in its event


async def away(data_dir: Path, pipe: Pipe, clock_set_by: int) -> Away:
    alloc_id = alloc_id_in(data_dir)
    go = Pipe(data_dir / "go")
    text = f"echo $$ >{pipe.path}; read x <{go.path}; exit 7"
    with daemon(data_dir, "recorded", text) as process:
        told_running(process)
        await pipe.line()
    (data_dir / "go").write_text("go\n")
    [trace] = (alloc_dir(data_dir) / alloc_id).glob(f"{CLAIM}*")
    while claim_files.is_held(str(trace)):
        await trio.lowlevel.checkpoint()
    ended_at, opened_at = trace.stat().st_mtime_ns, time.time_ns()
    os.utime(trace, ns=(ended_at + clock_set_by,) * 2)
    async with reopened(data_dir) as world:
        await world.until(alloc_id, lambda _: "Restarting" in world.types(alloc_id))
        started, terminated = world.events(alloc_id)[2:4]
    return Away(started.time, ended_at, opened_at, terminated.time)


async def test_task_that_ended_without_the_daemon_has_its_real_end_time(
    data_dir: Path, pipe: Pipe
) -> None:
    found = await away(data_dir, pipe, 0)
    assert found.said == found.ended_at


async def test_no_task_ends_before_its_start(data_dir: Path, pipe: Pipe) -> None:
    found = await away(data_dir, pipe, -(10**18))
    assert found.said == found.started_at


async def test_no_task_ends_in_the_future(data_dir: Path, pipe: Pipe) -> None:
    found = await away(data_dir, pipe, 10**18)
    assert found.opened_at < found.said < time.time_ns()


async def test_a_task_that_was_just_started_is_not_started_twice(
    data_dir: Path, pipe: Pipe
) -> None:
    alloc_id = alloc_id_in(data_dir)
    text = counted(data_dir, f"echo $$ >{pipe.path}; exec sleep 600")
    with daemon(data_dir, "after-spawn", text) as process:
        assert process.wait() == -signal.SIGKILL
    async with reopened(data_dir) as world:
        await world.until_status(alloc_id, "running")
        pid = int(await pipe.line())
        assert attempts(data_dir) == [str(pid)]
        await world.stop(alloc_id)
        await world.until_done(alloc_id)


async def test_a_task_that_was_not_yet_started_is_started(data_dir: Path) -> None:
    alloc_id = alloc_id_in(data_dir)
    with daemon(data_dir, "before-spawn", counted(data_dir, "exit 0")) as process:
        assert process.wait() == -signal.SIGKILL
    async with reopened(data_dir) as world:
        assert (await world.until_done(alloc_id)).client_status == "complete"
    assert len(attempts(data_dir)) == 1


async def test_short_task_runs_once_despite_a_kill_of_the_daemon(
    data_dir: Path,
) -> None:
    alloc_id = alloc_id_in(data_dir)
    with daemon(data_dir, "after-spawn", counted(data_dir, "exit 0")) as process:
        process.wait()
    async with reopened(data_dir) as world:
        assert (await world.until_done(alloc_id)).client_status == "complete"
        assert world.types(alloc_id)[2:] == ["Started", "Terminated"]
    assert len(attempts(data_dir)) == 1


async def test_attempts_are_counted_across_restarts_of_the_daemon(
    data_dir: Path, pipe: Pipe
) -> None:
    alloc_id = alloc_id_in(data_dir)
    text = counted(data_dir, f"echo x >{pipe.path}; exit 3")
    with daemon(data_dir, "recorded", text):
        await pipe.line()
        await pipe.line()
    async with reopened(data_dir) as world:
        done = await world.until_done(alloc_id)
        assert state_of(done).restarts == 2
        assert world.told(alloc_id)[-1] == (
            "Not Restarting",
            'Exceeded allowed attempts 2 in interval 1h0m0s and mode is "fail"',
        )
    assert len(attempts(data_dir)) == 3


async def test_recovery_ignores_a_process_with_a_reused_pid(data_dir: Path, pipe: Pipe) -> None:
    """As after a restart of the host: shim and task have ended, and another process has the shim's
    process ID.
    """
    alloc_id = alloc_id_in(data_dir)
    with daemon(data_dir, "recorded", f"echo $$ $PPID >{pipe.path}; exec sleep 600") as process:
        main, shim = map(int, (await pipe.line()).split())
        told_running(process)
    os.kill(shim, signal.SIGKILL)
    kill_quietly(main)
    await until_gone(main)
    path = alloc_dir(data_dir) / f"{alloc_id}/.claim.main.0"
    path.write_text(f"group -\nshim {os.getpid()}\nmain {os.getppid()}\n".replace("main", "mark"))
    async with reopened(data_dir) as world:
        await world.until(alloc_id, lambda _: "Terminated" in world.types(alloc_id))
        assert "exit status is unknown" in world.events(alloc_id)[3].message


async def test_task_without_traces_is_restarted_by_its_policy(data_dir: Path, pipe: Pipe) -> None:
    alloc_id = alloc_id_in(data_dir)
    with daemon(data_dir, "recorded", f"echo $$ $PPID >{pipe.path}; exec sleep 600") as process:
        main, shim = map(int, (await pipe.line()).split())
        told_running(process)
    kill_quietly(shim)
    kill_quietly(main)
    (alloc_dir(data_dir) / f"{alloc_id}/.claim.main.0").unlink()
    async with reopened(data_dir) as world:
        await world.until(alloc_id, lambda _: len(world.types(alloc_id)) == 6)
        assert world.types(alloc_id)[2:] == ["Started", "Terminated", "Restarting", "Started"]
        assert "the task no longer exists" in world.events(alloc_id)[3].message


@pytest.mark.parametrize("point", ["recorded", "unrecorded"])
@pytest.mark.parametrize("lost", ["claim", "directory"])
async def test_task_with_a_deleted_claim_does_not_run_twice(
    data_dir: Path, pipe: Pipe, point: str, lost: str
) -> None:
    if point == "unrecorded" and cgroup_v2.find(data_dir / "alloc") is None:
        pytest.skip("this host permits no new control groups")
    alloc_id = alloc_id_in(data_dir)
    text = counted(data_dir, f"echo $$ >{pipe.path}; exec sleep 600")
    with daemon(data_dir, point, text) as process:
        first = int(await pipe.line())
        if point == "recorded":
            told_running(process)
    directory = alloc_dir(data_dir) / alloc_id
    if lost == "claim":
        (directory / ".claim.main.0").unlink()
    else:
        unmount_all_below(data_dir)
        shutil.rmtree(directory)
    async with reopened(data_dir) as world:
        second = int(await pipe.line())
        assert not alive(first)
        await world.until_status(alloc_id, "running")
    assert attempts(data_dir) == [str(first), str(second)]


@pytest.mark.parametrize("end", ["exit 7", "kill -9 $$"])
async def test_exit_is_known_after_the_deletion_of_its_claim(
    world: World, data_dir: Path, pipe: Pipe, end: str
) -> None:
    go = Pipe(data_dir / "go")
    alloc_id = await world.place(batch(script(f"echo up >{pipe.path}; read x <{go.path}; {end}")))
    assert await pipe.line() == "up"
    await world.until_status(alloc_id, "running")
    (world.directory(alloc_id) / ".claim.main.0").unlink()
    (data_dir / "go").write_text("go\n")
    await world.until_done(alloc_id)
    go.close()
    told = "Exit Code: 7" if "7" in end else "Exit Code: 137, Signal: 9"
    assert ("Terminated", told) in world.told(alloc_id)


async def test_directory_under_removal_kills_no_process(data_dir: Path) -> None:
    """The state after a kill during the removal of a purged job."""
    left = alloc_dir(data_dir) / f"{uuid4()}.removed"
    left.mkdir(parents=True)
    (left / ".claim.main.0").write_text("group -\nshim 1\nexit 0\n")
    async with reopened(data_dir) as world:
        while left.exists():  # noqa: ASYNC110  # no event reports this
            await trio.sleep(0.005)
        assert await world.until_done(await world.place(batch(script("exit 0"))))


async def test_job_purged_without_the_daemon_leaves_neither_processes_nor_files(
    data_dir: Path, pipe: Pipe
) -> None:
    alloc_id = alloc_id_in(data_dir)
    text = f"echo $$ >{pipe.path}; setsid sleep 600 & exec sleep 600"
    with daemon(data_dir, "recorded", text) as process:
        main = int(await pipe.line())
        told_running(process)
    async with open_store(data_dir, cluster_id="cluster", now=NOW) as store:
        await purge_job(store, batch(script(text)))
        async with open_world(store, data_dir) as world:
            await until_gone(main)
            await world.until_no_directory(alloc_id)


def test_shutdown_keeps_the_cgroup_of_a_starting_task(
    data_dir: Path,
) -> None:
    groups = cgroup_v2.find(data_dir / "alloc")
    if groups is None:
        pytest.skip("this host permits no new control groups")
    group = groups.of(str(uuid4()), "main")
    group.prepare()
    assert not groups.release()
    assert os.path.isdir(group.label)
    os.rmdir(group.label)
    assert groups.release()


class Tardy(RawExecDriver):
    """A runner that stops unknown tasks only after another task has begun."""

    def __init__(self, neighbour: int, launcher: Launcher) -> None:
        super().__init__(ProcessScanner(), {}, launcher)
        self._neighbour = neighbour  # process ID
        self._begun = trio.Event()
        self.met: list[bool] = []  # for each started task: whether the neighbour was running

    async def start(self, attempt: Attempt) -> TaskHandle:
        self.met.append(alive(self._neighbour))
        self._begun.set()
        return await super().start(attempt)

    async def destroy(self, alloc_id: str, directory: str) -> None:
        with trio.move_on_after(0.2):
            await self._begun.wait()
        await super().destroy(alloc_id, directory)


async def test_successor_of_a_purged_job_starts_after_its_remains_have_ended(
    data_dir: Path, pipe: Pipe
) -> None:
    purged, new = alloc_id_in(data_dir), str(uuid4())
    text = f"trap '' INT TERM; echo $$ >{pipe.path}; while :; do sleep 0.01; done"
    with daemon(data_dir, "recorded", text) as process:
        neighbour = int(await pipe.line())
        told_running(process)
    async with (
        launchers.open_launcher(alloc_dir(data_dir)) as launcher,
        open_store(data_dir, cluster_id="cluster", now=NOW) as store,
    ):
        driver = Tardy(neighbour, launcher)
        await purge_job(store, batch(script(text)))
        (here,) = store.read(nodes.list_all)
        await place_job(store, batch(script("exit 0"), job_id="new"), here.id, new)
        async with open_world(store, data_dir, drivers={"raw_exec": driver}) as world:
            assert (await world.until_done(new)).client_status == "complete"
            await world.until_no_directory(purged)
    assert driver.met == [False]


class Stuck(RawExecDriver):
    """A runner that never stops unknown tasks."""

    async def destroy(self, alloc_id: str, directory: str) -> None:
        await trio.sleep_forever()


async def test_directory_with_an_unkillable_task_does_not_block_the_daemon(
    data_dir: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_LEAVING", 0.05)
    (alloc_dir(data_dir) / str(uuid4())).mkdir(parents=True)
    async with reopened(
        data_dir, drivers={"raw_exec": Stuck(ProcessScanner(), {}, launcher)}
    ) as world:
        assert await world.until_done(await world.place(batch(script("exit 0"))))


async def test_cgroup_left_incomplete_by_a_killed_daemon_is_completed(
    data_dir: Path, pipe: Pipe
) -> None:
    groups = cgroup_v2.find(data_dir / "alloc")
    if groups is None:
        pytest.skip("this host permits no new control groups")
    alloc_id = alloc_id_in(data_dir)
    with suppress(FileExistsError):  # an earlier run of this test has left it
        os.mkdir(groups.of(alloc_id, "main").label)
    async with reopened(data_dir) as world:
        text = f"echo $$ >{pipe.path}; exec sleep 600"
        await world.place(service(script(text)), alloc_id=alloc_id)
        assert alive(int(await pipe.line()))
        await world.until_status(alloc_id, "running")


async def test_tasks_of_a_development_daemon_end_with_it(data_dir: Path, pipe: Pipe) -> None:
    alloc_id = alloc_id_in(data_dir)
    text = f"echo $$ >{pipe.path}; exec sleep 600"
    async with reopened(data_dir, dev=True) as world:
        await world.place(service(script(text)), alloc_id=alloc_id)
        pid = int(await pipe.line())
        await world.until_status(alloc_id, "running")
        began = trio.current_time()
    assert not alive(pid)
    assert trio.current_time() - began < 3


async def test_task_that_ignores_signals_does_not_block_the_end_of_a_development_daemon(
    data_dir: Path, pipe: Pipe
) -> None:
    alloc_id = alloc_id_in(data_dir)
    text = f"trap '' INT TERM; echo $$ >{pipe.path}; while :; do sleep 0.01; done"
    async with reopened(data_dir, dev=True) as world:
        await world.place(service(script(text, kill_timeout=600_000_000_000)), alloc_id=alloc_id)
        pid = int(await pipe.line())
        await world.until_status(alloc_id, "running")
        began = trio.current_time()
    assert not alive(pid)
    assert trio.current_time() - began < 5


async def test_cancelled_development_daemon_ends_its_tasks(data_dir: Path, pipe: Pipe) -> None:
    alloc_id = alloc_id_in(data_dir)
    with trio.CancelScope() as scope:
        async with reopened(data_dir, dev=True) as world:
            text = f"echo $$ >{pipe.path}; exec sleep 600"
            await world.place(service(script(text)), alloc_id=alloc_id)
            pid = int(await pipe.line())
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert not alive(pid)


async def test_only_the_shim_locks_a_claim(world: World, pipe: Pipe) -> None:
    text = f"ls -l /proc/$$/fd >{world.config.data_dir}/fds; echo $$ >{pipe.path}; exec sleep 600"
    alloc_id = await world.place(batch(script(text)))
    await pipe.line()
    path = world.directory(alloc_id) / ".claim.main.0"
    assert claim_files.is_held(str(path)) is True
    assert str(path) not in (world.config.data_dir / "fds").read_text()
    await world.stop(alloc_id)
    await world.until_done(alloc_id)
    assert claim_files.is_held(str(path)) is False
