"""Bulk dispatch: each line of the body is one dispatch and gets one line as its answer.

Each line and each answer is JSON. The daemon reads and dispatches the lines in batches.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from functools import partial

import msgspec

from daemon.api.cluster.operator import check_accepts
from daemon.jobs.bulk_dispatch import (
    BATCH,
    DispatchLine,
    LineRequest,
    check_parent,
    dispatch_lines,
    read_lines,
    split_lines,
)
from daemon.jobspec.budgets import Budgets
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from daemon.web.stream_auth import StreamSubscriber
from storage import garbage, request_context
from storage.errors import Denied, Malformed, StewardError
from storage.queries import jobs
from storage.records.bulk_dispatch import BulkDispatchAnswer
from storage.records.codec import encode
from storage.records.numbers import shorten

NDJSON = "application/x-ndjson"
_SUFFIX = 8  # characters that make the IDs of this request unique within their second


async def dispatch_bulk(request: Request) -> HandlerReply:
    """Dispatch a parameterized job once for each line of the body, and answer each line.

    The answers to a batch are sent after its commit.
    """
    check_accepts(request)
    store, job_id = request.parts.store, request["job_id"]
    split = partial(split_lines, request.body, _first_line(request))
    lines = await request.worked_out(len(request.body), split)
    await store.read_any(
        lambda db: check_parent(jobs.current(db, request.namespace, job_id), job_id)
    )
    # The stream is read after this request's context has ended. So pass the origin and the person.
    stream = _answers(request, lines, request_context.origin(), request_context.person())
    return HandlerReply(stream=stream, content_type=NDJSON)


def _first_line(request: Request) -> int:
    """Return the number of the body's first line: `first_line` in the query, or 1.

    Raises `Malformed`.
    """
    text = request.query.text("first_line") or "1"
    if not re.fullmatch("[1-9][0-9]{0,14}", text, re.ASCII):
        raise Malformed(
            f'first_line is "{shorten(text)}": give the number of the first line, counted from 1'
        )
    return int(text)


async def _answers(
    request: Request, lines: list[DispatchLine], origin: str, person: str
) -> AsyncGenerator[bytes, None]:
    """Yield the answers to each batch of lines.

    Each dispatch is recorded with `origin`, the request and its trace, and `person`, the user.
    """
    suffix = next(request.parts.ids)[:_SUFFIX]
    query = request.query
    token = query.text("idempotency_token") or query.text("IdempotencyToken")
    reader = StreamSubscriber(request)
    for start in range(0, len(lines), BATCH):
        batch = lines[start : start + BATCH]
        read = partial(read_lines, batch, request["job_id"], token)
        decoded = await garbage.in_thread(read)
        with request_context.request_scope(origin), request_context.person_scope(person):
            answers = await _dispatched(request, reader, decoded, suffix)
        yield answers


async def _dispatched(
    request: Request, reader: StreamSubscriber, batch: Sequence[LineRequest], suffix: str
) -> bytes:
    """Dispatch a batch, and return the answers to its lines.

    If the whole batch fails, each answer is the error. `suffix` is part of the IDs of the children.
    """
    parts = request.parts
    try:
        await _check_access(request, reader)
        answers = await dispatch_lines(
            parts.store,
            request.namespace,
            request["job_id"],
            batch,
            budgets=Budgets.of(parts.config),
            now=parts.clock.now(),
            ids=parts.ids,
            suffix=suffix,
        )
    except StewardError as error:
        answers = [line.refused(line.field, line.error or error) for line in batch]
    return await garbage.in_thread(partial(_encoded, answers))


async def _check_access(request: Request, reader: StreamSubscriber) -> None:
    """Raise `Denied` if the caller may no longer dispatch the job."""
    if not await reader.is_allowed():
        raise Denied
    check_accepts(msgspec.structs.replace(request, caller=reader.caller))


def _encoded(bulk_dispatch_answers: Sequence[BulkDispatchAnswer]) -> bytes:
    return b"".join(encode(answer) + b"\n" for answer in bulk_dispatch_answers)
