"""A later daemon continues the stops and restarts that an earlier daemon has begun."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.runner.core.task_dir import CLAIM
from storage.errors import StorageFull
from storage.queries import allocations
from storage.records.allocation import Allocation, AttemptStop, ClientState, StopCause
from storage.records.base import HOUR
from storage.records.job import Job
from storage.store import Store
from tests import claim_files
from tests.parts.runner import alloc_stage
from tests.parts.runner.alloc_stage import mock, on_stage
from tests.parts.runner.world import (
    NO_RESTARTS,
    Pipe,
    World,
    batch,
    open_world,
    script,
    service,
    state_of,
    until_gone,
)

STUBBORN = "trap '' INT; echo $$ >{pipe}; while :; do sleep 0.05; done"
# It reports the signal, because the daemon stores the time of a signal before it sends the signal.
WAITS_TO_END = (
    "trap 'echo signaled >{pipe}; read x <{go}; exit 0' INT; echo $$ >{pipe};"
    " while :; do sleep 0.05; done"
)


@pytest.fixture
def go(tmp_path: Path) -> Any:
    """A pipe from the test to a task."""
    opened = Pipe(tmp_path / "go")
    yield opened
    opened.close()


def stop_of(allocation: Allocation) -> AttemptStop | None:
    return (allocation.client.stops or {}).get("main")


def is_signaled(allocation: Allocation) -> bool:
    stop = stop_of(allocation)
    return stop is not None and stop.signaled_at > 0


async def started(world: World, pipe: Pipe, job: Job) -> tuple[str, int]:
    alloc_id = await world.place(job)
    pid = int(await pipe.line())
    await world.until_status(alloc_id, "running")
    return alloc_id, pid


async def change_client(
    store: Store, alloc_id: str, change: Callable[[ClientState], ClientState]
) -> None:
    """Change the stored client state of an allocation, while no daemon runs."""

    def write(tx: Any) -> None:
        before = allocations.find(tx, alloc_id)
        assert before is not None
        after = msgspec.structs.replace(before, client=change(before.client))
        allocations.set_client(tx, after, before.modify_time)

    await store.write(write)


def earlier(client: ClientState) -> ClientState:
    """Return a client state in which all stops began an hour earlier."""

    def moved(time: int) -> int:
        return time and time - HOUR

    stops: Mapping[str, AttemptStop] = client.stops or {}
    return msgspec.structs.replace(
        client,
        shutdown_at=moved(client.shutdown_at),
        stops={
            task: msgspec.structs.replace(
                stop, delayed_at=moved(stop.delayed_at), signaled_at=moved(stop.signaled_at)
            )
            for task, stop in stops.items()
        },
    )


async def until_ended(world: World, alloc_id: str, number: int) -> None:
    """Wait until an attempt has ended and its shim has recorded the end."""
    claim = str(world.directory(alloc_id) / f"{CLAIM}main.{number}")
    while claim_files.is_held(claim):  # another process holds the lock
        await trio.lowlevel.checkpoint()


# --- restarts ---


async def test_accepted_restart_is_stored(world: World, pipe: Pipe) -> None:
    text = STUBBORN.format(pipe=pipe.path)
    alloc_id, _ = await started(world, pipe, batch(script(text, kill_timeout=HOUR)))
    await world.runner.restart(alloc_id, "main")
    stop = stop_of(world.find(alloc_id))
    assert stop is not None
    assert stop.cause is StopCause.RESTART


async def test_restart_continues_if_the_task_ended_while_no_daemon_ran(
    store: Store, data_dir: Path, pipe: Pipe, go: Pipe
) -> None:
    text = WAITS_TO_END.format(pipe=pipe.path, go=go.path)
    async with open_world(store, data_dir) as world:
        alloc_id, first = await started(world, pipe, batch(script(text, kill_timeout=HOUR)))
        await world.runner.restart(alloc_id, "main")
        await world.until(alloc_id, is_signaled)
        assert await pipe.line() == "signaled"
    go.path.write_text("go\n")
    await until_gone(first)
    await until_ended(world, alloc_id, 0)
    async with open_world(store, data_dir) as world:
        assert int(await pipe.line()) != first
        alloc = await world.until(alloc_id, lambda _: world.types(alloc_id)[-1] == "Started")
        assert world.types(alloc_id)[3:] == [
            "Restart Signaled",
            "Terminated",
            "Restarting",
            "Started",
        ]
        assert state_of(alloc).restarts == 1
        assert stop_of(alloc) is None


async def test_failed_end_of_a_task_whose_restart_was_requested_uses_no_attempt(
    store: Store, data_dir: Path, pipe: Pipe, go: Pipe
) -> None:
    text = WAITS_TO_END.format(pipe=pipe.path, go=go.path).replace("exit 0", "exit 7")
    async with open_world(store, data_dir) as world:
        task = script(text, kill_timeout=HOUR, restart_policy=NO_RESTARTS)
        alloc_id, first = await started(world, pipe, service(task))
        await world.runner.restart(alloc_id, None)
        await world.until(alloc_id, is_signaled)
        assert await pipe.line() == "signaled"
    go.path.write_text("go\n")
    await until_gone(first)
    await until_ended(world, alloc_id, 0)
    async with open_world(store, data_dir) as world:
        assert int(await pipe.line()) != first
        alloc = await world.until(alloc_id, lambda _: world.types(alloc_id)[-1] == "Started")
        assert alloc.client_status == "running"


async def test_restart_of_a_task_that_still_runs_continues(
    store: Store, data_dir: Path, pipe: Pipe
) -> None:
    text = STUBBORN.format(pipe=pipe.path)
    async with open_world(store, data_dir) as world:
        alloc_id, first = await started(world, pipe, batch(script(text, kill_timeout=HOUR)))
        await world.runner.restart(alloc_id, "main")
        await world.until(alloc_id, is_signaled)
    await change_client(store, alloc_id, earlier)
    async with open_world(store, data_dir) as world:
        assert int(await pipe.line()) != first
        await world.until(alloc_id, lambda _: world.types(alloc_id)[-1] == "Started")
        assert world.types(alloc_id).count("Restart Signaled") == 1


async def test_restart_that_cannot_be_stored_has_no_effect(
    tmp_path: Path, autojump_clock: object
) -> None:
    job = alloc_stage.service(mock(config={"run_for": "10000h"}))
    async with on_stage(job, tmp_path) as stage:
        await trio.sleep(1)
        stage.book.is_full = True
        with pytest.raises(StorageFull):
            await stage.runner.tasks.restart("main")
        await trio.sleep(60)
        stage.book.is_full = False
        stage.want(desired_status="stop")
    assert "Restarting" not in stage.types()
    assert stage.status == "complete"


# --- kills ---


async def test_kill_timeout_continues_in_a_later_daemon(
    store: Store, data_dir: Path, pipe: Pipe
) -> None:
    text = STUBBORN.format(pipe=pipe.path)
    async with open_world(store, data_dir) as world:
        alloc_id, main = await started(world, pipe, batch(script(text, kill_timeout=HOUR)))
        await world.stop(alloc_id)
        await world.until(alloc_id, is_signaled)
    await change_client(store, alloc_id, earlier)
    async with open_world(store, data_dir) as world:
        await until_gone(main)
        alloc = await world.until_done(alloc_id)
        assert alloc.client_status == "complete"
        assert alloc.client.stops is None
        assert world.types(alloc_id)[3:] == ["Killing", "Terminated", "Killed"]


async def test_shutdown_delay_continues_in_a_later_daemon(
    store: Store, data_dir: Path, pipe: Pipe
) -> None:
    task = script(f"echo $$ >{pipe.path}; exec sleep 600", shutdown_delay=HOUR)
    async with open_world(store, data_dir) as world:
        alloc_id, main = await started(world, pipe, batch(task))
        await world.stop(alloc_id)
        await world.until(alloc_id, lambda _: "Waiting for shutdown delay" in world.types(alloc_id))
    await change_client(store, alloc_id, earlier)
    async with open_world(store, data_dir) as world:
        await until_gone(main)
        await world.until_done(alloc_id)
        assert world.types(alloc_id).count("Waiting for shutdown delay") == 1
        assert world.types(alloc_id).count("Killing") == 1


async def test_shutdown_delay_of_a_group_continues_in_a_later_daemon(
    store: Store, data_dir: Path, pipe: Pipe
) -> None:
    job = service(script(f"echo $$ >{pipe.path}; exec sleep 600"), shutdown_delay=HOUR)
    async with open_world(store, data_dir) as world:
        alloc_id, main = await started(world, pipe, job)
        await world.stop(alloc_id)
        await world.until(alloc_id, lambda alloc: alloc.client.shutdown_at)
    await change_client(store, alloc_id, earlier)
    async with open_world(store, data_dir):
        await until_gone(main)


async def test_end_of_a_killed_task_without_a_daemon_counts_as_killed(
    store: Store, data_dir: Path, pipe: Pipe, go: Pipe
) -> None:
    """The group's shutdown delay must not make the end look like the task's own."""
    text = WAITS_TO_END.format(pipe=pipe.path, go=go.path).replace("exit 0", "exit 7")
    async with open_world(store, data_dir) as world:
        alloc_id, first = await started(world, pipe, service(script(text, kill_timeout=HOUR)))
        await world.stop(alloc_id)
        await world.until(alloc_id, is_signaled)
        assert await pipe.line() == "signaled"
    go.path.write_text("go\n")
    await until_gone(first)
    await until_ended(world, alloc_id, 0)
    async with open_world(store, data_dir) as world:
        alloc = await world.until_done(alloc_id)
        assert alloc.client_status == "complete"
        assert world.types(alloc_id)[3:] == ["Killing", "Terminated", "Killed"]
