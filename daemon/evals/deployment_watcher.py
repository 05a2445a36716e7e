"""Watch deployments: continue or finish them according to the health of their allocations.

A pure function of the stored state decides (`deployment_health.py`). Each active deployment has a
watcher. It waits for changes of the job's allocations or for the progress deadline, and stores the
decision. Each change of health creates an evaluation, in which the scheduler places allocations and
completes deployments.
"""

from collections.abc import Iterator
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.evals.deployment_health import (
    DeploymentDecision,
    decide_deployment,
    policy_of,
)
from daemon.fences import Fences
from daemon.scheduler.reschedule import has_attempts
from storage.loop_share import import_in_thread
from storage.queries import allocations, deployments, job_status, jobs, notifications
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation, ClientStatus, DesiredStatus
from storage.records.base import SECOND
from storage.records.deployment import Deployment, DeploymentStatus
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

_FENCED = "deployment"
# Imported late, because a daemon may have no active deployment for a long time.
_ACTIONS, _HISTORY = "daemon.evals.deployment_actions", "daemon.jobs.version_history"
_FAILURES = "daemon.evals.failures"
_UNMARKED = "failed deployment"  # recorded if the store could not mark it as failed


async def watch_deployments(store: Store, clock: Clock, ids: Iterator[str], fences: Fences) -> None:
    """Run a watcher for each active deployment.

    A deployment whose watcher fails repeatedly is marked as failed.
    """
    watched: set[str] = set()

    async def watch_one(deployment: deployments.ActiveDeployment) -> None:
        while True:
            with fences.around(_FENCED, deployment.id):
                await _watch(store, clock, ids, deployment)
            fault = fences.of(_FENCED, deployment.id)
            if fault is None:
                break
            if fault.is_closed:
                with fences.around(_UNMARKED, deployment.id):
                    await _fail_deployment(store, deployment.id, fault.reason, clock.now())
                    fences.forget(_FENCED, deployment.id)
                break
            await trio.sleep(max(fault.until - clock.now(), 0) / SECOND)
        watched.discard(deployment.id)

    fences.open_others(_FENCED, [deployment.id for deployment in store.read(deployments.active)])
    async with trio.open_nursery() as nursery:
        while True:
            with store.watch("deployments/") as change:
                for deployment in store.read(deployments.active):
                    if deployment.id not in watched:
                        watched.add(deployment.id)
                        nursery.start_soon(watch_one, deployment)
                await change.wait()


async def _fail_deployment(store: Store, deployment_id: str, reason: str, now: int) -> None:
    """Mark a deployment as failed because its watcher cannot decide."""

    def write(tx: Transaction) -> None:
        deployment = deployments.find(tx, deployment_id)
        if deployment is not None and deployment.active:
            failed = msgspec.structs.replace(
                deployment,
                status=DeploymentStatus.FAILED,
                status_description=f"the deployment watcher failed repeatedly: {reason}",
            )
            deployments.put(tx, failed, now)
            _notify(tx, failed, now)
            job_status.refresh_summary(tx, deployment.namespace, deployment.job_id)

    await import_in_thread(_FAILURES)
    async with tolerate_disk_full(f"deployment {deployment_id} waits"):
        await store.write(write)


async def _watch(
    store: Store, clock: Clock, ids: Iterator[str], watched: deployments.ActiveDeployment
) -> None:
    """Watch one deployment until it has ended."""
    topics = (
        allocations.job_topic(watched.namespace, watched.job_id),
        f"deployments/{watched.id}",
    )
    while True:
        with store.watch(*topics) as change:
            now = clock.now()
            decision = store.read(partial(_read_decision, deployment_id=watched.id, now=now))
            if decision is None:
                return
            deployment, verdict, failed = decision
            if not (verdict.failure or failed) and verdict.groups == deployment.task_groups:
                pause = float("inf")
                if verdict.deadline is not None:
                    pause = max(verdict.deadline - now, 0) / SECOND
                with trio.move_on_after(pause):
                    await change.wait()
                continue
        # Import the modules that the write needs; the write itself would block the event loop.
        await import_in_thread(
            _ACTIONS,
            *([_FAILURES] if verdict.failure else []),
            *([_HISTORY] if verdict.failure and verdict.reverts else []),
        )
        work = partial(_advance, deployment_id=watched.id, now=now, eval_id=next(ids))
        async with tolerate_disk_full(f"deployment {watched.id} waits"):
            await store.write(work)


def _read_decision(
    db: ReadSnapshot, *, deployment_id: str, now: int
) -> tuple[Deployment, DeploymentDecision, list[Allocation]] | None:
    """Return an active deployment, the decision about it, and its newly failed allocations."""
    deployment = deployments.find(db, deployment_id)
    if deployment is None or not deployment.active:
        return None
    job = jobs.version(db, deployment.namespace, deployment.job_id, deployment.job_version)
    allocs = allocations.of_deployment(db, deployment_id)
    failed = [
        alloc
        for alloc in allocs
        if _may_be_replaced(deployment, alloc)
        and has_attempts(alloc, policy_of(job, alloc.task_group), now)
    ]
    return deployment, decide_deployment(deployment, allocs, job, now), failed


def _may_be_replaced(deployment: Deployment, alloc: Allocation) -> bool:
    """Return whether the scheduler must be notified that it may replace an allocation."""
    return (
        deployment.status == DeploymentStatus.RUNNING
        and alloc.client_status == ClientStatus.FAILED
        and alloc.desired_status == DesiredStatus.RUN
        and not alloc.desired.transition.reschedule
    )


def _advance(tx: Transaction, *, deployment_id: str, now: int, eval_id: str) -> None:
    """Store the new state of a deployment, and create an evaluation of its job."""
    decision = _read_decision(tx, deployment_id=deployment_id, now=now)
    if decision is None:
        return
    from daemon.evals.deployment_actions import (
        clear_canary_flags,
        create_evaluation,
        refresh_description,
        roll_back,
    )

    deployment, verdict, failed = decision
    moved = msgspec.structs.replace(deployment, task_groups=verdict.groups)
    if verdict.failure:
        description, _ = roll_back(tx, deployment, now) if verdict.reverts else ("", None)
        moved = msgspec.structs.replace(
            moved, status=DeploymentStatus.FAILED, status_description=verdict.failure + description
        )
        _notify(tx, moved, now)
    elif moved.task_groups != deployment.task_groups:
        moved = refresh_description(moved)
    deployments.put(tx, moved, now)
    clear_canary_flags(tx, deployment, moved, now)
    if not verdict.failure:
        _allow_replacement(tx, failed, now)
    if moved.status != DeploymentStatus.PAUSED and (verdict.calls_scheduler or failed):
        create_evaluation(tx, deployment, now, eval_id)
    else:
        job_status.refresh_summary(tx, deployment.namespace, deployment.job_id)


def _notify(tx: Transaction, failed: Deployment, now: int) -> None:
    """Queue a notification about a failed deployment, with the cause."""
    from daemon.evals.failures import unhealthy_reason_of_deployment

    cause = unhealthy_reason_of_deployment(tx, failed)
    parts = f"version {failed.job_version} was not deployed", failed.status_description, cause
    reason = ": ".join(filter(None, parts))
    notifications.deployment_failed(tx, (failed.namespace, failed.job_id), reason, now)


def _allow_replacement(tx: Transaction, failed: list[Allocation], now: int) -> None:
    """Permit the scheduler to replace failed allocations during the deployment."""
    for alloc in failed:
        transition = msgspec.structs.replace(alloc.desired.transition, reschedule=True)
        desired = msgspec.structs.replace(alloc.desired, transition=transition)
        allocations.set_desired(tx, msgspec.structs.replace(alloc, desired=desired), now)
