"""How long a start of a task holds the event loop: `python -m bench.task_starts [--starts 150]`.

A start consists of the requests of the daemon to its launcher: create the directories, start the
task, wait for its end, and return the exit status. The script measures a single start and several
concurrent starts, without load and with four processes that use all CPUs. *Held* is the longest
time during one start for which the loop was busy, that is, did not wait for input.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from daemon.launcher.client import Launcher
from daemon.launcher.hardening import set_priority
from daemon.launcher.messages import (
    AllocDirLayout,
    FinishAttempt,
    StartTask,
    TaskCommand,
    TaskDirLayout,
)
from tests.launchers import open_launcher

BUSY = 4
TRUE = TaskCommand(
    driver="raw_exec",
    user="",
    command=b"/bin/true",
    args=[],
    work_dir="",
    env={},
    personal=[],
    volumes=[],
    network="host",
    dns=None,
    filter="default",
    entries=[],
    data=0,
)
ROOM = TaskDirLayout(task="main", user="", driver="raw_exec", is_seen=True)
LAYOUT = AllocDirLayout(rooms=[ROOM], about=b"{}")


class HeldTimes(trio.abc.Instrument):
    """The longest time between two waits of the loop, in ms, since the last call of `take`."""

    def __init__(self) -> None:
        self._longest, self._begun = 0, time.perf_counter_ns()

    def after_io_wait(self, _timeout: float) -> None:
        self._begun = time.perf_counter_ns()

    def before_io_wait(self, _timeout: float) -> None:
        self._longest = max(self._longest, time.perf_counter_ns() - self._begun)

    def take(self) -> float:
        """Return the longest time in ms, and reset it."""
        longest, self._longest = self._longest, 0
        return longest / 1e6


async def start(launcher: Launcher) -> None:
    """Run `/bin/true` in a new allocation, and wait for its exit status."""
    allocation = str(uuid.uuid4())
    assert await launcher.lay_out(allocation, LAYOUT) == {}
    begun = await launcher.start(
        StartTask(allocation=allocation, task="main", attempt=0, group="-", is_logged=True), TRUE
    )
    assert begun is not None
    try:
        await trio.lowlevel.wait_readable(begun[1])
    finally:
        os.close(begun[1])
    await launcher.finish(FinishAttempt(allocation=allocation, task="main", attempt=0))
    await launcher.remove(allocation)


async def measured(directory: Path, concurrent: int, starts: int) -> tuple[float, list[float]]:
    """Return the starts per second, and the milliseconds for which the starts held the loop."""
    times, numbers = list[float](), iter(range(starts))

    async def work() -> None:
        for _ in numbers:
            await start(launcher)
            times.append(held_times.take())

    async with open_launcher(directory) as launcher:
        await start(launcher)
        held_times = HeldTimes()
        trio.lowlevel.add_instrument(held_times)
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(concurrent):
                nursery.start_soon(work)
        took = time.perf_counter() - began
        trio.lowlevel.remove_instrument(held_times)
    return starts / took, times


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Use all CPUs while the block runs, by processes in separate sessions, like tasks."""
    words = [sys.executable, "-c", "while True: pass"]
    every = [subprocess.Popen(words, start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for one in every:
            one.kill()
            one.wait()


def show(load: int, concurrent: int, starts: int) -> None:
    """Measure starts in a process with the priority of a daemon, and print a row."""
    os.setsid()
    set_priority()
    with tempfile.TemporaryDirectory(prefix="steward-starts-") as directory, busy(load):
        place = Path(directory) / "data/tasks/alloc"
        rate, times = trio.run(measured, place, concurrent, starts)
    middle, late = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    print(f"| {load} | {concurrent} | {rate:.0f} | {middle:.2f} | {late:.2f} | {max(times):.2f} |")


def main() -> None:
    """Print a row for each load and each number of concurrent starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=150)
    options = parser.parse_args()
    print("| Busy processes | Concurrent | Starts per s | Held, p50 ms | p95 ms | Longest, ms |")
    for load in (0, BUSY):
        for concurrent in (1, 4):
            arguments = (load, concurrent, options.starts)
            row = multiprocessing.get_context("spawn").Process(target=show, args=arguments)
            row.start()
            row.join()


if __name__ == "__main__":
    main()
