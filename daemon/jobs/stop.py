"""Stopping: each stop is a version of its own; a purge takes everything of the job along."""

import msgspec

from daemon.jobs.evaluate import new_evaluation
from daemon.jobspec.canonicalize import without_scaling
from storage.errors import NotFound
from storage.queries import allocations, evaluations, job_status, jobs
from storage.records.evaluation import Trigger
from storage.records.job import Job, JobType
from storage.store import Store
from storage.writer import Transaction


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """What a stop did; all zero when there was no such job."""

    index: int = 0
    eval_id: str = ""
    eval_create_index: int = 0


async def stop_job(
    store: Store,
    namespace: str,
    job_id: str,
    *,
    purge: bool,
    eval_priority: int,
    no_shutdown_delay: bool,
    now: int,
    eval_id: str,
) -> Stopped:
    """Stop a job, or remove it at once. An unknown job is no error (golden: stop-options).

    `eval_priority` 0 means the job's. The evaluation is of type service, as the peer's.
    """

    def write(tx: Transaction) -> Stopped:
        job = jobs.current(tx, namespace, job_id)
        if job is None:
            return Stopped()
        if no_shutdown_delay:
            _skip_shutdown_delay(tx, job, now)
        return stop(tx, job, purge=purge, eval_priority=eval_priority, now=now, eval_id=eval_id)

    return await store.write(write)


def stop(
    tx: Transaction,
    job: Job,
    *,
    purge: bool = False,
    eval_priority: int = 0,
    now: int,
    eval_id: str,
) -> Stopped:
    """Stop a job, or remove it at once, and have what it runs stopped."""
    if purge:
        jobs.purge(tx, job)
    else:
        stopped = without_scaling(job, tx.index)
        jobs.append_version(tx, msgspec.structs.replace(stopped, stop=True, submit_time=now))
    done = Stopped(index=tx.index, eval_create_index=tx.index)
    if not job.launches_children:
        evaluation = new_evaluation(
            job,
            eval_id,
            Trigger.JOB_DEREGISTER,
            priority=eval_priority,
            job_modify_index=tx.index,
            kind=JobType.SERVICE,
        )
        evaluations.put(tx, evaluation, now)
        done = Stopped(index=tx.index, eval_id=eval_id, eval_create_index=tx.index)
    job_status.settle(tx, job.namespace, job.id)
    return done


def _skip_shutdown_delay(tx: Transaction, job: Job, now: int) -> None:
    """Note on each allocation that it may end without the delay its group asks for."""
    for allocation in allocations.considered(tx, job.namespace, job.id):
        if allocation.client_terminal:
            continue
        transition = msgspec.structs.replace(allocation.desired.transition, no_shutdown_delay=True)
        desired = msgspec.structs.replace(allocation.desired, transition=transition)
        allocations.set_desired(tx, msgspec.structs.replace(allocation, desired=desired), now)


async def stop_allocation(
    store: Store,
    allocation_id: str,
    *,
    no_shutdown_delay: bool,
    reschedule: bool,
    now: int,
    eval_id: str,
) -> Stopped:
    """Ask for one allocation to be stopped and replaced. Raises `NotFound`."""

    def write(tx: Transaction) -> Stopped:
        allocation = allocations.find(tx, allocation_id)
        job = jobs.current(tx, allocation.namespace, allocation.job_id) if allocation else None
        if allocation is None or job is None:
            raise NotFound("allocation not found")
        transition = msgspec.structs.replace(
            allocation.desired.transition,
            migrate=True,
            reschedule=reschedule,
            no_shutdown_delay=no_shutdown_delay,
        )
        desired = msgspec.structs.replace(allocation.desired, transition=transition)
        allocations.set_desired(tx, msgspec.structs.replace(allocation, desired=desired), now)
        evaluation = new_evaluation(
            job, eval_id, Trigger.ALLOC_STOP, job_modify_index=job.job_modify_index
        )
        evaluations.put(tx, evaluation, now)
        job_status.settle(tx, job.namespace, job.id)
        return Stopped(index=tx.index, eval_id=eval_id, eval_create_index=tx.index)

    return await store.write(write)
