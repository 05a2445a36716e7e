"""A start with an unreadable row of the node, which another program or the disk has damaged."""

import sqlite3
from contextlib import closing

import msgspec
import pytest

from daemon.config.settings import Settings
from daemon.runner.node_registration import register, restore_unreadable
from storage.errors import StorageUnreadable, StorageUnusable
from storage.queries import events, nodes
from storage.records.node import ENGINE, Node
from storage.store import Store
from tests.parts.identity.conftest import DAMAGES
from tests.samples import NOW
from tests.unit.scheduler.world import node


async def start(store: Store) -> Node:
    """Register the node as a start of the daemon does."""
    fresh_id = await restore_unreadable(store) or "fresh"
    return await register(store, Settings(), {}, fresh_id, NOW)


def damage(store: Store, node_id: str, left: bytes) -> None:
    with closing(sqlite3.connect(store.path)) as other, other:
        other.execute("UPDATE nodes SET document = CAST(? AS TEXT) WHERE id = ?", (left, node_id))


async def forget_events(store: Store) -> None:
    """Delete all events, as their retention does at some time."""
    last = store.read(events.newest)
    await store.write(lambda tx: events.trim(tx, 0, last))


@pytest.mark.parametrize("left", DAMAGES)
async def test_unreadable_row_is_restored_from_the_newest_event(store: Store, left: bytes) -> None:
    before = await start(store)
    drained = msgspec.structs.replace(before, scheduling_eligibility="ineligible")
    await store.write(lambda tx: nodes.put(tx, drained, "NodeEligibility"))
    damage(store, before.id, left)
    with pytest.raises(StorageUnreadable, match=f"the row {before.id} of the table nodes"):
        store.read(nodes.list_all)
    after = await start(store)
    assert (after.id, after.scheduling_eligibility) == (before.id, "ineligible")


async def test_own_row_without_an_event_is_built_again_under_its_id(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    before = await start(store)
    await forget_events(store)
    damage(store, before.id, b"{")
    after = await start(store)
    assert (after.id, store.read(nodes.list_all)) == (before.id, [after])
    assert f"the row {before.id} of the table nodes" in caplog.text
    assert "without its drain, eligibility" in caplog.text


async def test_row_of_a_pool_without_an_event_stops_the_start_and_is_named(store: Store) -> None:
    await start(store)
    pool = node("pool-node", attributes={ENGINE: "slurm"})
    await store.write(lambda tx: nodes.put(tx, pool, "NodeRegistration"))
    await forget_events(store)
    damage(store, pool.id, b"{")
    with pytest.raises(StorageUnusable, match="the row id-of-pool-node of the table nodes"):
        await start(store)
