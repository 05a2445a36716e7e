"""Reads: each sees one consistent snapshot; short ones share the event loop."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial

import pytest
import trio

from storage import read_pool
from storage.errors import StorageDamaged, StorageError, StorageFull, StorageUnreadable
from storage.loop_share import LongRead
from storage.read_pool import ReadSnapshot, UnreadableRows
from storage.store import Store, tolerate_disk_full

COUNT = """
    WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < :most)
"""
ROWS = COUNT.replace("n < :most)", "n < :most) SELECT n FROM n")


async def test_nested_read_uses_the_same_snapshot(store: Store) -> None:
    inner, outer = store.read(
        lambda db: (store.read(lambda same: same.last_index()), db.last_index())
    )
    assert inner == outer


@pytest.mark.parametrize("is_short", [False, True])
async def test_read_sees_one_snapshot_despite_a_commit_in_between(
    store: Store, is_short: bool
) -> None:
    def work(db: ReadSnapshot) -> tuple[int, int]:
        before = db.last_index()
        with closing(sqlite3.connect(store.path)) as other, other:
            other.execute("UPDATE store SET last_index = last_index + 1")
        return before, db.last_index()

    before, after = (store.read_short if is_short else store.read)(work)
    assert after == before
    assert store.read(ReadSnapshot.last_index) == before + 1


async def test_text_that_is_not_utf_8_is_read_with_surrogates(store: Store) -> None:
    sql = "SELECT CAST(x'41ff' AS TEXT) AS text UNION ALL SELECT 'b'"

    def work(db: ReadSnapshot) -> list[list[str]]:
        rows = [db.all(sql), [*db.each(sql)], [row for row in [db.one(sql)] if row]]
        return [[row["text"] for row in found] for found in rows]

    assert store.read(work) == [["A\udcff", "b"], ["A\udcff", "b"], ["A\udcff"]]


@pytest.mark.parametrize(
    ("sql", "error"),
    [("SELECT json('{')", StorageUnreadable), ("SELECT no_such FROM store", StorageError)],
)
@pytest.mark.parametrize("is_short", [False, True])
async def test_faulty_query_is_no_long_read(
    store: Store, sql: str, error: type[Exception], is_short: bool
) -> None:
    read = store.read_short if is_short else store.read
    for work in (lambda db: db.one(sql), lambda db: db.all(sql), lambda db: [*db.each(sql)]):
        with pytest.raises(error):
            read(work)


def test_each_unreadable_row_is_counted_once() -> None:
    rows = UnreadableRows()
    for table, key in [("jobs", ("a",)), ("jobs", ("a",)), ("jobs", ("b",)), ("", ("c",))]:
        rows.note(StorageUnreadable("damaged", table=table, key=key))
    assert rows.by_table() == {"jobs": 2}
    rows.forget(("jobs", ("a",)))
    assert rows.rows() == [("jobs", ("b",))]


async def test_every_read_notes_the_row_that_it_cannot_decode(store: Store) -> None:
    def work(key: str, _: ReadSnapshot) -> None:
        raise StorageUnreadable("damaged", table="jobs", key=(key,))

    with pytest.raises(StorageUnreadable):
        store.read(partial(work, "a"))
    with pytest.raises(StorageUnreadable):
        store.read_short(partial(work, "b"))
    with pytest.raises(StorageUnreadable):
        await store.read_long(partial(work, "c"))
    assert store.unreadable_rows.rows() == [("jobs", (key,)) for key in ("a", "b", "c")]


async def test_short_read_may_search_for_a_while(store: Store) -> None:
    select = "SELECT count(*) AS n FROM n"
    row = store.read_short(lambda db: db.one(COUNT + select, {"most": 1000}))
    assert row is not None
    assert row["n"] == 1000


async def test_abandoned_rows_keep_no_snapshot(store: Store) -> None:
    kept = store.read(lambda db: (rows := db.each(ROWS, {"most": 9}), next(rows)))
    before = store.read(ReadSnapshot.last_index)
    await store.write(lambda tx: tx.execute("UPDATE store SET created_at = 1", {}))
    assert store.read(ReadSnapshot.last_index) == before + 1
    with pytest.raises(sqlite3.ProgrammingError):
        next(kept[0])


@pytest.mark.parametrize(("error", "seconds"), [(StorageFull, 1), (StorageDamaged, 60)])
async def test_repeated_work_pauses_while_writes_are_not_possible(
    autojump_clock: object, error: type[Exception], seconds: int
) -> None:
    began = trio.current_time()
    async with tolerate_disk_full("it waits"):
        raise error("no")
    assert trio.current_time() - began == seconds


async def test_read_after_a_nested_read_sees_current_data(store: Store) -> None:
    store.read(lambda _: store.read(lambda db: db.last_index()))
    assert store.read(lambda db: db.one("SELECT 1 AS one", {})) is not None


@pytest.mark.parametrize(
    ("select", "most"),
    [
        ("SELECT n FROM n", 10_000),  # many rows
        ("SELECT printf('%.*c', 100000, 'x') FROM n", 10),  # long rows
        ("SELECT length(hex(zeroblob(500000))) FROM n", 1),  # a long intermediate text
        ("SELECT count(*) FROM n", 10_000_000),  # much to search for one row
    ],
)
async def test_oversized_short_read_is_refused(store: Store, select: str, most: int) -> None:
    def work(db: ReadSnapshot) -> int:
        return len(db.all(COUNT + select, {"most": most}))

    with pytest.raises(LongRead):
        store.read_short(work)
    with pytest.raises(LongRead):
        store.read_short(lambda db: len(list(db.each(COUNT + select, {"most": most}))))
    if most < 10_000_000:
        assert await store.read_long(work) == store.read(work) == most


async def test_short_read_counts_all_its_rows(store: Store) -> None:
    def work(db: ReadSnapshot) -> None:
        for _ in range(10_000):
            db.one("SELECT 1")

    with pytest.raises(LongRead):
        store.read_short(work)
    assert store.read_short(lambda db: len(db.all("SELECT 1"))) == 1


@pytest.mark.parametrize("rows", [96, 97])
async def test_short_read_of_small_rows_counts_2_kib_for_each(store: Store, rows: int) -> None:
    works: list[Callable[[ReadSnapshot], list[object]]] = [
        lambda db: db.all(ROWS, {"most": rows}),
        lambda db: [*db.each(ROWS, {"most": rows})],
        lambda db: [db.one("SELECT 1") for _ in range(rows)],
    ]
    for work in works:
        with pytest.raises(LongRead) if rows > 96 else nullcontext():
            assert len(store.read_short(work)) == rows


async def test_refused_short_read_leaves_nothing_open(store: Store) -> None:
    with pytest.raises(LongRead):
        store.read_short(lambda db: db.all(ROWS, {"most": 10_000}))
    before = store.read(ReadSnapshot.last_index)
    await store.write(lambda tx: tx.execute("UPDATE store SET created_at = 1", {}))
    assert store.read(ReadSnapshot.last_index) == before + 1


async def test_timed_out_read_ends_its_transaction(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pool, "STEPS", 1)  # interrupts even a COMMIT
    with pytest.raises(LongRead):
        store.read_short(lambda db: db.one(f"{ROWS} ORDER BY -n", {"most": 10_000_000}))
    before = store.read(ReadSnapshot.last_index)
    await store.write(lambda tx: tx.execute("UPDATE store SET created_at = 1", {}))
    assert store.read(ReadSnapshot.last_index) == before + 1


async def test_read_within_a_long_read_runs_in_its_thread(store: Store) -> None:
    def work(db: ReadSnapshot) -> tuple[int, int, bool]:
        inner = store.read(lambda same: (same.last_index(), same is db))
        return inner[0], db.last_index(), inner[1] and threading.current_thread() is not main

    main = threading.current_thread()
    inner, outer, is_same = await store.read_long(work)
    assert inner == outer
    assert is_same
