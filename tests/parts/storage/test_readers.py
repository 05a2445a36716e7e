"""Reads: each sees one consistent snapshot; short ones share the event loop."""

import threading

import pytest

from storage import read_pool
from storage.loop_share import LongRead
from storage.read_pool import ReadSnapshot
from storage.store import Store

COUNT = """
    WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < :most)
"""
ROWS = COUNT.replace("n < :most)", "n < :most) SELECT n FROM n")


async def test_nested_read_uses_the_same_snapshot(store: Store) -> None:
    inner, outer = store.read(
        lambda db: (store.read(lambda same: same.last_index()), db.last_index())
    )
    assert inner == outer


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
