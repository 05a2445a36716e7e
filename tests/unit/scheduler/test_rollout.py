"""Deployments: their creation, their pace, and reasons to stop them (recorded: deploy-*)."""

from typing import Any

import msgspec
import pytest

from daemon.scheduler.alloc_sets import NOT_NEEDED
from daemon.scheduler.rollout import (
    AUTO_PROMOTION,
    NEEDS_PROMOTION,
    NEWER_VERSION,
    RUNNING,
    SUCCESSFUL,
)
from storage.records.base import SECOND
from storage.records.constraints import Constraint
from storage.records.deployment import Deployment, DeploymentGroup, DeploymentStatus
from storage.records.group import ReschedulePolicy, Update
from storage.records.job import Job, JobType
from storage.records.node import Eligibility, NodeStatus
from storage.records.times import rfc3339
from tests.samples import NOW, group, job, task
from tests.unit.scheduler.world import ROLLING, World, counts, node, small

SECOND_TASK = task(config={"command": "second"})
THIRD_TASK = task(config={"command": "third"})


def rolling(**fields: Any) -> Update:
    return msgspec.structs.replace(ROLLING, **fields)


def web(*tasks: Any, count: int = 3, update: Update | None = ROLLING, **fields: Any) -> Job:
    return job("web", group("web", *tasks, count=count, update=update), **fields)


def settled(wanted: Job) -> World:
    world = World()
    world.run(wanted)
    world.settle()
    return world


# ---- creation of a deployment --------------------------------------------------------------------


def test_first_version_has_a_deployment_and_is_placed_immediately() -> None:
    world = World()
    world.register(web(update=rolling(auto_revert=True)))
    plan = world.evaluate(priority=66)
    assert counts(plan) == {"place": 3}
    assert plan.deployments == (
        Deployment(
            id=plan.deployment_id,
            namespace="default",
            job_id="web",
            job_version=0,
            job_modify_index=11,
            job_spec_modify_index=11,
            job_create_index=11,
            task_groups={
                "web": DeploymentGroup(
                    auto_revert=True,
                    progress_deadline=20 * SECOND,
                    require_progress_by=rfc3339(NOW + 20 * SECOND),
                    desired_total=3,
                    placed_allocs=3,
                )
            },
            status=DeploymentStatus.RUNNING,
            status_description=RUNNING,
            eval_priority=66,
            create_index=0,
            modify_index=0,
            create_time=NOW,
            modify_time=NOW,
        ),
    )
    assert {alloc.deployment_id for alloc in plan.place} == {plan.deployment_id}


@pytest.mark.parametrize(
    "wanted",
    [
        web(count=0),
        web(update=None),
        web(update=rolling(max_parallel=0)),
        web(update=None, type=JobType.BATCH),
    ],
)
def test_group_without_a_count_or_update_block_has_no_deployment(wanted: Job) -> None:
    plan = World().run(wanted)
    assert plan.deployments == ()
    assert plan.deployment_id == ""


def test_update_in_place_has_a_deployment() -> None:
    world = settled(web())
    plan = world.run(web(priority=66))
    assert counts(plan) == {"in_place_update": 3}
    (deployment,) = plan.deployments
    state = deployment.task_groups["web"]
    assert (state.desired_total, state.placed_allocs) == (3, 3)
    assert {alloc.deployment_id for alloc in plan.change} == {deployment.id}


def test_unplaced_version_starts_no_deployment() -> None:
    impossible = Constraint(l_target="${meta.zone}", operand="=", r_target="zz")
    (deployment,) = World().run(web(constraints=[impossible])).deployments
    state = deployment.task_groups["web"]
    assert (state.desired_total, state.placed_allocs) == (3, 0)
    assert state.require_progress_by is None


def test_later_placement_of_a_version_starts_no_deployment() -> None:
    world = settled(web())
    first = world.deployment
    world.complete()
    plan = world.evaluate()
    assert counts(plan) == {"ignore": 2, "place": 1}
    assert plan.deployments == ()
    assert plan.place[0].deployment_id == ""
    assert plan.deployment_id == first.id


def test_deployment_contains_only_groups_with_an_update_block() -> None:
    world = World()
    wanted = job("web", group("web", update=ROLLING), group("db", update=rolling(max_parallel=0)))
    plan = world.run(wanted)
    assert set(plan.deployments[0].task_groups) == {"web"}
    assert [alloc.deployment_id for alloc in plan.place] == [plan.deployment_id, ""]


# ---- speed of a rollout ----------------------------------------------------------------------------


def test_allocations_are_replaced_one_by_one_as_each_becomes_healthy() -> None:
    world = settled(web())
    assert counts(world.run(web(SECOND_TASK))) == {"destructive_update": 1, "ignore": 2}
    world.start()
    assert counts(world.progress()) == {"ignore": 3}
    world.set_health(healthy=True)
    assert counts(world.progress()) == {"destructive_update": 1, "ignore": 2}
    assert world.of_version(1) == ["web.web[0]", "web.web[1]"]
    world.settle()
    assert world.of_version(1) == ["web.web[0]", "web.web[1]", "web.web[2]"]
    state = world.deployment.task_groups["web"]
    assert (state.placed_allocs, state.healthy_allocs) == (3, 3)


@pytest.mark.parametrize(("limit", "replaced"), [(0, 5), (1, 1), (2, 2), (9, 5)])
def test_replacements_are_limited_by_max_parallel(limit: int, replaced: int) -> None:
    world = settled(web(count=5))
    plan = world.run(web(SECOND_TASK, count=5, update=rolling(max_parallel=limit)))
    assert counts(plan)["destructive_update"] == replaced


def test_unhealthy_allocation_stops_further_replacements() -> None:
    world = settled(web())
    world.run(web(SECOND_TASK, update=rolling(max_parallel=2)))
    world.start(healthy=False)
    assert counts(world.progress()) == {"ignore": 3}


def test_new_allocations_count_against_max_parallel() -> None:
    world = settled(web())
    plan = world.run(web(SECOND_TASK, count=4, update=rolling(max_parallel=2)))
    assert counts(plan) == {"place": 1, "destructive_update": 1, "ignore": 2}


def test_migrating_allocations_count_against_max_parallel() -> None:
    world = settled(web())
    world.mark(world.running()[0], migrate=True)
    assert counts(world.run(web(SECOND_TASK))) == {"migrate": 1, "ignore": 2}


def test_unplaced_allocation_does_not_block_other_replacements() -> None:
    world = World(small())
    world.run(web(count=6))
    world.start(healthy=True)
    plan = world.run(web(SECOND_TASK, count=6))
    assert counts(plan) == {"place": 1, "destructive_update": 1, "ignore": 4}
    assert plan.queued == {"web": 1}
    world.settle()
    assert len(world.of_version(1)) == 5


def test_replacement_needs_only_the_capacity_that_it_frees() -> None:
    world = World(small("a"), small("b"))
    world.run(web(count=10, update=None))
    world.start()
    plan = world.run(web(SECOND_TASK, count=10, update=None))
    assert counts(plan) == {"destructive_update": 10}
    assert plan.queued == {"web": 0}


def test_deadline_starts_with_the_first_placement_and_is_not_reset() -> None:
    world = settled(web())
    world.run(web(SECOND_TASK))
    began = world.deployment.task_groups["web"].require_progress_by
    world.wait(3)
    world.start(healthy=True)
    world.progress()
    assert world.deployment.task_groups["web"].require_progress_by == began


# ---- end of a rollout ------------------------------------------------------------------------------


def test_deployment_succeeds_when_all_are_healthy() -> None:
    world = World()
    world.run(web())
    world.start()
    assert world.progress().deployments == ()
    world.set_health(healthy=True)
    plan = world.progress()
    assert counts(plan) == {"ignore": 3}
    (deployment,) = plan.deployments
    assert deployment.status == DeploymentStatus.SUCCESSFUL
    assert deployment.status_description == SUCCESSFUL
    assert plan.deployment_id == deployment.id
    assert world.progress().deployments == ()


def test_deployment_waits_for_each_of_its_groups() -> None:
    world = World()
    world.run(job("web", group("web", update=ROLLING), group("db", update=ROLLING)))
    world.change_deployment("web", healthy_allocs=1)
    assert world.progress().deployments == ()
    world.change_deployment("db", healthy_allocs=1)
    assert world.progress().deployments[0].status == DeploymentStatus.SUCCESSFUL


def test_newer_version_cancels_a_deployment() -> None:
    world = World()
    world.run(web())
    first = world.deployment
    plan = world.run(web(SECOND_TASK))
    cancelled, begun = plan.deployments
    assert (cancelled.id, cancelled.status) == (first.id, DeploymentStatus.CANCELLED)
    assert cancelled.status_description == NEWER_VERSION
    assert begun.job_version == 1
    assert plan.deployment_id == begun.id


@pytest.mark.parametrize("status", [DeploymentStatus.SUCCESSFUL, DeploymentStatus.FAILED])
def test_finished_deployment_is_not_canceled(status: DeploymentStatus) -> None:
    world = settled(web())
    world.set_deployment(status)
    assert [deployment.job_version for deployment in world.run(web(SECOND_TASK)).deployments] == [1]


@pytest.mark.parametrize("status", [DeploymentStatus.PAUSED, DeploymentStatus.FAILED])
def test_paused_or_failed_deployment_stops_replacements(status: DeploymentStatus) -> None:
    world = settled(web())
    world.run(web(SECOND_TASK))
    world.start(healthy=True)
    world.set_deployment(status)
    plan = world.progress()
    assert counts(plan) == {"ignore": 3}
    assert not (plan.place)
    assert not (plan.deployments)


def test_paused_deployment_does_not_succeed_before_its_resumption() -> None:
    world = World()
    world.run(web())
    world.start(healthy=True)
    world.set_deployment(DeploymentStatus.PAUSED)
    assert world.progress().deployments == ()
    world.set_deployment(DeploymentStatus.RUNNING)
    assert world.progress().deployments[0].status == DeploymentStatus.SUCCESSFUL


def test_lost_allocations_are_replaced_in_a_paused_or_failed_deployment() -> None:
    world = World(node("a"), node("b"))
    world.run(web(count=2))
    world.start()
    world.set_deployment(DeploymentStatus.PAUSED)
    world.nodes["id-of-a"] = msgspec.structs.replace(node("a"), status=NodeStatus.DOWN)
    assert counts(world.evaluate()) == {"ignore": 1, "place": 1, "stop": 1}


# ---- canaries --------------------------------------------------------------------------------------

ONE_CANARY = rolling(canary=1)


def on_trial(canary: int = 1, count: int = 2, **fields: Any) -> World:
    """Return a cluster with canaries of the second version next to allocations of the first."""
    world = settled(web(count=count, update=rolling(canary=canary, **fields)))
    world.run(web(SECOND_TASK, count=count, update=rolling(canary=canary, **fields)))
    world.start(healthy=True)
    return world


def test_the_first_version_has_no_canaries() -> None:
    plan = World().run(web(update=ONE_CANARY))
    assert counts(plan) == {"place": 3}
    assert plan.deployments[0].task_groups["web"].desired_canaries == 0


@pytest.mark.parametrize(
    ("automatic", "description"), [(False, NEEDS_PROMOTION), (True, AUTO_PROMOTION)]
)
def test_canaries_run_next_to_their_predecessors(automatic: bool, description: str) -> None:
    world = settled(web(count=2))
    plan = world.run(web(SECOND_TASK, count=2, update=rolling(canary=1, auto_promote=automatic)))
    assert counts(plan) == {"canary": 1, "ignore": 2}
    (canary,) = plan.place
    assert canary.name == "web.web[0]"
    assert canary.desired.previous_allocation == ""
    assert canary.health is not None
    assert canary.health.canary
    (deployment,) = plan.deployments
    assert deployment.status_description == description
    state = deployment.task_groups["web"]
    assert (state.desired_canaries, state.desired_total, state.placed_allocs) == (1, 2, 1)
    assert state.placed_canaries == [canary.id]
    assert world.names() == ["web.web[0]", "web.web[0]", "web.web[1]"]


def test_promotion_precedes_all_other_changes() -> None:
    world = on_trial()
    assert counts(world.progress()) == {"ignore": 3}
    assert world.deployment.status == DeploymentStatus.RUNNING


def test_promoted_canaries_replace_and_the_rollout_continues() -> None:
    world = on_trial()
    world.promote()
    plan = world.progress()
    assert counts(plan) == {"destructive_update": 1, "ignore": 1, "stop": 1}
    assert world.of_version(0) == []
    assert world.of_version(1) == ["web.web[0]", "web.web[1]"]
    surplus = [alloc for alloc in plan.change if alloc.name == "web.web[0]"]
    assert [alloc.desired.description for alloc in surplus] == [NOT_NEEDED]
    world.settle()
    assert world.deployment.status == DeploymentStatus.SUCCESSFUL


def test_as_many_canaries_as_the_count_replace_all_allocations_together() -> None:
    world = on_trial(canary=2, max_parallel=2)
    world.promote()
    assert counts(world.progress()) == {"ignore": 2, "stop": 2}


def test_more_canaries_than_the_count_are_stopped_after_the_promotion() -> None:
    world = on_trial(canary=3)
    assert world.of_version(1) == ["web.web[0]", "web.web[1]", "web.web[2]"]
    world.promote()
    world.settle()
    assert world.names() == ["web.web[0]", "web.web[1]"]
    assert world.deployment.status == DeploymentStatus.SUCCESSFUL


def test_surplus_canaries_do_not_block_the_deployment_of_other_groups() -> None:
    slow = group("db", count=2, update=rolling(max_parallel=1))
    world = settled(job("web", group("web", count=2, update=rolling()), slow))
    next_one = group("db", SECOND_TASK, count=2, update=rolling(max_parallel=1))
    world.run(job("web", group("web", SECOND_TASK, count=2, update=rolling(canary=3)), next_one))
    world.start(healthy=True)
    world.promote()
    world.settle()
    assert world.deployment.status == DeploymentStatus.SUCCESSFUL


def test_increased_count_with_a_canary_gives_unique_names() -> None:
    world = settled(web(count=2))
    world.run(web(SECOND_TASK, count=3, update=ONE_CANARY))
    world.start(healthy=True)
    world.promote()
    world.settle()
    assert world.names() == ["web.web[0]", "web.web[1]", "web.web[2]"]


@pytest.mark.parametrize("task_again", [THIRD_TASK, SECOND_TASK])
def test_newer_version_stops_unpromoted_canaries(task_again: Any) -> None:
    world = on_trial()
    canary = world.deployment.task_groups["web"].placed_canaries
    plan = world.run(web(task_again, count=2, update=ONE_CANARY, priority=70))
    stopped = [alloc.id for alloc in plan.change if alloc.desired_status == "stop"]
    assert stopped == canary
    assert counts(plan) == {"canary": 1, "ignore": 2, "stop": 1}


def test_a_failed_deployment_stops_its_canaries() -> None:
    world = on_trial()
    world.set_deployment(DeploymentStatus.FAILED)
    assert counts(world.progress()) == {"ignore": 2, "stop": 1}
    assert world.of_version(1) == []


def test_replacement_of_a_leftover_takes_no_name_of_a_promoted_canary() -> None:
    """After a rollout failed halfway, its allocations run next to canaries of the same name."""
    world = settled(web(count=2, update=rolling(canary=2)))
    world.run(web(SECOND_TASK, count=3, update=rolling(canary=2)))
    world.start(healthy=True)
    world.promote()
    world.set_deployment(DeploymentStatus.FAILED)
    world.progress()
    assert world.names() == ["web.web[0]", "web.web[1]", "web.web[1]"]
    (rest,) = [alloc for alloc in world.running() if alloc.job_version == 0]
    world.mark(rest, migrate=True)
    world.progress()
    assert world.names() == ["web.web[0]", "web.web[1]", "web.web[2]"]


def test_revert_to_the_first_version_stops_only_the_canary() -> None:
    world = on_trial()
    plan = world.run(web(count=2, update=ONE_CANARY))
    assert counts(plan) == {"in_place_update": 2, "stop": 1}


@pytest.mark.parametrize("lost", [True, False])
def test_canary_that_cannot_stay_is_replaced(lost: bool) -> None:
    world = World(node("a"), node("b"))
    world.run(web(count=2, update=ONE_CANARY))
    world.settle()
    (canary,) = world.run(web(SECOND_TASK, count=2, update=ONE_CANARY)).place
    if lost:
        gone = msgspec.structs.replace(world.nodes[canary.node_id], status=NodeStatus.DOWN)
        world.nodes[canary.node_id] = gone
    else:
        world.mark(world.allocations[canary.id], migrate=True)
    plan = world.progress()
    again = [alloc for alloc in plan.place if alloc.health is not None and alloc.health.canary]
    assert [item.job_version for item in again] == [1]
    assert counts(plan)["canary"] == 1


def test_failed_canary_is_replaced_once() -> None:
    at_once = ReschedulePolicy(delay=0, delay_function="constant", unlimited=True)
    how = {"count": 2, "update": rolling(canary=2), "reschedule_policy": at_once}
    world = settled(job("web", group("web", **how)))
    world.run(job("web", group("web", SECOND_TASK, **how)))
    world.start(healthy=True)
    canary = next(alloc for alloc in world.running() if alloc.job_version == 1)
    world.mark(world.fail(canary), reschedule=True)
    (again,) = world.progress().place
    assert (again.name, again.job_version) == (canary.name, 1)


def test_canary_is_placed_although_its_predecessor_has_ended() -> None:
    world = settled(web(count=1, update=ONE_CANARY))
    (old,) = world.running()
    ready = world.nodes[old.node_id]
    closed = msgspec.structs.replace(ready, scheduling_eligibility=Eligibility.INELIGIBLE)
    world.nodes[old.node_id] = closed
    assert world.run(web(SECOND_TASK, count=1, update=ONE_CANARY)).place == ()
    world.set(old, desired_status="stop", client_status="complete")
    world.nodes[old.node_id] = ready
    plan = world.progress()
    assert [(alloc.job_version, alloc.name) for alloc in plan.place] == [(1, old.name)]
    assert counts(plan)["canary"] == 1


def test_other_allocations_keep_their_version_before_the_promotion() -> None:
    at_once = ReschedulePolicy(delay=0, delay_function="constant", unlimited=True)

    def version(*tasks: Any) -> Job:
        return job(
            "web", group("web", *tasks, count=2, update=ONE_CANARY, reschedule_policy=at_once)
        )

    world = settled(version())
    world.run(version(SECOND_TASK))
    world.start(healthy=True)
    world.fail(world.running()[0])
    plan = world.progress()
    assert counts(plan) == {"ignore": 2, "place": 1, "stop": 1}
    (placed,) = plan.place
    assert placed.job_version == 0
    assert placed.health is None


def test_version_with_another_count_restarts_the_canaries() -> None:
    world = on_trial(count=3)
    plan = world.run(web(SECOND_TASK, count=2, update=ONE_CANARY))
    assert counts(plan) == {"canary": 1, "ignore": 2, "stop": 2}


def test_group_without_max_parallel_has_no_canaries() -> None:
    world = settled(web(count=2))
    update = rolling(max_parallel=0, canary=1)
    assert counts(world.run(web(SECOND_TASK, count=2, update=update))) == {"destructive_update": 2}
