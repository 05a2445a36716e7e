"""Preemption in the store: one write has the placement, the victim and the evaluation of its
job."""

from typing import Any

import msgspec
import pytest

from daemon.evals import applier, worker
from daemon.evals.cluster_state import load_cluster_state
from daemon.evals.dry_run import dry_run
from daemon.evals.schedule_with_preemption import decide
from daemon.evals.scheduler_config import configure
from daemon.scheduler.state import ClusterState, Plan
from storage.queries import allocations, invariants, jobs
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation, ClientStatus, DesiredStatus
from storage.records.evaluation import EvalStatus, Evaluation, Trigger
from storage.records.job import Job
from storage.records.node import NodeMemory
from storage.records.operator_api import PreemptionConfig, SchedulerConfig
from storage.records.task import Resources
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job, task
from tests.unit.scheduler.world import ROLLING, node, resources


def sized(name: str, megabytes: int, priority: int, **fields: Any) -> Job:
    needed = Resources(cpu=10, memory_mb=megabytes)
    of_group = {"count": fields.pop("count", 1), "update": fields.pop("update", None)}
    wanted = group("web", task(resources=needed), **of_group)
    return job(name, wanted, priority=priority, **fields)


async def allow(cluster: Cluster, **kinds: bool) -> None:
    scheduler_config = SchedulerConfig(preemption_config=PreemptionConfig(**kinds))
    await configure(cluster.store, scheduler_config)


@pytest.fixture
async def narrow(store: Store) -> Cluster:
    """Return a cluster whose node has 100 MB, where services may preempt others."""
    cluster = Cluster(store)
    await cluster.join(node(node_resources=resources(memory=NodeMemory(memory_mb=100))))
    await allow(cluster, service_scheduler_enabled=True)
    return cluster


async def run(cluster: Cluster, wanted: Job) -> None:
    """Register a job, stop the allocations that it preempts, and run it."""
    await cluster.register(wanted)
    await cluster.work()
    for name in ("low", "lower", wanted.id):
        await cluster.run_all(job_id=name)


def only(cluster: Cluster, job_id: str) -> Allocation:
    (one,) = cluster.allocations(job_id)
    return one


def made_by_preemption(cluster: Cluster, job_id: str) -> list[Evaluation]:
    return [
        found
        for evaluation in cluster.evaluations(EvalStatus.BLOCKED, job_id)
        if evaluation.previous_eval
        and (found := cluster.evaluation(evaluation.previous_eval)).triggered_by
        == Trigger.PREEMPTION
    ]


async def test_preempted_allocation_is_blocked_and_placed_again(narrow: Cluster) -> None:
    await run(narrow, sized("low", 80, 20))
    await narrow.register(sized("high", 60, 80))
    await narrow.work()
    gone, placed = only(narrow, "low"), only(narrow, "high")
    assert gone.desired_status == DesiredStatus.EVICT
    assert gone.desired.description == f"Preempted by alloc ID {placed.id}"
    assert gone.desired.preempted_by_allocation == placed.id
    assert placed.desired.preempted_allocations == placed.desired.waits_for == [gone.id]
    (caused,) = made_by_preemption(narrow, "low")
    assert (caused.status, caused.priority) == (EvalStatus.COMPLETE, 20)
    await narrow.report(gone, ClientStatus.COMPLETE)
    assert await narrow.work() == []  # `high` uses the capacity that `low` freed
    await narrow.report(only(narrow, "high"), ClientStatus.COMPLETE)
    await narrow.work()
    assert [alloc.name for alloc in narrow.wanted("low")] == ["low.web[0]"]
    assert list(narrow.store.read(invariants.find_violations)) == []


@pytest.mark.parametrize("kind", ["service", "batch", "sysbatch", "system"])
async def test_every_preempted_allocation_is_placed_again(narrow: Cluster, kind: str) -> None:
    await run(narrow, sized("low", 80, 20, type=kind))
    await run(narrow, sized("high", 60, 80))
    assert only(narrow, "low").client_terminal
    await narrow.report(only(narrow, "high"), ClientStatus.COMPLETE)
    await narrow.work()
    assert [alloc.client_status for alloc in narrow.wanted("low")] == [ClientStatus.PENDING]
    assert list(narrow.store.read(invariants.find_violations)) == []


async def test_return_of_a_preempted_allocation_starts_no_rollout(narrow: Cluster) -> None:
    await run(narrow, sized("low", 80, 20, update=ROLLING))
    await narrow.run_all(healthy=True, job_id="low")
    first = narrow.deployment("low").id
    await run(narrow, sized("high", 60, 80))
    await narrow.report(only(narrow, "high"), ClientStatus.COMPLETE)
    await narrow.work()
    assert len(narrow.wanted("low")) == 1
    assert narrow.deployment("low").id == first


async def test_only_job_types_with_permission_preempt(narrow: Cluster) -> None:
    await allow(narrow, batch_scheduler_enabled=True)
    await run(narrow, sized("low", 80, 20))
    await run(narrow, sized("high", 60, 80))
    assert [alloc.desired_status for alloc in narrow.allocations("low")] == [DesiredStatus.RUN]
    await run(narrow, sized("urgent", 60, 80, type="batch"))
    assert [alloc.desired_status for alloc in narrow.allocations("low")] == [DesiredStatus.EVICT]


async def test_system_jobs_preempt_by_default(cluster: Cluster) -> None:
    await cluster.join(node(node_resources=resources(memory=NodeMemory(memory_mb=100))))
    await run(cluster, sized("low", 80, 20))
    await run(cluster, sized("high", 60, 80, type="system"))
    assert [alloc.desired_status for alloc in cluster.allocations("low")] == [DesiredStatus.EVICT]


async def test_concurrent_decisions_do_not_preempt_the_same_allocation(narrow: Cluster) -> None:
    await run(narrow, sized("low", 50, 20))
    await run(narrow, sized("lower", 50, 10))
    for name in ("a", "b"):
        await narrow.register(sized(name, 50, 80))
    ready = narrow.store.read(lambda db: worker.next_evaluations(db, now=narrow.clock.now()))
    assert len(ready) == 2
    await worker.process(narrow.store, ready, narrow.clock, narrow.ids, narrow.fences)
    await narrow.work()
    placed = [only(narrow, name).desired.preempted_allocations for name in ("a", "b")]
    assert placed == [[only(narrow, "lower").id], [only(narrow, "low").id]]


async def test_ended_allocation_is_not_preempted(narrow: Cluster) -> None:
    await run(narrow, sized("low", 80, 20))
    await narrow.register(sized("high", 60, 80))
    (ready,) = narrow.store.read(lambda db: worker.next_evaluations(db, now=narrow.clock.now()))
    (decision,) = narrow.store.read(
        lambda db: worker._decide_all(db, chosen=[ready], now=1, ids=narrow.ids).decisions
    )
    await narrow.report(only(narrow, "low"), ClientStatus.COMPLETE)
    await worker._apply_result(narrow.store, decision, narrow.fences, 1)
    assert narrow.allocations("high") == []
    await narrow.work()
    assert only(narrow, "high").desired.preempted_allocations is None
    assert only(narrow, "low").desired_status == DesiredStatus.RUN


@pytest.mark.parametrize("is_purged", [False, True])
async def test_plan_is_stale_if_a_preempted_allocation_has_changed(
    narrow: Cluster, *, is_purged: bool
) -> None:
    await run(narrow, sized("low", 80, 20))
    made = await narrow.register(sized("high", 60, 80))

    def plan(db: ReadSnapshot) -> tuple[ClusterState, Plan]:
        state = load_cluster_state(db, made)
        return state, decide(db, state, made, now=NOW, ids=narrow.ids)

    def change(tx: Transaction) -> None:
        if is_purged:
            jobs.purge(tx, narrow.job("low"))
        else:
            allocations.set_desired(tx, only(narrow, "low"), NOW)

    state, planned = narrow.store.read(plan)
    assert len(planned.evict) == 1
    await narrow.store.write(change)
    assert not await applier.apply(narrow.store, made, state, planned, now=NOW)
    assert narrow.allocations("high") == []
    assert narrow.evaluation(made.id).status == EvalStatus.PENDING


async def test_plan_predicts_the_decision(narrow: Cluster) -> None:
    await run(narrow, sized("low", 80, 20))
    wanted = sized("high", 60, 80)
    outlook = narrow.store.read(
        lambda db: dry_run(db, wanted, now=narrow.clock.now(), ids=narrow.ids)
    )
    assert outlook.annotations.desired_tg_updates["web"].preemptions == 1
    (shown,) = outlook.annotations.preempted_allocs or ()
    stub = msgspec.json.decode(shown)
    assert (stub["ID"], stub["JobID"]) == (only(narrow, "low").id, "low")
    assert (outlook.failed, outlook.evaluations) == ({}, [])
    assert only(narrow, "low").desired_status == DesiredStatus.RUN
    await run(narrow, wanted)
    assert only(narrow, "high").desired.preempted_allocations == [stub["ID"]]


async def test_plan_shows_nothing_of_other_namespaces(narrow: Cluster) -> None:
    await run(narrow, sized("low", 80, 20))
    wanted = sized("high", 60, 80, namespace="elsewhere")
    outlook = narrow.store.read(lambda db: dry_run(db, wanted, now=NOW, ids=narrow.ids))
    assert not outlook.failed
    assert outlook.annotations.preempted_allocs is None
