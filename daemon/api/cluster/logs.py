"""Output of tasks: the current output, or a stream that continues with new output.

The format is plain text, or frames that contain the file name and the offset.
"""

import base64
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from daemon.api.cluster.log_sources import find_source, has_ended
from daemon.runner.core.task_log import LogChunk, Stream
from daemon.web.parameters import InvalidParameter, QueryParameters
from daemon.web.reply import JSON, HandlerReply
from daemon.web.request import Request
from daemon.web.stream_auth import while_authorized
from storage.errors import Malformed
from storage.records.base import SparseRecord
from storage.records.codec import encode
from storage.records.numbers import parse_integer, shorten

HEARTBEAT = b"{}"  # an empty frame
NO_ALLOCATION = "must provide a valid alloc id"
_INT64 = range(-(2**63), 2**63)


class LogStreamFrame(SparseRecord, frozen=True, kw_only=True):
    """A chunk of a file, or an event such as the deletion of the file.

    A chunk has its data in base64, the file's name, and the offset after the chunk.
    """

    data: str = ""
    file: str = ""
    offset: int = 0
    file_event: str = ""


async def logs(request: Request) -> HandlerReply:
    """Show the output of a task; with `follow`, stream new output."""
    query, store = request.query, request.parts.store
    if not request["alloc_id"]:
        raise Malformed(NO_ALLOCATION)
    task_name = query.text("task")
    if not task_name:
        raise Malformed("must provide task name")
    follow = parse_flag(query, "follow")
    kind = query.text("type")
    if kind not in ("stdout", "stderr"):
        raise Malformed("must provide log type (stdout/stderr)")
    plain = parse_flag(query, "plain")
    begin, offset = parse_origin(query), parse_number(query, "offset")
    source = await find_source(request, request["alloc_id"])
    if task_name not in source.tasks:
        raise Malformed(f'unknown task name "{task_name}"')
    log = source.log(task_name, kind)
    # An offset of 0 before the end means the whole last file (Nomad's recorded responses:
    # logs-origin-end).
    is_last_file = begin == "end" and not offset
    stream = await log.current()
    position = stream.last_file() if is_last_file else stream.locate(begin, offset)
    chunks = (
        log.follow(position, lambda: has_ended(store, source.alloc_id, task_name))
        if follow
        else _present(stream, position)
    )
    encoded = _encoded(chunks, plain=plain)
    return HandlerReply(
        stream=while_authorized(request, encoded) if follow else encoded,
        is_endless=follow,
        content_type="text/plain" if plain else JSON,
    )


def parse_flag(query: QueryParameters, name: str) -> bool:
    """Return a boolean parameter. Raises `Malformed` with the error text of these routes."""
    try:
        return query.flag(name)
    except InvalidParameter as error:
        reason = str(error).partition(" as a bool: ")[2]
        raise Malformed(f"failed to parse {name} field to boolean: {reason}") from None


def parse_number(query: QueryParameters, name: str, default: str = "0") -> int:
    """Return a parameter that is a number of at least 0. Raises `Malformed` with Nomad's error text."""
    text = query.text(name) or default
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        reason = f'strconv.ParseInt: parsing "{shorten(text)}": invalid syntax'
    elif parse_integer(text) not in _INT64:
        reason = f'strconv.ParseInt: parsing "{shorten(text)}": value out of range'
    elif parse_integer(text) < 0:
        reason = "<nil>"  # Nomad's parser has no error here
    else:
        return parse_integer(text)
    raise Malformed(f"error parsing {name}: {reason}")


def parse_origin(query: QueryParameters) -> str:
    """Return the end from which an offset counts: `start` or `end`. Raises `Malformed`."""
    name = query.text("origin") or "start"
    if name not in ("start", "end"):
        raise Malformed("origin must be start or end")
    return name


async def _present(stream: Stream, position: int) -> AsyncGenerator[LogChunk | None, None]:
    """Yield the chunks from a position up to the current end of the log."""
    _, end = stream.span()
    while position < end and (chunk := await stream.fetch(position)) is not None:
        position = chunk.end
        yield chunk


async def _encoded(
    chunks: AsyncGenerator[LogChunk | None, None], *, plain: bool
) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):  # after a disconnect, `chunks` is closed with this generator
        async for chunk in chunks:
            if chunk is None:
                yield b"" if plain else HEARTBEAT
            else:
                yield chunk.data if plain else encode(_frame(chunk))


def _frame(chunk: LogChunk) -> LogStreamFrame:
    data = base64.b64encode(chunk.data).decode()
    return LogStreamFrame(data=data, file=chunk.file, offset=chunk.offset)
