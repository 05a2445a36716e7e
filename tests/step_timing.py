"""Run time of a task's steps, for tests of a blocked event loop."""

import time
from statistics import median

import trio

_STANDARD = 1_300_000  # nanoseconds of `_work` on the host where the limits were set
_TIMES = 9
_MOST = 3.0  # what takes longer is a fault on any machine


class Longest(trio.abc.Instrument):
    """The longest step of any task, as nanoseconds of the loop thread's CPU time."""

    def __init__(self) -> None:
        self.longest, self._begun = 0, time.thread_time_ns()

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._begun = time.thread_time_ns()

    def after_task_step(self, _task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time_ns() - self._begun)


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
