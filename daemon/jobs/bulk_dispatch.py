"""Bulk dispatch: many children of a parameterized job with one request.

The body has one dispatch per line, as JSON. Lines are read and stored in batches. Each batch is one
write, so its children share a commit. A line that fails does not affect the others.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from daemon.config.data_directory import payloads_beside
from daemon.jobs.dispatch import (
    ChildDispatcher,
    DispatchOutcome,
    DispatchRequestData,
    JobDispatchRequest,
    dispatch_errors,
    read_request,
)
from daemon.jobspec.budgets import Budgets
from storage import request_context
from storage.errors import Malformed, NotFound, Refused, StewardError, StorageError, TooLarge
from storage.queries import jobs
from storage.records.bulk_dispatch import MAX_CHILDREN, BulkDispatchAnswer
from storage.records.codec import decode
from storage.records.job import Job
from storage.store import Store
from storage.writer import Transaction

BATCH = 250  # children per write; other writes wait for it (bench/bench.py)
MAX_LINE = 64 * 1024  # bytes; the largest payload is 22 KiB long in base64

_FIELD = re.compile(r"Go struct field \w+\.(\S+) of type")


class DispatchLine(msgspec.Struct, frozen=True):
    """A non-empty line of the body. The line numbers also count the empty lines."""

    number: int
    text: bytes


class LineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded line: the request, or its error with the field that causes the error."""

    number: int
    request: DispatchRequestData | None = None
    field: str = ""
    error: str = ""
    warnings: tuple[str, ...] = ()

    def refused(self, field: str, error: StewardError | str) -> BulkDispatchAnswer:
        """Return the answer for a line that failed, with the error and its field."""
        return BulkDispatchAnswer(
            line=self.number, field=field, error=str(error), warnings=self.warnings
        )

    def done(self, outcome: DispatchOutcome) -> BulkDispatchAnswer:
        """Return the answer for a line whose child is stored."""
        return BulkDispatchAnswer(
            line=self.number,
            dispatched_job_id=outcome.job_id,
            eval_id=outcome.eval_id,
            eval_create_index=outcome.eval_create_index,
            job_create_index=outcome.create_index,
            index=outcome.index,
            existed=outcome.existed,
            warnings=self.warnings,
        )


def split_lines(body: bytes, first: int = 1) -> list[DispatchLine]:
    """Return the non-empty lines of a body; `first` is the number of its first line.

    Raises `TooLarge` if there are too many lines, and `Malformed` if all lines are empty.
    """
    texts = body.split(b"\n", MAX_CHILDREN * 2)
    lines = [
        DispatchLine(number, text.strip())
        for number, text in enumerate(texts, first)
        if not text.isspace() and text
    ]
    if len(lines) > MAX_CHILDREN or len(texts) > MAX_CHILDREN * 2:
        raise TooLarge(
            f"the body has more than {MAX_CHILDREN} lines, which is the limit of one request: send "
            "the rest in other requests"
        )
    if not lines:
        raise Malformed("the body has no line: send one JSON object per line, each a dispatch")
    return lines


def read_lines(lines: Sequence[DispatchLine], job_id: str, token: str = "") -> list[LineRequest]:
    """Decode lines, in a thread.

    If `token` is set, a line without an idempotency token gets a token that consists of `token` and
    the line number.
    """
    return [_read_line(line, job_id, token) for line in lines]


def _read_line(line: DispatchLine, job_id: str, token: str) -> LineRequest:
    number, unknown = line.number, list[str]()
    if len(line.text) > MAX_LINE:
        size = len(line.text)
        return LineRequest(
            number=number, error=f"the line has {size} bytes; the maximum is {MAX_LINE}"
        )
    try:
        dispatch = decode(JobDispatchRequest, line.text, unknown)
    except Malformed as error:
        field_match = _FIELD.search(str(error))
        return LineRequest(
            number=number, field=field_match[1] if field_match else "", error=str(error)
        )
    warnings = tuple(f'unknown field "{name}" is ignored' for name in unknown)
    try:
        request = read_request(dispatch, job_id, "")
    except Malformed as error:
        is_other = bool(dispatch.job_id) and dispatch.job_id != job_id
        field = "JobID" if is_other and "Job ID" in str(error) else "Payload"
        return LineRequest(number=number, field=field, error=str(error), warnings=warnings)
    if token and not request.token:
        request = msgspec.structs.replace(request, token=f"{token}/{number}")
    return LineRequest(number=number, request=request, warnings=warnings)


def check_parent(parent: Job | None, job_id: str) -> None:
    """Raise `NotFound` or `Malformed` if no line can dispatch a child of this job."""
    if parent is None:
        raise NotFound(f'job "{job_id}" not found: give the ID of a parameterized job')
    for field, error in dispatch_errors(parent, DispatchRequestData(payload=b"", meta={})):
        if not field:
            raise Malformed(str(error))


async def dispatch_lines(
    store: Store,
    namespace: str,
    parent_id: str,
    batch: Sequence[LineRequest],
    *,
    budgets: Budgets,
    now: int,
    ids: Iterator[str],
    suffix: str,
) -> list[BulkDispatchAnswer]:
    """Store the children of a batch in one transaction, and return the answer to each line.

    `suffix` and the number of the line make the ID of a child unique. Raises `Refused` if the job
    was deleted, and `StorageError`.
    """
    traces = _ChildTraces()

    def write(tx: Transaction) -> list[BulkDispatchAnswer]:
        parent = jobs.current(tx, namespace, parent_id)
        if parent is None:
            raise Refused("parameterized job not found")
        traces.clear()
        children = ChildDispatcher(
            tx, parent, budgets=budgets, now=now, ids=ids, payloads=payloads_beside(store.path)
        )
        dispatch = partial(dispatch_line, children, parent)
        answers = [traces.around(tx, partial(dispatch, line)) for line in batch]
        children.close()
        return answers

    def dispatch_line(
        children: ChildDispatcher, parent: Job, line: LineRequest
    ) -> BulkDispatchAnswer:
        if line.request is None:
            return line.refused(line.field, line.error)
        for field, error in dispatch_errors(parent, line.request):
            return line.refused(field, error)
        try:
            outcome = children.dispatch(line.request, f"{suffix}-{line.number:05}")
        except StorageError:
            raise
        except StewardError as error:  # the other lines continue
            return line.refused("", error)
        return line.done(outcome)

    answers = await store.write(write, is_long=True)
    traces.record(namespace, now)
    return answers


class _ChildTraces:
    """Separate traces for the children of a batch, if traces are enabled.

    One trace with thousands of children would be unreadable. The first span of each trace has a
    link to the request.
    """

    def __init__(self) -> None:
        self._recorder = request_context.TRACING.recorder
        self._origins: dict[str, str] = {}  # by the ID of the child

    def clear(self) -> None:
        """Drop the recorded children, because the transaction was rolled back."""
        self._origins.clear()

    def around(
        self, tx: Transaction, dispatch: Callable[[], BulkDispatchAnswer]
    ) -> BulkDispatchAnswer:
        """Return the result of `dispatch`, which stores a child with an evaluation.

        The evaluation belongs to the child's trace.
        """
        if self._recorder is None:
            return dispatch()
        own, tx.request_id = tx.request_id, self._recorder.begin_child(tx.request_id)
        answer = dispatch()
        if answer.eval_id:
            self._origins[answer.dispatched_job_id] = tx.request_id
        tx.request_id = own
        return answer

    def record(self, namespace: str, now: int) -> None:
        """Record the spans of the stored children."""
        if self._recorder is not None:
            for child_id, origin in self._origins.items():
                attributes = {"steward.namespace": namespace, "steward.job": child_id}
                self._recorder.end_child(origin, now, attributes)
