"""Storing plans: complete and together with the end of their evaluation, or not at all."""

from collections.abc import Callable

import msgspec
import pytest

from daemon.evals import applier, unblocker
from daemon.evals.cluster_state import load_cluster_state
from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState, Plan
from storage.queries import allocations, deployments, evaluations, jobs, nodes
from storage.records.allocation import ClientStatus, DesiredStatus
from storage.records.base import MINUTE
from storage.records.constraints import Constraint
from storage.records.deployment import DeploymentStatus
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.group import EphemeralDisk, TaskGroup, Update
from storage.records.job import Job
from storage.records.task import Resources
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, evaluation, group, job, task
from tests.unit.scheduler.world import ROLLING, small


def planned(cluster: Cluster, made: Evaluation) -> tuple[ClusterState, Plan]:
    state = cluster.store.read(lambda db: load_cluster_state(db, made))
    return state, schedule(state, made, now=NOW, ids=cluster.ids)


async def test_plan_is_stored_with_the_completion_of_its_evaluation(cluster: Cluster) -> None:
    made = await cluster.register(job("web", group("web", count=2, update=ROLLING)))
    state, plan = planned(cluster, made)
    assert await applier.apply(cluster.store, made, state, plan, now=NOW)
    done = cluster.evaluation(made.id)
    assert (done.status, done.snapshot_index) == (EvalStatus.COMPLETE, state.index)
    assert (done.queued_allocations, done.deployment_id) == ({"web": 0}, cluster.deployment().id)
    assert {alloc.name for alloc in cluster.allocations()} == {"web.web[0]", "web.web[1]"}
    assert {alloc.create_index for alloc in cluster.allocations()} == {done.modify_index}
    assert cluster.job().status == "running"


def a_new_version(tx: Transaction) -> None:
    jobs.append_version(tx, job("web", group("web", count=3)))


def a_purge(tx: Transaction) -> None:
    found = jobs.current(tx, "default", "web")
    assert found is not None
    jobs.purge(tx, found)


def another_node(tx: Transaction) -> None:
    (found,) = nodes.list_all(tx)
    nodes.put(tx, found, "NodeEligibility")


@pytest.mark.parametrize("meanwhile", [a_new_version, a_purge, another_node])
async def test_plan_is_stale_after_a_change_of_its_input(
    cluster: Cluster, meanwhile: Callable[[Transaction], None]
) -> None:
    made = await cluster.register(job("web"))
    state, plan = planned(cluster, made)
    await cluster.store.write(meanwhile)
    assert not await applier.apply(cluster.store, made, state, plan, now=NOW)
    assert cluster.evaluation(made.id).status == EvalStatus.PENDING
    assert cluster.allocations() == []


async def test_plan_is_stale_after_a_request_to_one_of_its_allocations(
    cluster: Cluster,
) -> None:
    await cluster.register(job("web"))
    await cluster.work()
    (placed,) = cluster.allocations()
    made = await cluster.register(stopped(cluster.job()))
    state, plan = planned(cluster, made)

    def ask(tx: Transaction) -> None:
        transition = msgspec.structs.replace(placed.desired.transition, no_shutdown_delay=True)
        desired = msgspec.structs.replace(placed.desired, transition=transition)
        allocations.set_desired(tx, msgspec.structs.replace(placed, desired=desired), NOW)

    await cluster.store.write(ask)
    assert not await applier.apply(cluster.store, made, state, plan, now=NOW)
    assert [alloc.desired_status for alloc in cluster.allocations()] == [DesiredStatus.RUN]
    await cluster.work()  # the next evaluation keeps the request of the operator
    (found,) = cluster.allocations()
    assert found.desired_status == DesiredStatus.STOP
    assert found.desired.transition.no_shutdown_delay


def stopped(before: Job) -> Job:
    return msgspec.structs.replace(before, stop=True)


async def test_plan_is_not_stored_after_an_action_on_its_deployment(cluster: Cluster) -> None:
    await cluster.register(job("web", group("web", update=ROLLING)))
    await cluster.work()
    made = await cluster.register(job("web", group("web", count=2, update=ROLLING)))
    state, plan = planned(cluster, made)
    paused = msgspec.structs.replace(cluster.deployment(), status=DeploymentStatus.PAUSED)
    await cluster.store.write(lambda tx: deployments.put(tx, paused, NOW))
    assert not await applier.apply(cluster.store, made, state, plan, now=NOW)


async def test_concurrent_report_of_the_runner_is_preserved(cluster: Cluster) -> None:
    await cluster.register(job("web", group("web", update=ROLLING)))
    await cluster.work()
    (placed,) = cluster.allocations()
    made = await cluster.register(stopped(cluster.job()))
    state, plan = planned(cluster, made)
    await cluster.report(placed, ClientStatus.RUNNING, healthy=True)
    assert await applier.apply(cluster.store, made, state, plan, now=NOW)
    (found,) = cluster.allocations()
    assert (found.desired_status, found.client_status) == ("stop", ClientStatus.RUNNING)
    assert found.health is not None
    assert found.health.healthy


async def test_unplaced_allocation_leaves_a_blocked_evaluation(cluster: Cluster) -> None:
    made = await cluster.register(too_large())
    await cluster.work()
    done = cluster.evaluation(made.id)
    (blocked,) = cluster.evaluations(EvalStatus.BLOCKED)
    assert (done.status, done.blocked_eval) == (EvalStatus.COMPLETE, blocked.id)
    assert (blocked.previous_eval, blocked.triggered_by) == (made.id, "queued-allocs")
    assert done.failed_tg_allocs is not None
    assert done.failed_tg_allocs["web"].nodes_exhausted == 1
    assert (done.queued_allocations, cluster.job().status) == ({"web": 1}, "pending")


def too_large() -> Job:
    large = task(resources=Resources(cpu=10, memory_mb=1_000_000))
    return job("web", group("web", large))


async def test_only_the_newest_ready_evaluation_is_processed(cluster: Cluster) -> None:
    made = [await cluster.register(job("web", group("web", count=n))) for n in (1, 2, 3)]
    await cluster.work()
    statuses = [cluster.evaluation(item.id).status for item in made]
    assert statuses == [EvalStatus.COMPLETE, EvalStatus.CANCELED, EvalStatus.COMPLETE]
    assert len(cluster.wanted()) == 3


async def test_new_plan_cancels_the_blocked_evaluation(cluster: Cluster) -> None:
    await cluster.register(too_large())
    await cluster.work()
    (blocked,) = cluster.evaluations(EvalStatus.BLOCKED)
    await cluster.register(job("web"))
    await cluster.work()
    assert cluster.evaluation(blocked.id).status == EvalStatus.CANCELED
    assert cluster.evaluations(EvalStatus.BLOCKED) == []


async def test_delayed_evaluations_are_not_canceled(cluster: Cluster) -> None:
    await cluster.register(job("web"))
    for name in ("later", "last"):
        delayed = evaluation(
            cluster.job(), name, wait_until="2030-01-01T00:00:00Z", triggered_by="alloc-reschedule"
        )
        await cluster.store.write(lambda tx, delayed=delayed: evaluations.put(tx, delayed, NOW))
    await cluster.work()
    statuses = [cluster.evaluation(name).status for name in ("later", "last")]
    assert statuses == [EvalStatus.PENDING, EvalStatus.PENDING]


async def test_successful_deployment_marks_its_version_stable(cluster: Cluster) -> None:
    made = await cluster.register(job("web", group("web", update=ROLLING)))
    await cluster.work()
    done = msgspec.structs.replace(cluster.deployment(), status=DeploymentStatus.SUCCESSFUL)
    state = cluster.store.read(lambda db: load_cluster_state(db, made))
    plan = Plan(job_modify_index=cluster.job().job_modify_index, deployments=(done,))
    assert await applier.apply(cluster.store, made, state, plan, now=NOW)
    assert cluster.job().stable


async def test_failed_evaluation_has_a_reason(cluster: Cluster) -> None:
    made = await cluster.register(job("web"))
    await applier.fail(cluster.store, made, "the scheduler failed: because", now=NOW)
    failed = cluster.evaluation(made.id)
    assert (failed.status, failed.status_description) == (
        EvalStatus.FAILED,
        "the scheduler failed: because",
    )
    assert cluster.job().status == "dead"


@pytest.mark.parametrize(
    ("groups", "least"),
    [
        ([group("web", task(resources=Resources(cpu=30, memory_mb=40)))], (30, 40, 300)),
        (
            [
                group(
                    "web",
                    task("a", resources=Resources(cpu=30, memory_mb=40)),
                    task("b", resources=Resources(cpu=5, memory_mb=6)),
                    ephemeral_disk=EphemeralDisk(size_mb=7),
                )
            ],
            (35, 46, 7),
        ),
        (
            [
                group("web", task(resources=Resources(cpu=30, memory_mb=40))),
                group("other", task(resources=Resources(cpu=50, memory_mb=4))),
            ],
            (30, 4, 300),
        ),
    ],
)
async def test_smallest_useful_capacity_is_that_of_the_smallest_group(
    cluster: Cluster, groups: list[TaskGroup], least: tuple[int, int, int]
) -> None:
    await cluster.join(small(cpu=1, memory=1))
    made = await cluster.register(job("web", *groups))
    state, plan = planned(cluster, made)
    freed_resources = unblocker.smallest_resource_ask(state, plan)
    assert (freed_resources.cpu, freed_resources.memory, freed_resources.disk) == least


async def test_any_capacity_unblocks_a_job_with_groups_blocked_for_different_reasons(
    cluster: Cluster,
) -> None:
    await cluster.join(small(cpu=1, memory=1))
    nowhere = Constraint(l_target="${meta.zone}", operand="=", r_target="none")
    made = await cluster.register(job("web", group("a"), group("b", constraints=[nowhere])))
    state, plan = planned(cluster, made)
    assert unblocker.smallest_resource_ask(state, plan) == evaluations.FreedResources(memory=1)


async def test_capacity_does_not_unblock_a_group_without_a_feasible_node(cluster: Cluster) -> None:
    made = await cluster.register(job("web", datacenters=["elsewhere"]))
    state, plan = planned(cluster, made)
    assert plan.blocked is not None
    assert unblocker.smallest_resource_ask(state, plan) == evaluations.NO_ROOM


async def test_time_of_a_plan_is_the_time_of_its_objects(cluster: Cluster) -> None:
    made = await cluster.register(job("web", group("web", update=Update(max_parallel=0))))
    state, plan = planned(cluster, made)
    await applier.apply(cluster.store, made, state, plan, now=NOW + MINUTE)
    (placed,) = cluster.allocations()
    assert placed.create_time == cluster.evaluation(made.id).modify_time == NOW + MINUTE
