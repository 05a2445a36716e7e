"""The rollout: the deployment that a plan belongs to, and the pace of replacement.

Each new version of a service or system job that changes allocations gets a deployment, including
the first version. Its groups must have an `update` block (source: Nomad's recorded responses
`deploy-rolling`). A newer version or a stop of the job cancels the deployment. This module creates
deployments, counts placements, and completes a deployment when all its allocations are healthy.
Health and promotion are recorded elsewhere.
"""

from collections.abc import Iterable, Iterator

import msgspec

from storage.records.allocation import Allocation
from storage.records.deployment import Deployment, DeploymentGroup, DeploymentStatus
from storage.records.evaluation import Evaluation
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.times import rfc3339

RUNNING = "Deployment is running"
NEEDS_PROMOTION = "Deployment is running but requires manual promotion"
AUTO_PROMOTION = "Deployment is running pending automatic promotion"
SUCCESSFUL = "Deployment completed successfully"
NEWER_VERSION = "Cancelled due to newer version of job"
STOPPED = "Cancelled because job is stopped"


def max_parallel(group: TaskGroup) -> int:
    """Return how many allocations of a group may be replaced at a time; 0 means all."""
    return group.update.max_parallel if group.update else 0


class Rollout:
    """The deployment of one job while a plan is made."""

    def __init__(
        self,
        job: Job | None,
        latest: Deployment | None,
        evaluation: Evaluation,
        *,
        now: int,
        ids: Iterator[str],
    ) -> None:
        """Initialize; `latest` is the newest deployment of the job, of any version and status."""
        self._job = job
        self._latest = latest
        self._evaluation = evaluation
        self._now = now
        self._ids = ids
        self._changed: dict[str, Deployment] = {}
        # The deployment of this version, unless it was successful, or the deployment of this plan.
        self.current: Deployment | None = None
        self.old: Deployment | None = None
        if latest is not None:
            self._sort(latest)

    def _sort(self, latest: Deployment) -> None:
        if self._job is None or self._job.stop:
            self._cancel(latest, STOPPED)
        elif not self.of_this_version(latest):
            self._cancel(latest, NEWER_VERSION)
        elif latest.status != DeploymentStatus.SUCCESSFUL:
            self.current = latest
            return
        self.old = latest

    def of_this_version(self, deployment: Deployment | None) -> bool:
        """Return whether a deployment belongs to the current version of the job."""
        return (
            deployment is not None
            and self._job is not None
            and deployment.job_version == self._job.version
            and deployment.job_create_index == self._job.create_index
        )

    def _cancel(self, deployment: Deployment, why: str) -> None:
        if deployment.active:
            self._change(deployment, status=DeploymentStatus.CANCELLED, status_description=why)

    def _change(self, deployment: Deployment, **fields: object) -> Deployment:
        changed: Deployment = msgspec.structs.replace(deployment, modify_time=self._now, **fields)
        self._changed[changed.id] = changed
        return changed

    # --- progress ---

    @property
    def id(self) -> str:
        """Return the ID of the evaluation's deployment, or an empty string if it has none."""
        deployment = self.current or self._latest
        return deployment.id if deployment else ""

    def id_for(self, group_name: str) -> str:
        """Return the deployment ID for new allocations of a group.

        The ID is empty if the deployment does not include the group.
        """
        state = self.group(group_name)
        return self.current.id if state and self.current and self.current.active else ""

    @property
    def is_over(self) -> bool:
        """Return whether this version was deployed successfully.

        Later placements of the version are not part of a rollout.
        """
        return self.old is not None and self.of_this_version(self.old)

    @property
    def is_blocked(self) -> bool:
        """Return whether the deployment is paused or failed, so that it must not continue."""
        return self.current is not None and self.current.status != DeploymentStatus.RUNNING

    @property
    def failed(self) -> bool:
        """Return whether the deployment has failed."""
        return self.current is not None and self.current.status == DeploymentStatus.FAILED

    def group(self, name: str) -> DeploymentGroup | None:
        """Return the progress of a group, or None if the deployment does not include it."""
        return self.current.task_groups.get(name) if self.current else None

    def unneeded_canaries(self, group_name: str) -> set[str]:
        """Return the IDs of a group's unpromoted canaries that can no longer be promoted."""
        given_up = [
            deployment
            for deployment in (self.old, self.current if self.failed else None)
            if deployment
        ]
        groups = [deployment.task_groups.get(group_name) for deployment in given_up]
        return {
            canary
            for group in groups
            if group is not None and not group.promoted
            for canary in group.placed_canaries or ()
        }

    def canaries(self, group_name: str) -> set[str]:
        """Return the IDs of a group's canaries."""
        group = self.group(group_name)
        return set(group.placed_canaries or ()) if group else set()

    def update_capacity(self, group: TaskGroup, allocs: Iterable[Allocation]) -> int:
        """Return how many more allocations of a group may be replaced now.

        Allocations without a health result count against the limit. An unhealthy allocation
        stops the rollout.
        """
        limit = max_parallel(group)
        if self.current is None:
            return limit
        for allocation in allocs:
            if allocation.deployment_id != self.current.id:
                continue
            healthy = allocation.health.healthy if allocation.health else None
            if healthy is False:
                return 0
            limit -= healthy is None
        return max(limit, 0)

    # --- changes ---

    def begin(self, group: TaskGroup, *, total: int, canaries: int = 0) -> None:
        """Include a group in the deployment; create the deployment if it does not exist."""
        update = group.update
        state = DeploymentGroup(
            auto_revert=update.auto_revert if update else False,
            auto_promote=update.auto_promote if update else False,
            progress_deadline=update.progress_deadline if update else 0,
            desired_canaries=canaries,
            desired_total=total,
        )
        if self.current is None:
            self.current = self._new()
        self.set_group(group.name, state)

    def set_group(self, name: str, state: DeploymentGroup) -> None:
        """Set the progress of a group."""
        if self.current is None or self.current.task_groups.get(name) == state:
            return
        groups = {**self.current.task_groups, name: state}
        self.current = self._change(self.current, task_groups=groups)

    def _new(self) -> Deployment:
        job = self._job
        if job is None:
            raise AssertionError("a purged job is not deployed")
        return Deployment(
            id=next(self._ids),
            namespace=job.namespace,
            job_id=job.id,
            job_version=job.version,
            job_modify_index=job.modify_index,
            job_spec_modify_index=job.job_modify_index,
            job_create_index=job.create_index,
            task_groups={},
            status=DeploymentStatus.RUNNING,
            status_description=RUNNING,
            eval_priority=self._evaluation.priority,
            create_index=0,
            modify_index=0,
            create_time=self._now,
            modify_time=self._now,
        )

    def record_placed(self, allocs: Iterable[Allocation]) -> None:
        """Count new allocations of the deployment.

        The first allocation of a group starts the progress deadline of the group.
        """
        by_group: dict[str, list[Allocation]] = {}
        for allocation in allocs:
            if allocation.deployment_id == self.id_for(allocation.task_group) != "":
                by_group.setdefault(allocation.task_group, []).append(allocation)
        for name, allocations in by_group.items():
            state = self.group(name)
            if state is not None:
                self.set_group(name, self._with_placed(state, allocations))

    def _with_placed(self, state: DeploymentGroup, allocs: list[Allocation]) -> DeploymentGroup:
        deadline = state.require_progress_by
        if state.progress_due is None and state.progress_deadline:
            deadline = rfc3339(self._now + state.progress_deadline)
        canaries = [
            alloc.id for alloc in allocs if alloc.health is not None and alloc.health.canary
        ]
        return msgspec.structs.replace(
            state,
            placed_allocs=state.placed_allocs + len(allocs),
            placed_canaries=[*(state.placed_canaries or ()), *canaries] or None,
            require_progress_by=deadline,
        )

    def finish(self) -> None:
        """Complete the deployment if everything is placed, promoted and healthy."""
        if self.current is not None and not self.is_blocked:
            self._change(
                self.current,
                status=DeploymentStatus.SUCCESSFUL,
                status_description=SUCCESSFUL,
            )

    def is_healthy(self, group_name: str) -> bool:
        """Return whether a group has as many healthy allocations as desired.

        At this point, the plan already stops surplus allocations, including promoted canaries.
        """
        state = self.group(group_name)
        if state is None:
            return True
        if state.desired_canaries and not state.promoted:
            return False
        return state.healthy_allocs >= state.desired_total

    def changes(self) -> tuple[Deployment, ...]:
        """Return the created and changed deployments."""
        return tuple(
            _described(deployment) if deployment.create_index == 0 else deployment
            for deployment in self._changed.values()
        )


def _described(deployment: Deployment) -> Deployment:
    """Return a new deployment with a description that mentions canaries to promote."""
    waiting = [
        task_group for task_group in deployment.task_groups.values() if task_group.desired_canaries
    ]
    if not waiting:
        return deployment
    automatic = all(group.auto_promote for group in waiting)
    return msgspec.structs.replace(
        deployment, status_description=AUTO_PROMOTION if automatic else NEEDS_PROMOTION
    )
