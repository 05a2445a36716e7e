"""Locks of variables that nobody renews end, and who waits for that is woken."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from daemon.clock import Clock, wait_until
from daemon.fences import Fences
from storage.queries import variables
from storage.store import Store, unless_full
from storage.writer import Transaction

STEP = 50  # locks that end in one write


@asynccontextmanager
async def open_locks(store: Store, clock: Clock, fences: Fences) -> AsyncIterator[None]:
    """End locks when their time is over, while the block runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fences.keep_running, "locks", partial(_follow, store, clock))
        yield
        nursery.cancel_scope.cancel()


async def _follow(store: Store, clock: Clock) -> None:
    while True:
        with store.watch(variables.TOPIC) as changes:
            now = clock.now()
            ends = store.read(variables.next_end)
            if ends is None or ends > now:
                await wait_until(ends, clock, changes)
                continue
        async with unless_full("locks whose time is over are not ended"):
            await store.write(partial(end, now=now))


def end(tx: Transaction, now: int) -> None:
    """End a few locks whose time is over. Their delays still count."""
    for entry in variables.ended(tx, now, STEP):
        variables.lose(tx, entry, now)
