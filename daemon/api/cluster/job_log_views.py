"""Logs of a whole job for people: pages of lines, a search, and lines as they are written.

The streams of the newest allocations are merged by time (see `log_views.py`). A cursor names each
stream with its position, so that it stays valid when allocations are added or removed.
"""

import re
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from itertools import islice

import msgspec
import trio

from daemon.api.cluster.job_log_search import NewestMatches
from daemon.api.cluster.log_lines import attempt_ends
from daemon.api.cluster.log_pages import MOST_FOUND, MOST_LINES, MOST_SEARCHED, LogLine, Search
from daemon.api.cluster.log_sources import (
    LogSource,
    log_configs,
    source_of_tasks,
    task_has_ended,
    tasks_of_current_version,
)
from daemon.api.cluster.log_views import (
    KINDS,
    MOST_CONTEXT,
    MOST_TEXT,
    LogLines,
    OpenedStream,
    merged,
    open_dated,
    page_after,
    page_before,
)
from daemon.api.cluster.logs import parse_flag, parse_number
from daemon.runner.core.poll_interval import register_follower
from daemon.web.reply import JSON, HandlerReply
from daemon.web.request import Request
from daemon.web.stream_auth import while_authorized
from storage import garbage
from storage.errors import Malformed, NotFound
from storage.queries import allocations, job_status, jobs
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation
from storage.records.codec import encode
from storage.records.job import JobStatus
from storage.records.task import LogConfig

_MOST_ALLOCATIONS = 16  # newest allocations whose logs are merged
_MOST_STREAMS = 48
_SHOWN = 8  # digits of an allocation ID in a cursor
_FOLLOWED = 500  # lines that a follower receives first
# position of a stream in a cursor
_POSITION = re.compile(r"([0-9a-f]{8}\.[0-9]+[oe]):([0-9]{1,18})")


class JobLogLines(LogLines, frozen=True, kw_only=True):
    """Lines of a job's newest allocations.

    `allocations` is the number of merged allocations. `omitted_allocations` is the number of older
    allocations that are left out. If only one allocation is merged, `omitted_tasks` is the number
    of its tasks beyond the limit.
    """

    allocations: int = 0
    omitted_allocations: int = 0
    omitted_tasks: int = 0


class _Stream(msgspec.Struct, frozen=True):
    """One stream of one task.

    Cursors contain `name`: the allocation, the number of the task, and `o` (stdout) or `e`
    (stderr). `ends` has, for each ended attempt, the end time and the length of the log at that
    time.
    """

    name: str
    source: LogSource
    task: str
    kind: str
    ends: list[tuple[int, int]]

    def labeled(self, line: LogLine) -> LogLine:
        """Return a line with the allocation and the task that wrote it."""
        return msgspec.structs.replace(
            line,
            stream=self.kind,
            log=self.name,
            allocation=self.source.alloc_id,
            task=self.task,
        )


class _Newest(msgspec.Struct, frozen=True):
    """The newest allocations of a job with their tasks, newest first, from one snapshot.

    `total` is the number of all allocations of the job. `index` is the index of their last change.
    `known` has the names of the job's tasks.
    """

    index: int
    total: int
    found: list[tuple[Allocation, dict[str, LogConfig]]]
    known: list[str]


class _Selection(msgspec.Struct, frozen=True):
    """The streams that are merged, oldest allocation first.

    `ended` means that no stream can grow.
    """

    index: int
    streams: list[_Stream]
    ended: bool
    known: list[str]
    allocations: int
    omitted_allocations: int
    omitted_tasks: int

    def encoded(self, page: LogLines, *, ended: bool = False) -> bytes:
        """Return a page as JSON; its lines and cursors contain the names of their streams."""
        by_name = {stream.name: stream for stream in self.streams}
        return encode(
            JobLogLines(
                lines=[by_name[line.stream].labeled(line) for line in page.lines],
                before=self._cursor(page.before),
                after=self._cursor(page.after),
                ended=ended,
                searched=page.searched,
                allocations=self.allocations,
                omitted_allocations=self.omitted_allocations,
                omitted_tasks=self.omitted_tasks,
            )
        )

    def _cursor(self, positions: str) -> str:
        if not positions:
            return ""
        pairs = zip(self.streams, positions.split(","), strict=True)
        return ",".join(f"{log.name}:{position}" for log, position in pairs)


class _Update(msgspec.Struct, frozen=True):
    """The next response for a follower, and the positions after it.

    The response is empty if there are no new lines. `rest` is the text of unfinished lines.
    """

    answer: bytes
    known: dict[str, int]
    rest: str


async def lines(request: Request) -> HandlerReply:
    """Show lines of all allocations: the last lines, or the lines before or after a cursor."""
    query = request.query
    _check(request)
    follow = parse_flag(query, "follow")
    _check_pairs(request, follow=follow)
    most = min(parse_number(query, "lines", "200"), MOST_LINES)
    is_after = bool(query.text("after"))
    known_positions = _positions(request, "after" if is_after else "before")
    may_grow = _may_grow(request)
    selection = await _requested_streams(request)
    if follow:
        chunks = _follow(request, selection, known_positions)
        return HandlerReply(
            stream=while_authorized(request, chunks), is_endless=True, content_type=JSON
        )
    opened = await _opened(request, selection)

    def page() -> bytes:
        if is_after:
            log_lines = page_after(opened, _begins(opened, known_positions), most)
        else:
            log_lines = page_before(
                opened,
                _begins(opened, known_positions) if known_positions else _end_positions(opened),
                most,
            )
        return selection.encoded(log_lines, ended=selection.ended and not may_grow)

    return HandlerReply(body=await garbage.in_thread(page))


async def search(request: Request) -> HandlerReply:
    """Find lines that contain a text in the logs of all allocations, from a cursor backwards."""
    query = request.query
    _check(request)
    for name in ("after", "at"):
        if query.text(name):
            raise Malformed(
                f'a search runs towards the start of the log: give "before" instead of "{name}"'
            )
    text = query.text("contains")
    if not 0 < len(text) <= MOST_TEXT:
        raise Malformed(f'"contains" has {len(text)} characters: give from 1 to {MOST_TEXT}')
    context = min(parse_number(query, "context", "2"), MOST_CONTEXT)
    most = min(max(parse_number(query, "lines", "50"), 1), MOST_FOUND)
    known_positions = _positions(request, "before")
    selection = await _requested_streams(request)
    opened = await _opened(request, selection)
    begins = await trio.to_thread.run_sync(
        lambda: _begins(opened, known_positions) if known_positions else _end_positions(opened)
    )
    newest = NewestMatches(opened, most)
    for log, begin in zip(opened, begins, strict=True):
        matches = Search(text, context=context, most=most)
        position: int | None = begin
        # All streams of a request share one limit of bytes.
        while position is not None and not matches.is_full:
            if matches.searched >= MOST_SEARCHED // len(opened):
                break
            position = await garbage.in_thread(partial(matches.step, log.stream, position))
        await garbage.in_thread(partial(newest.add, matches, position or 0))

    def page() -> bytes:
        matches, reached = newest.lines()
        return selection.encoded(
            LogLines(
                lines=list(merged(matches)),
                before=",".join(map(str, reached)) if any(reached) else "",
                searched=newest.searched,
            )
        )

    return HandlerReply(body=await garbage.in_thread(page))


def _check(request: Request) -> None:
    kind = request.query.text("type")
    if kind not in ("", *KINDS):
        raise Malformed(
            f"type = {kind!r} is not a stream: use stdout or stderr, or omit type for both"
        )
    key = request.namespace, request["job_id"]
    if request.parts.store.read(lambda db: job_status.load_summary(db, *key)) is None:
        raise NotFound("job not found")


def _check_pairs(request: Request, *, follow: bool) -> None:
    """Raise `Malformed` for parameters that contradict each other."""
    query = request.query
    if query.text("at"):
        raise Malformed('"at" is a position in the log of one task: give "before" or "after"')
    if query.text("before") and (follow or query.text("after")):
        raise Malformed(
            f'"before" cannot be combined with "{"follow" if follow else "after"}": omit one of them'
        )
    if follow and query.text("lines"):
        raise Malformed(
            '"lines" cannot be combined with "follow", which returns every line: omit one of them'
        )


async def _requested_streams(request: Request) -> _Selection:
    """Return the requested streams. Raises `Malformed` for an unknown task."""
    selection, task = await _select(request), request.query.text("task")
    if task and task not in selection.known:
        task_names = ", ".join(selection.known) or "none"
        raise Malformed(f"the job has no task {task!r}; its tasks are {task_names}")
    return selection


async def _select(request: Request) -> _Selection:
    """Select the streams of the newest allocations with stored logs.

    At most `_MOST_STREAMS` streams are selected. An older allocation is left out if not all its
    requested streams can be added.
    """
    store, kind = request.parts.store, request.query.text("type")
    kinds, task_name = (kind,) if kind else KINDS, request.query.text("task")
    newest = await store.read_any(partial(_newest, request=request))
    chosen: list[list[_Stream]] = []  # streams of each allocation, newest allocation first
    ended, read_count, omitted_tasks = True, 0, 0
    capacity = _MOST_STREAMS // len(kinds)  # tasks whose streams can still be selected
    for alloc, tasks in newest.found:
        matching_tasks = [
            (index, task) for index, task in enumerate(tasks) if task_name in ("", task)
        ]
        if len(matching_tasks) > capacity and chosen:
            break
        await trio.lowlevel.checkpoint()
        read_count += 1
        if not matching_tasks:
            continue
        try:
            source = await source_of_tasks(request, alloc, tasks)
        except NotFound:  # they were deleted
            continue
        omitted_tasks, matching_tasks = (
            max(0, len(matching_tasks) - capacity),
            matching_tasks[:capacity],
        )
        capacity -= len(matching_tasks)
        ended = ended and all(task_has_ended(alloc, task) for _, task in matching_tasks)
        streams = []
        for index, task in matching_tasks:
            for stream in kinds:
                find = partial(attempt_ends, alloc_id=alloc.id, task=task, kind=stream)
                name = f"{alloc.id[:_SHOWN]}.{index}{stream[3]}"
                streams.append(_Stream(name, source, task, stream, await store.read_any(find)))
                await trio.lowlevel.checkpoint()
        chosen.append(streams)
    return _Selection(
        index=newest.index,
        streams=[stream for streams in reversed(chosen) for stream in streams],
        ended=ended,
        known=newest.known,
        allocations=len(chosen),
        omitted_allocations=newest.total - read_count,
        omitted_tasks=omitted_tasks,
    )


def _newest(db: ReadSnapshot, request: Request) -> _Newest:
    """Find the newest allocations; each version of the job is decoded once."""
    key, task_name = (request.namespace, request["job_id"]), request.query.text("task")
    page = allocations.job_page(db, *key, PageRequest(namespace="*", reverse=True))
    versions: dict[int, dict[str, dict[str, LogConfig]]] = {}
    newest: list[tuple[Allocation, dict[str, LogConfig]]] = []
    task_names: dict[str, None] = {}  # task names, in order, without duplicates
    for alloc in islice(page, _MOST_ALLOCATIONS):
        if alloc.job_version not in versions:
            job = jobs.version(db, *key, alloc.job_version)
            groups = (job.task_groups if job else None) or ()
            versions[alloc.job_version] = {group.name: log_configs(group) for group in groups}
        tasks = versions[alloc.job_version].get(alloc.task_group, {})
        newest.append((alloc, tasks))
        task_names |= dict.fromkeys(tasks)
    if task_name and task_name not in task_names:
        task_names |= dict.fromkeys(tasks_of_current_version(db, *key))
    total = sum(allocations.numbers(db, *key).values())
    return _Newest(allocations.highest_index(db, *key), total, newest, list(task_names))


async def _opened(request: Request, selection: _Selection) -> list[OpenedStream]:
    logs = []
    for stream in selection.streams:
        log = stream.source.log(stream.task, stream.kind)
        logs.append(await open_dated(request, log, stream.name, stream.ends))
        await trio.lowlevel.checkpoint()
    return logs


def _positions(request: Request, name: str) -> dict[str, int]:
    """Return the positions in a cursor; empty without a cursor. Raises `Malformed`."""
    text = request.query.text(name)
    positions: dict[str, int] = {}
    for part in text.split(",") if text else ():
        match = _POSITION.fullmatch(part)
        if match is None:
            raise Malformed(f"{name} = {text[:40]!r} is not a cursor: use one from a response")
        if match[1] in positions:
            raise Malformed(f"{name} has {match[1]} twice: use a cursor from a response")
        positions[match[1]] = int(match[2])
    return positions


def _begins(streams: Iterable[OpenedStream], known_positions: dict[str, int]) -> list[int]:
    """Return the position from which to read each stream: its known position, or its start."""
    return [
        known_positions[stream.kind] if stream.kind in known_positions else stream.stream.span()[0]
        for stream in streams
    ]


def _end_positions(streams: Iterable[OpenedStream]) -> list[int]:
    return [stream.stream.span()[1] for stream in streams]


def _may_grow(request: Request) -> bool:
    key = request.namespace, request["job_id"]
    row = request.parts.store.read(lambda db: job_status.load_summary(db, *key))
    return row is not None and row["status"] != JobStatus.DEAD


async def _follow(
    request: Request, selection: _Selection, known_positions: dict[str, int]
) -> AsyncGenerator[bytes, None]:
    """Yield responses with the log after a cursor until the job has ended, each on its own line."""
    store, key = request.parts.store, (request.namespace, request["job_id"])
    unfinished_known = ""  # the unfinished lines that the reader knows
    with register_follower() as pace:
        while True:
            # Check this before the last read, so that no line is missed.
            over = not _may_grow(request)
            index = await store.read_any(lambda db: allocations.highest_index(db, *key))
            if index != selection.index:
                selection = await _select(request)
            over = over and selection.ended
            opened = await _opened(request, selection)
            update = await garbage.in_thread(
                partial(_update, selection, opened, known_positions, unfinished_known)
            )
            if update.answer:
                pace.reset()
                # An allocation may drop out of the newest ones and become one of them again. So its
                # positions are kept.
                known_positions, unfinished_known = known_positions | update.known, update.rest
                yield update.answer
                continue
            if over:
                yield await garbage.in_thread(partial(_last, selection, opened, known_positions))
                return
            await pace.wait()
            if pace.needs_keepalive():
                yield b"{}\n"


def _update(
    selection: _Selection,
    streams: list[OpenedStream],
    known_positions: dict[str, int],
    unfinished_known: str,
) -> _Update:
    """Return the lines after `known_positions`, and the new positions. Runs in a thread.

    `unfinished_known` is the unfinished text that the client has already received.
    """
    positions = _begins(streams, known_positions)
    page = page_after(streams, positions, _FOLLOWED)
    unfinished = "\n".join(line.text for line in page.lines if line.unfinished)
    reached = [int(part) for part in page.after.split(",")] if page.after else []
    if not page.lines or (reached == positions and unfinished == unfinished_known):
        return _Update(b"", known_positions, unfinished_known)
    names = (stream.kind for stream in streams)
    return _Update(
        selection.encoded(page) + b"\n", dict(zip(names, reached, strict=True)), unfinished
    )


def _last(
    selection: _Selection, streams: list[OpenedStream], known_positions: dict[str, int]
) -> bytes:
    """Return the response that ends a stream. It has no lines, and `ended` is true.

    Runs in a thread.
    """
    positions = ",".join(map(str, _begins(streams, known_positions)))
    page = LogLines(lines=[], before=positions, after=positions)
    return selection.encoded(page, ended=True) + b"\n"
