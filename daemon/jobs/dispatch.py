"""Dispatch: create a child job of a parameterized job, with the payload and meta of the request.

Pure functions validate the dispatch and derive the child; one write stores it. A repeated dispatch
with the same idempotency token returns the first child.
"""

import base64
from collections.abc import Iterator, Mapping

import msgspec

from daemon.config.data_directory import payloads_beside
from daemon.jobs.child_limits import child_evaluation, may_start_child
from daemon.jobspec.budgets import DEFAULTS, Budgets
from daemon.jobspec.rules.job import total_count
from daemon.jobspec.steward_meta.job_keys import CHILDREN_BEYOND, RUN_QUEUE, OverflowPolicy
from storage import request_context
from storage.errors import Invalid, Malformed, Refused, TooOften
from storage.queries import evaluations, job_status, jobs
from storage.queries.new_children import ChildRows, NewChild
from storage.records.base import SECOND, Record
from storage.records.go_base64 import decode_base64
from storage.records.job import Job, JobStatus, Parameterized
from storage.store import Store
from storage.writer import Transaction

MAX_PAYLOAD = 16384  # bytes, decoded; Nomad's limit
MAX_ID_PREFIX = 1024  # characters; the ID of a child is in all its objects
MAX_TOKEN = 1024  # characters of an idempotency token
_HEAD = 1024  # maximum bytes of a child in addition to its document


class JobDispatchRequest(Record, frozen=True, kw_only=True):
    """The body of a dispatch (Nomad's API: Dispatch Job); `payload` is base64."""

    job_id: str = ""
    payload: str = ""
    meta: dict[str, str] | None = None
    id_prefix_template: str = msgspec.field(default="", name="IdPrefixTemplate")
    priority: int = 0
    files: dict[str, str] | None = None  # digests of uploaded files, by the names of artifacts
    idempotency_token: str = ""
    # The same field, with the spelling of the query parameter.
    plain_idempotency_token: str = msgspec.field(default="", name="idempotency_token")


class DispatchRequestData(msgspec.Struct, frozen=True, kw_only=True):
    """The decoded arguments of a dispatch."""

    payload: bytes
    meta: Mapping[str, str]
    priority: int = 0
    id_prefix: str = ""
    token: str = ""
    files: Mapping[str, str] = {}


_NOTHING = DispatchRequestData(payload=b"", meta={})


class DispatchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a dispatch.

    There is no evaluation if the child is queued, is periodic, or existed before.
    """

    job_id: str
    create_index: int
    index: int
    eval_id: str = ""
    eval_create_index: int = 0
    existed: bool = False  # an earlier dispatch with the same token created the child


def read_request(request: JobDispatchRequest, job_id: str, token: str) -> DispatchRequestData:
    """Decode a request. Raises `Malformed`."""
    payload = decode_base64(request.payload)
    if request.job_id and request.job_id != job_id:
        raise Malformed("Job ID does not match")
    return DispatchRequestData(
        payload=payload,
        meta=request.meta or {},
        priority=request.priority,
        id_prefix=request.id_prefix_template,
        token=token or request.idempotency_token or request.plain_idempotency_token,
        files=request.files or {},
    )


async def dispatch_job(
    store: Store,
    namespace: str,
    parent_id: str,
    request: DispatchRequestData,
    *,
    budgets: Budgets = DEFAULTS,
    now: int,
    ids: Iterator[str],
    suffix: str,
) -> DispatchOutcome:
    """Store a child of a parameterized job with its evaluation.

    `suffix` makes the child's ID unique. At the limit of active children, the child is queued
    without an evaluation, or dropped (`TooOften`). Raises `Refused` or `Invalid`, with Nomad's
    texts.
    """
    recorder, origin = request_context.TRACING.recorder, ""

    def write(tx: Transaction) -> DispatchOutcome:
        nonlocal origin
        parent = jobs.current(tx, namespace, parent_id)
        if parent is None:
            raise Refused("parameterized job not found")
        check(parent, request)
        own = tx.request_id
        if recorder is not None:  # the child has its own trace, as in a bulk dispatch
            origin = tx.request_id = recorder.begin_child(own)
        children = ChildDispatcher(
            tx, parent, budgets=budgets, now=now, ids=ids, payloads=payloads_beside(store.path)
        )
        outcome = children.dispatch(request, suffix)
        children.close()
        tx.request_id = own
        return outcome

    outcome = await store.write(write)
    if recorder is not None and outcome.eval_id:
        attributes = {"steward.namespace": namespace, "steward.job": outcome.job_id}
        recorder.end_child(origin, now, attributes)
    return outcome


class ChildDispatcher:
    """Dispatches children of one job within one transaction. Call `close` after the last child."""

    def __init__(
        self,
        tx: Transaction,
        parent: Job,
        *,
        budgets: Budgets,
        now: int,
        ids: Iterator[str],
        payloads: str,
    ) -> None:
        """Initialize; `now` is in nanoseconds, and `ids` yields IDs for evaluations.

        `payloads` is the directory of the input files.
        """
        self._tx, self._parent, self._payloads = tx, parent, payloads
        self._budgets, self._now, self._ids = budgets, now, ids
        pattern = derive_child(parent, _NOTHING, "", now)
        self._rows = ChildRows(tx, pattern) if ChildRows.fit(parent) else None
        self._is_within = _CHECKED.is_within(pattern, budgets)
        # Nothing ends during the write, so a full queue stays full.
        self._queues = CHILDREN_BEYOND.of(parent.meta) is OverflowPolicy.QUEUE
        self._is_full = False

    def dispatch(self, request: DispatchRequestData, suffix: str) -> DispatchOutcome:
        """Store the child of a request that has no `dispatch_errors`.

        A child that may start gets an evaluation, unless it is periodic. If the idempotency token
        of the request was used before, return the earlier child. Raises `Refused`, `Invalid`,
        `Malformed` or `TooOften` before it changes anything.
        """
        tx, parent = self._tx, self._parent
        if request.token:
            earlier = jobs.find_by_idempotency_token(tx, parent.namespace, parent.id, request.token)
            if earlier:
                child_id, create_index = earlier
                return DispatchOutcome(
                    job_id=child_id, create_index=create_index, index=create_index, existed=True
                )
        if RUN_QUEUE.name in (parent.meta or ()):
            from daemon.jobs.queues import queue_errors  # imported late: few jobs have a queue

            for error in queue_errors(tx, derive_child(parent, request, "", self._now)):
                raise TooOften(error)
        if request.files:
            # Imported late, because few jobs have files.
            from daemon.jobs.payload_files import attach_files, check_files

            check_files(tx, self._payloads, parent.namespace, request.files)
        child_id = child_id_of(parent, request, self._now, suffix)
        if self._rows is None:
            begins = self._add_slowly(request, child_id)
        else:
            begins = self._add(self._rows, request, child_id)
        if request.files:
            attach_files(tx, parent.namespace, child_id, request.files, self._now)
        begins = begins and parent.periodic is None  # only the launches of a schedule run
        eval_id = next(self._ids) if begins else ""
        if begins:
            evaluation = child_evaluation(parent, child_id, eval_id, request.priority, tx.index)
            evaluations.put(tx, evaluation, self._now)
        if self._rows is None:
            job_status.refresh_summary(tx, parent.namespace, child_id)
        return DispatchOutcome(
            job_id=child_id,
            create_index=tx.index,
            index=tx.index,
            eval_id=eval_id,
            eval_create_index=tx.index if begins else 0,
        )

    def _add(self, rows: ChildRows, request: DispatchRequestData, child_id: str) -> bool:
        """Insert a child; return whether it may start."""
        child = NewChild(
            id=child_id,
            meta=_child_meta(self._parent, request),
            payload=_child_payload(request),
            priority=request.priority or self._parent.priority,
            token=request.token,
        )
        document = rows.document(child)
        most = self._budgets.job_max_kb * 1024
        if not self._is_within or (most and len(document) + _HEAD > most):
            check_child(derive_child(self._parent, request, child_id, self._now), self._budgets)
        begins = self._may_start()
        rows.add(child, document, is_held=not begins)
        return begins

    def _add_slowly(self, request: DispatchRequestData, child_id: str) -> bool:
        derived = derive_child(self._parent, request, child_id, self._now)
        check_child(derived, self._budgets)
        begins = self._may_start()
        jobs.append_version(self._tx, derived, is_held=not begins)
        return begins

    def _may_start(self) -> bool:
        if not self._is_full:
            begins = may_start_child(self._tx, self._parent, now=self._now, ids=self._ids)
            self._is_full = self._queues and not begins
            return begins
        return False

    def close(self) -> None:
        """Add the new children to the counts of their parent."""
        if self._rows is not None:
            self._rows.close()


class _LastCheck:
    """Caches the last result of `check_child`: successive dispatches are usually of one job."""

    def __init__(self) -> None:
        self._last: tuple[Job, Budgets, bool] | None = None

    def is_within(self, child: Job, budgets: Budgets) -> bool:
        """Return whether a child is within all limits before it gets its meta and payload."""
        child = msgspec.structs.replace(child, submit_time=0)
        if self._last is not None and self._last[:2] == (child, budgets):
            return self._last[2]
        is_within = _is_within(child, budgets)
        self._last = (child, budgets, is_within)
        return is_within


def _is_within(child: Job, budgets: Budgets) -> bool:
    try:
        check_child(child, budgets)
    except (Invalid, Refused):
        return False
    return True


_CHECKED = _LastCheck()


def child_id_of(parent: Job, request: DispatchRequestData, now: int, suffix: str) -> str:
    """Return the ID of a new child."""
    prefix = f"{request.id_prefix}-" if request.id_prefix else ""
    return f"{parent.id}/dispatch-{prefix}{now // SECOND}-{suffix}"


def check(parent: Job, request: DispatchRequestData) -> None:
    """Raise `Refused` or `Invalid` for an invalid dispatch.

    Source: Nomad's recorded responses `dispatch`.
    """
    for _, error in dispatch_errors(parent, request):
        raise error


def dispatch_errors(
    parent: Job, request: DispatchRequestData
) -> Iterator[tuple[str, Refused | Invalid]]:
    """Yield the errors of a dispatch, each with the field of the request that causes it."""
    block = parent.parameterized_job
    if block is None or parent.dispatched:
        yield "", Refused(f'Specified job "{parent.id}" is not a parameterized job')
        return
    if parent.stop:
        yield "", Refused(f'Specified job "{parent.id}" is stopped')
    if request.priority and not 1 <= request.priority <= 100:
        yield "Priority", Invalid("dispatch job priority must be between [1, 100]")
    if "\0" in request.id_prefix:  # no job has such an ID, because no task could start
        yield "IdPrefixTemplate", Invalid("IdPrefixTemplate contains a null character")
    for field, text, most in (
        ("IdPrefixTemplate", request.id_prefix, MAX_ID_PREFIX),
        ("IdempotencyToken", request.token, MAX_TOKEN),
    ):
        if len(text) > most:
            yield field, Invalid(f"{field} has {len(text)} characters; the maximum is {most}")
    for text in _payload_errors(block, len(request.payload)):
        yield "Payload", Invalid(text)
    for text in _meta_errors(parent, block, request.meta):
        yield "Meta", Invalid(text)


def _meta_errors(parent: Job, block: Parameterized, meta: Mapping[str, str]) -> Iterator[str]:
    required, optional = set(block.meta_required or ()), set(block.meta_optional or ())
    if unknown := sorted(meta.keys() - required - optional):
        names = " ".join(unknown)
        yield f"Dispatch request included unpermitted metadata keys: [{names}]"
    if missing := sorted(required - meta.keys()):
        names = " ".join(missing)
        yield f"Dispatch did not provide required meta keys: [{names}]"
    if RUN_QUEUE.name in (parent.meta or ()):
        from daemon.jobspec.steward_meta.check import queue_name_problems  # few jobs have a queue

        yield from queue_name_problems({**(parent.meta or {}), **meta})


def _payload_errors(block: Parameterized, size: int) -> Iterator[str]:
    if block.payload == "required" and not size:
        yield "Payload is not provided but required by parameterized job"
    if block.payload == "forbidden" and size:
        yield "Payload provided but forbidden by parameterized job"
    if size > MAX_PAYLOAD:
        yield f"Payload exceeds maximum size; {size} > {MAX_PAYLOAD}"


def check_child(child: Job, budgets: Budgets) -> None:
    """Raise `OverBudget` or `Refused` if a child exceeds a limit."""
    budgets.check_stored(child)
    for problem in total_count(child, budgets.job_max_count):
        raise Refused(problem)


def derive_child(parent: Job, request: DispatchRequestData, child_id: str, now: int) -> Job:
    """Return the child: the parent's definition with a new ID, the payload, and the merged meta."""
    return msgspec.structs.replace(
        parent,
        id=child_id,
        name=child_id,
        parent_id=parent.id,
        dispatched=True,
        dispatch_idempotency_token=request.token,
        payload=_child_payload(request),
        meta=_child_meta(parent, request),
        priority=request.priority or parent.priority,
        status=JobStatus.PENDING,
        submit_time=now,
    )


def _child_payload(request: DispatchRequestData) -> str | None:
    return base64.b64encode(request.payload).decode() if request.payload else None


def _child_meta(parent: Job, request: DispatchRequestData) -> dict[str, str] | None:
    return {**(parent.meta or {}), **request.meta} or None
