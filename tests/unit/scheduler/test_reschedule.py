"""Times at which a failed allocation is placed again, and the history of its replacement."""

from typing import Any

import msgspec
import pytest

from daemon.scheduler.plan_builder import DELAYED
from daemon.scheduler.reschedule import (
    NO_PLACE,
    due_at,
    failed_at,
    group_by_time,
    next_delay,
    tracker_for_next,
)
from storage.records.allocation import (
    Allocation,
    ClientStatus,
    DesiredStatus,
    RescheduleEvent,
    RescheduleTracker,
    TaskState,
)
from storage.records.base import SECOND
from storage.records.deployment import DeploymentStatus
from storage.records.evaluation import EvalStatus, Evaluation, Trigger
from storage.records.group import ReschedulePolicy
from storage.records.job import Job
from storage.records.task import Resources
from storage.records.times import rfc3339
from tests.samples import NOW, group, job, task
from tests.unit.scheduler.world import ROLLING, World, counts, small


def policy(function: str = "constant", delay: int = 5, **fields: Any) -> ReschedulePolicy:
    given = {"unlimited": True, "max_delay": 20 * SECOND, **fields}
    return ReschedulePolicy(delay=delay * SECOND, delay_function=function, **given)


def limited(attempts: int, interval: int = 3600, **fields: Any) -> ReschedulePolicy:
    return policy(unlimited=False, attempts=attempts, interval=interval * SECOND, **fields)


def event(delay: int, at: int = 0) -> RescheduleEvent:
    """Return an earlier reschedule. `delay` and `at` are seconds, and `at` counts from NOW."""
    return RescheduleEvent(
        reschedule_time=NOW + at * SECOND,
        prev_alloc_id="before",
        prev_node_id="there",
        delay=delay * SECOND,
    )


def failed(*events: RescheduleEvent, at: int = 0) -> Allocation:
    """Return an allocation that failed, `at` seconds after NOW."""
    world = World()
    placed = world.run(job()).place[0]
    world.now = NOW + at * SECOND
    tracker = RescheduleTracker(events=list(events)) if events else None
    desired = msgspec.structs.replace(placed.desired, reschedule_tracker=tracker)
    return world.fail(msgspec.structs.replace(placed, desired=desired))


# ---- delays --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "delays"),
    [
        ("constant", [5, 5, 5, 5, 5, 5]),
        ("exponential", [5, 10, 20, 20, 20, 20]),
        ("fibonacci", [5, 5, 10, 15, 20, 20]),
        ("", [5, 5, 5, 5, 5, 5]),
    ],
)
def test_delay_grows_by_its_function_up_to_the_limit(function: str, delays: list[int]) -> None:
    events: list[RescheduleEvent] = []
    for _ in delays:
        events.append(event(next_delay(policy(function), events, NOW) // SECOND))
    assert [event.delay // SECOND for event in events] == delays


def test_delay_without_a_limit_keeps_growing() -> None:
    endless = policy("exponential", max_delay=0)
    assert next_delay(endless, [event(640)], NOW) == 1280 * SECOND


@pytest.mark.parametrize(("quiet", "delay"), [(20, 20), (21, 5)])
@pytest.mark.parametrize("function", ["exponential", "fibonacci"])
def test_delay_restarts_after_a_run_longer_than_the_limit(
    function: str, quiet: int, delay: int
) -> None:
    events = [event(20, at=0), event(20, at=0)]
    assert next_delay(policy(function), events, NOW + quiet * SECOND) == delay * SECOND


def test_restarted_fibonacci_repeats_its_first_delay() -> None:
    assert next_delay(policy("fibonacci"), [event(20), event(5)], NOW) == 5 * SECOND


# ---- decision to reschedule ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "events", "due"),
    [
        (None, [], None),
        (ReschedulePolicy(), [], None),
        (policy(), [], 5),
        (policy(), [event(5)] * 50, 5),
        (limited(1), [], 5),
        (limited(1), [event(5)], None),
        (limited(2), [event(5)], 5),
        (limited(2), [event(5), event(5)], None),
        (limited(1, interval=60), [event(5, at=-60)], 5),
        (limited(1, interval=60), [event(5, at=-59)], None),
        (limited(3, interval=60, function="exponential", max_delay=0), [event(40)], None),
    ],
)
def test_policy_determines_the_time_of_the_next_attempt(
    given: ReschedulePolicy | None, events: list[RescheduleEvent], due: int | None
) -> None:
    expected = None if due is None else NOW + due * SECOND
    assert due_at(failed(*events), given) == expected


def test_only_failed_or_lost_allocations_are_rescheduled() -> None:
    completed = msgspec.structs.replace(failed(), client_status=ClientStatus.COMPLETE)
    assert due_at(completed, policy()) is None


def test_failure_time_is_the_end_of_the_last_task() -> None:
    ends = {
        "a": TaskState(finished_at=rfc3339(NOW + 1)),
        "b": TaskState(finished_at=rfc3339(NOW + 9)),
        "c": TaskState(),
    }
    client = msgspec.structs.replace(failed().client, task_states=ends)
    assert failed_at(msgspec.structs.replace(failed(), client=client)) == NOW + 9
    never = msgspec.structs.replace(failed().client, task_states=None)
    unknown = msgspec.structs.replace(failed(), client=never, modify_time=NOW + 3)
    assert failed_at(unknown) == NOW + 3


# ---- stored reschedule events --------------------------------------------------------------------


def test_replacement_records_the_previous_failure() -> None:
    first = failed()
    tracker = tracker_for_next(first, policy(), NOW + 7)
    assert tracker.last_reschedule == "ok"
    assert tracker.events == [
        RescheduleEvent(
            reschedule_time=NOW + 7,
            prev_alloc_id=first.id,
            prev_node_id=first.node_id,
            delay=5 * SECOND,
        )
    ]


@pytest.mark.parametrize(
    ("given", "events", "kept"),
    [
        (policy(), [event(n) for n in range(1, 10)], [5, 6, 7, 8, 9]),
        (limited(3, interval=60), [event(1, at=-61), event(2, at=-60)], [2]),
        (None, [event(1)], [1]),
    ],
)
def test_old_failures_are_deleted(
    given: ReschedulePolicy | None, events: list[RescheduleEvent], kept: list[int]
) -> None:
    tracker = tracker_for_next(failed(*events), given, NOW)
    assert [event.delay // SECOND for event in tracker.events[:-1]] == kept


def test_reschedules_due_within_five_seconds_share_an_evaluation() -> None:
    one = failed()
    times = [NOW + seconds * SECOND for seconds in (9, 0, 4, 5)]
    made = group_by_time((at, one) for at in times)
    assert [(at - NOW) // SECOND for at, _ in made] == [0, 5]
    assert [len(batch) for _, batch in made] == [2, 2]


# ---- as part of a plan (recorded: reschedule, evaluate) ------------------------------------------------


def started(reschedule_policy: ReschedulePolicy, kind: str = "service", **fields: Any) -> World:
    world = World()
    world.run(job("web", group(reschedule_policy=reschedule_policy, **fields), type=kind))
    world.start()
    return world


def after_failure(world: World, **fields: Any) -> Evaluation:
    """Let the running allocation fail and be evaluated; return the follow-up evaluation."""
    world.fail()
    plan = world.evaluate(triggered_by=Trigger.ALLOC_FAILURE, **fields)
    (follow_up,) = plan.evaluations
    return follow_up


def test_failure_creates_a_delayed_evaluation() -> None:
    world = started(policy())
    first = world.running()[0]
    world.fail()
    alloc_failure = world.evaluation(triggered_by=Trigger.ALLOC_FAILURE, priority=70)
    plan = world.evaluate(alloc_failure)
    (follow_up,) = plan.evaluations
    assert world.job is not None
    assert follow_up == Evaluation(
        id=follow_up.id,
        namespace="default",
        priority=70,
        type="service",
        triggered_by=Trigger.ALLOC_RESCHEDULE,
        job_id="web",
        job_modify_index=world.job.modify_index,
        status=EvalStatus.PENDING,
        status_description=DELAYED,
        wait_until=rfc3339(NOW + 5 * SECOND),
        previous_eval=alloc_failure.id,
        snapshot_index=follow_up.snapshot_index,
        create_index=0,
        modify_index=0,
        create_time=NOW,
        modify_time=NOW,
    )
    assert counts(plan) == {"ignore": 1, "reschedule_later": 1}
    known = world.allocations[first.id]
    assert known.desired.followup_eval_id == follow_up.id
    assert known.desired_status == DesiredStatus.RUN


def test_evaluation_during_the_reschedule_delay_changes_nothing() -> None:
    world = started(policy())
    after_failure(world)
    plan = world.evaluate()
    assert counts(plan) == {"ignore": 1}
    assert not (plan.evaluations)
    assert not (plan.change)
    assert not (plan.place)


def test_follow_up_evaluation_replaces_the_failed_allocation() -> None:
    world = started(policy())
    first = world.running()[0]
    follow_up = after_failure(world)
    world.wait(5)
    plan = world.evaluate(follow_up)
    (second,) = plan.place
    assert counts(plan) == {"place": 1, "stop": 1}
    assert second.name == first.name
    assert second.desired.previous_allocation == first.id
    tracker = second.desired.reschedule_tracker
    assert tracker is not None
    assert [event.delay for event in tracker.events] == [5 * SECOND]
    assert tracker.events[0].reschedule_time == world.now
    known = world.allocations[first.id]
    assert known.desired_status == DesiredStatus.STOP
    assert known.desired.description == ""
    assert known.desired.next_allocation == second.id
    assert known.desired.followup_eval_id == follow_up.id


def test_delays_of_a_chain_match_golden_reschedule() -> None:
    world = started(policy("exponential"))
    for _ in range(3):
        follow_up = after_failure(world)
        world.wait(25)
        world.evaluate(follow_up)
        world.start()
    tracker = world.running()[0].desired.reschedule_tracker
    assert tracker is not None
    assert [event.delay // SECOND for event in tracker.events] == [5, 10, 20]


@pytest.mark.parametrize(("left", "now"), [(1.0, True), (1.1, False)])
def test_reschedule_due_within_a_second_is_immediate(left: float, now: bool) -> None:
    world = started(policy())
    world.fail()
    world.wait(5 - left)
    assert bool(world.evaluate().place) is now


def test_failure_beyond_its_attempts_is_not_replaced() -> None:
    world = started(limited(1), "batch")
    follow_up = after_failure(world)
    world.wait(5)
    world.evaluate(follow_up)
    world.start()
    world.fail()
    world.wait(100)
    plan = world.evaluate(triggered_by=Trigger.ALLOC_FAILURE)
    assert counts(plan)["ignore"] == 2
    assert not (plan.place)
    assert not (plan.evaluations)


@pytest.mark.parametrize("given", [ReschedulePolicy(), limited(1, delay=3600), policy()])
def test_force_replaces_a_failure_immediately_despite_its_policy(given: ReschedulePolicy) -> None:
    world = started(given)
    first = world.mark(world.fail(), force_reschedule=True)
    plan = world.evaluate()
    assert counts(plan) == {"place": 1, "stop": 1}
    tracker = plan.place[0].desired.reschedule_tracker
    assert tracker is not None
    assert tracker.events[0].delay == given.delay
    assert world.allocations[first.id].desired_status == DesiredStatus.STOP
    assert not world.evaluate().place


def test_force_does_not_affect_running_allocations() -> None:
    world = started(policy())
    world.mark(world.running()[0], force_reschedule=True)
    assert counts(world.evaluate()) == {"ignore": 1}


def test_policy_of_the_failed_version_is_used() -> None:
    world = started(policy(delay=60), update=None)
    world.fail()
    world.register(job("web", group(reschedule_policy=policy(delay=0), count=1)))
    plan = world.evaluate()
    assert [evaluation.wait_until for evaluation in plan.evaluations] == [
        rfc3339(NOW + 60 * SECOND)
    ]


# ---- during a deployment -----------------------------------------------------------------------------


def deploying(reschedule_policy: ReschedulePolicy) -> World:
    return started(reschedule_policy, update=ROLLING)


def test_failure_during_a_deployment_is_left_to_the_watcher() -> None:
    world = deploying(policy(delay=0))
    world.fail()
    assert counts(world.evaluate()) == {"ignore": 1}
    world.mark(next(iter(world.allocations.values())), reschedule=True)
    assert counts(world.evaluate()) == {"place": 1, "stop": 1}


@pytest.mark.parametrize("status", [DeploymentStatus.SUCCESSFUL, DeploymentStatus.CANCELLED])
def test_failure_after_a_deployment_follows_its_policy(status: DeploymentStatus) -> None:
    world = deploying(policy(delay=0))
    world.set_deployment(status)
    world.fail()
    assert world.evaluate().place[0].deployment_id == ""


def test_allocation_of_a_failed_deployment_is_not_placed_again() -> None:
    world = deploying(policy(delay=0))
    world.set_deployment(DeploymentStatus.FAILED)
    world.fail()
    assert not world.evaluate().place


# ---- without capacity ------------------------------------------------------------------------------------


def test_failure_that_cannot_be_placed_is_retried_by_the_blocked_evaluation() -> None:
    needs = task(resources=Resources(cpu=60, memory_mb=1))
    wanted = job("web", group("web", needs, reschedule_policy=limited(1, delay=0)))
    world = World(small())
    world.run(wanted)
    world.start()
    others = World(small()).run(job("other", group("web", needs))).place
    world.fail()
    world.others = list(others)
    plan = world.evaluate()
    assert plan.queued == {"web": 1}
    assert plan.blocked is not None
    (first,) = world.allocations.values()
    assert first.desired_status == DesiredStatus.RUN
    assert first.desired.reschedule_tracker == RescheduleTracker(
        events=[], last_reschedule=NO_PLACE
    )
    world.others = []
    assert world.evaluate(plan.blocked).place[0].desired.previous_allocation == first.id


def with_count(count: int) -> Job:
    return job("web", group(count=count, reschedule_policy=policy(delay=0)))


def test_failed_allocation_is_not_replaced_beyond_the_count() -> None:
    world = World()
    world.run(with_count(2))
    world.start()
    world.fail()
    plan = world.run(with_count(1))
    assert not plan.place
    assert world.names() == ["web.web[1]"]
