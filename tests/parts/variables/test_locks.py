"""Variable locks expire automatically, and waiting callers are notified."""

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from daemon.fences import Fences
from daemon.variables import change, locks
from daemon.variables.locks import open_locks
from storage.queries import variables
from storage.queries.variables import VariableLock
from storage.records.base import SECOND
from storage.store import Store
from tests.parts.variables.test_change import LOCK, NAME, OTHER, SEAL, acquire, present
from tests.samples import NOW


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> int:
        return self.time


@pytest.fixture
async def clock(store: Store) -> AsyncIterator[Clock]:
    """A clock that decides when locks expire."""
    clock = Clock()
    async with open_locks(store, clock, Fences(clock)):
        yield clock


async def until_lost(store: Store) -> None:
    with trio.fail_after(5):
        while True:
            with store.watch("variables/default/app/db") as change:
                if not present(store).lock.id:
                    return
                await change.wait()


SHORT = VariableLock(id="mine", ttl=SECOND // 20, delay=10 * SECOND)


async def test_lock_that_is_not_renewed_expires_and_wakes_waiters(
    store: Store, clock: Clock
) -> None:
    taken = await acquire(store, SHORT)
    await trio.testing.wait_all_tasks_blocked()
    clock.time += SECOND
    await until_lost(store)
    assert present(store).modify_index > taken.index


async def test_expired_lock_keeps_its_delay(store: Store) -> None:
    await acquire(store)
    late = NOW + LOCK.ttl
    await store.write(lambda tx: locks.release_expired(tx, late))
    assert present(store).lock.id == ""
    assert (await acquire(store, OTHER, late + LOCK.delay - 1)).conflict
    assert not (await acquire(store, OTHER, late + LOCK.delay)).conflict


async def test_held_lock_does_not_expire(store: Store) -> None:
    await acquire(store)
    await change.renew_lock(store, NAME, "mine", NOW + 10 * SECOND)
    await store.write(lambda tx: locks.release_expired(tx, NOW + LOCK.ttl))
    assert present(store).lock.id == "mine"
    assert store.read(variables.next_end) == NOW + 10 * SECOND + LOCK.ttl


async def test_released_lock_does_not_expire_again(store: Store, clock: Clock) -> None:
    await acquire(store)
    done = await change.release_lock(store, NAME, "mine", NOW)
    clock.time += 60 * SECOND
    await acquire(store, SHORT, clock.time)
    assert present(store).modify_index == done.index + 1


async def test_values_survive_the_end_of_a_lock(store: Store) -> None:
    await change.acquire_lock(store, SEAL, NAME, {"k": "kept"}, lock=LOCK, now=NOW)
    await store.write(lambda tx: locks.release_expired(tx, NOW + LOCK.ttl))
    assert change.decrypt_items(SEAL, present(store)) == {"k": "kept"}
