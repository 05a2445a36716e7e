"""Garbage collection deletes dead and old objects completely, and no others."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from daemon.evals import gc
from storage.queries import (
    allocations,
    evaluations,
    events,
    garbage_collection,
    index_times,
    job_listings,
    metrics,
)
from storage.read_pool import ReadSnapshot
from storage.records.allocation import ClientStatus, DesiredStatus, DesiredTransition, TaskEvent
from storage.records.base import HOUR, SECOND
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.group import ReschedulePolicy, Update
from storage.records.job import Parameterized
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, evaluation, group, job
from tests.time_limits import HAPPENS_WITHIN


async def note(cluster: Cluster) -> None:
    await cluster.store.write(lambda tx: index_times.record_time(tx, cluster.clock.now()))


async def finish(cluster: Cluster, job_id: str = "web") -> None:
    """Let a batch job run to its end."""
    await cluster.register(job(job_id, type="batch"))
    await cluster.work()
    for alloc in cluster.allocations(job_id):
        await cluster.report(alloc, ClientStatus.COMPLETE)
    await cluster.work()


def count(cluster: Cluster, table: str) -> int:
    def ask(db: ReadSnapshot) -> int:
        row = db.one(f"SELECT count(*) AS number FROM {table}")  # noqa: S608  # our own names
        return int(row["number"]) if row else 0

    return cluster.store.read(ask)


async def collect(cluster: Cluster, older_than: int = HOUR, **kept: int) -> None:
    kept = gc.RetentionLimits(jobs_for=older_than, **kept)
    await gc.collect_once(cluster.store, cluster.clock.now(), kept)


async def test_dead_job_is_deleted_with_all_its_objects(cluster: Cluster) -> None:
    await finish(cluster)
    await note(cluster)
    cluster.wait(2 * 3600)
    await collect(cluster)
    tables = ("jobs", "job_versions", "allocations", "evaluations", "task_events", "deployments")
    assert {table: count(cluster, table) for table in tables} == dict.fromkeys(tables, 0)


async def test_recently_ended_job_is_not_deleted(cluster: Cluster) -> None:
    await note(cluster)
    cluster.wait(2 * 3600)
    await finish(cluster)
    await note(cluster)
    await collect(cluster)
    assert count(cluster, "jobs") == 1


async def test_live_job_of_any_age_is_not_deleted(cluster: Cluster) -> None:
    await cluster.register(job("web"))
    await cluster.work()
    await note(cluster)
    cluster.wait(1000 * 3600)
    await collect(cluster)
    assert (count(cluster, "jobs"), count(cluster, "evaluations")) == (1, 1)


async def test_age_of_a_restarted_job_starts_at_the_restart(cluster: Cluster) -> None:
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
async def test_evaluations_of_a_purged_job_are_deleted_by_age(
    cluster: Cluster, status: EvalStatus, age: int, stays: bool
) -> None:
    orphan = evaluation(job("gone"), status=status)
    await cluster.store.write(lambda tx: evaluations.put(tx, orphan, NOW - age * HOUR))
    await collect(cluster)
    assert (count(cluster, "evaluations") == 1) is stays


async def test_large_deletions_are_split_into_steps(
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
    before = cluster.store.read(ReadSnapshot.last_index)
    await collect(cluster)
    assert count(cluster, "evaluations") == 0
    assert cluster.store.read(ReadSnapshot.last_index) - before == 3


async def test_only_the_newest_events_are_retained(cluster: Cluster) -> None:
    for version in range(4):
        await cluster.register(job("web", priority=50 + version))
    assert count(cluster, "events") > 3
    await collect(cluster, events=3)
    assert count(cluster, "events") == 3


async def test_deleted_children_leave_the_counts_of_their_parent(cluster: Cluster) -> None:
    await cluster.register(job("web", type="batch", parameterized_job=Parameterized()))
    child = msgspec.structs.replace(job("web/dispatch-1", type="batch"), parent_id="web")
    await cluster.register(child)
    await cluster.work()
    for alloc in cluster.allocations("web/dispatch-1"):
        await cluster.report(alloc, ClientStatus.COMPLETE)
    await cluster.work()
    await note(cluster)
    cluster.wait(2 * 3600)
    await collect(cluster)
    found = cluster.store.read(lambda db: job_listings.summary_wire(db, "default", "web"))
    assert found is not None
    assert msgspec.json.decode(found[0])["Children"] == {"Pending": 0, "Running": 0, "Dead": 0}


async def test_dead_jobs_are_collected_immediately_on_request(cluster: Cluster) -> None:
    await finish(cluster)
    await cluster.register(job("lives"))
    await cluster.work()
    await gc.force_collection(cluster.store, cluster.clock.now() + 1, gc.RetentionLimits())
    assert count(cluster, "jobs") == 1
    assert cluster.job("lives").status == "running"


async def test_objects_that_ended_just_now_are_collected_on_request(cluster: Cluster) -> None:
    await fail_often(cluster, 3)
    await note(cluster)
    everything = cluster.allocations()
    await gc.force_collection(cluster.store, cluster.clock.now(), gc.RetentionLimits())
    assert cluster.allocations() == everything[-2:]
    await finish(cluster, "dead")
    await note(cluster)
    await gc.force_collection(cluster.store, cluster.clock.now(), gc.RetentionLimits())
    assert [name for name, _ in cluster.store.read(partial(ids_of, table="jobs"))] == ["web"]


async def test_wrong_counts_are_corrected(cluster: Cluster) -> None:
    await cluster.register(job("web"))
    await cluster.work()

    def spoil(tx: Transaction) -> None:
        tx.execute("UPDATE jobs SET status = 'dead', summary = ''", {})

    await cluster.store.write(spoil)
    await gc.refresh_all_summaries(cluster.store)
    assert cluster.job().status == "running"
    found = cluster.store.read(lambda db: job_listings.summary_wire(db, "default", "web"))
    assert found is not None
    assert b'"Starting":1' in found[0]


# ---- old objects of running jobs -------------------------------------------------------


async def fail_often(cluster: Cluster, times: int) -> None:
    """Let the one allocation of a service fail and be replaced, this many times."""
    policy = ReschedulePolicy(unlimited=True, delay=0, delay_function="constant")
    await cluster.register(job("web", group(reschedule_policy=policy)))
    await cluster.work()
    for _ in range(times):
        cluster.wait(3600)
        (one,) = [alloc for alloc in cluster.wanted() if not alloc.client_terminal]
        await cluster.report(one, ClientStatus.FAILED)
        failed = evaluation(cluster.job(), next(cluster.ids))
        await cluster.store.write(partial(evaluations.put, evaluation=failed, now=NOW))
        await cluster.work()


async def test_failed_and_replaced_allocation_is_collected_by_number(cluster: Cluster) -> None:
    await fail_often(cluster, 6)
    everything = cluster.allocations()
    await collect(cluster, allocations=2)
    # The two newest replaced allocations and the running one remain.
    assert cluster.allocations() == everything[-3:]


async def test_failed_and_replaced_allocation_is_collected_by_age(cluster: Cluster) -> None:
    await fail_often(cluster, 6)
    everything = cluster.allocations()
    await collect(cluster, allocations_for=2 * HOUR)
    assert cluster.allocations() == everything[-4:]


async def test_allocation_replaced_by_the_running_one_stays_at_any_age(cluster: Cluster) -> None:
    await fail_often(cluster, 3)
    cluster.wait(1000 * 24 * 3600)
    everything = cluster.allocations()
    await collect(cluster)
    assert cluster.allocations() == everything[-2:]


async def test_completed_allocations_of_a_batch_job_are_not_deleted(cluster: Cluster) -> None:
    await cluster.register(job("web", group(count=2), type="batch"))
    await cluster.work()
    done, _ = cluster.allocations()
    await cluster.report(done, ClientStatus.COMPLETE)
    cluster.wait(1000 * 24 * 3600)
    await collect(cluster, allocations=1)
    again = evaluation(cluster.job(), next(cluster.ids))
    await cluster.store.write(partial(evaluations.put, evaluation=again, now=NOW))
    await cluster.work()
    assert len(cluster.allocations()) == 2


async def scale_down_and_up(cluster: Cluster, times: int) -> None:
    """Add an allocation to a batch job and remove it again, this many times."""
    for _ in range(times):
        for number in (2, 1):
            await cluster.register(job("web", group(count=number), type="batch"))
            await cluster.work()
            await cluster.run_all()
            cluster.wait(3600)


async def test_stopped_batch_allocations_are_collected_by_number(cluster: Cluster) -> None:
    await scale_down_and_up(cluster, 6)
    everything = cluster.allocations()
    await collect(cluster, allocations=2)
    assert cluster.allocations() == [*cluster.wanted(), *everything[-2:]]


async def test_stopped_batch_allocations_are_collected_by_age(cluster: Cluster) -> None:
    await scale_down_and_up(cluster, 6)
    await collect(cluster, allocations_for=2 * HOUR)
    assert len(cluster.allocations()) == len(cluster.wanted()) + 1


async def test_allocation_that_fills_the_slot_of_a_batch_job_stays(cluster: Cluster) -> None:
    await scale_down_and_up(cluster, 1)
    _, stopped = cluster.allocations()
    desired_transition = DesiredTransition(migrate_disable_placement=True)
    desired = msgspec.structs.replace(stopped.desired, transition=desired_transition)
    leaving = msgspec.structs.replace(stopped, desired=desired)
    await cluster.store.write(partial(allocations.set_desired, allocation=leaving, now=NOW))
    await collect(cluster, allocations=0, allocations_for=0)
    assert stopped.id in [alloc.id for alloc in cluster.allocations()]


async def test_ended_allocation_of_an_active_deployment_stays(cluster: Cluster) -> None:
    update = Update(max_parallel=1, progress_deadline=600 * SECOND, canary=1)
    for version in range(2):
        await cluster.register(job("web", group(update=update), priority=50 + version))
        await cluster.work()
        await cluster.run_all(healthy=not version)
        await cluster.work()
    active = cluster.deployment()
    canary = cluster.allocations()[-1]
    assert (active.status, canary.deployment_id) == ("running", active.id)

    def stop(tx: Transaction) -> None:
        stopped = msgspec.structs.replace(canary, desired_status=DesiredStatus.STOP)
        allocations.set_desired(tx, stopped, NOW)

    await cluster.store.write(stop)
    await cluster.report(
        msgspec.structs.replace(canary, desired_status=DesiredStatus.STOP), ClientStatus.FAILED
    )
    cluster.wait(1000 * 24 * 3600)
    await collect(cluster)
    assert canary.id in [alloc.id for alloc in cluster.allocations()]


async def test_files_are_deleted_with_their_allocation(cluster: Cluster) -> None:
    await fail_often(cluster, 4)
    (node_id,) = {alloc.node_id for alloc in cluster.allocations()}
    with cluster.store.watch(allocations.removed_topic(node_id)) as removals:
        await collect(cluster, allocations=1)
        with trio.fail_after(HAPPENS_WITHIN):
            await removals.wait()


async def test_counts_of_a_job_match_its_stored_objects(cluster: Cluster) -> None:
    await fail_often(cluster, 4)
    await collect(cluster, allocations=1)
    found = cluster.store.read(lambda db: job_listings.summary_wire(db, "default", "web"))
    assert found is not None
    assert b'"Failed":1' in found[0]


async def test_evaluations_are_limited_in_number_except_for_those_of_stored_allocations(
    cluster: Cluster,
) -> None:
    await cluster.register(job("web"))
    await cluster.work()
    (placed,) = cluster.allocations()
    for number in range(5):
        done = evaluation(cluster.job(), f"e{number}", status=EvalStatus.COMPLETE)
        await cluster.store.write(partial(evaluations.put, evaluation=done, now=NOW))
    await collect(cluster, evaluations=2)
    left = {name for name, _ in cluster.store.read(partial(ids_of, table="evaluations"))}
    assert left == {placed.eval_id, "e3", "e4"}


def ids_of(db: ReadSnapshot, *, table: str) -> list[tuple[str, str]]:
    rows = db.all(f"SELECT id, status FROM {table}")  # noqa: S608  # our own names
    return [(row["id"], row["status"]) for row in rows]


async def test_deployments_are_limited_in_number_except_for_those_of_stored_allocations(
    cluster: Cluster,
) -> None:
    update = Update(max_parallel=1, progress_deadline=600 * SECOND)
    for version in range(5):
        await cluster.register(job("web", group(update=update), priority=50 + version))
        await cluster.work()
        await cluster.run_all(healthy=True)
        await cluster.work()
    everything = cluster.store.read(partial(ids_of, table="deployments"))
    await collect(cluster, allocations=1, deployments=1)
    left = cluster.store.read(partial(ids_of, table="deployments"))
    named = {alloc.deployment_id for alloc in cluster.allocations()}
    assert {name for name, _ in left} == named | {everything[-1][0]}
    assert len(left) < len(everything)


async def test_events_are_deleted_by_age(cluster: Cluster) -> None:
    await cluster.register(job("web"))
    await note(cluster)
    cluster.wait(2 * 3600)
    before = cluster.store.read(events.newest)
    await cluster.register(job("web", priority=60))
    await collect(cluster, events_for=HOUR)
    left = cluster.store.read(partial(events.after, number=0, most=1000))
    assert left[0].number == before + 1


async def test_only_the_newest_events_of_a_task_are_retained(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocations, "KEPT_EVENTS", 3)
    await cluster.register(job("web"))
    await cluster.work()
    (one,) = cluster.allocations()
    for number in range(5):
        happened = {"main": [TaskEvent(type=str(number), time=number)]}
        await cluster.store.write(
            lambda tx, what=happened: allocations.add_events(tx, one.id, what)
        )
    kept = cluster.store.read(lambda db: allocations.newest_events(db, one.id, "main"))
    assert [event.type for event in kept] == ["2", "3", "4"]
    assert count(cluster, "task_events") == 3


# ---- small steps ------------------------------------------------------------------------------------


async def many(cluster: Cluster, number: int, job_id: str = "web") -> None:
    """Let a batch job of this many allocations end, long ago."""
    await cluster.register(job(job_id, group(count=number), type="batch"))
    await cluster.work()
    for alloc in cluster.allocations(job_id):
        await cluster.report(alloc, ClientStatus.COMPLETE)
    await cluster.work()
    await note(cluster)
    cluster.wait(2 * 3600)


async def test_large_job_is_deleted_in_several_writes_with_other_writes_in_between(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "ROWS", 4)
    await many(cluster, 12)
    assert max(await deleted_per_write(cluster, monkeypatch)) <= 4


async def test_row_limit_of_a_write_covers_all_its_jobs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "ROWS", 12)
    for number in range(3):
        await many(cluster, 8, f"web-{number}")
    sizes = await deleted_per_write(cluster, monkeypatch)
    assert 8 < max(sizes) <= 12  # one write deletes allocations of two jobs


async def deleted_per_write(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect all garbage; return the number of allocations that each write deleted."""
    sizes, write = [], cluster.store.write

    async def counted(work: Callable[[Transaction], Any]) -> Any:
        before = count(cluster, "allocations")
        result = await write(work)
        sizes.append(before - count(cluster, "allocations"))
        return result

    monkeypatch.setattr(cluster.store, "write", counted)
    await collect(cluster)
    assert (count(cluster, "jobs"), count(cluster, "allocations")) == (0, 0)
    return sizes


async def begin(cluster: Cluster, rows: int) -> None:
    """Remove only this many rows of the job, as if the daemon were killed then."""
    key = ("default", "web")
    await cluster.store.write(lambda tx: garbage_collection.forget_job(tx, key, rows))


async def test_partly_deleted_job_runs_nothing_again(cluster: Cluster) -> None:
    await many(cluster, 8)
    await begin(cluster, 3)
    left = len(cluster.allocations())
    assert 0 < left < 8
    again = evaluation(cluster.job(), next(cluster.ids))
    await cluster.store.write(partial(evaluations.put, evaluation=again, now=NOW))
    await cluster.work()
    assert len(cluster.allocations()) == left


async def test_partly_deleted_job_is_deleted_in_the_next_round(cluster: Cluster) -> None:
    await many(cluster, 8)
    await begin(cluster, 3)
    await collect(cluster)
    assert (count(cluster, "jobs"), count(cluster, "allocations")) == (0, 0)


async def test_partly_deleted_job_can_be_started_again(cluster: Cluster) -> None:
    await many(cluster, 8)
    await begin(cluster, 3)
    await cluster.register(job("web", group(count=8), type="batch", priority=60))
    await cluster.work()
    await collect(cluster)
    assert cluster.job().status == "running"
    assert len([alloc for alloc in cluster.wanted() if not alloc.client_terminal]) == 8


async def test_stopped_job_is_not_deleted_before_its_tasks_have_ended(cluster: Cluster) -> None:
    await cluster.register(job("web"))
    await cluster.work()
    await cluster.run_all()
    await cluster.register(job("web", stop=True))
    await cluster.work()
    await gc.force_collection(cluster.store, cluster.clock.now() + 1, gc.RetentionLimits())
    assert (cluster.job().status, count(cluster, "allocations")) == ("dead", 1)
    await cluster.run_all()
    await gc.force_collection(cluster.store, cluster.clock.now() + 1, gc.RetentionLimits())
    assert count(cluster, "jobs") == 0


async def test_newest_dead_jobs_are_not_deleted(cluster: Cluster) -> None:
    for name in "abc":
        await finish(cluster, name)
    await collect(cluster, jobs=1)
    assert [name for name, _ in cluster.store.read(partial(ids_of, table="jobs"))] == ["c"]


async def test_collection_on_request_preserves_the_age_of_objects(
    cluster: Cluster,
) -> None:
    await note(cluster)
    await gc.force_collection(cluster.store, cluster.clock.now(), gc.RetentionLimits())
    await finish(cluster)
    await note(cluster)
    cluster.wait(2 * 3600)
    await gc.force_collection(
        cluster.store, cluster.clock.now(), gc.RetentionLimits(jobs_for=9 * HOUR)
    )
    await finish(cluster, "later")
    await collect(cluster)
    assert [name for name, _ in cluster.store.read(partial(ids_of, table="jobs"))] == ["later"]


async def test_deleted_objects_are_counted_and_logged(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "steward.evals")
    await finish(cluster)
    await note(cluster)
    cluster.wait(2 * 3600)

    def told() -> list[str]:
        return [text for text in caplog.messages if text.startswith("deleted by")]

    async with trio.open_nursery() as nursery:
        retention_limits = gc.RetentionLimits(jobs_for=HOUR)
        nursery.start_soon(gc.collect_garbage, cluster.store, cluster.clock, retention_limits)
        with trio.fail_after(HAPPENS_WITHIN):
            while not told():
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert told() == ["deleted by garbage collection: 1 allocations, 1 evaluations, 1 jobs"]
    assert cluster.store.read(garbage_collection.counts) == {
        "allocations": 1,
        "evaluations": 1,
        "jobs": 1,
    }


async def test_file_does_not_grow_after_deletions(cluster: Cluster) -> None:
    def orphans(tx: Transaction) -> None:
        for number in range(500):
            one = evaluation(job("gone"), f"e{number}", status=EvalStatus.COMPLETE)
            evaluations.put(tx, one, NOW - 2 * HOUR)

    async def fill() -> dict[str, int]:
        await cluster.store.write(orphans)
        await collect(cluster, events=1)
        return cluster.store.read(metrics.file_sizes)

    first = await fill()
    assert first["free_bytes"] > 0
    assert (await fill())["bytes"] <= first["bytes"]
