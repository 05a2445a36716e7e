"""Writes: the topics that they publish, and the rows that depend on the written object."""

from collections.abc import Callable

import pytest

from daemon.identity import mounts
from daemon.text.request_fields import RequestFields
from storage.queries import concurrency, evaluations, groups, notifications, periodic, runs
from storage.records.allocation import ClientStatus
from storage.records.flow import STEP_QUEUES
from storage.records.identity import Group, GroupAlias
from storage.records.job import JobType
from storage.records.notification import NotifyEvent, NotifySettings
from storage.records.periodic import Slot, SlotOutcome
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job

MOUNT = mounts.new_mount("cloudid/", RequestFields({"type": "cloudid"}), "m-1")
WEB = ("default", "web")


def add_alias(tx: Transaction) -> None:
    alias = GroupAlias(
        id="a", group_id="g", mount=MOUNT.accessor, name="n", created_at=1, updated_at=1
    )
    groups.put_alias(tx, alias)


def extend_slot(tx: Transaction) -> None:
    slot = Slot(slot=NOW, slots=1, decided_at=NOW, outcome=SlotOutcome.SKIPPED)
    periodic.extend(tx, *WEB, slot)


def notify(tx: Transaction) -> None:
    event = NotifyEvent.FAILURE
    settings = NotifySettings(webhook="https://example.org/", events=(event,))
    notifications.add(tx, WEB, settings, event, run_id="r", reason="", now=NOW)


@pytest.mark.parametrize(
    ("write", "table", "topic"),
    [
        (add_alias, "identity_groups", "identity-groups/g"),
        (extend_slot, "periodic_slots", periodic.topic(*WEB)),
        (notify, "notifications", notifications.topic(*WEB)),
        (notify, "notifications", notifications.TOPIC),
    ],
)
async def test_repeated_write_wakes_the_watchers_of_its_topic(
    store: Store, write: Callable[[Transaction], None], table: str, topic: str
) -> None:
    group = Group(id="g", name="g", type="external", created_at=1, updated_at=1)
    await Cluster(store).register(job("web"))
    await mounts.enable(store, MOUNT)
    await store.write(lambda tx: groups.put(tx, group))
    for _ in range(2):
        with store.watch(topic) as watch:
            await store.write(write)
            assert watch.has_changed
        index = store.read(lambda db: db.last_index())
        assert store.read(lambda db: db.table_index(table)) == index


async def test_end_of_an_allocation_wakes_the_blocked_evaluations(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.join()
    await cluster.register(job("web", type=JobType.BATCH))
    await cluster.work()
    for status, wakes in ((ClientStatus.RUNNING, False), (ClientStatus.COMPLETE, True)):
        with store.watch(evaluations.ROOM) as watch:
            await cluster.report(cluster.allocations()[0], status)
            assert watch.has_changed == wakes


async def test_event_of_a_queue_names_its_namespace(store: Store) -> None:
    await store.write(lambda tx: concurrency.set_limit(tx, ("default", "builds"), 2, ""))
    await store.write(lambda tx: concurrency.remove_limit(tx, ("default", "builds")))
    rows = store.read(
        lambda db: db.all("SELECT namespace, key, type FROM events WHERE topic = 'Concurrency'")
    )
    assert {(row["namespace"], row["key"]) for row in rows} == {("default", "builds")}


async def test_queue_of_the_only_step_is_in_use(store: Store) -> None:
    step = group("g", meta={STEP_QUEUES: "builds"})
    cluster = Cluster(store)
    await cluster.register(job("web", step))
    await store.write(lambda tx: runs.sync_queues(tx, cluster.job()))
    assert store.read(lambda db: concurrency.is_used(db, ("default", "builds")))
