"""Run time of a task's steps, for tests of a blocked event loop."""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median

import trio

from storage import garbage
from tests.heap import keep_present_objects

_STANDARD = 1_300_000  # nanoseconds of `_work` on the host where the limits were set
_TIMES = 9
_MOST = 3.0  # a longer step is a fault on any host


class Longest(trio.abc.Instrument):
    """The longest step of any task, as nanoseconds of the loop thread's CPU time."""

    def __init__(self) -> None:
        self.longest, self._begun = 0, time.thread_time_ns()

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._begun = time.thread_time_ns()

    def after_task_step(self, _task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time_ns() - self._begun)


class LongestWait:
    """The longest wait of the event loop for other threads, as nanoseconds of their CPU time.

    A thread that holds the GIL works while the loop waits. Other load does not count. Nor does the
    time in which the loop could run, but the kernel gave its CPU to other threads.
    """

    def __init__(self) -> None:
        self.longest = 0

    async def run(self) -> None:
        """Compare two turns of the event loop at a time, until cancelled."""
        with _thread_statistics() as statistics:
            before = _of_others(statistics)
            while True:
                await trio.lowlevel.checkpoint()
                now = _of_others(statistics)
                self.longest, before = max(self.longest, now - before), now


@contextmanager
def _thread_statistics() -> Iterator[int]:
    """Yield a descriptor of the kernel's scheduling statistics of this thread."""
    with Path("/proc/thread-self/schedstat").open("rb") as statistics:
        yield statistics.fileno()


def _of_others(statistics: int) -> int:
    """Return the CPU time of other threads, without the time in which this thread had no CPU."""
    without_cpu = int(os.pread(statistics, 64, 0).split()[1])
    return time.process_time_ns() - time.thread_time_ns() - without_cpu


@asynccontextmanager
async def longest_wait() -> AsyncIterator[LongestWait]:
    """Measure during the block how long the event loop waits for other threads."""
    measure = LongestWait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(measure.run)
        await trio.lowlevel.checkpoint()
        yield measure
        nursery.cancel_scope.cancel()


@contextmanager
def garbage_as_in_daemon() -> Iterator[None]:
    """Collect garbage like a running daemon: rarely, and only among new objects."""
    keep_present_objects()
    with garbage.short_pauses():
        yield


async def check_steps(
    work: Callable[[], Awaitable[int]], most: int, tries: int, about: object
) -> None:
    """Check that one of several tries of `work` returns at most this time, in nanoseconds.

    The host may be slow for a moment, so each slow try is compared with the host right after it.
    """
    taken: list[int] = []
    while len(taken) < tries:
        taken.append(await work())
        if taken[-1] <= most or taken[-1] <= most * slowness():
            return
    raise AssertionError((about, taken))


def slowness() -> float:
    """Return the factor by which this host is slower than the reference host; from 1 to 3.

    Load on the same core also increases CPU time, so tests measure the factor after a slow step.
    """
    return min(_MOST, max(1.0, median(_work() for _ in range(_TIMES)) / _STANDARD))


def _work() -> int:
    began = time.thread_time_ns()
    found: dict[str, list[int]] = {}
    for number in range(10_000):
        found.setdefault(str(number % 1_000), []).append(number)
    return time.thread_time_ns() - began
