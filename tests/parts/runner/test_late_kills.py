"""No kill for an ended attempt reaches the next attempt of its task."""

import os
from typing import Any

import trio
import trio.testing

from daemon.launcher.messages import EndedAttempt, ScanTarget
from daemon.runner.drivers.limits import UNLIMITED
from daemon.runner.drivers.process_handle import LimitedTask, ProcessHandle, StartedTask
from daemon.runner.drivers.process_scan import ProcessScanner


class Group:
    """A process group whose first clearing takes until `released`."""

    def __init__(self) -> None:
        self.released, self.active = trio.Event(), 0

    async def clear(self, launcher: object, attempt: int | None = None) -> str:
        self.active += 1
        await self.released.wait()
        self.active -= 1
        return ""


class Silent:
    """A launcher that sends no signals, and knows no claims."""

    def __init__(self) -> None:
        self.scans: list[list[ScanTarget]] = []
        self.may_scan = trio.Event()

    async def signal(self, request: object) -> bool:
        return True

    async def finish(self, request: object) -> EndedAttempt:
        return EndedAttempt(claim=b"", at=0, status=0)

    async def sweep(self, request: Any) -> list[list[int]]:
        self.scans.append(request.marks)
        await self.may_scan.wait()
        return [[] for _ in request.marks]


async def test_attempt_ends_only_after_a_kill_in_progress(autojump_clock: object) -> None:
    group, launcher = Group(), Silent()
    clearing: Any = group
    anything: Any = launcher
    exited = os.eventfd(0)
    started = StartedTask(
        alloc_id="a",
        task="main",
        number=0,
        path="",
        group=clearing,
        bounded=LimitedTask(UNLIMITED, "a", "main"),
        shim=1,
        outputs=None,
    )
    handle = ProcessHandle(anything, started, exited)
    kills_at_end: list[int] = []

    async def wait() -> None:
        await handle.wait()
        kills_at_end.append(group.active)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.stop, "SIGINT", 0)
        await trio.testing.wait_all_tasks_blocked()
        assert group.active == 1
        nursery.start_soon(wait)
        os.eventfd_write(exited, 1)
        await trio.testing.wait_all_tasks_blocked()
        group.released.set()
    assert kills_at_end == [0]


async def test_scan_has_no_targets_of_cancelled_callers() -> None:
    scanner, launcher = ProcessScanner(), Silent()
    anything: Any = launcher
    one, other, late = (
        ScanTarget(allocation=name, task="main", attempt=0, action="end") for name in "abc"
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scanner.scan_attempt, anything, one)
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as impatient:
            async with trio.open_nursery() as cancelled:
                cancelled.start_soon(scanner.scan_attempt, anything, other)
                await trio.testing.wait_all_tasks_blocked()
                impatient.cancel()
        launcher.may_scan.set()
        await scanner.scan_attempt(anything, late)
    assert launcher.scans == [[one], [late]]
