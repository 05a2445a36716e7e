"""Dispatching: a parameterized job becomes the parent of a job that runs once, with its own data.

A dispatch is checked and its child derived by pure functions; storing it is one write. With an
idempotency token, the same dispatch sent again answers with the first child.
"""

import base64
from collections.abc import Iterator, Mapping

import msgspec

from daemon.jobs.children import admit, have_evaluated
from daemon.jobspec.budgets import DEFAULTS, Budgets
from daemon.jobspec.rules.job import total_count
from storage.errors import Invalid, Malformed, Refused
from storage.queries import job_status, jobs
from storage.records.base import SECOND, Record
from storage.records.gobase64 import decode_base64
from storage.records.job import Job, JobStatus
from storage.store import Store
from storage.writer import Transaction

MAX_PAYLOAD = 16384  # bytes, decoded (spec: limits)


class JobDispatchRequest(Record, frozen=True, kw_only=True):
    """The body of a dispatch (spec: Dispatch Job); `payload` is base64."""

    job_id: str = ""
    payload: str = ""
    meta: dict[str, str] | None = None
    id_prefix_template: str = msgspec.field(default="", name="IdPrefixTemplate")
    priority: int = 0
    idempotency_token: str = ""


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a dispatch brings along, decoded."""

    payload: bytes
    meta: Mapping[str, str]
    priority: int = 0
    id_prefix: str = ""
    token: str = ""


class Dispatched(msgspec.Struct, frozen=True, kw_only=True):
    """The child of a dispatch; without evaluation when it waits, or an earlier dispatch made it."""

    job_id: str
    create_index: int
    index: int
    eval_id: str = ""
    eval_create_index: int = 0


def read_request(request: JobDispatchRequest, job_id: str, token: str) -> Dispatch:
    """Return what a request brings along. Raises `Malformed`."""
    payload = decode_base64(request.payload)
    if request.job_id and request.job_id != job_id:
        raise Malformed("Job ID does not match")
    return Dispatch(
        payload=payload,
        meta=request.meta or {},
        priority=request.priority,
        id_prefix=request.id_prefix_template,
        token=token or request.idempotency_token,
    )


async def dispatch_job(
    store: Store,
    namespace: str,
    parent_id: str,
    request: Dispatch,
    *,
    budgets: Budgets = DEFAULTS,
    now: int,
    ids: Iterator[str],
    suffix: str,
) -> Dispatched:
    """Store a child of a parameterized job and have it evaluated.

    `suffix` makes the child's id unique. Where as many children are at work as may be, it waits and
    has no evaluation, or is dropped (`TooOften`). Raises `Refused` or `Invalid` with the peer's texts.
    """

    def write(tx: Transaction) -> Dispatched:
        parent = jobs.current(tx, namespace, parent_id)
        if parent is None:
            raise Refused("parameterized job not found")
        check(parent, request)
        if request.token:
            earlier = jobs.dispatched_with(tx, namespace, parent_id, request.token)
            if earlier:
                child_id, create_index = earlier
                return Dispatched(job_id=child_id, create_index=create_index, index=create_index)
        derived = derive(parent, request, child_id_of(parent, request), now)
        _check_size(derived, budgets)
        begins = admit(tx, parent, now=now, ids=ids)
        child = jobs.append_version(tx, derived, held=not begins)
        if not begins:
            job_status.settle(tx, namespace, child.id)
            return Dispatched(job_id=child.id, create_index=tx.index, index=tx.index)
        eval_id = next(ids)
        have_evaluated(tx, child, now=now, eval_id=eval_id)
        return Dispatched(
            job_id=child.id,
            create_index=tx.index,
            index=tx.index,
            eval_id=eval_id,
            eval_create_index=tx.index,
        )

    def child_id_of(parent: Job, request: Dispatch) -> str:
        prefix = f"{request.id_prefix}-" if request.id_prefix else ""
        return f"{parent.id}/dispatch-{prefix}{now // SECOND}-{suffix}"

    return await store.write(write)


def check(parent: Job, request: Dispatch) -> None:
    """Raise `Refused` or `Invalid` unless the dispatch fits the parent (golden: dispatch)."""
    block = parent.parameterized_job
    if block is None:
        raise Refused(f'Specified job "{parent.id}" is not a parameterized job')
    if parent.stop:
        raise Refused(f'Specified job "{parent.id}" is stopped')
    if request.priority and not 1 <= request.priority <= 100:
        raise Invalid("dispatch job priority must be between [1, 100]")
    if block.payload == "required" and not request.payload:
        raise Invalid("Payload is not provided but required by parameterized job")
    if block.payload == "forbidden" and request.payload:
        raise Invalid("Payload provided but forbidden by parameterized job")
    if len(request.payload) > MAX_PAYLOAD:
        raise Invalid(f"Payload exceeds maximum size; {len(request.payload)} > {MAX_PAYLOAD}")
    required, optional = set(block.meta_required or ()), set(block.meta_optional or ())
    if unknown := sorted(request.meta.keys() - required - optional):
        raise Invalid(f"Dispatch request included unpermitted metadata keys: [{' '.join(unknown)}]")
    if missing := sorted(required - request.meta.keys()):
        raise Invalid(f"Dispatch did not provide required meta keys: [{' '.join(missing)}]")


def _check_size(child: Job, budgets: Budgets) -> None:
    """Raise `OverBudget` or `Refused` unless a child is within all limits."""
    budgets.check_stored(child)
    for problem in total_count(child, budgets.job_max_count):
        raise Refused(problem)


def derive(parent: Job, request: Dispatch, child_id: str, now: int) -> Job:
    """Return the child of a dispatch: the parent's definition with its own id, meta and payload."""
    payload = base64.b64encode(request.payload).decode() if request.payload else None
    return msgspec.structs.replace(
        parent,
        id=child_id,
        name=child_id,
        parent_id=parent.id,
        dispatched=True,
        dispatch_idempotency_token=request.token,
        payload=payload,
        meta={**(parent.meta or {}), **request.meta} or None,
        priority=request.priority or parent.priority,
        status=JobStatus.PENDING,
        submit_time=now,
    )
