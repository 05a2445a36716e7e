"""Rescheduling: whether and when a failed allocation is placed again, and its history.

The policy sets the first delay and the function by which it grows. The reschedule tracker of an
allocation lists earlier failures, and its replacement inherits the list (source: Nomad's recorded
responses `reschedule`, `evaluate`).
"""

from collections.abc import Iterable
from enum import Enum

import msgspec

from storage.records.allocation import (
    Allocation,
    ClientStatus,
    RescheduleEvent,
    RescheduleTracker,
)
from storage.records.base import SECOND
from storage.records.deployment import Deployment
from storage.records.evaluation import Evaluation
from storage.records.group import DelayFunction, ReschedulePolicy
from storage.records.times import nanoseconds

OK = "ok"
NO_PLACE = "no placement"

# The client description of an allocation whose failure is final by `steward_retry_exit_codes`.
NOT_RETRIED = "the exit code is not one of steward_retry_exit_codes"
_NEARLY_NOW = SECOND  # a reschedule that is due within this time happens immediately
_TOGETHER = 5 * SECOND  # reschedules within this time share an evaluation
_KEPT_EVENTS = 5  # history of a tracker without a limit on attempts


class RescheduleTiming(Enum):
    """The time at which to reschedule a failed allocation."""

    NOW = "now"
    LATER = "later"
    NOT = "not"


def decide(
    allocation: Allocation,
    policy: ReschedulePolicy | None,
    evaluation: Evaluation,
    deployment: Deployment | None,
    now: int,
) -> RescheduleTiming:
    """Return when to reschedule a failed allocation.

    During a deployment, the deployment watcher decides first, and marks the allocations that may be
    rescheduled. `LATER` is returned only once, because a follow-up evaluation exists after that.
    """
    desired = allocation.desired
    if _is_blocked_by_deployment(allocation, deployment):
        return RescheduleTiming.NOT
    if desired.transition.force_reschedule and allocation.client_terminal:
        return RescheduleTiming.NOW
    due = due_at(allocation, policy)
    if due is None:
        return RescheduleTiming.NOT
    if desired.followup_eval_id == evaluation.id or due - now <= _NEARLY_NOW:
        return RescheduleTiming.NOW
    return RescheduleTiming.NOT if desired.followup_eval_id else RescheduleTiming.LATER


def _is_blocked_by_deployment(allocation: Allocation, deployment: Deployment | None) -> bool:
    if deployment is None or deployment.id != allocation.deployment_id:
        return False
    return deployment.active and not allocation.desired.transition.reschedule


def has_attempts(allocation: Allocation, policy: ReschedulePolicy | None, now: int) -> bool:
    """Return whether the policy permits a further attempt; `now` is in nanoseconds."""
    if policy is None or allocation.client.description == NOT_RETRIED:
        return False
    return policy.unlimited or len(_recent(allocation, policy, now)) < policy.attempts


def _recent(allocation: Allocation, policy: ReschedulePolicy, moment: int) -> list[RescheduleEvent]:
    """Return the earlier reschedules in the interval before a time."""
    return [
        event for event in _events(allocation) if moment - event.reschedule_time < policy.interval
    ]


def due_at(allocation: Allocation, policy: ReschedulePolicy | None) -> int | None:
    """Return the time at which to replace a failed allocation, in nanoseconds; None means never."""
    if policy is None or allocation.client_status not in (ClientStatus.FAILED, ClientStatus.LOST):
        return None
    if allocation.client.description == NOT_RETRIED:
        return None
    failed = failed_at(allocation)
    delay = next_delay(policy, _events(allocation), failed)
    if not policy.unlimited:
        recent = _recent(allocation, policy, failed)
        if len(recent) >= policy.attempts or (_events(allocation) and delay >= policy.interval):
            return None
    return failed + delay


def failed_at(allocation: Allocation) -> int:
    """Return when the last task of an allocation ended, in nanoseconds."""
    states = (allocation.client.task_states or {}).values()
    ends = [nanoseconds(state.finished_at) for state in states if state.finished_at]
    return max(ends, default=allocation.modify_time)


def next_delay(policy: ReschedulePolicy, events: list[RescheduleEvent], failed: int) -> int:
    """Return the delay after a failure in nanoseconds; `events` are the earlier reschedules.

    A delay that has reached its maximum is reset if the allocation ran longer than this maximum.
    """
    if not events or policy.delay_function not in (
        DelayFunction.EXPONENTIAL,
        DelayFunction.FIBONACCI,
    ):
        return policy.delay
    if policy.delay_function == DelayFunction.EXPONENTIAL:
        delay = events[-1].delay * 2
    else:
        delay = _fibonacci(policy, events)
    if not policy.max_delay or delay <= policy.max_delay:
        return delay
    quiet = failed - events[-1].reschedule_time
    return policy.delay if quiet > policy.max_delay else policy.max_delay


def _fibonacci(policy: ReschedulePolicy, events: list[RescheduleEvent]) -> int:
    if len(events) < 2:
        return policy.delay
    before, last = events[-2].delay, events[-1].delay
    begun_anew = before == policy.max_delay and last == policy.delay
    return last if begun_anew else before + last


def _events(allocation: Allocation) -> list[RescheduleEvent]:
    tracker = allocation.desired.reschedule_tracker
    return tracker.events if tracker else []


def tracker_for_next(
    allocation: Allocation, policy: ReschedulePolicy | None, now: int
) -> RescheduleTracker:
    """Return the reschedule tracker for the replacement of a failed allocation."""
    policy = policy or ReschedulePolicy()
    events = _events(allocation)
    event = RescheduleEvent(
        reschedule_time=now,
        prev_alloc_id=allocation.id,
        prev_node_id=allocation.node_id,
        delay=next_delay(policy, events, failed_at(allocation)),
    )
    if policy.attempts:
        recent = [event for event in events if now - event.reschedule_time <= policy.interval]
    else:
        recent = events[-_KEPT_EVENTS:]
    return RescheduleTracker(events=[*recent, event], last_reschedule=OK)


def note_unplaced(allocation: Allocation) -> Allocation:
    """Return a failed allocation, with a mark that its replacement could not be placed."""
    tracker = allocation.desired.reschedule_tracker or RescheduleTracker(events=[])
    desired = msgspec.structs.replace(
        allocation.desired,
        reschedule_tracker=msgspec.structs.replace(tracker, last_reschedule=NO_PLACE),
    )
    return msgspec.structs.replace(allocation, desired=desired)


def group_by_time(retries: Iterable[tuple[int, Allocation]]) -> list[tuple[int, list[Allocation]]]:
    """Return delayed reschedules in batches, each with its earliest time in nanoseconds."""
    batches: list[tuple[int, list[Allocation]]] = []
    for retry_time, allocation in sorted(retries, key=lambda pair: (pair[0], pair[1].id)):
        if not batches or retry_time - batches[-1][0] >= _TOGETHER:
            batches.append((retry_time, []))
        batches[-1][1].append(allocation)
    return batches
