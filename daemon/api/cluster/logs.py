"""What tasks print: at once, or as it is written; as text, or in frames that name file and offset."""

import base64
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from daemon.api.cluster.log_sources import find_source, has_ended
from daemon.runner.logs import Chunk, TaskLog
from daemon.web.parameters import BadParameter, Query
from daemon.web.readers import while_known
from daemon.web.reply import JSON, Reply
from daemon.web.request import Request
from storage.errors import Malformed
from storage.records.base import SparseRecord
from storage.records.codec import encode
from storage.records.numbers import short, whole

HEARTBEAT = b"{}"  # a frame that holds nothing
NO_ALLOCATION = "must provide a valid alloc id"
_INT64 = range(-(2**63), 2**63)


class Frame(SparseRecord, frozen=True, kw_only=True):
    """A piece of a file: base64, the file's name, the offset after it; or what became of the file."""

    data: str = ""
    file: str = ""
    offset: int = 0
    file_event: str = ""


async def logs(request: Request) -> Reply:
    """Show what a task has printed, and what it prints from now on when `follow` says so."""
    query, store = request.query, request.parts.store
    if not request["alloc_id"]:
        raise Malformed(NO_ALLOCATION)
    task_name = query.text("task")
    if not task_name:
        raise Malformed("must provide task name")
    follow = flag(query, "follow")
    kind = query.text("type")
    if kind not in ("stdout", "stderr"):
        raise Malformed("must provide log type (stdout/stderr)")
    plain = flag(query, "plain")
    begin, offset = origin(query), number(query, "offset")
    source = find_source(request, request["alloc_id"])
    if task_name not in source.tasks:
        raise Malformed(f'unknown task name "{task_name}"')
    log = source.log(task_name, kind)
    # The peer has nothing before the end in two ways: the last file whole (golden: logs-origin-end).
    is_last_file = begin == "end" and not offset
    position = log.last_file() if is_last_file else log.locate(begin, offset)
    chunks = (
        log.follow(position, lambda: has_ended(store, source.alloc_id, task_name))
        if follow
        else _present(log, position)
    )
    encoded = _encoded(chunks, plain=plain)
    return Reply(
        stream=while_known(request, encoded) if follow else encoded,
        is_endless=follow,
        content_type="text/plain" if plain else JSON,
    )


def flag(query: Query, name: str) -> bool:
    """Return a parameter that is true or false. Raises `Malformed` in the words of these routes."""
    try:
        return query.flag(name)
    except BadParameter as error:
        reason = str(error).partition(" as a bool: ")[2]
        raise Malformed(f"failed to parse {name} field to boolean: {reason}") from None


def number(query: Query, name: str, default: str = "0") -> int:
    """Return a parameter that is a number from 0 up. Raises `Malformed` in the peer's words."""
    text = query.text(name) or default
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        reason = f'strconv.ParseInt: parsing "{short(text)}": invalid syntax'
    elif whole(text) not in _INT64:
        reason = f'strconv.ParseInt: parsing "{short(text)}": value out of range'
    elif whole(text) < 0:
        reason = "<nil>"  # the peer's parser has nothing against it
    else:
        return whole(text)
    raise Malformed(f"error parsing {name}: {reason}")


def origin(query: Query) -> str:
    """Return where an offset is counted from. Raises `Malformed`."""
    name = query.text("origin") or "start"
    if name not in ("start", "end"):
        raise Malformed("origin must be start or end")
    return name


async def _present(log: TaskLog, position: int) -> AsyncGenerator[Chunk | None, None]:
    """Yield what is there now, up to the present end."""
    _, end = log.span()
    for chunk in _until(log, position, end):
        yield chunk


def _until(log: TaskLog, position: int, end: int) -> Iterator[Chunk]:
    while position < end and (chunk := log.read(position)) is not None:
        position = chunk.end
        yield chunk


async def _encoded(
    chunks: AsyncGenerator[Chunk | None, None], *, plain: bool
) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):  # a client that goes away ends both
        async for chunk in chunks:
            if chunk is None:
                yield b"" if plain else HEARTBEAT
            else:
                yield chunk.data if plain else encode(_frame(chunk))


def _frame(chunk: Chunk) -> Frame:
    data = base64.b64encode(chunk.data).decode()
    return Frame(data=data, file=chunk.file, offset=chunk.offset)
