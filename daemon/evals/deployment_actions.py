"""Deployment actions, by the watcher or a user.

Each action is one transaction that also creates an evaluation for the scheduler. The texts are
Nomad's (source: Nomad's recorded responses `deploy-canary`, `deploy-fail-pause`,
`deploy-auto-revert`).
"""

from collections.abc import Collection

import msgspec

from daemon.evals.deployment_health import decide_deployment, promoted, with_new_deadline
from daemon.jobs.evaluate import new_evaluation
from daemon.text.go_format import multi_error
from storage.errors import Refused
from storage.loop_share import import_in_thread
from storage.queries import allocations, deployments, evaluations, job_status, jobs
from storage.records.allocation import Allocation, DeploymentHealth
from storage.records.deployment import Deployment, DeploymentStatus
from storage.records.evaluation import Trigger
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction

RUNNING = "Deployment is running"
PAUSED = "Deployment is paused"
HISTORY = "daemon.jobs.version_history"
FAILED_BY_HAND = "Deployment marked as failed"


class DeploymentChange(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an action; `eval_id` is empty if no evaluation is needed."""

    index: int
    eval_id: str = ""
    reverted_version: int | None = None


async def promote(
    store: Store,
    deployment_id: str,
    groups: Collection[str] | None,
    *,
    now: int,
    eval_id: str,
) -> DeploymentChange:
    """Promote groups with healthy canaries; None means all groups."""

    def write(tx: Transaction) -> DeploymentChange:
        deployment = _active(tx, deployment_id, "can't promote terminal deployment")
        chosen = deployment.task_groups.keys() if groups is None else set(groups)
        _check_canaries(tx, deployment, chosen)
        groups_after = {
            name: promoted(state, now) if name in chosen else state
            for name, state in deployment.task_groups.items()
        }
        moved = msgspec.structs.replace(deployment, task_groups=groups_after)
        deployments.put(tx, refresh_description(moved), now)
        clear_canary_flags(tx, deployment, moved, now)
        create_evaluation(tx, deployment, now, eval_id)
        return DeploymentChange(index=tx.index, eval_id=eval_id)

    return await store.write(write)


def _check_canaries(tx: Transaction, deployment: Deployment, groups: Collection[str]) -> None:
    errors = []
    for name in deployment.task_groups.keys() & set(groups):
        state = deployment.task_groups[name]
        canaries = [
            allocations.find(tx, placed_canary) for placed_canary in state.placed_canaries or ()
        ]
        healthy = sum(canary is not None and _is_healthy(canary) for canary in canaries)
        if healthy < state.desired_canaries:
            errors.append(
                f'Task group "{name}" has {healthy}/{state.desired_canaries} healthy allocations'
            )
    if errors:
        raise Refused(multi_error(sorted(errors)))


def _is_healthy(allocation: Allocation) -> bool:
    health = allocation.health
    return not allocation.terminal and health is not None and health.healthy is True


async def fail(store: Store, deployment_id: str, *, now: int, eval_id: str) -> DeploymentChange:
    """Fail a deployment, and revert to the newest stable version if a group requests it."""

    def write(tx: Transaction) -> DeploymentChange:
        deployment = _active(tx, deployment_id, "can't fail terminal deployment")
        reverts = any(state.auto_revert for state in deployment.task_groups.values())
        description, version = roll_back(tx, deployment, now) if reverts else ("", None)
        failed = msgspec.structs.replace(
            deployment,
            status=DeploymentStatus.FAILED,
            status_description=FAILED_BY_HAND + description,
        )
        deployments.put(tx, failed, now)
        create_evaluation(tx, deployment, now, eval_id)
        return DeploymentChange(index=tx.index, eval_id=eval_id, reverted_version=version)

    await import_in_thread(HISTORY)
    return await store.write(write)


async def pause(
    store: Store, deployment_id: str, *, paused: bool, now: int, eval_id: str
) -> DeploymentChange:
    """Pause or resume a deployment; resuming restarts its progress deadline."""

    def write(tx: Transaction) -> DeploymentChange:
        verb = "pause" if paused else "resume"
        deployment = _active(tx, deployment_id, f"can't {verb} terminal deployment")
        groups = deployment.task_groups
        if paused or deployment.status == DeploymentStatus.PAUSED:
            groups = {name: with_new_deadline(state, now) for name, state in groups.items()}
        if paused:
            halted = msgspec.structs.replace(
                deployment,
                status=DeploymentStatus.PAUSED,
                status_description=PAUSED,
                task_groups=groups,
            )
            deployments.put(tx, halted, now)
            job_status.refresh_summary(tx, deployment.namespace, deployment.job_id)
            return DeploymentChange(index=tx.index)
        going_on = msgspec.structs.replace(
            deployment,
            status=DeploymentStatus.RUNNING,
            status_description=RUNNING,
            task_groups=groups,
        )
        deployments.put(tx, going_on, now)
        create_evaluation(tx, deployment, now, eval_id)
        return DeploymentChange(index=tx.index, eval_id=eval_id)

    return await store.write(write)


async def set_health(
    store: Store,
    deployment_id: str,
    health: dict[str, bool],
    *,
    now: int,
    eval_id: str,
) -> DeploymentChange:
    """Set the health of allocations in a deployment; the watcher reacts to it."""

    def write(tx: Transaction) -> DeploymentChange:
        if not health:
            raise Refused("must specify at least one healthy/unhealthy allocation ID")
        deployment = _active(
            tx, deployment_id, "can't set health of allocations for a terminal deployment"
        )
        for alloc_id, healthy in health.items():
            _set_health(tx, deployment, alloc_id, healthy=healthy, now=now)
        _count(tx, deployment, now)
        create_evaluation(tx, deployment, now, eval_id)
        return DeploymentChange(index=tx.index, eval_id=eval_id)

    return await store.write(write)


def _set_health(
    tx: Transaction, deployment: Deployment, alloc_id: str, *, healthy: bool, now: int
) -> None:
    allocation = allocations.find(tx, alloc_id)
    if allocation is None:
        raise Refused(f'unknown alloc "{alloc_id}"')
    if allocation.deployment_id != deployment.id:
        raise Refused(f'alloc "{alloc_id}" is not part of deployment "{deployment.id}"')
    health = allocation.health or DeploymentHealth()
    changed = msgspec.structs.replace(
        health, healthy=healthy, timestamp=rfc3339(now), modify_index=tx.index
    )
    allocations.set_desired(tx, msgspec.structs.replace(allocation, health=changed), now)


def _count(tx: Transaction, deployment: Deployment, now: int) -> None:
    job = jobs.version(tx, deployment.namespace, deployment.job_id, deployment.job_version)
    verdict = decide_deployment(deployment, allocations.of_deployment(tx, deployment.id), job, now)
    counted = {
        name: msgspec.structs.replace(
            state,
            healthy_allocs=verdict.groups[name].healthy_allocs,
            unhealthy_allocs=verdict.groups[name].unhealthy_allocs,
        )
        for name, state in deployment.task_groups.items()
    }
    deployments.put(tx, msgspec.structs.replace(deployment, task_groups=counted), now)


async def unblock(store: Store, deployment_id: str) -> DeploymentChange:
    """Raise `Refused`: only multiregion deployments can be blocked, and there is one region."""

    def write(tx: Transaction) -> DeploymentChange:
        _active(tx, deployment_id, "can't unblock terminal deployment")
        raise Refused("can't unblock a deployment that is not blocked")

    return await store.write(write)


def _active(tx: Transaction, deployment_id: str, refusal: str) -> Deployment:
    deployment = deployments.find(tx, deployment_id)
    if deployment is None:
        raise Refused("deployment not found")
    if not deployment.active:
        raise Refused(refusal)
    return deployment


# --- shared with the watcher ---


def create_evaluation(tx: Transaction, deployment: Deployment, now: int, eval_id: str) -> None:
    """Create an evaluation of a deployment's job."""
    job = jobs.current(tx, deployment.namespace, deployment.job_id)
    if job is not None:
        evaluation = new_evaluation(
            job, eval_id, Trigger.DEPLOYMENT_WATCHER, priority=deployment.eval_priority
        )
        evaluation = msgspec.structs.replace(evaluation, deployment_id=deployment.id)
        evaluations.put(tx, evaluation, now)
    job_status.refresh_summary(tx, deployment.namespace, deployment.job_id)


def clear_canary_flags(tx: Transaction, before: Deployment, after: Deployment, now: int) -> None:
    """Clear the canary flag of allocations in newly promoted groups."""
    for name, state in before.task_groups.items():
        if after.task_groups[name].promoted == state.promoted:
            continue
        for canary_id in state.placed_canaries or ():
            canary = allocations.find(tx, canary_id)
            if canary is not None and canary.health is not None:
                health = msgspec.structs.replace(canary.health, canary=False)
                allocations.set_desired(tx, msgspec.structs.replace(canary, health=health), now)


def refresh_description(deployment: Deployment) -> Deployment:
    """Return a deployment with a description that matches its promotion state."""
    waiting = any(
        state.desired_canaries and not state.promoted for state in deployment.task_groups.values()
    )
    if waiting or deployment.status != DeploymentStatus.RUNNING:
        return deployment
    return msgspec.structs.replace(deployment, status_description=RUNNING)


def roll_back(tx: Transaction, deployment: Deployment, now: int) -> tuple[str, int | None]:
    """Revert to the newest stable older version.

    Return text for the end of the deployment's description, and the number of the version. The
    number is None if nothing was reverted.
    """
    versions = jobs.versions(tx, deployment.namespace, deployment.job_id)
    stable = [
        version
        for version in versions
        if version.stable and version.version < deployment.job_version
    ]
    if not stable:
        return " - no stable job version to auto revert to", None
    # Imported late: few deployments are rolled back. Callers load `HISTORY` before their write.
    from daemon.jobs.version_history import revert
    from daemon.jobspec.canonicalize import same_definition

    # Ignore a later stop, and scaling policies that it disabled.
    older = (
        version for version in versions if version.version <= stable[0].version and not version.stop
    )
    groups = next(older, stable[0]).task_groups
    target = msgspec.structs.replace(stable[0], stop=False, task_groups=groups)
    if same_definition(target, versions[0]):
        description = (
            f" - not rolling back to stable job version {target.version} "
            "as current job has same specification"
        )
        return description, None
    revert(tx, target, now)
    return f" - rolling back to job version {target.version}", target.version
