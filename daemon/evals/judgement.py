"""Judging deployments: what is to happen to one, seen from the health of its allocations. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from storage.records.allocation import Allocation, DesiredStatus
from storage.records.deployment import Deployment, DeploymentGroup, DeploymentStatus
from storage.records.group import ReschedulePolicy
from storage.records.job import Job
from storage.records.times import ZERO_TIME, nanoseconds, rfc3339

UNHEALTHY = "Failed due to unhealthy allocations"
TOO_SLOW = "Failed due to progress deadline"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is to happen to a deployment: `failure` says why it fails, empty when it does not."""

    groups: Mapping[str, DeploymentGroup]
    failure: str = ""
    reverts: bool = False
    deadline: int | None = None  # when to look again if nothing changes, nanoseconds

    @property
    def calls_scheduler(self) -> bool:
        """Tell whether there is something for the scheduler to do: to place, or to finish."""
        return (
            bool(self.failure)
            or all(_has_come_far_enough(state) for state in self.groups.values())
            or any(state.placed_allocs < state.desired_total for state in self.groups.values())
        )


def judge(
    deployment: Deployment, placed: Iterable[Allocation], job: Job | None, now: int
) -> Verdict:
    """Return what is to happen, seen from the health of a deployment's allocations."""
    by_group: dict[str, list[Allocation]] = {name: [] for name in deployment.task_groups}
    for allocation in placed:
        by_group.setdefault(allocation.task_group, []).append(allocation)
    groups = {
        name: _counted(state, by_group[name]) for name, state in deployment.task_groups.items()
    }
    if all(_may_promote_itself(state) for state in groups.values() if state.desired_canaries):
        groups = {name: _promoted(state) for name, state in groups.items()}
    if deployment.status == DeploymentStatus.PAUSED:
        return Verdict(groups=groups)
    failures = {
        name: failure
        for name, state in groups.items()
        if (failure := _failure(state, policy_of(job, name), now))
    }
    deadlines = [
        state.progress_due
        for state in groups.values()
        if state.progress_due is not None and not _has_come_far_enough(state)
    ]
    return Verdict(
        groups=groups,
        failure=next(iter(failures.values()), ""),
        reverts=any(groups[name].auto_revert for name in failures),
        deadline=min(deadlines, default=None),
    )


def _counted(state: DeploymentGroup, placed: list[Allocation]) -> DeploymentGroup:
    """Return a group with its healthy allocations counted; each new one moves the deadline on.

    What has been told to stop is not what the deployment is to bring up.
    """
    health = [one.health for one in placed if one.health is not None]
    healthy = [
        one.health
        for one in placed
        if one.health is not None and one.health.healthy and one.desired_status == DesiredStatus.RUN
    ]
    deadline = state.require_progress_by
    if state.progress_deadline and healthy:
        latest = max(nanoseconds(one.timestamp or ZERO_TIME) for one in healthy)
        deadline = rfc3339(max(latest + state.progress_deadline, state.progress_due or 0))
    return msgspec.structs.replace(
        state,
        healthy_allocs=len(healthy),
        unhealthy_allocs=sum(one.healthy is False for one in health),
        require_progress_by=deadline,
    )


def _may_promote_itself(state: DeploymentGroup) -> bool:
    return state.auto_promote and state.healthy_allocs >= state.desired_canaries


def _promoted(state: DeploymentGroup) -> DeploymentGroup:
    return msgspec.structs.replace(state, promoted=True) if state.desired_canaries else state


def _has_come_far_enough(state: DeploymentGroup) -> bool:
    """Tell whether a group waits for nothing that takes time: only for a promotion, or nothing."""
    if state.desired_canaries and not state.promoted:
        return state.healthy_allocs >= state.desired_canaries
    return state.healthy_allocs >= state.desired_total


def _failure(state: DeploymentGroup, policy: ReschedulePolicy | None, now: int) -> str:
    """Return why a group fails its deployment, empty when it does not (golden: deploy-*).

    An unhealthy allocation that may be placed again gets its chance until the deadline.
    """
    if state.unhealthy_allocs and not (may_place_again(policy) and state.progress_deadline):
        return UNHEALTHY
    overdue = state.progress_due is not None and state.progress_due <= now
    return TOO_SLOW if overdue and not _has_come_far_enough(state) else ""


def may_place_again(policy: ReschedulePolicy | None) -> bool:
    """Tell whether a policy lets failed allocations be placed again at all; system jobs have none."""
    return policy is not None and (policy.unlimited or policy.attempts > 0)


def policy_of(job: Job | None, name: str) -> ReschedulePolicy | None:
    """Return how a version of a job has failed allocations of a group placed again."""
    group = job.group(name) if job else None
    return group.reschedule_policy if group else None
