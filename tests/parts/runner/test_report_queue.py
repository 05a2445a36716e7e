"""Reports of allocations that share a write, and reports that do not."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import trio
import trio.testing

from daemon.runner.core.status_report import SHORT_TASK, AllocReport, ReportQueue
from storage.records.allocation import Allocation
from tests.samples import NOW, job
from tests.unit.runner.placements import placed

TICK = SHORT_TASK / 4


class Writes:
    """The part of a store that the queue needs: the times of its writes."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.are_long: list[bool] = []
        self.number = 1  # reports in each write

    async def write(
        self, work: Callable[[Any], Any], *, is_long: bool = False
    ) -> list[Allocation | None]:
        """Record the time of a write; return None, as for a purged allocation."""
        self.times.append(round(trio.current_time() / TICK, 3))
        self.are_long.append(is_long)
        await trio.lowlevel.checkpoint()
        return [None] * self.number


class StillClock:
    """A clock whose time never changes."""

    def now(self) -> int:
        """Return the time in nanoseconds."""
        return NOW


@pytest.fixture
def writes() -> Writes:
    """Return the writes of the queue."""
    return Writes()


@pytest.fixture
def reports(writes: Writes) -> ReportQueue:
    """Return a queue that is not running yet."""
    ids: Iterator[str] = (f"id-{number}" for number in count())
    return ReportQueue(writes, StillClock(), ids)  # the queue needs no other part of a store


async def stored_at(
    reports: ReportQueue, writes: Writes, steps: list[tuple[float, float]]
) -> list[float]:
    """Publish a report at each step: (time in ticks, seconds within which it must be stored).

    Return the times of the writes in ticks.
    """
    begin = trio.current_time() / TICK
    report = AllocReport(reports, placed(job("web"), "node", "a"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.run)
        for time, within in steps:
            await trio.sleep_until((begin + time) * TICK)
            report.publish(within=within)
        await trio.sleep(10 * SHORT_TASK)
        await report.stored()
        nursery.cancel_scope.cancel()
    return [round(time - begin, 3) for time in writes.times]


@pytest.mark.parametrize(
    ("steps", "times"),
    [
        ([(0, 0.0)], [0]),
        ([(0, SHORT_TASK)], [4]),
        ([(0, SHORT_TASK), (1, 0.0)], [1]),
        ([(0, SHORT_TASK), (6, 0.0)], [4, 6]),
        ([(0, SHORT_TASK), (3, SHORT_TASK)], [4]),
        ([(0, 0.0), (1, SHORT_TASK), (9, SHORT_TASK)], [0, 5, 13]),
    ],
    ids=["urgent", "start", "short task", "longer task", "two starts", "several"],
)
async def test_start_of_a_short_task_is_stored_with_its_end(
    autojump_clock: trio.testing.MockClock,
    reports: ReportQueue,
    writes: Writes,
    steps: list[tuple[float, float]],
    times: list[float],
) -> None:
    assert await stored_at(reports, writes, steps) == times


async def test_report_that_may_wait_is_stored_at_the_end_of_the_daemon(
    autojump_clock: trio.testing.MockClock, reports: ReportQueue, writes: Writes
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.run)
        await trio.testing.wait_all_tasks_blocked()
        AllocReport(reports, placed(job("web"), "node", "a")).publish(within=SHORT_TASK)
        nursery.cancel_scope.cancel()
    assert len(writes.times) == 1


@pytest.mark.parametrize(("number", "is_long"), [(1, False), (6, False), (7, True), (32, True)])
async def test_thread_stores_many_reports(
    autojump_clock: trio.testing.MockClock,
    reports: ReportQueue,
    writes: Writes,
    number: int,
    is_long: bool,
) -> None:
    # A write that is too long for the event loop would be undone there, and repeated in a thread.
    writes.number = number
    for name in range(number):
        AllocReport(reports, placed(job("web"), "node", f"a{name}")).publish()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.run)
        await trio.sleep(SHORT_TASK)
        nursery.cancel_scope.cancel()
    assert writes.are_long == [is_long]
