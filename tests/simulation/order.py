"""Deterministic execution: the seed alone determines the order of events.

Trio runs ready tasks in a random order; here its random numbers come from the seed. The daemon's
threads (commits, long reads, directories) run inline in the calling task. Other tasks take a few
steps before and after, as if the thread took that long. Time is Trio's test clock, which jumps to
the next event. Python's hash seed is set separately: see `fixed_hashes`.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import trio
from trio._core import _run

from storage.records.base import SECOND
from tests.samples import NOW

T = TypeVar("T")

_TURNS = 4  # maximum steps of other tasks before and after a thread's work


class SimulatedClock:
    """The wall clock: its offset from its start equals Trio's."""

    def now(self) -> int:
        return NOW + round(trio.current_time() * SECOND)


@contextmanager
def one_order(seed: int) -> Iterator[None]:
    """Run everything in the block in the order of a seed."""
    threads = random.Random(f"threads {seed}")

    async def inline(function: Callable[..., T], *args: Any, **_: object) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            await turns(threads.randrange(_TURNS))
            try:
                return function(*args)
            finally:
                await turns(threads.randrange(_TURNS))

    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r, trio.to_thread.run_sync
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True
    _run._r = random.Random(f"order {seed}")
    trio.to_thread.run_sync = inline
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r, trio.to_thread.run_sync = before


async def turns(number: int) -> None:
    """Let other tasks take this many steps."""
    for _ in range(number):
        await trio.lowlevel.checkpoint()


def fixed_hashes() -> dict[str, str]:
    """Return an environment for processes in which sets always have the same order."""
    return {**os.environ, "PYTHONHASHSEED": "0"}


def has_fixed_hashes() -> bool:
    return sys.flags.hash_randomization == 0
