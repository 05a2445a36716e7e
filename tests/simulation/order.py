"""One order of everything: what runs when depends on the seed alone.

Trio runs what is ready in a random order; here its random numbers are the seed's. What the daemon
does in threads (commits, long reads, directories) is done by the task itself, between a few turns
of the others, as if the thread took that long. Time is Trio's own test clock, which jumps to the next
moment at which anything is to happen. Of Python only the hash seed is left: see `fixed_hashes`.
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

_TURNS = 4  # of others, at most, before and after what a thread would do


class SimulatedClock:
    """The wall clock: as many seconds after its beginning as Trio's."""

    def now(self) -> int:
        return NOW + round(trio.current_time() * SECOND)


@contextmanager
def one_order(seed: int) -> Iterator[None]:
    """Let everything that runs in the block do so in the order of a seed."""
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
    trio.to_thread.run_sync = inline  # type: ignore[assignment]
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r, trio.to_thread.run_sync = before


async def turns(number: int) -> None:
    """Let others have so many turns."""
    for _ in range(number):
        await trio.lowlevel.checkpoint()


def fixed_hashes() -> dict[str, str]:
    """Return the environment of a process in which sets have the same order every time."""
    return {**os.environ, "PYTHONHASHSEED": "0"}


def has_fixed_hashes() -> bool:
    return sys.flags.hash_randomization == 0
