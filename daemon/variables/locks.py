"""Expiry of variable locks that no holder renews. Waiting callers are notified."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from daemon.clock import Clock, wait_until
from daemon.fences import TOPIC, Fences
from storage.queries import variables
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

STEP = 50  # locks that expire in one round
_FENCED = "lock"
_LOOK_AGAIN = 60 * SECOND


@asynccontextmanager
async def open_locks(store: Store, clock: Clock, fences: Fences) -> AsyncIterator[None]:
    """Release expired locks while the block runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fences.keep_running, "locks", partial(_follow, store, clock, fences))
        yield
        nursery.cancel_scope.cancel()


async def _follow(store: Store, clock: Clock, fences: Fences) -> None:
    while True:
        with store.watch(variables.TOPIC, TOPIC) as changes:
            now = clock.now()
            paused = fences.paused_keys(_FENCED)
            due = store.read(partial(_due, now=now, paused=paused))
            if not due:
                times = [store.read(variables.next_end), fences.next_time(_FENCED)]
                coming = [time for time in times if time is not None and (time > now or not paused)]
                # If a lock cannot be released, retry it periodically, and continue with the next
                # lock.
                await wait_until(
                    min([*coming, *([now + _LOOK_AGAIN] if paused else [])], default=None),
                    clock,
                    changes,
                )
                continue
        async with tolerate_disk_full("cannot release expired locks"):
            for entry in due:
                with fences.around(_FENCED, _name(entry)):
                    await store.write(partial(release_expired, now=now, only=entry))


def _due(db: ReadSnapshot, *, now: int, paused: frozenset[str]) -> list[variables.VariableRow]:
    expired = variables.ended(db, now, STEP + len(paused))
    return [variable for variable in expired if _name(variable) not in paused]


def _name(entry: variables.VariableRow) -> str:
    return f"{entry.namespace}/{entry.path}"


def release_expired(tx: Transaction, now: int, only: variables.VariableRow | None = None) -> None:
    """Release up to `STEP` expired locks. With `only`, release only this lock, if it has expired.

    No caller can acquire a released lock before its delay has passed.
    """
    expired = variables.ended(tx, now, STEP) if only is None else [_expired_lock(tx, only, now)]
    for entry in expired:
        if entry is not None:
            variables.lose_lock(tx, entry, now)


def _expired_lock(
    tx: Transaction, entry: variables.VariableRow, now: int
) -> variables.VariableRow | None:
    stored = variables.find(tx, entry.namespace, entry.path)
    return stored if stored and stored.lock.id and stored.lock.ends <= now else None
