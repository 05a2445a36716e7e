"""The outcome of a deployment by its allocations: a table of cases."""

from typing import Any

import msgspec
import pytest

from daemon.evals.deployment_health import (
    TOO_SLOW,
    UNHEALTHY,
    DeploymentDecision,
    decide_deployment,
)
from daemon.scheduler.reschedule import NOT_RETRIED
from storage.records.allocation import (
    Allocation,
    DeploymentHealth,
    RescheduleEvent,
    RescheduleTracker,
)
from storage.records.base import HOUR, SECOND
from storage.records.deployment import Deployment, DeploymentGroup, DeploymentStatus
from storage.records.group import ReschedulePolicy
from storage.records.job import Job
from storage.records.times import nanoseconds, rfc3339
from tests.samples import NOW, group, job
from tests.unit.scheduler.world import World

DEADLINE = 20 * SECOND
LATER, EARLIER = rfc3339(NOW + SECOND), rfc3339(NOW - SECOND)
ENDLESS = ReschedulePolicy(unlimited=True, delay=SECOND)
NEVER = ReschedulePolicy()


def state(**fields: Any) -> DeploymentGroup:
    return DeploymentGroup(**{"desired_total": 2, "placed_allocs": 2, **fields})


def deployment(
    status: DeploymentStatus = DeploymentStatus.RUNNING, **groups: DeploymentGroup
) -> Deployment:
    return Deployment(
        id="d1",
        namespace="default",
        job_id="web",
        job_version=0,
        job_modify_index=1,
        job_spec_modify_index=1,
        job_create_index=1,
        task_groups=groups,
        status=status,
        status_description="",
        eval_priority=50,
        create_index=1,
        modify_index=1,
        create_time=NOW,
        modify_time=NOW,
    )


def placed(*healths: bool | None, group_name: str = "web") -> list[Allocation]:
    """Return allocations with these healths, known since now."""
    world = World()
    world.run(job("web", group(group_name, count=1)))
    (one,) = world.running()
    return [
        msgspec.structs.replace(
            one,
            id=f"{group_name}-{number}",
            health=None
            if health is None
            else DeploymentHealth(healthy=health, timestamp=rfc3339(NOW)),
        )
        for number, health in enumerate(healths)
    ]


def the_job(policy: ReschedulePolicy | None = None) -> Job:
    return job("web", group("web", reschedule_policy=policy))


def verdict(
    *healths: bool | None, policy: ReschedulePolicy | None = None, **fields: Any
) -> DeploymentDecision:
    return decide_deployment(
        deployment(web=state(**fields)), placed(*healths), the_job(policy), NOW
    )


@pytest.mark.parametrize(
    ("healths", "counts"),
    [
        ((), (0, 0)),
        ((None, None), (0, 0)),
        ((True, None), (1, 0)),
        ((True, True), (2, 0)),
        ((True, False), (1, 1)),
    ],
)
def test_healthy_and_unhealthy_allocations_are_counted(
    healths: tuple[bool | None, ...], counts: tuple[int, int]
) -> None:
    group = verdict(*healths).groups["web"]
    assert (group.healthy_allocs, group.unhealthy_allocs) == counts


@pytest.mark.parametrize(
    ("healths", "before", "after"),
    [
        ((None,), LATER, LATER),  # nothing is healthy yet: the deadline stays
        ((True,), LATER, rfc3339(NOW + DEADLINE)),  # a healthy allocation extends it
        ((False,), LATER, LATER),
        ((True,), rfc3339(NOW + 9 * DEADLINE), rfc3339(NOW + 9 * DEADLINE)),  # not shortened
    ],
)
def test_newly_healthy_allocation_extends_the_deadline(
    healths: tuple[bool | None, ...], before: str, after: str
) -> None:
    found = verdict(*healths, progress_deadline=DEADLINE, require_progress_by=before)
    assert found.groups["web"].require_progress_by == after


def test_deployment_without_a_progress_deadline_has_none() -> None:
    found = verdict(True)
    assert (found.groups["web"].require_progress_by, found.deadline) == (None, None)


@pytest.mark.parametrize(
    ("healths", "fields", "policy", "failure"),
    [
        # an unhealthy allocation that will not be replaced fails the deployment
        ((False,), {"progress_deadline": DEADLINE, "require_progress_by": LATER}, NEVER, UNHEALTHY),
        ((False,), {"progress_deadline": DEADLINE, "require_progress_by": LATER}, None, UNHEALTHY),
        # a replacement can become healthy until the deadline
        ((False,), {"progress_deadline": DEADLINE, "require_progress_by": LATER}, ENDLESS, ""),
        ((False,), {"progress_deadline": DEADLINE, "require_progress_by": EARLIER}, ENDLESS, TOO_SLOW),
        # without a deadline, the first unhealthy allocation fails the deployment
        ((False,), {}, ENDLESS, UNHEALTHY),
        # an allocation that is not healthy at the deadline
        ((None,), {"progress_deadline": DEADLINE, "require_progress_by": EARLIER}, ENDLESS, TOO_SLOW),
        ((None,), {"progress_deadline": DEADLINE, "require_progress_by": LATER}, ENDLESS, ""),
        # all are healthy, so the deadline no longer matters
        (
            (True, True),
            {"progress_deadline": 0, "require_progress_by": EARLIER},
            ENDLESS,
            "",
        ),
        # canaries that wait for a promotion have no deadline
        (
            (True,),
            {"desired_canaries": 1, "progress_deadline": 0, "require_progress_by": EARLIER},
            ENDLESS,
            "",
        ),
    ],
)  # fmt: skip
def test_deployment_fails_for_unhealthy_or_late_allocations(
    healths: tuple[bool | None, ...],
    fields: dict[str, Any],
    policy: ReschedulePolicy | None,
    failure: str,
) -> None:
    assert verdict(*healths, policy=policy, **fields).failure == failure


@pytest.mark.parametrize(
    ("status", "failure"),
    [(DeploymentStatus.RUNNING, TOO_SLOW), (DeploymentStatus.PAUSED, "")],
)
def test_paused_deployment_never_exceeds_its_deadline(
    status: DeploymentStatus, failure: str
) -> None:
    slow = state(progress_deadline=DEADLINE, require_progress_by=EARLIER)
    deployment_decision = decide_deployment(
        deployment(status, web=slow), placed(None), the_job(), NOW
    )
    assert deployment_decision.failure == failure


@pytest.mark.parametrize(
    ("healths", "fields", "promoted"),
    [
        ((True,), {"auto_promote": True, "desired_canaries": 1}, True),
        ((None,), {"auto_promote": True, "desired_canaries": 1}, False),
        ((True,), {"auto_promote": True, "desired_canaries": 2}, False),
        ((True,), {"auto_promote": False, "desired_canaries": 1}, False),
        ((True,), {"auto_promote": True, "desired_canaries": 0}, False),
    ],
)
def test_canaries_are_auto_promoted_when_all_are_healthy(
    healths: tuple[bool | None, ...], fields: dict[str, Any], promoted: bool
) -> None:
    assert verdict(*healths, **fields).groups["web"].promoted is promoted


@pytest.mark.parametrize(("other", "promoted"), [((True,), True), ((None,), False)])
def test_groups_are_promoted_together(other: tuple[bool | None, ...], promoted: bool) -> None:
    canary = state(auto_promote=True, desired_canaries=1)
    deployment_decision = decide_deployment(
        deployment(web=canary, db=canary, plain=state()),
        [*placed(True), *placed(*other, group_name="db")],
        the_job(),
        NOW,
    )
    # A group without canaries counts as promoted, too, as after a promotion by hand.
    assert [deployment_decision.groups[name].promoted for name in ("web", "db", "plain")] == [
        promoted,
        promoted,
        promoted,
    ]


def test_promotion_starts_the_deadlines_anew() -> None:
    canary = state(auto_promote=True, desired_canaries=1)
    plain = state(progress_deadline=DEADLINE, require_progress_by=LATER)
    decided = decide_deployment(
        deployment(web=canary, plain=plain), placed(True), the_job(ENDLESS), NOW
    )
    assert decided.groups["plain"].require_progress_by == rfc3339(NOW + DEADLINE)


def test_paused_deployment_is_not_promoted() -> None:
    canary = state(auto_promote=True, desired_canaries=1)
    for status, promoted in ((DeploymentStatus.PAUSED, False), (DeploymentStatus.RUNNING, True)):
        decided = decide_deployment(deployment(status, web=canary), placed(True), the_job(), NOW)
        assert decided.groups["web"].promoted is promoted


@pytest.mark.parametrize(
    ("attempts", "earlier", "description", "failure"),
    [
        (2, 1, "", ""),  # one attempt is left
        (1, 1, "", UNHEALTHY),
        (1, 0, "", ""),
        (1, 0, NOT_RETRIED, UNHEALTHY),
        (0, 0, "", UNHEALTHY),
    ],
)
def test_unhealthy_allocation_without_further_attempts_fails_the_deployment(
    attempts: int, earlier: int, description: str, failure: str
) -> None:
    policy = ReschedulePolicy(attempts=attempts, interval=HOUR, delay=SECOND)
    (alloc,) = placed(False)
    event = RescheduleEvent(
        reschedule_time=NOW - SECOND, prev_alloc_id="a", prev_node_id="n", delay=SECOND
    )
    tracker = RescheduleTracker(events=[event] * earlier)
    alloc = msgspec.structs.replace(
        alloc,
        desired=msgspec.structs.replace(alloc.desired, reschedule_tracker=tracker),
        client=msgspec.structs.replace(alloc.client, description=description),
    )
    timed = state(progress_deadline=DEADLINE, require_progress_by=LATER)
    decided = decide_deployment(deployment(web=timed), [alloc], the_job(policy), NOW)
    assert decided.failure == failure


@pytest.mark.parametrize(
    ("failing", "reverts"),
    [("careful", True), ("bold", False)],
)
def test_only_the_failing_group_decides_about_a_rollback(failing: str, reverts: bool) -> None:
    deployment_decision = decide_deployment(
        deployment(careful=state(auto_revert=True), bold=state()),
        placed(False, group_name=failing),
        the_job(),
        NOW,
    )
    assert (deployment_decision.failure, deployment_decision.reverts) == (UNHEALTHY, reverts)


def test_next_check_is_at_the_earliest_deadline_of_unfinished_groups() -> None:
    def due(seconds: int, **fields: Any) -> DeploymentGroup:
        by = rfc3339(NOW + seconds * SECOND)
        return state(progress_deadline=0, require_progress_by=by, **fields)

    deployment_decision = decide_deployment(
        deployment(web=due(30), db=due(10), done=due(5, desired_total=0)), [], the_job(), NOW
    )
    assert deployment_decision.deadline == nanoseconds(rfc3339(NOW + 10 * SECOND))


@pytest.mark.parametrize(
    ("healths", "fields", "calls"),
    [
        ((True, True), {}, True),  # to complete the deployment
        ((True,), {"placed_allocs": 1}, True),  # to place the next allocation
        ((True,), {}, False),  # all are placed: wait
        ((True,), {"desired_canaries": 1}, True),  # waits for a promotion
        ((False,), {}, True),  # failed
    ],
)
def test_scheduler_is_called_when_needed(
    healths: tuple[bool | None, ...], fields: dict[str, Any], calls: bool
) -> None:
    assert verdict(*healths, **fields).calls_scheduler is calls
