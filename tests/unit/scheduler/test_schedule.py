"""The entry point: stopped jobs, jobs that run nothing themselves, and their evaluations."""

from functools import partial

import msgspec
import pytest

from daemon.matching import regexp
from daemon.scheduler.alloc_sets import NOT_NEEDED
from daemon.scheduler.rollout import STOPPED
from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState, Plan
from storage.records.allocation import DesiredStatus
from storage.records.constraints import Constraint
from storage.records.evaluation import Trigger
from storage.records.job import JobType, Parameterized, Periodic
from tests.samples import NOW, evaluation, group, job
from tests.unit.scheduler.world import ROLLING, World, counts, ids


def stopped(kind: JobType, **fields: object) -> World:
    world = World()
    world.run(job("web", group("web", **fields), group("db"), type=kind))
    world.start()
    assert world.job is not None
    world.register(msgspec.structs.replace(world.job, stop=True))
    return world


@pytest.mark.parametrize("kind", list(JobType))
def test_stopped_job_stops_everything_with_the_text_of_golden_kind(kind: JobType) -> None:
    world = stopped(kind)
    # The evaluation of a stop has the type service, regardless of the type of the job.
    plan = world.evaluate(triggered_by=Trigger.JOB_DEREGISTER, type="service")
    assert counts(plan, "web") == counts(plan, "db") == {"stop": 1}
    assert plan.queued == {"web": 0, "db": 0}
    assert {alloc.desired.description for alloc in plan.change} == {NOT_NEEDED}
    assert {alloc.desired_status for alloc in plan.change} == {DesiredStatus.STOP}
    assert not (plan.place)
    assert not (plan.failed)
    assert not (plan.blocked)


def test_second_stop_changes_nothing_but_names_the_groups() -> None:
    world = stopped(JobType.SERVICE)
    world.evaluate()
    plan = world.evaluate()
    assert plan.change == ()
    assert set(plan.annotations.desired_tg_updates) == {"web", "db"}
    assert counts(plan) == {}


def test_stop_cancels_the_deployment_and_names_it() -> None:
    world = stopped(JobType.SERVICE, update=ROLLING)
    deployment_id = world.deployment.id
    plan = world.evaluate()
    assert [
        (deployment.id, deployment.status, deployment.status_description)
        for deployment in plan.deployments
    ] == [(deployment_id, "cancelled", STOPPED)]
    assert plan.deployment_id == deployment_id
    assert world.evaluate().deployments == ()


def test_deleted_job_stops_everything_and_is_not_blocked() -> None:
    world = World()
    world.run(job("web", group("web")))
    world.register(job("web", group("web", count=0)))
    assert world.job is not None
    state = msgspec.structs.replace(world.state(), job=None, versions={})
    plan = schedule(state, evaluation(world.job), now=NOW, ids=ids())
    assert counts(plan) == {"stop": 1}
    assert plan.queued == {}
    assert plan.job_modify_index == 0


def test_unknown_job_needs_no_changes() -> None:
    empty = ClusterState(index=1, job=None, nodes=())
    assert schedule(empty, evaluation(job()), now=NOW, ids=ids()) == Plan(job_modify_index=0)


@pytest.mark.parametrize(
    "fields",
    [{"periodic": Periodic(spec="* * * * *")}, {"parameterized_job": Parameterized()}],
)
def test_parent_job_has_no_allocations(fields: dict[str, object]) -> None:
    world = World()
    plan = world.run(job("web", type=JobType.BATCH, **fields))
    assert plan == Plan(job_modify_index=11)


def test_child_job_is_placed() -> None:
    child = job(
        "web/dispatch-1", type=JobType.BATCH, dispatched=True, parameterized_job=Parameterized()
    )
    assert [item.name for item in World().run(child).place] == ["web/dispatch-1.web[0]"]


def test_restarted_job_is_placed_as_new() -> None:
    world = stopped(JobType.SERVICE)
    world.evaluate()
    world.start()
    assert counts(world.run(job("web", group("web", count=2)))) == {"place": 2}
    assert world.names() == ["web.web[0]", "web.web[1]"]


def test_plan_belongs_to_a_job_version() -> None:
    world = World()
    world.register(job())
    assert world.job is not None
    assert world.dry_run().job_modify_index == world.job.job_modify_index


def test_scheduler_follows_the_job_type_and_not_the_evaluation_type() -> None:
    world = World()
    world.register(job("web", type=JobType.SYSTEM))
    plan = world.evaluate(type="service", triggered_by=Trigger.DEPLOYMENT_WATCHER)
    assert [alloc.job_type for alloc in plan.place] == [JobType.SYSTEM]


def test_patterns_of_a_decision_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    constraints = [
        Constraint(l_target="x" * 1000, operand="regexp", r_target=f"x{number}|x")
        for number in range(100)
    ]
    world = World()
    assert len(world.run(job("web", group("web"), constraints=constraints)).place) == 1
    monkeypatch.setattr(regexp, "limited", partial(regexp.limited, 10_000))
    world = World()
    world.register(job("api", group("web"), constraints=constraints))
    with pytest.raises(regexp.PatternsTooCostly, match="use fewer or shorter expressions"):
        world.evaluate()
