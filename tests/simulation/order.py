"""Deterministic execution: the seed alone determines the order of events.

Trio runs ready tasks in a random order; here its random numbers come from the seed. The daemon's
threads (commits, long reads, directories) run inline in the calling task. Other tasks take a few
steps before and after, as if the thread took that long. Time is Trio's test clock, which jumps to
the next event. The CPU time of the thread, which limits the share of a write, comes from the seed
too. Python's hash seed is set separately: see `fixed_hashes`.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import trio
from trio._core import _run

from storage.records.base import SECOND
from tests.samples import NOW

T = TypeVar("T")

_TURNS = 4  # maximum steps of other tasks before and after a thread's work
_SHORT, _LONG = 10_000, 10_000_000  # ns of CPU time between two calls; a long one exceeds a share
_RARELY = 0.005  # chance that the time is long


class SimulatedClock:
    """A wall clock that advances like Trio's clock."""

    def now(self) -> int:
        return NOW + round(trio.current_time() * SECOND)


@contextmanager
def one_order(seed: int) -> Iterator[None]:
    """Run all tasks of the block in an order that only the seed determines."""
    threads = random.Random(f"threads {seed}")

    async def inline(function: Callable[..., T], *args: Any, **_: object) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            await turns(threads.randrange(_TURNS))
            try:
                return function(*args)
            finally:
                await turns(threads.randrange(_TURNS))

    cpu = _CpuTime(random.Random(f"cpu {seed}"))
    with ExitStack() as patches:
        for owner, name, value in (
            (_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            (_run, "_r", random.Random(f"order {seed}")),
            (trio.to_thread, "run_sync", inline),
            (time, "thread_time_ns", cpu.nanoseconds),
            (time, "thread_time", lambda: cpu.nanoseconds() / SECOND),
        ):
            patches.enter_context(patch.object(owner, name, value))
        yield


class _CpuTime:
    """The CPU time of the thread: each call advances it, rarely by more than a write may take."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._passed = 0

    def nanoseconds(self) -> int:
        self._passed += _LONG if self._dice.random() < _RARELY else _SHORT
        return self._passed


async def turns(number: int) -> None:
    """Let other tasks take this many steps."""
    for _ in range(number):
        await trio.lowlevel.checkpoint()


def fixed_hashes() -> dict[str, str]:
    """Return an environment for processes in which sets always have the same order."""
    return {**os.environ, "PYTHONHASHSEED": "0"}


def has_fixed_hashes() -> bool:
    return sys.flags.hash_randomization == 0
