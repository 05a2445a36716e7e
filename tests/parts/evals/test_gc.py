"""Forgetting: what is dead and old goes, whole, and nothing else does."""

import msgspec
import pytest

from daemon.evals import gc
from storage.queries import evaluations, job_listings, moments
from storage.readers import Snapshot
from storage.records.allocation import ClientStatus
from storage.records.base import HOUR
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.job import Parameterized
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, evaluation, job


async def note(cluster: Cluster) -> None:
    await cluster.store.write(lambda tx: moments.note(tx, cluster.clock.now()))


async def finish(cluster: Cluster, job_id: str = "web") -> None:
    """Let a batch job run to its end."""
    await cluster.register(job(job_id, type="batch"))
    await cluster.work()
    for one in cluster.allocations(job_id):
        await cluster.report(one, ClientStatus.COMPLETE)
    await cluster.work()


def count(cluster: Cluster, table: str) -> int:
    def ask(db: Snapshot) -> int:
        row = db.one(f"SELECT count(*) AS number FROM {table}")  # noqa: S608  # our own names
        return int(row["number"]) if row else 0

    return cluster.store.read(ask)


async def collect(cluster: Cluster, older_than: int = HOUR) -> None:
    await gc.collect(cluster.store, cluster.clock.now() - older_than)


async def test_a_dead_job_goes_with_all_that_belongs_to_it(cluster: Cluster) -> None:
    await finish(cluster)
    await note(cluster)
    cluster.wait(2 * 3600)
    await collect(cluster)
    tables = ("jobs", "job_versions", "allocations", "evaluations", "task_events", "deployments")
    assert {table: count(cluster, table) for table in tables} == dict.fromkeys(tables, 0)


async def test_a_job_that_died_lately_stays(cluster: Cluster) -> None:
    await note(cluster)
    cluster.wait(2 * 3600)
    await finish(cluster)
    await note(cluster)
    await collect(cluster)
    assert count(cluster, "jobs") == 1


async def test_a_job_that_lives_stays_however_old(cluster: Cluster) -> None:
    await cluster.register(job("web"))
    await cluster.work()
    await note(cluster)
    cluster.wait(1000 * 3600)
    await collect(cluster)
    assert (count(cluster, "jobs"), count(cluster, "evaluations")) == (1, 1)


async def test_a_job_that_was_started_again_is_as_young_as_that(cluster: Cluster) -> None:
    await finish(cluster)
    await note(cluster)
    cluster.wait(2 * 3600)
    await finish(cluster)
    await collect(cluster)
    assert count(cluster, "jobs") == 1


@pytest.mark.parametrize(
    ("status", "age", "stays"),
    [
        (EvalStatus.COMPLETE, 2, False),
        (EvalStatus.FAILED, 2, False),
        (EvalStatus.CANCELED, 2, False),
        (EvalStatus.COMPLETE, 0, True),
        (EvalStatus.PENDING, 2, True),
        (EvalStatus.BLOCKED, 2, True),
    ],
)
async def test_evaluations_that_outlived_a_purge_go_by_their_age(
    cluster: Cluster, status: EvalStatus, age: int, stays: bool
) -> None:
    orphan = evaluation(job("gone"), status=status)
    await cluster.store.write(lambda tx: evaluations.put(tx, orphan, NOW - age * HOUR))
    await collect(cluster)
    assert (count(cluster, "evaluations") == 1) is stays


async def test_more_than_one_step_removes_goes_in_several(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "STEP", 2)

    def orphans(tx: Transaction) -> list[Evaluation]:
        return [
            evaluations.put(
                tx, evaluation(job("gone"), f"e{n}", status=EvalStatus.COMPLETE), NOW - 2 * HOUR
            )
            for n in range(5)
        ]

    await cluster.store.write(orphans)
    before = cluster.store.read(Snapshot.last_index)
    await collect(cluster)
    assert count(cluster, "evaluations") == 0
    assert cluster.store.read(Snapshot.last_index) - before == 3


async def test_only_the_newest_events_are_kept(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "KEPT_EVENTS", 3)
    for version in range(4):
        await cluster.register(job("web", priority=50 + version))
    assert count(cluster, "events") > 3
    await collect(cluster)
    assert count(cluster, "events") == 3


async def test_children_leave_the_counts_of_their_parent(cluster: Cluster) -> None:
    await cluster.register(job("web", type="batch", parameterized_job=Parameterized()))
    child = msgspec.structs.replace(job("web/dispatch-1", type="batch"), parent_id="web")
    await cluster.register(child)
    await cluster.work()
    for one in cluster.allocations("web/dispatch-1"):
        await cluster.report(one, ClientStatus.COMPLETE)
    await cluster.work()
    await note(cluster)
    cluster.wait(2 * 3600)
    await collect(cluster)
    found = cluster.store.read(lambda db: job_listings.summary_wire(db, "default", "web"))
    assert found is not None
    assert msgspec.json.decode(found[0])["Children"] == {"Pending": 0, "Running": 0, "Dead": 0}


async def test_what_is_dead_goes_at_once_on_request(cluster: Cluster) -> None:
    await finish(cluster)
    await cluster.register(job("lives"))
    await cluster.work()
    await gc.collect_now(cluster.store, cluster.clock.now() + 1)
    assert count(cluster, "jobs") == 1
    assert cluster.job("lives").status == "running"


async def test_counts_that_are_wrong_are_put_right(cluster: Cluster) -> None:
    await cluster.register(job("web"))
    await cluster.work()

    def spoil(tx: Transaction) -> None:
        tx.execute("UPDATE jobs SET status = 'dead', summary = ''", {})

    await cluster.store.write(spoil)
    await gc.settle_all(cluster.store)
    assert cluster.job().status == "running"
    found = cluster.store.read(lambda db: job_listings.summary_wire(db, "default", "web"))
    assert found is not None
    assert b'"Starting":1' in found[0]
