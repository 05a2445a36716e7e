"""System and sysbatch jobs: on every node they may run on, once."""

from typing import Any

import msgspec
import pytest

from daemon.scheduler.alloc_sets import LOST, NOT_NEEDED, UPDATED
from daemon.scheduler.rollout import NEEDS_PROMOTION
from daemon.scheduler.system_scheduler import NODE_TAINTED
from storage.records.allocation import ClientStatus, DesiredStatus
from storage.records.constraints import Constraint
from storage.records.deployment import DeploymentStatus
from storage.records.evaluation import EvalStatus, PlacementMetric, Trigger
from storage.records.group import TaskGroup, Update
from storage.records.job import Job, JobType
from storage.records.node import Node, NodeStatus
from storage.records.task import Resources
from tests.samples import group, job, task
from tests.unit.scheduler.world import ROLLING, World, counts, node, small

OTHER = task(config={"command": "other"})
THREE = [node(name) for name in "abc"]


def system(*tasks: Any, update: Update | None = ROLLING, **fields: Any) -> Job:
    return job("web", group("web", *tasks, update=update), type=JobType.SYSTEM, **fields)


def sysbatch(*groups: TaskGroup, **fields: Any) -> Job:
    return job("web", *groups, type=JobType.SYSBATCH, **fields)


def placed_on(world: World) -> list[str]:
    return sorted(alloc.placement.node_name for alloc in world.running())


def settled(wanted: Job, *nodes: Node) -> World:
    world = World(*nodes)
    world.run(wanted)
    world.settle()
    return world


# ---- chosen nodes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [system(), sysbatch()])
def test_system_job_runs_once_on_every_node(wanted: Job) -> None:
    world = World(*THREE)
    plan = world.run(wanted)
    assert placed_on(world) == ["a", "b", "c"]
    assert {alloc.name for alloc in plan.place} == {"web.web[0]"}
    assert counts(plan) == {"place": 3}
    assert plan.queued == {"web": 0}


def test_group_with_a_count_has_this_number_on_each_node() -> None:
    world = World(*THREE[:2])
    world.run(job("web", group("web", count=2), type=JobType.SYSTEM))
    assert world.names() == ["web.web[0]"] * 2 + ["web.web[1]"] * 2


def test_scores_are_those_of_a_single_candidate() -> None:
    (placed,) = World().run(system()).place
    (shown,) = placed.placement.metrics.score_meta_data or []
    assert set(shown.scores) == {"binpack"}


@pytest.mark.parametrize(
    "elsewhere",
    [
        node("b", datacenter="dc2"),
        node("b", node_pool="gpu"),
        node("b", status=NodeStatus.DOWN),
        node("b", drain=True),
    ],
)
def test_excluded_nodes_are_ignored(elsewhere: Node) -> None:
    world = World(node("a"), elsewhere)
    plan = world.run(system(datacenters=["dc1"]))
    assert placed_on(world) == ["a"]
    assert counts(plan) == {"place": 1}
    assert not (plan.failed)
    assert not (plan.evaluations)


def test_new_node_gets_allocations() -> None:
    world = settled(system(), node("a"))
    world.nodes["id-of-b"] = node("b")
    plan = world.evaluate(triggered_by=Trigger.NODE_UPDATE)
    assert [alloc.placement.node_name for alloc in plan.place] == ["b"]
    assert plan.deployments == ()


# ---- infeasible nodes ----------------------------------------------------------------------------

ZONE_A = Constraint(l_target="${meta.zone}", operand="=", r_target="a")
IN_B = node("b", meta={"zone": "b"})


def test_infeasible_node_is_not_a_failure() -> None:
    world = World(node("a"), IN_B)
    plan = world.run(system(constraints=[ZONE_A]))
    assert placed_on(world) == ["a"]
    assert plan.queued == {"web": 0}
    assert counts(plan) == {"place": 1}
    assert not (plan.failed)
    assert not (plan.evaluations)


def test_infeasibility_of_all_nodes_is_reported_with_reasons() -> None:
    plan = World(IN_B, node("c", meta={})).run(system(constraints=[ZONE_A]))
    assert plan.failed == {
        "web": PlacementMetric(
            nodes_evaluated=2,
            nodes_filtered=2,
            nodes_in_pool=2,
            nodes_available={"dc1": 2},
            class_filtered={"class-1": 2},
            constraint_filtered={"${meta.zone} = a": 2},
        )
    }
    assert plan.queued == {"web": 0}
    assert plan.deployments == ()
    assert plan.blocked is None
    assert counts(plan) == {}


@pytest.mark.parametrize("kind", [JobType.SYSTEM, JobType.SYSBATCH])
def test_node_without_capacity_blocks_the_evaluation(kind: JobType) -> None:
    big = job("web", group("web", task(resources=Resources(cpu=1, memory_mb=500))), type=kind)
    world = World(node("a"), small("b"), small("c"))
    plan = world.run(big)
    assert placed_on(world) == ["a"]
    assert plan.queued == {"web": 2}
    assert plan.failed["web"].dimension_exhausted == {"memory": 1}
    assert plan.failed["web"].coalesced_failures == 1
    waiting = plan.blocked
    assert waiting is not None
    assert waiting.status == EvalStatus.BLOCKED
    assert waiting.triggered_by == Trigger.QUEUED_ALLOCS
    assert waiting.node_id == ""
    assert waiting.class_eligibility == {"v1:1": True}
    assert plan.evaluations == ()


def test_single_node_without_capacity_is_named() -> None:
    big = task(resources=Resources(cpu=1, memory_mb=500))
    plan = World(node("a"), small("b")).run(system(big))
    assert plan.blocked is not None
    assert plan.blocked.node_id == "id-of-b"


# ---- updates (recorded: plan-batch-system) -------------------------------------------------------------


def test_update_is_counted_like_golden_plan_batch_system() -> None:
    assert counts(settled(system()).run(system(OTHER))) == {"destructive_update": 1, "place": 1}
    world = World()
    world.run(sysbatch())
    world.start()
    assert counts(world.run(sysbatch(group("web", OTHER)))) == {"destructive_update": 1}


def test_every_node_counts_as_one_placement_of_a_system_job() -> None:
    world = settled(system(), *THREE)
    assert counts(world.evaluate()) == {"ignore": 3, "place": 3}
    assert counts(world.run(system(priority=70))) == {"in_place_update": 3, "place": 3}


def test_update_replaces_allocations_node_by_node() -> None:
    world = settled(system(), *THREE)
    plan = world.run(system(OTHER))
    assert counts(plan) == {"destructive_update": 3, "place": 3}
    (replaced,) = plan.change
    assert replaced.desired.description == UPDATED
    (placed,) = plan.place
    assert placed.node_id == replaced.node_id
    assert placed.desired.previous_allocation == replaced.id
    world.start()
    assert not world.progress().place
    world.set_health(healthy=True)
    assert len(world.progress().place) == 1
    world.settle()
    assert len(world.of_version(1)) == 3


def test_update_without_max_parallel_covers_all_nodes_immediately() -> None:
    world = settled(system(update=None), *THREE)
    assert len(world.run(system(OTHER, update=None)).place) == 3
    world = World(*THREE)
    world.run(sysbatch())
    world.start()
    assert len(world.run(sysbatch(group("web", OTHER))).place) == 3


def test_update_without_capacity_leaves_the_old_version_running() -> None:
    world = settled(system(), small())
    plan = world.run(system(task(resources=Resources(cpu=1, memory_mb=500))))
    assert not (plan.place)
    assert not (plan.change)
    assert plan.queued == {"web": 1}
    assert plan.blocked is not None


def test_update_that_is_infeasible_on_a_node_stops_the_allocation() -> None:
    world = settled(system(), IN_B)
    plan = world.run(system(constraints=[ZONE_A]))
    assert [alloc.desired_status for alloc in plan.change] == [DesiredStatus.STOP]
    assert not plan.place


@pytest.mark.parametrize(
    ("changed", "description"),
    [
        (job("web", group("web", count=0), type=JobType.SYSTEM), NOT_NEEDED),
        (job("web", group("other"), type=JobType.SYSTEM), NOT_NEEDED),
        (system(datacenters=["dc9"]), NOT_NEEDED),
        (system(node_pool="gpu"), NOT_NEEDED),
    ],
)
def test_allocation_no_longer_desired_on_a_node_is_stopped(changed: Job, description: str) -> None:
    world = settled(system())
    plan = world.run(changed)
    assert counts(plan) == {"stop": 1}
    assert [alloc.desired.description for alloc in plan.change] == [description]


# ---- lost nodes, and ended allocations ---------------------------------------------------------------


def test_allocation_on_a_lost_node_is_lost_and_returns_with_it() -> None:
    world = settled(system(), *THREE)
    world.nodes["id-of-a"] = msgspec.structs.replace(THREE[0], status=NodeStatus.DOWN)
    plan = world.evaluate(triggered_by=Trigger.NODE_UPDATE)
    (lost,) = plan.change
    assert (lost.client_status, lost.desired.description) == (ClientStatus.LOST, LOST)
    assert not plan.place
    world.nodes["id-of-a"] = THREE[0]
    assert [item.node_id for item in world.evaluate().place] == ["id-of-a"]


@pytest.mark.parametrize("changes", [{"priority": 70}, {"meta": {"a": "b"}}])
def test_new_version_keeps_the_current_version_on_an_ineligible_node(
    changes: dict[str, Any],
) -> None:
    world = settled(system())
    world.nodes["id-of-node-1"] = node(drain=True)
    assert world.evaluate().change == ()
    plan = world.run(system(**changes))
    assert (plan.change, plan.place, counts(plan)) == ((), (), {"ignore": 1})
    world.nodes["id-of-node-1"] = node()
    assert world.evaluate(triggered_by=Trigger.NODE_UPDATE).change


def test_deployment_completes_without_the_ineligible_nodes() -> None:
    world = settled(system(), *THREE)
    world.nodes["id-of-a"] = node("a", drain=True)
    world.run(system(OTHER))
    world.settle()
    assert sorted(alloc.job_version for alloc in world.running()) == [0, 1, 1]
    assert world.deployments[-1].status == DeploymentStatus.SUCCESSFUL


@pytest.mark.parametrize("wanted", [system(), sysbatch()])
def test_migrating_allocation_restarts_on_its_node(wanted: Job) -> None:
    world = World()
    world.run(wanted)
    world.start()
    leaving = world.mark(world.running()[0], migrate=True)
    plan = world.evaluate(triggered_by=Trigger.ALLOC_STOP)
    assert counts(plan)["migrate"] == 1
    assert [alloc.desired.previous_allocation for alloc in plan.place] == [leaving.id]
    assert world.allocations[leaving.id].desired.description == NODE_TAINTED


def test_migrating_allocation_stops_on_a_drained_node() -> None:
    world = settled(system())
    world.nodes["id-of-node-1"] = node(drain=True)
    world.mark(world.running()[0], migrate=True)
    assert world.evaluate(triggered_by=Trigger.NODE_DRAIN).place == ()
    assert world.running() == []


@pytest.mark.parametrize(
    ("trigger", "again"),
    [
        (Trigger.ALLOC_FAILURE, False),
        (Trigger.JOB_REGISTER, True),
        (Trigger.NODE_UPDATE, True),
    ],
)
def test_failure_alone_does_not_restart_a_system_job(trigger: Trigger, again: bool) -> None:
    world = settled(system())
    failed = world.fail()
    plan = world.evaluate(triggered_by=trigger)
    assert [alloc.desired.previous_allocation for alloc in plan.place] == (
        [failed.id] if again else []
    )


def fail_all(world: World) -> None:
    for alloc in world.running():
        world.fail(alloc)


@pytest.mark.parametrize("trigger", sorted(set(Trigger) - {Trigger.JOB_REGISTER}))
@pytest.mark.parametrize("update", [None, ROLLING])
def test_failing_version_is_replaced_once_per_node_by_any_evaluation(
    trigger: Trigger, update: Update | None
) -> None:
    world = settled(system(update=update), *THREE)
    for version in (1, 2):
        for _ in range(10):
            fail_all(world)
            world.evaluate(triggered_by=trigger)
        assert len(world.allocations) <= version * 2 * len(THREE)
        world.run(system(task(config={"command": str(version)}), update=update))
        world.settle()


def test_failed_allocation_restarts_on_each_request() -> None:
    world = settled(system())
    for _ in range(5):
        fail_all(world)
        assert len(world.evaluate(triggered_by=Trigger.JOB_REGISTER).place) == 1


def test_failed_node_is_counted_and_prevents_a_successful_deployment() -> None:
    world = World(*THREE)
    world.run(system())
    world.start()
    fail_all(world)
    plan = world.evaluate(triggered_by=Trigger.ALLOC_FAILURE)
    assert not plan.place
    assert world.deployment.task_groups["web"].desired_total == 3
    assert world.deployment.status == DeploymentStatus.RUNNING


# ---- sysbatch (recorded: kind-sysbatch) ----------------------------------------------------------------


@pytest.mark.parametrize("status", [ClientStatus.COMPLETE, ClientStatus.FAILED])
def test_sysbatch_job_runs_once_on_a_node_with_any_result(status: ClientStatus) -> None:
    world = World(*THREE[:2])
    world.run(sysbatch())
    world.start()
    for alloc in world.running():
        world.end(alloc, status)
    plan = world.evaluate()
    assert counts(plan) == {"ignore": 2}
    assert not plan.place


def test_changed_sysbatch_job_runs_again() -> None:
    world = World()
    world.run(sysbatch())
    world.start()
    done = world.complete()
    assert not world.run(sysbatch(priority=70)).place
    plan = world.run(sysbatch(group("web", OTHER)))
    assert counts(plan) == {"destructive_update": 1}
    assert [alloc.desired.previous_allocation for alloc in plan.place] == [done.id]
    assert world.allocations[done.id].desired_status == DesiredStatus.STOP
    assert world.allocations[done.id].desired.description == UPDATED
    assert not world.evaluate().place


def test_lost_sysbatch_job_runs_again() -> None:
    world = World()
    world.run(sysbatch())
    world.start()
    world.nodes["id-of-node-1"] = node(status=NodeStatus.DOWN)
    world.evaluate()
    world.nodes["id-of-node-1"] = node()
    assert len(world.evaluate().place) == 1


def test_a_sysbatch_job_has_no_deployment() -> None:
    plan = World().run(sysbatch(group("web", update=ROLLING)))
    assert plan.deployments == ()
    assert plan.deployment_id == ""


# ---- deployments (recorded: kind-system) -----------------------------------------------------------------


def test_deployment_of_a_version_ends_when_every_node_is_healthy() -> None:
    world = World(*THREE)
    plan = world.run(system())
    (deployment,) = plan.deployments
    state = deployment.task_groups["web"]
    assert (state.desired_total, state.placed_allocs) == (3, 3)
    assert {alloc.deployment_id for alloc in plan.place} == {deployment.id} == {plan.deployment_id}
    world.start(healthy=True)
    ended = world.progress()
    assert [deployment.status for deployment in ended.deployments] == [DeploymentStatus.SUCCESSFUL]
    again = world.evaluate()
    assert again.deployments == ()
    assert again.deployment_id == deployment.id


def test_update_in_place_has_a_deployment() -> None:
    world = settled(system(), *THREE)
    (deployment,) = world.run(system(priority=70)).deployments
    state = deployment.task_groups["web"]
    assert (state.desired_total, state.placed_allocs) == (3, 3)


def test_a_newer_version_cancels_the_deployment() -> None:
    world = World(*THREE)
    world.run(system())
    statuses = [deployment.status for deployment in world.run(system(OTHER)).deployments]
    assert statuses == [DeploymentStatus.CANCELLED, DeploymentStatus.RUNNING]


@pytest.mark.parametrize("status", [DeploymentStatus.PAUSED, DeploymentStatus.FAILED])
def test_paused_or_failed_deployment_updates_no_other_node(status: DeploymentStatus) -> None:
    world = settled(system(), *THREE)
    world.run(system(OTHER))
    world.start(healthy=True)
    world.set_deployment(status)
    plan = world.progress()
    assert not (plan.place)
    assert not (plan.change)


@pytest.mark.parametrize(("percent", "canaries"), [(1, 1), (50, 2), (100, 3)])
def test_percentage_of_the_nodes_gets_canaries(percent: int, canaries: int) -> None:
    trial = msgspec.structs.replace(ROLLING, canary=percent, max_parallel=9)
    world = settled(system(update=trial), *THREE)
    plan = world.run(system(OTHER, update=trial))
    assert counts(plan) == {"destructive_update": 3, "place": 3, "canary": canaries}
    (deployment,) = plan.deployments
    state = deployment.task_groups["web"]
    assert deployment.status_description == NEEDS_PROMOTION
    assert state.placed_canaries == [alloc.id for alloc in plan.place]
    assert (state.desired_canaries, state.desired_total) == (canaries, 3)
    world.start(healthy=True)
    assert not world.progress().place
    assert world.deployment.active
    world.promote()
    world.settle()
    assert len(world.of_version(1)) == 3
    assert world.deployment.status == DeploymentStatus.SUCCESSFUL


def test_canary_nodes_are_limited_by_max_parallel() -> None:
    trial = msgspec.structs.replace(ROLLING, canary=100)
    world = settled(system(update=trial), *THREE)
    assert len(world.run(system(OTHER, update=trial)).place) == 1
