"""Watching deployments: their allocations' health moves them on, or ends them.

What happens to a deployment is decided by a pure function of what is stored (`judgement.py`). A
deployment under way has a task that waits for the next change of its job's allocations or for its
progress deadline, and stores the decision; placing and finishing is the scheduler's, through the
evaluation that each change of health makes.
"""

from collections.abc import Iterator
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.evals.judgement import Verdict, judge, may_place_again, policy_of
from daemon.evals.steering import call_scheduler, described, make_ordinary, roll_back
from daemon.fences import Fences
from storage.queries import allocations, deployments, job_status, jobs, notifications
from storage.readers import Snapshot
from storage.records.allocation import Allocation, ClientStatus, DesiredStatus
from storage.records.base import SECOND
from storage.records.deployment import Deployment, DeploymentStatus
from storage.store import Store, unless_full
from storage.writer import Transaction

_FENCED = "deployment"
_UNMARKED = "failed deployment"  # the store does not say that it failed


async def watch_deployments(store: Store, clock: Clock, ids: Iterator[str], fences: Fences) -> None:
    """Give each deployment under way a watcher of its own.

    A deployment whose watcher fails again and again has failed.
    """
    watched: set[str] = set()

    async def watch_one(deployment: Deployment) -> None:
        while True:
            with fences.around(_FENCED, deployment.id):
                await _watch(store, clock, ids, deployment)
            fault = fences.of(_FENCED, deployment.id)
            if fault is None:
                break
            if fault.is_closed:
                with fences.around(_UNMARKED, deployment.id):
                    await _give_up(store, deployment.id, fault.reason, clock.now())
                    fences.forget(_FENCED, deployment.id)
                break
            await trio.sleep(max(fault.until - clock.now(), 0) / SECOND)
        watched.discard(deployment.id)

    async with trio.open_nursery() as nursery:
        while True:
            with store.watch("deployments/") as change:
                for deployment in store.read(deployments.active):
                    if deployment.id not in watched:
                        watched.add(deployment.id)
                        nursery.start_soon(watch_one, deployment)
                await change.wait()


async def _give_up(store: Store, deployment_id: str, reason: str, now: int) -> None:
    """Have a deployment failed that cannot be judged."""

    def write(tx: Transaction) -> None:
        deployment = deployments.find(tx, deployment_id)
        if deployment is not None and deployment.active:
            failed = msgspec.structs.replace(
                deployment,
                status=DeploymentStatus.FAILED,
                status_description=f"the deployment cannot be watched: {reason}",
            )
            deployments.put(tx, failed, now)
            job_status.settle(tx, deployment.namespace, deployment.job_id)

    async with unless_full(f"deployment {deployment_id} waits"):
        await store.write(write)


async def _watch(store: Store, clock: Clock, ids: Iterator[str], watched: Deployment) -> None:
    """Follow one deployment until it has ended."""
    topics = (
        allocations.job_topic(watched.namespace, watched.job_id),
        f"deployments/{watched.id}",
    )
    while True:
        with store.watch(*topics) as change:
            now = clock.now()
            seen = store.read(partial(_look, deployment_id=watched.id, now=now))
            if seen is None:
                return
            deployment, verdict, failed = seen
            if not (verdict.failure or failed) and verdict.groups == deployment.task_groups:
                pause = float("inf")
                if verdict.deadline is not None:
                    pause = max(verdict.deadline - now, 0) / SECOND
                with trio.move_on_after(pause):
                    await change.wait()
                continue
        work = partial(_advance, deployment_id=watched.id, now=now, eval_id=next(ids))
        async with unless_full(f"deployment {watched.id} waits"):
            await store.write(work)


def _look(
    db: Snapshot, *, deployment_id: str, now: int
) -> tuple[Deployment, Verdict, list[Allocation]] | None:
    """Return a deployment that goes on, what is to happen to it, and what of it has failed since."""
    deployment = deployments.find(db, deployment_id)
    if deployment is None or not deployment.active:
        return None
    job = jobs.version(db, deployment.namespace, deployment.job_id, deployment.job_version)
    placed = allocations.of_deployment(db, deployment_id)
    failed = [
        one
        for one in placed
        if _may_be_replaced(deployment, one) and may_place_again(policy_of(job, one.task_group))
    ]
    return deployment, judge(deployment, placed, job, now), failed


def _may_be_replaced(deployment: Deployment, one: Allocation) -> bool:
    """Tell whether the scheduler has to learn that it may place an allocation again."""
    return (
        deployment.status == DeploymentStatus.RUNNING
        and one.client_status == ClientStatus.FAILED
        and one.desired_status == DesiredStatus.RUN
        and not one.desired.transition.reschedule
    )


def _advance(tx: Transaction, *, deployment_id: str, now: int, eval_id: str) -> None:
    """Store what has become of a deployment, and have its job evaluated."""
    seen = _look(tx, deployment_id=deployment_id, now=now)
    if seen is None:
        return
    deployment, verdict, failed = seen
    moved = msgspec.structs.replace(deployment, task_groups=verdict.groups)
    if verdict.failure:
        told, _ = roll_back(tx, deployment, now) if verdict.reverts else ("", None)
        moved = msgspec.structs.replace(
            moved, status=DeploymentStatus.FAILED, status_description=verdict.failure + told
        )
        reason = f"version {moved.job_version} was not deployed: {moved.status_description}"
        notifications.deployment_failed(tx, (moved.namespace, moved.job_id), reason, now)
    elif moved.task_groups != deployment.task_groups:
        moved = described(moved)
    deployments.put(tx, moved, now)
    make_ordinary(tx, deployment, moved, now)
    if not verdict.failure:
        _allow_replacement(tx, failed, now)
    if moved.status != DeploymentStatus.PAUSED and (verdict.calls_scheduler or failed):
        call_scheduler(tx, deployment, now, eval_id)
    else:
        job_status.settle(tx, deployment.namespace, deployment.job_id)


def _allow_replacement(tx: Transaction, failed: list[Allocation], now: int) -> None:
    """Let the scheduler place again what has failed, while the deployment goes on."""
    for one in failed:
        transition = msgspec.structs.replace(one.desired.transition, reschedule=True)
        desired = msgspec.structs.replace(one.desired, transition=transition)
        allocations.set_desired(tx, msgspec.structs.replace(one, desired=desired), now)
