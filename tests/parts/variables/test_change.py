"""Changes of variables: check-and-set, and holders of locks."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from daemon.acl.seal import EnvelopeCipher
from daemon.variables import change
from daemon.variables.change import ChangeResult, VariableKey, decrypt_items
from storage.errors import Malformed
from storage.queries import secrets, variables
from storage.queries.variables import VariableLock, VariableRow
from storage.records.base import SECOND
from storage.snapshot import save
from storage.store import Store
from tests.samples import NOW

SEAL = EnvelopeCipher({1: bytes(32)})
NAME = VariableKey("default", "app/db")
LOCK = VariableLock(id="mine", ttl=15 * SECOND, delay=10 * SECOND)
Act = Callable[[Store, VariableKey, str, int], Awaitable[ChangeResult]]
OTHER = VariableLock(id="other", ttl=15 * SECOND, delay=10 * SECOND)


async def put(
    store: Store,
    value: str = "v",
    *,
    expected: int | None = None,
    lock_id: str = "",
    now: int = NOW,
    name: VariableKey = NAME,
) -> ChangeResult:
    return await change.put(
        store, SEAL, name, {"k": value}, expected=expected, lock=held_as(lock_id), now=now
    )


def held_as(lock_id: str) -> VariableLock:
    return (
        VariableLock(id=lock_id, ttl=15 * SECOND, delay=10 * SECOND) if lock_id else VariableLock()
    )


async def acquire(
    store: Store, lock: VariableLock = LOCK, now: int = NOW, own_id: str = ""
) -> ChangeResult:
    return await change.acquire_lock(store, SEAL, NAME, None, lock=lock, own_id=own_id, now=now)


def present(store: Store) -> VariableRow:
    found = store.read(lambda db: variables.find(db, "default", "app/db"))
    assert found is not None
    return found


def value(store: Store) -> str:
    return decrypt_items(SEAL, present(store))["k"]


# ---- check and set ------------------------------------------------------------------------------


async def test_variable_keeps_its_creation_time(store: Store) -> None:
    first = await put(store, "a")
    second = await put(store, "b", now=NOW + 1)
    found = present(store)
    assert (found.create_index, found.modify_index) == (first.index, second.index)
    assert (found.create_time, found.modify_time) == (NOW, NOW + 1)
    assert value(store) == "b"


@pytest.mark.parametrize(("expected", "conflict"), [(0, False), (1, True), (None, False)])
async def test_new_variable_is_created_at_expected_index_zero(
    store: Store, expected: int | None, conflict: bool
) -> None:
    assert (await put(store, expected=expected)).conflict is conflict


@pytest.mark.parametrize("wrong", [0, 1])
async def test_change_with_another_expected_index_changes_nothing(store: Store, wrong: int) -> None:
    done = await put(store, "a")
    refused = await put(store, "b", expected=wrong)
    assert refused.conflict
    assert refused.entry == present(store)
    assert value(store) == "a"
    assert not (await put(store, "b", expected=done.index)).conflict


async def test_removal_can_expect_an_index(store: Store) -> None:
    done = await put(store)
    refused = await change.remove(store, NAME, expected=1, lock_id="", now=NOW)
    assert refused.conflict
    gone = await change.remove(store, NAME, expected=done.index, lock_id="", now=NOW)
    assert not gone.conflict
    assert store.read(secrets.below) == []


async def test_removing_a_missing_object_succeeds(store: Store) -> None:
    assert not (await change.remove(store, NAME, expected=None, lock_id="", now=NOW)).conflict


async def test_removing_a_missing_variable_at_an_index_is_a_conflict(store: Store) -> None:
    result = await change.remove(store, NAME, expected=1, lock_id="", now=NOW)
    assert result.conflict
    assert result.entry is None
    assert not (await change.remove(store, NAME, expected=0, lock_id="", now=NOW)).conflict


async def test_variable_needs_its_namespace(store: Store) -> None:
    with pytest.raises(Malformed, match='nonexistent namespace "nowhere"'):
        await put(store, name=VariableKey("nowhere", "a"))


# ---- locks --------------------------------------------------------------------------------------


async def test_lock_creates_a_missing_variable(store: Store) -> None:
    assert not (await acquire(store)).conflict
    assert decrypt_items(SEAL, present(store)) == {}


async def test_lock_preserves_the_values(store: Store) -> None:
    await put(store, "kept")
    await acquire(store)
    assert value(store) == "kept"


async def test_only_the_holder_changes_a_locked_variable(store: Store) -> None:
    await put(store, "a")
    await acquire(store)
    assert (await put(store, "b")).conflict
    assert (await put(store, "b", lock_id="other")).conflict
    assert (await change.remove(store, NAME, expected=None, lock_id="", now=NOW)).conflict
    assert not (await put(store, "c", lock_id="mine")).conflict
    assert value(store) == "c"


async def test_lock_has_one_holder(store: Store) -> None:
    await acquire(store)
    assert (await acquire(store, OTHER)).conflict
    assert present(store).lock.id == "mine"


async def test_released_lock_can_be_acquired_immediately(store: Store) -> None:
    await acquire(store)
    assert not (await change.release_lock(store, NAME, "mine", NOW)).conflict
    assert not (await acquire(store, OTHER)).conflict


@pytest.mark.parametrize(
    ("seconds", "conflict"), [(0, True), (14, True), (15, True), (24, True), (25, False)]
)
async def test_expired_lock_can_be_acquired_after_its_delay(
    store: Store, seconds: int, conflict: bool
) -> None:
    await acquire(store)
    done = await acquire(store, OTHER, NOW + seconds * SECOND)
    assert done.conflict is conflict


async def test_renewed_lock_is_extended(store: Store) -> None:
    taken = await acquire(store)
    later = NOW + 10 * SECOND
    renewed = await change.renew_lock(store, NAME, "mine", later)
    assert renewed.index == taken.index  # no watcher wakes
    assert not (await put(store, "x", lock_id="mine", now=later + 14 * SECOND)).conflict


@pytest.mark.parametrize("act", [change.renew_lock, change.release_lock])
async def test_lost_lock_is_neither_renewed_nor_released(store: Store, act: Act) -> None:
    absent = await act(store, NAME, "mine", NOW)
    assert (absent.by_lock, absent.entry) == (True, None)
    await put(store)
    assert (await act(store, NAME, "mine", NOW)).by_lock
    await acquire(store)
    assert (await act(store, NAME, "other", NOW)).conflict
    late = NOW + 15 * SECOND
    assert (await act(store, NAME, "mine", late)).conflict


async def test_second_acquisition_by_the_holder_succeeds(store: Store) -> None:
    await acquire(store)
    later = NOW + 10 * SECOND
    assert not (await acquire(store, OTHER, later, own_id="mine")).conflict
    assert present(store).lock.id == "mine"
    assert present(store).lock.ends == later + OTHER.ttl


@pytest.mark.parametrize("seconds", [15, 24])
async def test_client_that_lost_a_lock_cannot_reacquire_as_owner(
    store: Store, seconds: int
) -> None:
    await acquire(store)
    again = await acquire(store, OTHER, NOW + seconds * SECOND, own_id="mine")
    assert again.by_lock


async def test_write_by_the_holder_updates_the_lock_durations(store: Store) -> None:
    await acquire(store, VariableLock(id="mine", ttl=60 * SECOND, delay=1))
    await put(store, lock_id="mine")
    lock = present(store).lock
    assert (lock.ttl, lock.delay, lock.ends) == (15 * SECOND, 10 * SECOND, NOW + 60 * SECOND)


async def test_client_that_lost_a_lock_is_notified(store: Store) -> None:
    await acquire(store)
    assert (await put(store, lock_id="mine", now=NOW + 15 * SECOND)).conflict


# ---- at rest ------------------------------------------------------------------------------------


async def test_snapshot_contains_no_plain_value(store: Store, tmp_path: Path) -> None:
    await put(store, "a-value-to-look-for")
    copy = tmp_path / "copy"
    save(tmp_path, copy)
    content = copy.read_bytes()
    assert b"app/db" in content
    assert b"a-value-to-look-for" not in content
