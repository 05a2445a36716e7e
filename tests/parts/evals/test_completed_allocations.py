"""Completed allocations of a large batch job: counted instead of read, with the same decisions."""

import random
from typing import Any

import msgspec
import pytest

from daemon.evals import cluster_state
from daemon.evals.cluster_state import load_cluster_state
from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState, Plan
from storage.queries import allocations
from storage.records.allocation import ClientStatus, DesiredStatus
from storage.records.group import TaskGroup
from storage.records.task import Resources
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster, ids
from tests.samples import NOW, evaluation, group, job, task

SMALL = Resources(cpu=1, memory_mb=10)
STATUSES = (
    *(ClientStatus.COMPLETE,) * 6,
    *(ClientStatus.FAILED, ClientStatus.RUNNING, ClientStatus.PENDING, ClientStatus.LOST),
)


def many(count: int, name: str = "web") -> TaskGroup:
    return group(name, task(resources=SMALL), count=count)


@pytest.fixture
async def cluster(store: Store) -> Cluster:
    made = Cluster(store)
    await made.join()
    return made


async def end_some(cluster: Cluster, rng: random.Random) -> None:
    """Give the allocations random statuses, as the runner and the scheduler leave them."""
    found = cluster.allocations()

    def work(tx: Transaction) -> None:
        for alloc in found:
            changed = msgspec.structs.replace(alloc, client_status=rng.choice(STATUSES))
            allocations.set_client(tx, changed, NOW)
            desired = changed.desired
            if rng.random() < 0.1:
                desired = msgspec.structs.replace(desired, next_allocation="other")
            status = DesiredStatus.STOP if rng.random() < 0.1 else DesiredStatus.RUN
            stopped = msgspec.structs.replace(changed, desired_status=status, desired=desired)
            allocations.set_desired(tx, stopped, NOW)

    await cluster.store.write(work)


def plan_of(
    cluster: Cluster, few: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Plan, ClusterState]:
    monkeypatch.setattr(cluster_state, "FEW", few)
    due = evaluation(cluster.job(), "next")
    state = cluster.store.read(lambda db: load_cluster_state(db, due))
    return schedule(state, due, now=NOW, ids=ids()), state


@pytest.mark.parametrize("seed", range(30))
async def test_decision_is_the_same_as_with_all_allocations(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(chance.choice([1, 2])):
        groups = [many(chance.randint(1, 12)), many(chance.randint(0, 3), "api")]
        await cluster.register(job("web", *groups[: chance.randint(1, 2)], type="batch"))
        await cluster.work()
        await end_some(cluster, chance)
    if chance.random() < 0.3:
        groups = [many(chance.randint(0, 12))]
        await cluster.register(job("web", *groups, type="batch", stop=chance.random() < 0.2))
    settled, _ = plan_of(cluster, 0, monkeypatch)
    whole, state = plan_of(cluster, 10_000, monkeypatch)
    assert state.settled == {}
    assert msgspec.to_builtins(settled) == msgspec.to_builtins(whole)


@pytest.mark.parametrize("seed", range(30))
async def test_decision_about_a_workflow_is_the_same_as_with_all_allocations(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    limit = {"steward_parallel": str(chance.randint(2, 8)), "steward_failures_allowed": "3"}
    first = msgspec.structs.replace(many(chance.randint(3, 12)), meta=limit)
    then = msgspec.structs.replace(many(2, "api"), meta={"steward_needs": "web"})
    for priority in range(50, 50 + chance.choice([1, 2])):
        await cluster.register(job("web", first, then, type="batch", priority=priority))
        for _ in range(chance.randint(1, 4)):
            await cluster.work()
            await end_some(cluster, chance)
    settled, counted = plan_of(cluster, 0, monkeypatch)
    whole, state = plan_of(cluster, 10_000, monkeypatch)
    assert state.settled == {}
    assert len(counted.allocations) <= len(state.allocations)
    assert msgspec.to_builtins(settled) == msgspec.to_builtins(whole)


async def test_completed_elements_of_an_open_step_are_counted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = msgspec.structs.replace(many(6), meta={"steward_parallel": "6"})
    await cluster.register(job("web", limited, type="batch"))
    await cluster.work()
    for alloc in cluster.allocations():
        if alloc.index not in (2, 5):
            await cluster.report(alloc, ClientStatus.COMPLETE)
    plan, state = plan_of(cluster, 0, monkeypatch)
    assert sorted(alloc.index for alloc in state.allocations) == [2, 5]
    assert plan.flow is not None
    (run,) = plan.flow.runs
    assert [(step.good, step.total) for step in run.steps] == [(4, 6)]


async def test_completed_allocations_are_stored_as_ranges(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.register(job("web", many(6), type="batch"))
    await cluster.work()
    for alloc in cluster.allocations():
        if alloc.index not in (2, 5):
            await cluster.report(alloc, ClientStatus.COMPLETE)
    _, state = plan_of(cluster, 0, monkeypatch)
    assert sorted(alloc.index for alloc in state.allocations) == [2, 5]
    assert (state.settled["web"].count, state.settled["web"].ranges) == (4, ((0, 1), (3, 4)))


async def test_all_allocations_are_read_if_some_must_be_stopped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.register(job("web", many(3), type="batch"))
    await cluster.work()
    for alloc in cluster.allocations():
        await cluster.report(alloc, ClientStatus.COMPLETE)
    await cluster.register(job("web", many(0), type="batch"))
    _, state = plan_of(cluster, 0, monkeypatch)
    assert (len(state.allocations), state.settled) == (3, {})


@pytest.mark.parametrize("kind", ["service", "sysbatch"])
async def test_only_batch_jobs_have_settled_allocations(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    await cluster.register(job("web", many(1), type=kind))
    await cluster.work()
    for alloc in cluster.allocations():
        await cluster.report(alloc, ClientStatus.COMPLETE)
    _, state = plan_of(cluster, 0, monkeypatch)
    assert (len(state.allocations), state.settled) == (1, {})
