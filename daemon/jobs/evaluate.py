"""Evaluations on request, optionally forced."""

import msgspec
import trio

from storage.errors import Malformed, Refused
from storage.queries import allocations, children, evaluations, job_status, jobs
from storage.records.allocation import ClientStatus, DesiredStatus
from storage.records.base import Record
from storage.records.evaluation import EvalStatus, Evaluation, Trigger
from storage.records.job import Job
from storage.store import Store
from storage.writer import Transaction


def new_evaluation(
    job: Job,
    eval_id: str,
    trigger: Trigger,
    *,
    priority: int = 0,
    job_modify_index: int = 0,
    kind: str = "",
) -> Evaluation:
    """Return a pending evaluation of a job.

    The default of `priority` is the job's priority, and the default of `kind` is the job's type.
    """
    return Evaluation(
        id=eval_id,
        namespace=job.namespace,
        priority=priority or job.priority,
        type=kind or job.type,
        triggered_by=trigger,
        job_id=job.id,
        job_modify_index=job_modify_index,
        status=EvalStatus.PENDING,
        create_index=0,
        modify_index=0,
        create_time=0,
        modify_time=0,
    )


class EvalOptions(Record, frozen=True, kw_only=True):
    """Options of a forced evaluation."""

    force_reschedule: bool = False


class JobEvaluateRequest(Record, frozen=True, kw_only=True):
    """The body of a forced evaluation (Nomad's API: Create Job Evaluation)."""

    job_id: str = ""
    eval_options: EvalOptions = EvalOptions()


class EvaluateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The created evaluation."""

    eval_id: str
    index: int
    job_modify_index: int


async def evaluate_job(
    store: Store,
    namespace: str,
    job_id: str,
    options: EvalOptions,
    *,
    now: int,
    eval_id: str,
) -> EvaluateResult:
    """Create an evaluation of a job; with force, failed allocations are rescheduled immediately.

    Raises `Refused` when the job does not exist, or is periodic or parameterized.
    """

    def write(tx: Transaction) -> EvaluateResult:
        job = jobs.current(tx, namespace, job_id)
        if job is None:
            raise Refused("job not found")
        if job.periodic is not None:
            raise Refused("can't evaluate periodic job")
        if job.launches_children:
            raise Refused("can't evaluate parameterized job")
        if children.is_queued(tx, namespace, job_id):
            raise Refused(f'job "{job_id}" is queued until fewer children of its parent are active')
        if options.force_reschedule:
            _force_reschedule(tx, job, now)
        evaluation = new_evaluation(
            job, eval_id, Trigger.JOB_REGISTER, job_modify_index=job.modify_index
        )
        evaluations.put(tx, evaluation, now)
        job_status.refresh_summary(tx, namespace, job_id)
        return EvaluateResult(eval_id=eval_id, index=tx.index, job_modify_index=job.modify_index)

    return await store.write(write)


def _force_reschedule(tx: Transaction, job: Job, now: int) -> None:
    for allocation in allocations.for_scheduler(tx, job.namespace, job.id):
        if (
            allocation.client_status != ClientStatus.FAILED
            or allocation.desired_status != DesiredStatus.RUN
        ):
            continue
        transition = msgspec.structs.replace(allocation.desired.transition, force_reschedule=True)
        desired = msgspec.structs.replace(allocation.desired, transition=transition)
        allocations.set_desired(tx, msgspec.structs.replace(allocation, desired=desired), now)


def check_ids(body_id: str, path_id: str) -> None:
    """Raise `Malformed` unless the body names the job of the path."""
    if not body_id:
        raise Malformed("Job ID must be specified")
    if body_id != path_id:
        raise Malformed("JobID not same as job name")


async def wait_for_evaluation(store: Store, eval_id: str, *, at_most: float) -> None:
    """Wait until an evaluation is no longer pending, or for `at_most` seconds.

    A client that created the evaluation then reads its result, not an earlier state.
    """
    with trio.move_on_after(at_most):
        while True:
            with store.watch(f"evaluations/{eval_id}") as change:
                evaluation = store.read(lambda db: evaluations.find(db, eval_id))
                if evaluation is None or evaluation.status != EvalStatus.PENDING:
                    return
                await change.wait()
