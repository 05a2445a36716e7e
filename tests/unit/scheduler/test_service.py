"""Service and batch jobs: the plan for each change, and its counts."""

from typing import Any

import msgspec
import pytest

from daemon.scheduler.alloc_sets import LOST, MIGRATED, NOT_NEEDED, UPDATED
from daemon.scheduler.plan_builder import NO_ROOM
from storage.records.allocation import ClientStatus, DesiredStatus
from storage.records.constraints import Constraint
from storage.records.evaluation import EvalStatus, Evaluation, PlacementMetric, Trigger
from storage.records.group import TaskGroup
from storage.records.job import Job, JobType
from storage.records.node import NodeStatus
from storage.records.task import Resources, Service
from tests.samples import NOW, group, job, task
from tests.unit.scheduler.world import ROLLING, World, counts, node, small

TWO_AT_ONCE = msgspec.structs.replace(ROLLING, max_parallel=2)
OTHER = task(config={"command": "other"})


def web(*tasks: Any, count: int = 2, **fields: Any) -> TaskGroup:
    return group("web", *tasks, **{"update": TWO_AT_ONCE, "count": count, **fields})


def settled(wanted: Job) -> World:
    """Return a cluster with a healthy running job."""
    world = World()
    world.run(wanted)
    world.settle()
    return world


# ---- recorded: plan ------------------------------------------------------------------------------

IMPOSSIBLE = Constraint(l_target="${attr.kernel.name}", operand="=", r_target="plan9")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param(job("web", web()), {"ignore": 2}, id="nothing but a new version"),
        pytest.param(job("web", web(), meta={"a": "1"}), {"destructive_update": 2}, id="job meta"),
        pytest.param(job("web", web(OTHER)), {"destructive_update": 2}, id="task config"),
        pytest.param(job("web", web(count=4)), {"in_place_update": 2, "place": 2}, id="count up"),
        pytest.param(job("web", web(count=1)), {"in_place_update": 1, "stop": 1}, id="count down"),
        pytest.param(job("web", web(count=0)), {"stop": 2}, id="count zero"),
        pytest.param(job("web", web(), priority=70), {"in_place_update": 2}, id="priority"),
        pytest.param(job("web", web(task(kill_timeout=9))), {"in_place_update": 2}, id="timeout"),
        pytest.param(
            job("web", web(services=[Service(name="svc")])), {"in_place_update": 2}, id="service"
        ),
        pytest.param(
            job("web", web(), type=JobType.BATCH), {"in_place_update": 2}, id="type change"
        ),
        pytest.param(job("web", group("other")), {"stop": 2}, id="group replaced"),
        pytest.param(job("web", web(), stop=True), {"stop": 2}, id="stop"),
        pytest.param(
            job("web", web(OTHER, update=ROLLING)),
            {"destructive_update": 1, "ignore": 1},
            id="one at a time",
        ),
        pytest.param(
            job("web", web(OTHER, update=msgspec.structs.replace(ROLLING, canary=1))),
            {"canary": 1, "ignore": 2},
            id="canary",
        ),
        pytest.param(
            job("web", web(OTHER, count=1), datacenters=["dc9"]),
            {"destructive_update": 1, "stop": 1},
            id="other datacenter",
        ),
        pytest.param(
            job("web", web(), constraints=[IMPOSSIBLE]), {"destructive_update": 2}, id="constraint"
        ),
        pytest.param(job("web", web(), node_pool="gpu"), {"destructive_update": 2}, id="pool"),
    ],
)
def test_change_is_counted_like_golden_plan(changed: Job, expected: dict[str, int]) -> None:
    world = settled(job("web", web()))
    if changed != job("web", web()):
        world.register(changed)
    assert counts(world.dry_run()) == expected


def test_added_group_is_placed_next_to_the_others() -> None:
    world = settled(job("web", web()))
    world.register(job("web", web(), group("more")))
    plan = world.dry_run()
    assert counts(plan, "web") == {"in_place_update": 2}
    assert counts(plan, "more") == {"place": 1}


def test_unplaced_replacement_is_explained_and_the_old_allocation_stays() -> None:
    world = settled(job("web", web()))
    world.register(job("web", web(OTHER), constraints=[IMPOSSIBLE]))
    plan = world.dry_run()
    assert plan.failed == {
        "web": PlacementMetric(
            nodes_evaluated=1,
            nodes_filtered=1,
            nodes_in_pool=1,
            nodes_available={"dc1": 1},
            class_filtered={"class-1": 1},
            constraint_filtered={"${attr.kernel.name} = plan9": 1},
            coalesced_failures=1,
        )
    }
    assert plan.queued == {"web": 2}
    assert not (plan.place)
    assert not (plan.change)


def test_excessive_memory_is_counted_like_golden_plan() -> None:
    world = settled(job("web", web()))
    world.register(job("web", web(task(resources=Resources(cpu=20, memory_mb=99999999)))))
    metric = world.dry_run().failed["web"]
    assert metric.dimension_exhausted == {"memory": 1}
    assert metric.resources_exhausted == {"main": Resources(cpu=0, memory_mb=199999998)}
    assert metric.coalesced_failures == 1


# ---- recorded: blocked-evaluation ------------------------------------------------------------------


def test_unplaced_allocation_gets_a_separate_blocked_evaluation() -> None:
    big = job("web", group("web", task(resources=Resources(cpu=20, memory_mb=13000))))
    others = World().run(msgspec.structs.replace(big, id="big")).place
    world = World(others=others)
    world.register(big)
    evaluation = world.evaluation()
    plan = world.evaluate(evaluation)
    expected = PlacementMetric(
        nodes_evaluated=1,
        nodes_in_pool=1,
        nodes_available={"dc1": 1},
        nodes_exhausted=1,
        class_exhausted={"class-1": 1},
        dimension_exhausted={"memory": 1},
        resources_exhausted={"main": Resources(cpu=0, memory_mb=13000)},
    )
    assert plan.failed == {"web": expected}
    assert plan.queued == {"web": 1}
    assert plan.blocked is not None
    assert plan.blocked == Evaluation(
        id=plan.blocked.id,
        namespace="default",
        priority=50,
        type="service",
        triggered_by=Trigger.QUEUED_ALLOCS,
        job_id="web",
        job_modify_index=evaluation.job_modify_index,
        status=EvalStatus.BLOCKED,
        status_description=NO_ROOM,
        previous_eval=evaluation.id,
        class_eligibility={"v1:1": True},
        failed_tg_allocs={"web": expected},
        snapshot_index=plan.blocked.snapshot_index,
        create_index=0,
        modify_index=0,
        create_time=NOW,
        modify_time=NOW,
    )
    world.others = []
    later = world.evaluate(plan.blocked)
    assert counts(later) == {"place": 1}
    assert later.queued == {"web": 0}
    assert later.place[0].eval_id == plan.blocked.id


# ---- chosen allocations ----------------------------------------------------------------------------


def test_names_are_numbered_from_the_lowest_free_one() -> None:
    world = settled(job("web", web(count=3)))
    world.complete(world.running()[1])
    world.run(job("web", web(count=4)))
    assert world.names() == ["web.web[0]", "web.web[1]", "web.web[2]", "web.web[3]"]


def test_highest_indexes_stop_first() -> None:
    world = settled(job("web", web(count=5)))
    plan = world.run(job("web", web(count=2)))
    stopped = [alloc for alloc in plan.change if alloc.desired_status == DesiredStatus.STOP]
    assert sorted(item.name for item in stopped) == ["web.web[2]", "web.web[3]", "web.web[4]"]
    assert {alloc.desired.description for alloc in stopped} == {NOT_NEEDED}


def test_update_in_place_keeps_all_fields_except_version_evaluation_and_health() -> None:
    world = settled(job("web", web(count=1)))
    before = world.running()[0]
    plan = world.run(job("web", web(count=1), priority=70))
    (after,) = plan.change
    assert after == msgspec.structs.replace(
        before,
        job_version=1,
        eval_id=after.eval_id,
        deployment_id=world.deployment.id,
        health=None,
        modify_time=world.now,
    )
    assert after.eval_id != before.eval_id
    assert not plan.place


def test_update_in_place_without_a_deployment_keeps_the_health() -> None:
    world = settled(job("web", web(count=1)))
    before = world.running()[0]
    (after,) = world.run(job("web", web(count=1, update=None), priority=70)).change
    assert after.health == before.health
    assert after.deployment_id == before.deployment_id


def test_replacement_has_the_name_and_id_of_its_predecessor() -> None:
    world = settled(job("web", web(count=1)))
    before = world.running()[0]
    (after,) = world.run(job("web", web(OTHER, count=1))).place
    assert after.name == before.name
    assert after.job_version == 1
    assert after.desired.previous_allocation == before.id
    stopped = world.allocations[before.id]
    assert stopped.desired_status == DesiredStatus.STOP
    assert stopped.desired.description == UPDATED
    assert stopped.desired.next_allocation == after.id


def test_new_allocation_is_complete_except_for_its_indexes() -> None:
    world = World()
    world.register(job("web", group(), namespace="team"))
    evaluation = world.evaluation()
    (placed,) = world.dry_run(evaluation).place
    assert (placed.namespace, placed.job_id, placed.job_type) == ("team", "web", "service")
    assert (placed.name, placed.task_group, placed.eval_id) == ("web.web[0]", "web", evaluation.id)
    assert (placed.desired_status, placed.client_status) == ("run", "pending")
    assert (placed.create_index, placed.modify_index, placed.create_time) == (0, 0, NOW)
    assert placed.placement.node_name == "node-1"
    assert placed.health is None
    assert placed.desired.reschedule_tracker is None


# ---- moving and losing (recorded: evaluations-allocations) -------------------------------------------


def test_migrating_allocation_is_replaced_immediately() -> None:
    world = settled(job("web", web()))
    leaving = world.mark(world.running()[0], migrate=True, reschedule=False)
    plan = world.evaluate(triggered_by=Trigger.ALLOC_STOP)
    assert counts(plan) == {"ignore": 1, "migrate": 1}
    assert plan.queued == {"web": 0}
    (successor,) = plan.place
    assert successor.name == leaving.name
    assert successor.desired.previous_allocation == leaving.id
    stopped = world.allocations[leaving.id]
    assert stopped.desired.description == MIGRATED
    assert stopped.desired.next_allocation == successor.id


def test_surplus_migrating_allocations_are_not_replaced() -> None:
    world = settled(job("web", web(count=3)))
    world.mark(world.running()[0], migrate=True)
    plan = world.run(job("web", web(count=2)))
    assert not plan.place
    assert world.names() == ["web.web[1]", "web.web[2]"]


@pytest.mark.parametrize("status", [NodeStatus.DOWN, NodeStatus.DISCONNECTED, None])
def test_allocation_on_a_lost_node_is_lost_and_replaced(status: NodeStatus | None) -> None:
    world = World(node("a"), node("b"))
    world.run(job("web", group(count=2)))
    world.start()
    here = world.nodes.pop("id-of-a")
    if status:
        world.nodes["id-of-a"] = msgspec.structs.replace(here, status=status)
    plan = world.evaluate(triggered_by=Trigger.NODE_UPDATE)
    assert counts(plan) == {"ignore": 1, "place": 1, "stop": 1}
    (lost,) = [alloc for alloc in plan.change if alloc.client_status == ClientStatus.LOST]
    assert (lost.desired_status, lost.desired.description) == (DesiredStatus.STOP, LOST)
    assert [alloc.placement.node_name for alloc in plan.place] == ["b"]
    assert plan.place[0].name == lost.name


def test_stopping_allocation_on_a_lost_node_is_lost() -> None:
    world = World(node("a"))
    world.run(job("web", group()))
    world.start()
    world.run(job("web", group(), stop=True))
    world.nodes["id-of-a"] = msgspec.structs.replace(node("a"), status=NodeStatus.DOWN)
    plan = world.evaluate(triggered_by=Trigger.NODE_UPDATE)
    assert [alloc.client_status for alloc in plan.change] == [ClientStatus.LOST]
    assert world.evaluate().change == ()


def test_lost_allocation_beyond_the_count_is_not_replaced() -> None:
    world = World(node("a"), node("b"))
    world.run(job("web", group(count=4)))
    world.start()
    world.nodes["id-of-a"] = msgspec.structs.replace(node("a"), status=NodeStatus.DOWN)
    plan = world.run(job("web", group(count=2)))
    assert not plan.place
    assert len(world.running()) == 2


def test_running_allocation_stays_on_an_ineligible_node() -> None:
    world = settled(job("web", web()))
    world.nodes["id-of-node-1"] = msgspec.structs.replace(node(), drain=True)
    assert counts(world.evaluate()) == {"ignore": 2}


# ---- batch jobs (recorded: kind-batch-complete) --------------------------------------------------------


def batch(*tasks: Any, count: int = 2, **fields: Any) -> Job:
    return job("web", group("web", *tasks, count=count), type=JobType.BATCH, **fields)


def done(wanted: Job) -> World:
    world = World()
    world.run(wanted)
    world.start()
    for alloc in world.running():
        world.complete(alloc)
    return world


def test_finished_allocation_is_not_placed_again() -> None:
    plan = done(batch()).evaluate()
    assert counts(plan) == {"ignore": 2}
    assert not plan.place


def test_service_with_a_successful_exit_is_placed_again() -> None:
    world = done(job("web", group(count=2)))
    assert counts(world.evaluate()) == {"place": 2}
    assert world.names() == ["web.web[0]", "web.web[1]"]


def test_new_version_of_a_batch_job_repeats_all_allocations() -> None:
    world = done(batch())
    assert counts(world.run(batch(OTHER))) == {"ignore": 2, "place": 2}


def test_running_batch_job_continues_with_the_new_version() -> None:
    world = World()
    world.run(batch())
    world.start()
    world.complete()
    assert counts(world.run(batch(OTHER))) == {"ignore": 1, "place": 1, "destructive_update": 1}


def test_batch_job_has_no_rollout_despite_an_update_block() -> None:
    world = World()
    wanted = job("web", web(), type=JobType.BATCH)
    assert world.run(wanted).deployments == ()
    world.start()
    plan = world.run(job("web", web(OTHER, update=ROLLING), type=JobType.BATCH))
    assert counts(plan) == {"destructive_update": 2}


def test_drained_batch_allocation_keeps_its_name() -> None:
    world = World()
    world.run(batch(count=1))
    leaving = world.mark(world.running()[0], migrate=True, migrate_disable_placement=True)
    stopped = world.set(leaving, desired_status=DesiredStatus.STOP)
    world.complete(stopped)
    assert not world.evaluate().place


# ---- all-at-once plans, and empty plans ---------------------------------------------------------------


@pytest.mark.parametrize("all_at_once", [False, True])
def test_fitting_allocations_are_placed_with_and_without_all_at_once(all_at_once: bool) -> None:
    wanted = job("web", group("web", count=6), group("db"), all_at_once=all_at_once)
    plan = World(small()).run(wanted)
    assert len(plan.place) == 5
    assert plan.queued == {"web": 1, "db": 1}


@pytest.mark.parametrize(
    ("wanted", "queued"),
    [
        (job("web", group("web", count=0)), {"web": 0}),
        (job("web", group("web", count=0), group("db")), {"db": 0}),
        (job("web", group("web"), group("db")), {"web": 0, "db": 0}),
    ],
)
def test_queued_allocations_are_counted_per_group(wanted: Job, queued: dict[str, int]) -> None:
    assert World().run(wanted).queued == queued


def test_million_unplaceable_allocations_take_no_longer_than_one() -> None:
    plan = World(small()).run(job("web", group("web", count=1_000_000)))
    assert len(plan.place) == 5
    assert plan.queued == {"web": 999_995}
    assert plan.failed["web"].coalesced_failures == 999_994
