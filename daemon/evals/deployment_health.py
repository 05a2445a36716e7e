"""Decide about a deployment from the health of its allocations. No I/O."""

from collections.abc import Iterable, Mapping

import msgspec

from daemon.scheduler.reschedule import has_attempts
from storage.records.allocation import Allocation, DesiredStatus
from storage.records.deployment import Deployment, DeploymentGroup, DeploymentStatus
from storage.records.group import ReschedulePolicy, TaskGroup
from storage.records.job import Job
from storage.records.times import ZERO_TIME, nanoseconds, rfc3339

UNHEALTHY = "Failed due to unhealthy allocations"
TOO_SLOW = "Failed due to progress deadline"


class DeploymentDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about a deployment; `failure` is the reason for a failure, or empty."""

    groups: Mapping[str, DeploymentGroup]
    failure: str = ""
    reverts: bool = False
    deadline: int | None = None  # time of the next decision without a change, in nanoseconds

    @property
    def calls_scheduler(self) -> bool:
        """Return whether the scheduler must place allocations or complete the deployment."""
        return (
            bool(self.failure)
            or all(_has_met_deadline(state) for state in self.groups.values())
            or any(state.placed_allocs < state.desired_total for state in self.groups.values())
        )


def decide_deployment(
    deployment: Deployment, allocs: Iterable[Allocation], job: Job | None, now: int
) -> DeploymentDecision:
    """Return the decision about a deployment, given its allocations."""
    by_group: dict[str, list[Allocation]] = {name: [] for name in deployment.task_groups}
    for allocation in allocs:
        by_group.setdefault(allocation.task_group, []).append(allocation)
    groups = {
        name: _counted(state, by_group[name]) for name, state in deployment.task_groups.items()
    }
    if deployment.status == DeploymentStatus.PAUSED:
        return DeploymentDecision(groups=groups)
    waiting = [state for state in groups.values() if state.desired_canaries and not state.promoted]
    if waiting and all(_may_promote_itself(state) for state in groups.values()):
        groups = {name: promoted(state, now) for name, state in groups.items()}
    groups_by_name = job.groups_by_name() if job else {}
    failures = {
        name: failure
        for name, state in groups.items()
        if (failure := _failure(state, by_group[name], _policy_of(groups_by_name.get(name)), now))
    }
    deadlines = [
        state.progress_due
        for state in groups.values()
        if state.progress_due is not None and not _has_met_deadline(state)
    ]
    return DeploymentDecision(
        groups=groups,
        failure=next(iter(failures.values()), ""),
        reverts=any(groups[name].auto_revert for name in failures),
        deadline=min(deadlines, default=None),
    )


def _counted(state: DeploymentGroup, allocs: list[Allocation]) -> DeploymentGroup:
    """Return a group with updated health counts, and with a later deadline after progress.

    Each new healthy allocation extends the progress deadline of the group. An allocation that is
    being stopped does not count as healthy.
    """
    health = [alloc.health for alloc in allocs if alloc.health is not None]
    healthy = [
        alloc.health
        for alloc in allocs
        if alloc.health is not None
        and alloc.health.healthy
        and alloc.desired_status == DesiredStatus.RUN
    ]
    deadline = state.require_progress_by
    if state.progress_deadline and healthy:
        latest = max(nanoseconds(health.timestamp or ZERO_TIME) for health in healthy)
        deadline = rfc3339(max(latest + state.progress_deadline, state.progress_due or 0))
    return msgspec.structs.replace(
        state,
        healthy_allocs=len(healthy),
        unhealthy_allocs=sum(health.healthy is False for health in health),
        require_progress_by=deadline,
    )


def _may_promote_itself(state: DeploymentGroup) -> bool:
    if not state.desired_canaries:
        return True
    return state.auto_promote and state.healthy_allocs >= state.desired_canaries


def promoted(state: DeploymentGroup, now: int) -> DeploymentGroup:
    """Return a promoted group, with a new progress deadline if anything was placed."""
    state = with_new_deadline(state, now) if state.progress_due is not None else state
    return msgspec.structs.replace(state, promoted=True)


def with_new_deadline(state: DeploymentGroup, now: int) -> DeploymentGroup:
    """Return a copy of the group with a new progress deadline, counted from now."""
    if not state.progress_deadline:
        return state
    return msgspec.structs.replace(
        state, require_progress_by=rfc3339(now + state.progress_deadline)
    )


def _has_met_deadline(state: DeploymentGroup) -> bool:
    """Return whether the progress deadline no longer applies to a group.

    It does not apply if the group is complete, or waits only for its promotion.
    """
    if state.desired_canaries and not state.promoted:
        return state.healthy_allocs >= state.desired_canaries
    return state.healthy_allocs >= state.desired_total


def _failure(
    state: DeploymentGroup, allocs: Iterable[Allocation], policy: ReschedulePolicy | None, now: int
) -> str:
    """Return why a group makes its deployment fail, or an empty string.

    An unhealthy allocation is tolerated until the deadline, as long as the policy permits a further
    attempt (source: Nomad's recorded responses `deploy-*`).
    """
    for alloc in allocs:
        is_unhealthy = alloc.health is not None and alloc.health.healthy is False
        if is_unhealthy and not (state.progress_deadline and has_attempts(alloc, policy, now)):
            return UNHEALTHY
    overdue = state.progress_due is not None and state.progress_due <= now
    return TOO_SLOW if overdue and not _has_met_deadline(state) else ""


def policy_of(job: Job | None, name: str) -> ReschedulePolicy | None:
    """Return the reschedule policy of a group in a version of a job."""
    return _policy_of(job.group(name) if job else None)


def _policy_of(group: TaskGroup | None) -> ReschedulePolicy | None:
    return group.reschedule_policy if group else None
