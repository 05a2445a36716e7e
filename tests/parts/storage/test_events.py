"""The table of events: start positions of readers, page sizes, and deleted events."""

from storage.queries import events
from storage.store import Store
from storage.writer import Transaction


async def write(store: Store, *keys: str) -> int:
    """Add events in one write; return its index."""

    def work(tx: Transaction) -> int:
        for key in keys:
            events.add(tx, "Job", "JobRegistered", key=key, payload="{}", filter_keys=("also",))
        return tx.index

    return await store.write(work)


def keys_after(store: Store, number: int, most: int = 100) -> list[str]:
    return [event.key for event in store.read(lambda db: events.after(db, number, most))]


def begin(store: Store, index: int) -> int:
    return store.read(lambda db: events.before_index(db, index))


async def fill(store: Store) -> tuple[int, int, int]:
    """Write the events `a b`, `c` and `d e f` in three writes; return the indexes, and delete
    earlier events.
    """
    return await write(store, "a", "b"), await write(store, "c"), await write(store, "d", "e", "f")


async def test_events_have_the_order_of_their_writes(store: Store) -> None:
    first, _, _ = await fill(store)
    assert keys_after(store, begin(store, first)) == list("abcdef")


async def test_event_read_starts_at_any_index(store: Store) -> None:
    first, second, third = await fill(store)
    assert keys_after(store, begin(store, second)) == list("cdef")
    assert keys_after(store, begin(store, third)) == list("def")
    assert keys_after(store, begin(store, third + 1)) == []
    assert first < second


async def test_write_is_never_split(store: Store) -> None:
    first, _, _ = await fill(store)
    start = begin(store, first)
    assert keys_after(store, start, 1) == list("ab")
    assert keys_after(store, start + 2, 2) == list("cdef")


async def test_latest_events_are_whole_writes(store: Store) -> None:
    await fill(store)
    start = store.read(lambda db: events.before_last(db, 4))
    assert keys_after(store, start) == list("cdef")
    assert keys_after(store, store.read(lambda db: events.before_last(db, 2))) == list("def")


async def test_index_of_the_last_deleted_event_is_stored(store: Store) -> None:
    assert store.read(events.collected) == 0
    _, second, third = await fill(store)
    await store.write(lambda tx: events.trim(tx, 3, 100))
    assert store.read(events.collected) == second
    assert keys_after(store, begin(store, 1)) == list("def")
    assert store.read(events.newest) == begin(store, third) + 3


async def test_a_reader_is_woken_by_an_event(store: Store) -> None:
    with store.watch(events.TOPIC) as change:
        await write(store, "a")
        await change.wait()
