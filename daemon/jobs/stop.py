"""Stop jobs: each stop creates a version; a purge deletes the job with all its objects."""

import msgspec

from daemon.jobs.evaluate import new_evaluation
from daemon.jobspec.canonicalize import without_scaling
from storage.errors import NotFound
from storage.queries import allocations, evaluations, freezes, job_status, jobs
from storage.records.evaluation import Trigger
from storage.records.job import Job, JobType
from storage.store import Store
from storage.writer import Transaction


class StopResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a stop; all values are zero or empty if the job did not exist."""

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
    overrides: bool = True,
    now: int,
    eval_id: str,
) -> StopResult:
    """Stop or purge a job. An unknown job is not an error.

    An `eval_priority` of 0 means the priority of the job. The evaluation has the type service, as in
    Nomad. Raises `Denied` if a freeze refuses changes, unless the caller `overrides` it. Source:
    Nomad's recorded responses `stop-options`.
    """

    def write(tx: Transaction) -> StopResult:
        job = jobs.current(tx, namespace, job_id)
        if job is None:
            return StopResult()
        if freezes.any_open(tx):
            from daemon.jobs.freezes import check_change  # imported late: few daemons have freezes

            check_change(tx, job, now, overrides=overrides)
        if no_shutdown_delay:
            _skip_shutdown_delay(tx, job, now)
        return stop(tx, job, purge=purge, eval_priority=eval_priority, now=now, eval_id=eval_id)

    # Rolling back many rows after the time share is used up takes longer than the share.
    return await store.write(write, is_long=purge or no_shutdown_delay)


def stop(
    tx: Transaction,
    job: Job,
    *,
    purge: bool = False,
    eval_priority: int = 0,
    now: int,
    eval_id: str,
) -> StopResult:
    """Stop or purge a job, and create the evaluation that stops its allocations."""
    if purge:
        jobs.purge(tx, job)
    else:
        stopped = without_scaling(job, tx.index)
        jobs.append_version(tx, msgspec.structs.replace(stopped, stop=True, submit_time=now))
    done = StopResult(index=tx.index, eval_create_index=tx.index)
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
        done = StopResult(index=tx.index, eval_id=eval_id, eval_create_index=tx.index)
    job_status.refresh_summary(tx, job.namespace, job.id)
    return done


def _skip_shutdown_delay(tx: Transaction, job: Job, now: int) -> None:
    """Set allocations to stop without their group's shutdown delay."""
    for allocation in allocations.for_scheduler(tx, job.namespace, job.id):
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
) -> StopResult:
    """Stop one allocation; the scheduler then replaces it. Raises `NotFound`."""

    def write(tx: Transaction) -> StopResult:
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
        job_status.refresh_summary(tx, job.namespace, job.id)
        return StopResult(index=tx.index, eval_id=eval_id, eval_create_index=tx.index)

    return await store.write(write)
