"""Reads: each sees one moment of the file, whole."""

from storage.store import Store


async def test_a_read_within_a_read_sees_the_same_moment(store: Store) -> None:
    inner, outer = store.read(
        lambda db: (store.read(lambda same: same.last_index()), db.last_index())
    )
    assert inner == outer


async def test_a_read_after_a_nested_one_sees_the_present(store: Store) -> None:
    store.read(lambda _: store.read(lambda db: db.last_index()))
    assert store.read(lambda db: db.one("SELECT 1 AS one", {})) is not None
