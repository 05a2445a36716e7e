"""Scaling: a new count of a group creates a new version; every request is recorded as an event.

A request without a count only records an event, such as an autoscaler's reason for doing nothing.
The order of checks is Nomad's (source: Nomad's recorded responses `scale`). The order is: the
request, the job, its group, the limits of its policy, an active deployment, and the enforced index.
"""

from collections.abc import Iterable

import msgspec

from daemon.jobs.evaluate import new_evaluation
from daemon.jobs.register import check_index, check_versions, step_counts
from daemon.jobspec.budgets import DEFAULTS, Budgets
from daemon.jobspec.policies import JobPolicySet
from daemon.jobspec.rules.job import total_count
from daemon.jobspec.validate import ValidationResult
from storage.errors import Malformed, NotFound, Refused
from storage.queries import deployments, evaluations, freezes, job_status, jobs, scaling
from storage.records import go_json
from storage.records.base import Int64, Record, Uint64
from storage.records.codec import encode
from storage.records.evaluation import Trigger
from storage.records.group import TaskGroup
from storage.records.job import Job, JobType
from storage.records.scaling import ScalingEvent
from storage.store import Store
from storage.writer import Transaction

MAX_MESSAGE = 4096  # characters
MAX_META = 64 * 1024  # bytes of JSON


class ScalingRequest(Record, frozen=True, kw_only=True):
    """The body of a scaling request (Nomad's API: Scale Task Group)."""

    target: dict[str, str] | None = None
    count: Int64 | None = None
    message: str = ""
    error: object = False  # a text, or `true` from Nomad's clients
    meta: dict[str, object] | None = None
    enforce_index: bool = False
    job_modify_index: Uint64 = 0
    policy_override: bool = False


class ScaleResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a scaling request; there is no evaluation without a count."""

    index: int
    job_modify_index: int
    eval_id: str = ""
    eval_create_index: int = 0
    warnings: str = ""


def check(request: ScalingRequest, namespace: str, job_id: str) -> None:
    """Raise `Malformed` unless the request is valid; do not check it against the store."""
    target = request.target or {}
    if target.get("Namespace", namespace) != namespace:
        raise Malformed("namespace in payload did not match header")
    if target.get("Job", job_id) != job_id:
        raise Malformed("job ID in payload did not match URL")
    if not target.get("Group"):
        raise Malformed("missing task group name for scaling action")
    if not isinstance(request.error, bool | str):
        raise Malformed(
            f"json: cannot unmarshal {go_json.kind(request.error)} into Go struct field "
            "ScalingRequest.Error of type bool"
        )
    if request.count is not None and request.count < 0:
        raise Malformed("scaling action count can't be negative")
    if request.count is not None and request.error:
        raise Malformed("scaling action should not contain count if error is true")
    _check_size(request)
    if not request.message and not request.error:
        raise Malformed("scaling action must contain a message or an error")


def _check_size(request: ScalingRequest) -> None:
    """Raise `Malformed` if the texts of a request are too long to be stored with each event."""
    for name, text in (("Message", request.message), ("Error", str(request.error))):
        if len(text) > MAX_MESSAGE:
            raise Malformed(f"{name} has {len(text)} characters; the maximum is {MAX_MESSAGE}")
    if (size := len(encode(request.meta or {}))) > MAX_META:
        raise Malformed(f"Meta has {size} bytes of JSON; the maximum is {MAX_META}")


async def scale_job(
    store: Store,
    namespace: str,
    job_id: str,
    request: ScalingRequest,
    *,
    policies: JobPolicySet,
    budgets: Budgets = DEFAULTS,
    overrides: bool = True,
    now: int,
    eval_id: str,
) -> ScaleResult:
    """Set the count of a group, or record an event.

    Raises `Malformed`, and the errors of a registration. Raises `Denied` if `policies` forbid the
    change, or if a freeze refuses it and the caller does not override the freeze.
    """
    check(request, namespace, job_id)

    def write(tx: Transaction) -> ScaleResult:
        job = jobs.current(tx, namespace, job_id)
        if job is None:
            raise NotFound(f'job "{job_id}" not found')
        group = _group(job, (request.target or {})["Group"])
        if request.count is not None:
            if freezes.any_open(tx):
                from daemon.jobs.freezes import (
                    check_change,  # imported late: few daemons have freezes
                )

                check_change(tx, job, now, overrides=overrides)
            _check_count(job, group, request.count)
            if _active(tx, job):
                raise Malformed("job scaling blocked due to active deployment")
        if request.enforce_index or (request.job_modify_index and request.count is not None):
            check_index(job, request.job_modify_index)
        done = ScaleResult(index=tx.index, job_modify_index=job.modify_index)
        if request.count is not None:
            scaled = _with_count(job, group, request.count, now)
            check_versions(tx, job, budgets)
            budgets.check_stored(scaled)
            for problem in (*total_count(scaled, budgets.job_max_count), *step_counts(scaled)):
                raise Refused(problem)
            remarks = policies.check(scaled, override=request.policy_override)
            done = _enter(tx, scaled, remarks, now, eval_id)
        event = _event(request, group, done, now)
        scaling.add_event(tx, namespace, job_id, group.name, event)
        return done

    return await store.write(write)


def _enter(
    tx: Transaction, job: Job, remarks: Iterable[str], now: int, eval_id: str
) -> ScaleResult:
    """Store a scaled job as the newest version, with its evaluation."""
    stored = jobs.append_version(tx, job)
    warnings = ValidationResult(remarks=tuple(remarks)).warnings
    done = ScaleResult(index=tx.index, job_modify_index=tx.index, warnings=warnings)
    if not stored.launches_children:
        evaluation = new_evaluation(stored, eval_id, Trigger.JOB_SCALING, job_modify_index=tx.index)
        evaluations.put(tx, evaluation, now)
        done = msgspec.structs.replace(done, eval_id=eval_id, eval_create_index=tx.index)
    job_status.refresh_summary(tx, stored.namespace, stored.id)
    return done


def _group(job: Job, name: str) -> TaskGroup:
    group = job.group(name)
    if group is None:
        raise Malformed(f'task group "{name}" specified for scaling does not exist in job')
    return group


def _check_count(job: Job, group: TaskGroup, count: int) -> None:
    """Raise `Malformed` unless the count is within the policy; disabled policies also apply."""
    if job.type == JobType.SYSTEM and count > 1:
        raise Malformed(f'jobs of type "{job.type}" can only be scaled between 0 and 1')
    if group.scaling is None:
        return
    if count > group.scaling.max:
        raise Malformed(
            f"group count was greater than scaling policy maximum: {count} > {group.scaling.max}"
        )
    if count < group.scaling.min:
        raise Malformed(
            f"group count was less than scaling policy minimum: {count} < {group.scaling.min}"
        )


def _active(tx: Transaction, job: Job) -> bool:
    latest = deployments.latest(tx, job.namespace, job.id)
    return latest is not None and latest.active


def _with_count(job: Job, group: TaskGroup, count: int, now: int) -> Job:
    """Return the job with a new count of the group.

    A stable version stays stable, because only the count changes.
    """
    groups = [
        msgspec.structs.replace(task_group, count=count) if task_group is group else task_group
        for task_group in job.task_groups or ()
    ]
    return msgspec.structs.replace(job, task_groups=groups, submit_time=now, version_tag=None)


def _event(request: ScalingRequest, group: TaskGroup, done: ScaleResult, now: int) -> ScalingEvent:
    """Return the scaling event that records a request.

    If the request reports an error, the text of the error is a separate field.
    """
    texts = (request.message, request.error if isinstance(request.error, str) else "")
    return ScalingEvent(
        time=now,
        count=request.count,
        previous_count=group.count,
        message=": ".join(filter(None, texts)),
        error=bool(request.error),
        meta=request.meta,
        eval_id=done.eval_id or None,
    )
