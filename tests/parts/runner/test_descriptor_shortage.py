"""A lack of file descriptors delays allocations, and is no failure of their tasks."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from daemon.launcher import client
from daemon.launcher.channel import DescriptorsLost, pair, receive, send
from daemon.launcher.child_processes import ChildOperation, ChildOperations
from daemon.launcher.client import Impatience, Launcher
from daemon.launcher.messages import Done, OperationFailed, WriteNote
from daemon.runner import node
from daemon.runner.alloc import alloc_runner
from daemon.runner.core import file_descriptors
from daemon.runner.drivers.process_driver import ProcessDriver
from daemon.runner.drivers.process_handle import ProcessHandle
from daemon.runner.setup.task_setup import TaskSetup
from daemon.runner.setup.workload_identity import WorkloadIdentities
from storage.errors import is_descriptor_shortage
from storage.records.task import Identity
from storage.store import Store
from tests.parts.runner.world import NO_RESTARTS, batch, open_world, script, state_of

_FULL = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Leave this process no free file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    try:
        with suppress(OSError):  # the limit
            while True:
                taken.append(os.eventfd(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def fail_first(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, times: int = 2) -> None:
    """Let the first calls of a function fail, because no file descriptor is free."""
    original, failures = getattr(owner, name), iter(range(times))

    def call(*args: Any, **fields: Any) -> Any:
        if next(failures, None) is not None:
            raise OSError(*_FULL.args)
        return original(*args, **fields)

    monkeypatch.setattr(owner, name, call)


STAGES = [
    (alloc_runner, "prepare_alloc_dir"),
    (TaskSetup, "__init__"),
    (WorkloadIdentities, "deliver"),
    (ProcessDriver, "_spawn"),
    (ProcessHandle, "wait"),
    (TaskSetup, "matcher"),
    (TaskSetup, "keep_files"),
]


@pytest.mark.parametrize(
    ("owner", "name"), STAGES, ids=[f"{owner.__name__}.{name}" for owner, name in STAGES]
)
async def test_allocation_continues_after_a_shortage(
    store: Store, data_dir: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    monkeypatch.setattr(node, "SHORTAGE_PAUSE", 0)
    monkeypatch.setattr(file_descriptors, "SHORTAGE_PAUSE", 0)
    fail_first(monkeypatch, owner, name)
    task = script(
        "echo begun; exit 7",
        restart_policy=NO_RESTARTS,
        identities=[Identity(name="own", file=True)],
    )
    async with open_world(store, data_dir) as world:
        alloc_id = await world.place(batch(task))
        alloc = await world.until_done(alloc_id)
        terminated = [event for event in world.events(alloc_id) if event.type == "Terminated"]
        assert {event.exit_code for event in terminated} == {7}
        assert state_of(alloc).restarts == 0
        assert world.output(alloc_id) == "begun\n"


async def test_interrupted_allocation_that_was_purged_ends(
    store: Store, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, sleep, length = trio.Event(), trio.sleep, 12.34

    async def pause(seconds: float) -> None:
        if seconds == length:
            paused.set()
            await world.purge(job)
        else:  # another loop of the runner
            await sleep(seconds)

    monkeypatch.setattr(node, "SHORTAGE_PAUSE", length)
    monkeypatch.setattr(node.trio, "sleep", pause)
    fail_first(monkeypatch, ProcessHandle, "wait")
    job = batch(script("exec sleep 600"))
    async with open_world(store, data_dir) as world:
        alloc_id = await world.place(job)
        await paused.wait()
        monkeypatch.undo()
        await world.until_no_directory(alloc_id)


# --- requests to the launcher ---


async def written(launcher: Launcher) -> None:
    await launcher.write_note(WriteNote(allocation="a" * 36, task="main", kind="token", text=None))


async def test_request_to_the_launcher_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [_FULL, OSError(errno.ENFILE, os.strerror(errno.ENFILE)), None]

    async def request(*_: object) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    monkeypatch.setattr(client, "_SHORTAGE_PAUSE", 0)
    monkeypatch.setattr(Launcher, "_request", request)
    near, far = pair()
    with near, far:
        await written(Launcher(near))
    assert answers == []


async def test_request_of_a_client_fails_during_a_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    async def request(*_: object) -> None:
        raise _FULL

    monkeypatch.setattr(Launcher, "_request", request)
    near, far = pair()
    with near, far, Impatience(), pytest.raises(OSError, match="Too many open files"):
        await written(Launcher(near))


def test_message_whose_descriptors_are_lost_is_known() -> None:
    near, far = pair()
    with near, far:
        send(near, b"content", [0])
        with without_descriptors(), pytest.raises(DescriptorsLost) as error:
            receive(far)
    assert error.value.data == b"content"
    assert is_descriptor_shortage(error.value)


def test_operation_in_a_child_fails_without_a_free_descriptor() -> None:
    near, far = pair()
    with near, far, without_descriptors():
        failed = ChildOperations(near).begin(1, ChildOperation(Done, 1))
    assert isinstance(failed, OperationFailed)
    assert failed.number == errno.EMFILE
