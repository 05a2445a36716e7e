"""Logs of one task for the UI: pages of lines, search from the end, and streaming.

Both streams of a task are merged by the times of their lines (`log_lines.py`). A cursor is a
comma-separated list with the position in each requested stream.
"""

import heapq
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec
import trio

from daemon.api.cluster import log_pages
from daemon.api.cluster.log_lines import LineTimes, attempt_ends, dates, stamp
from daemon.api.cluster.log_pages import MOST_FOUND, MOST_LINES, LogLine, Search
from daemon.api.cluster.log_sources import LogSource, find_source, has_ended
from daemon.api.cluster.logs import parse_flag, parse_number
from daemon.runner.core.poll_interval import register_follower
from daemon.runner.core.task_log import Stream, TaskLog
from daemon.web.reply import JSON, HandlerReply
from daemon.web.request import Request
from daemon.web.stream_auth import while_authorized
from storage.errors import Malformed
from storage.records.base import SparseRecord
from storage.records.codec import encode

KINDS = ("stdout", "stderr")
MOST_CONTEXT = 20
MOST_TEXT = 1000  # characters of a search
_FOLLOWED = 500  # lines of each stream that a follower receives first

T = TypeVar("T")


class LogLines(SparseRecord, frozen=True, kw_only=True):
    """Lines in order. `before` and `after` are the cursors for earlier and later lines.

    A cursor is empty if there are no such lines. `ended` means that the task can have no further
    output. `searched` is the number of bytes that a search has read.
    """

    lines: list[LogLine]
    before: str = ""
    after: str = ""
    ended: bool = False
    searched: int = 0


class OpenedStream(msgspec.Struct, frozen=True):
    """One stream of a task, with the times of its lines. Each line gets `kind` as its `stream`."""

    kind: str
    log: TaskLog
    stream: Stream
    dates: LineTimes


async def lines(request: Request) -> HandlerReply:
    """Show lines of a task's log: the last lines, or the lines before, after or around a cursor."""
    source, task, kinds = await _requested_logs(request)
    opened = await _open(request, source, task, kinds)
    most = min(parse_number(request.query, "lines", "200"), MOST_LINES)
    if parse_flag(request.query, "follow"):
        chunks = _follow(request, source, task, _cursor(request, "after", opened))
        return HandlerReply(
            stream=while_authorized(request, chunks), is_endless=True, content_type=JSON
        )
    page = await trio.to_thread.run_sync(_page, request, opened, most)
    ended = has_ended(request.parts.store, source.alloc_id, task)
    return HandlerReply(body=msgspec.structs.replace(page, ended=ended))


async def search(request: Request) -> HandlerReply:
    """Find lines with a string, from a cursor towards the start of the log, with context."""
    query = request.query
    text = query.text("contains")
    if not 0 < len(text) <= MOST_TEXT:
        raise Malformed(f'"contains" has {len(text)} characters: give from 1 to {MOST_TEXT}')
    context = min(parse_number(query, "context", "2"), MOST_CONTEXT)
    most = min(max(parse_number(query, "lines", "50"), 1), MOST_FOUND)
    source, task, kinds = await _requested_logs(request)
    opened = await _open(request, source, task, kinds)
    begins = _cursor(request, "before", opened)
    lines_by_log: list[list[LogLine]] = []
    reached: list[int | None] = []
    searched = 0
    for log, begin in zip(opened, begins, strict=True):
        matches = Search(text, context=context, most=most)
        position: int | None = begin
        while position is not None and not matches.is_full:
            position = await trio.to_thread.run_sync(matches.step, log.stream, position)
        log_lines = await trio.to_thread.run_sync(matches.lines, log.stream)
        lines_by_log.append(dated(log, log_lines))
        reached.append(position)
        searched += matches.searched
    return HandlerReply(
        body=LogLines(
            lines=list(merged(lines_by_log)),
            before="" if not any(reached) else _text(number or 0 for number in reached),
            searched=searched,
        )
    )


async def _requested_logs(request: Request) -> tuple[LogSource, str, tuple[str, ...]]:
    """Return the logs, task and streams of a request. Raises `Malformed`, `NotFound` and `Denied`."""
    query = request.query
    task, kind = query.text("task"), query.text("type")
    if kind not in ("", *KINDS):
        raise Malformed(
            f"type = {kind!r} is not a stream: use stdout or stderr, or omit type for both"
        )
    source = await find_source(request, request["alloc_id"])
    if task not in source.tasks:
        task_names = ", ".join(source.tasks) or "none"
        raise Malformed(f"the allocation has no task {task!r}; its tasks are {task_names}")
    return source, task, (kind,) if kind else KINDS


async def _open(
    request: Request, source: LogSource, task: str, kinds: tuple[str, ...]
) -> list[OpenedStream]:
    return [await open_log(request, source, task, kind, kind) for kind in kinds]


async def open_log(
    request: Request, source: LogSource, task: str, kind: str, name: str
) -> OpenedStream:
    """Open one stream of a task; `name` labels its lines."""
    find = partial(attempt_ends, alloc_id=source.alloc_id, task=task, kind=kind)
    ends = await request.parts.store.read_any(find)
    return await open_dated(request, source.log(task, kind), name, ends)


async def open_dated(
    request: Request, log: TaskLog, name: str, ends: Iterable[tuple[int, int]]
) -> OpenedStream:
    """Open a log; `name` labels its lines, and `ends` are the ends of its attempts."""
    stream = await log.current()
    return OpenedStream(name, log, stream, dates(ends, log, stream, request.parts.clock.now()))


def _cursor(request: Request, name: str, streams: list[OpenedStream]) -> list[int]:
    """Return the position in each stream, from the cursor in the parameter `name`.

    Without a cursor, return the end of each stream. Raises `Malformed`.
    """
    text = request.query.text(name)
    if not text:
        return [stream.stream.span()[1] for stream in streams]
    parts = text.split(",")
    if len(parts) != len(streams) or not all(
        part.isascii() and part.isdecimal() and len(part) < 19 for part in parts
    ):
        raise Malformed(f"{name} = {text[:40]!r} is not a cursor: use one from a response")
    return [int(part) for part in parts]


def _text(positions: Iterable[int]) -> str:
    return ",".join(map(str, positions))


def _page(request: Request, streams: list[OpenedStream], most: int) -> LogLines:
    """Return the requested page. Called in a thread."""
    if request.query.text("at"):
        positions = _cursor(request, "at", streams)
        earlier = page_before(streams, positions, most // 2)
        later = page_after(streams, positions, most - most // 2)
        return msgspec.structs.replace(
            later, lines=[*earlier.lines, *later.lines], before=earlier.before
        )
    if request.query.text("after"):
        return page_after(streams, _cursor(request, "after", streams), most)
    return page_before(streams, _cursor(request, "before", streams), most)


def page_before(streams: list[OpenedStream], positions: list[int], most: int) -> LogLines:
    """Return the last lines before the positions.

    The cursor `after` has the positions after the last whole lines.
    """
    share = log_pages.bytes_per_stream(len(streams))
    read = [
        dated(log, log_pages.before(log.stream, position, most, share))
        for log, position in zip(streams, positions, strict=True)
    ]
    log_lines = list(merged(read))[-most:] if most else []
    begins, ends = [], []
    for log, position in zip(streams, positions, strict=True):
        own = [line for line in log_lines if line.stream == log.kind]
        begins.append(own[0].at if own else position)
        ends.append(_position_after(own, position))
    has_more = any(begin > log.stream.span()[0] for log, begin in zip(streams, begins, strict=True))
    return LogLines(lines=log_lines, before=_text(begins) if has_more else "", after=_text(ends))


def page_after(streams: list[OpenedStream], positions: list[int], most: int) -> LogLines:
    """Return the first lines after the positions."""
    share = log_pages.bytes_per_stream(len(streams))
    read = [
        dated(log, log_pages.after(log.stream, position, most, share))
        for log, position in zip(streams, positions, strict=True)
    ]
    log_lines = list(merged(read))[:most]
    ends = [
        _position_after([line for line in log_lines if line.stream == log.kind], position)
        for log, position in zip(streams, positions, strict=True)
    ]
    return LogLines(lines=log_lines, before=_text(positions), after=_text(ends))


def _position_after(lines: list[LogLine], position: int) -> int:
    """Return the position after the last whole line; an unfinished line is read again."""
    if not lines:
        return position
    return lines[-1].at if lines[-1].unfinished else lines[-1].end


def dated(stream: OpenedStream, lines: list[LogLine]) -> list[LogLine]:
    """Return lines with their stream and their times, which never decrease."""
    dated_lines, latest = [], 0
    for line in lines:
        latest_possible = stream.dates.at(line.end)
        written = stamp(line.text[:64].encode())
        time = latest_possible if written is None else min(written, latest_possible)
        latest = max(latest, time)
        dated_lines.append(msgspec.structs.replace(line, stream=stream.kind, time=latest))
    return dated_lines


def merged(streams: list[list[LogLine]]) -> Iterable[LogLine]:
    """Return the lines of all streams in the order of their times."""
    # The annotation gives `merge` the type of its key, which it cannot infer from a lambda.
    by_time: Callable[[LogLine], int] = lambda line: line.time  # noqa: E731
    return heapq.merge(*streams, key=by_time)


async def _follow(
    request: Request, source: LogSource, task: str, positions: list[int]
) -> AsyncGenerator[bytes, None]:
    """Yield updates after `positions`, one JSON document per line, until the task has ended."""
    store = request.parts.store
    kinds = KINDS if not request.query.text("type") else (request.query.text("type"),)
    sent_unfinished = ""  # unfinished lines that the reader already has
    with register_follower() as pace:
        while True:
            # This check comes before the last read, so that no output is missed.
            over = has_ended(store, source.alloc_id, task)
            opened = await _open(request, source, task, kinds)
            page = await trio.to_thread.run_sync(page_after, opened, positions, _FOLLOWED)
            unfinished = "\n".join(line.text for line in page.lines if line.unfinished)
            if page.lines and (page.after != _text(positions) or unfinished != sent_unfinished):
                pace.reset()
                positions, sent_unfinished = (
                    [int(part) for part in page.after.split(",")],
                    unfinished,
                )
                yield encode(page) + b"\n"
                continue
            if over:
                yield encode(msgspec.structs.replace(page, lines=[], ended=True)) + b"\n"
                return
            await pace.wait()
            if pace.needs_keepalive():
                yield b"{}\n"
