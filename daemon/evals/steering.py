"""Steering deployments: what is done to one, by its watcher or by hand.

Each is one write that also makes the evaluation which lets the scheduler go on. The texts are the
peer's (golden: deploy-canary, deploy-fail-pause, deploy-auto-revert).
"""

from collections.abc import Collection

import msgspec

from daemon.evals.judgement import judge
from daemon.jobs.evaluate import new_evaluation
from daemon.jobs.history import revert
from daemon.jobspec.canonicalize import same_definition
from daemon.jobspec.gotext import multi_error
from storage.errors import Refused
from storage.queries import allocations, deployments, evaluations, job_status, jobs
from storage.records.allocation import Allocation, DeploymentHealth
from storage.records.deployment import Deployment, DeploymentGroup, DeploymentStatus
from storage.records.evaluation import Trigger
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction

RUNNING = "Deployment is running"
PAUSED = "Deployment is paused"
FAILED_BY_HAND = "Deployment marked as failed"


class Steered(msgspec.Struct, frozen=True, kw_only=True):
    """What was done: `eval_id` is empty when there is nothing for the scheduler to do."""

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
) -> Steered:
    """Let groups whose canaries are healthy replace the rest; None means all groups."""

    def write(tx: Transaction) -> Steered:
        deployment = _active(tx, deployment_id, "can't promote terminal deployment")
        chosen = deployment.task_groups.keys() if groups is None else set(groups)
        _check_canaries(tx, deployment, chosen)
        promoted = {
            name: _promoted(state, now) if name in chosen else state
            for name, state in deployment.task_groups.items()
        }
        moved = msgspec.structs.replace(deployment, task_groups=promoted)
        deployments.put(tx, described(moved), now)
        make_ordinary(tx, deployment, moved, now)
        call_scheduler(tx, deployment, now, eval_id)
        return Steered(index=tx.index, eval_id=eval_id)

    return await store.write(write)


def _check_canaries(tx: Transaction, deployment: Deployment, groups: Collection[str]) -> None:
    errors = []
    for name in deployment.task_groups.keys() & set(groups):
        state = deployment.task_groups[name]
        canaries = [allocations.find(tx, one) for one in state.placed_canaries or ()]
        healthy = sum(one is not None and _is_well(one) for one in canaries)
        if healthy < state.desired_canaries:
            errors.append(
                f'Task group "{name}" has {healthy}/{state.desired_canaries} healthy allocations'
            )
    if errors:
        raise Refused(multi_error(sorted(errors)))


def _is_well(allocation: Allocation) -> bool:
    health = allocation.health
    return not allocation.terminal and health is not None and health.healthy is True


def _promoted(state: DeploymentGroup, now: int) -> DeploymentGroup:
    return msgspec.structs.replace(_with_time(state, now), promoted=True)


def _with_time(state: DeploymentGroup, now: int) -> DeploymentGroup:
    """Return a group whose time for the next progress begins now."""
    if not state.progress_deadline:
        return state
    return msgspec.structs.replace(
        state, require_progress_by=rfc3339(now + state.progress_deadline)
    )


async def fail(store: Store, deployment_id: str, *, now: int, eval_id: str) -> Steered:
    """End a deployment, and go back to the newest version that worked where a group asks for it."""

    def write(tx: Transaction) -> Steered:
        deployment = _active(tx, deployment_id, "can't fail terminal deployment")
        reverts = any(state.auto_revert for state in deployment.task_groups.values())
        told, version = roll_back(tx, deployment, now) if reverts else ("", None)
        failed = msgspec.structs.replace(
            deployment,
            status=DeploymentStatus.FAILED,
            status_description=FAILED_BY_HAND + told,
        )
        deployments.put(tx, failed, now)
        call_scheduler(tx, deployment, now, eval_id)
        return Steered(index=tx.index, eval_id=eval_id, reverted_version=version)

    return await store.write(write)


async def pause(
    store: Store, deployment_id: str, *, paused: bool, now: int, eval_id: str
) -> Steered:
    """Halt a deployment, or let it go on; its time for progress begins anew then."""

    def write(tx: Transaction) -> Steered:
        verb = "pause" if paused else "resume"
        deployment = _active(tx, deployment_id, f"can't {verb} terminal deployment")
        groups = deployment.task_groups
        if paused or deployment.status == DeploymentStatus.PAUSED:
            groups = {name: _with_time(state, now) for name, state in groups.items()}
        if paused:
            halted = msgspec.structs.replace(
                deployment,
                status=DeploymentStatus.PAUSED,
                status_description=PAUSED,
                task_groups=groups,
            )
            deployments.put(tx, halted, now)
            job_status.settle(tx, deployment.namespace, deployment.job_id)
            return Steered(index=tx.index)
        going_on = msgspec.structs.replace(
            deployment,
            status=DeploymentStatus.RUNNING,
            status_description=RUNNING,
            task_groups=groups,
        )
        deployments.put(tx, going_on, now)
        call_scheduler(tx, deployment, now, eval_id)
        return Steered(index=tx.index, eval_id=eval_id)

    return await store.write(write)


async def set_health(
    store: Store,
    deployment_id: str,
    health: dict[str, bool],
    *,
    now: int,
    eval_id: str,
) -> Steered:
    """Say of allocations of a deployment whether they are well; the watcher draws the conclusions."""

    def write(tx: Transaction) -> Steered:
        if not health:
            raise Refused("must specify at least one healthy/unhealthy allocation ID")
        deployment = _active(
            tx, deployment_id, "can't set health of allocations for a terminal deployment"
        )
        for alloc_id, healthy in health.items():
            _set_health(tx, deployment, alloc_id, healthy=healthy, now=now)
        _count(tx, deployment, now)
        call_scheduler(tx, deployment, now, eval_id)
        return Steered(index=tx.index, eval_id=eval_id)

    return await store.write(write)


def _set_health(
    tx: Transaction, deployment: Deployment, alloc_id: str, *, healthy: bool, now: int
) -> None:
    allocation = allocations.find(tx, alloc_id)
    if allocation is None:
        raise Refused(f'unknown alloc "{alloc_id}"')
    if allocation.deployment_id != deployment.id:
        raise Refused(f'alloc "{alloc_id}" is not part of deployment "{deployment.id}"')
    known = allocation.health or DeploymentHealth()
    told = msgspec.structs.replace(
        known, healthy=healthy, timestamp=rfc3339(now), modify_index=tx.index
    )
    allocations.set_desired(tx, msgspec.structs.replace(allocation, health=told), now)


def _count(tx: Transaction, deployment: Deployment, now: int) -> None:
    job = jobs.version(tx, deployment.namespace, deployment.job_id, deployment.job_version)
    verdict = judge(deployment, allocations.of_deployment(tx, deployment.id), job, now)
    counted = {
        name: msgspec.structs.replace(
            state,
            healthy_allocs=verdict.groups[name].healthy_allocs,
            unhealthy_allocs=verdict.groups[name].unhealthy_allocs,
        )
        for name, state in deployment.task_groups.items()
    }
    deployments.put(tx, msgspec.structs.replace(deployment, task_groups=counted), now)


async def unblock(store: Store, deployment_id: str) -> Steered:
    """Refuse: only a deployment over several regions is ever blocked, and there is one region."""

    def write(tx: Transaction) -> Steered:
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


# ---- what the watcher does as well ----------------------------------------------------------------


def call_scheduler(tx: Transaction, deployment: Deployment, now: int, eval_id: str) -> None:
    """Have the job of a deployment evaluated."""
    job = jobs.current(tx, deployment.namespace, deployment.job_id)
    if job is not None:
        evaluation = new_evaluation(
            job, eval_id, Trigger.DEPLOYMENT_WATCHER, priority=deployment.eval_priority
        )
        evaluation = msgspec.structs.replace(evaluation, deployment_id=deployment.id)
        evaluations.put(tx, evaluation, now)
    job_status.settle(tx, deployment.namespace, deployment.job_id)


def make_ordinary(tx: Transaction, before: Deployment, after: Deployment, now: int) -> None:
    """Make canaries of groups that have been promoted just now allocations like any other."""
    for name, state in before.task_groups.items():
        if after.task_groups[name].promoted == state.promoted:
            continue
        for canary_id in state.placed_canaries or ():
            canary = allocations.find(tx, canary_id)
            if canary is not None and canary.health is not None:
                health = msgspec.structs.replace(canary.health, canary=False)
                allocations.set_desired(tx, msgspec.structs.replace(canary, health=health), now)


def described(deployment: Deployment) -> Deployment:
    """Return a deployment that no longer asks for a promotion it has got."""
    waiting = any(
        state.desired_canaries and not state.promoted for state in deployment.task_groups.values()
    )
    if waiting or deployment.status != DeploymentStatus.RUNNING:
        return deployment
    return msgspec.structs.replace(deployment, status_description=RUNNING)


def roll_back(tx: Transaction, deployment: Deployment, now: int) -> tuple[str, int | None]:
    """Go back to the newest older version that worked; return what was done, and its number."""
    versions = jobs.versions(tx, deployment.namespace, deployment.job_id)
    stable = [one for one in versions if one.stable and one.version < deployment.job_version]
    if not stable:
        return " - no stable job version to auto revert to", None
    # That it was stopped later is no part of what worked, nor are the policies that this disabled.
    older = (one for one in versions if one.version <= stable[0].version and not one.stop)
    groups = next(older, stable[0]).task_groups
    target = msgspec.structs.replace(stable[0], stop=False, task_groups=groups)
    if same_definition(target, versions[0]):
        told = (
            f" - not rolling back to stable job version {target.version} "
            "as current job has same specification"
        )
        return told, None
    revert(tx, target, now)
    return f" - rolling back to job version {target.version}", target.version
