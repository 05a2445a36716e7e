"""Merged logs of all allocations of a job, each line with its allocation and task.

Existing lines are merged by time (`log_lines.py`). New output follows in the order of its arrival,
including the output of allocations that start later.
"""

import heapq
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import msgspec
import trio

from daemon.api.cluster.log_lines import (
    LogSection,
    Tail,
    attempt_before,
    attempt_ends,
    dates,
    ended_before,
)
from daemon.api.cluster.log_sources import has_ended, sources_of_group
from daemon.api.cluster.logs import parse_flag, parse_number, parse_origin
from daemon.api.cluster.lookup import resolve_allocation
from daemon.runner.core.poll_interval import register_follower
from daemon.runner.core.task_log import TaskLog
from daemon.web.reply import TEXT, HandlerReply
from daemon.web.request import Request
from daemon.web.stream_auth import while_authorized
from storage.errors import Malformed, NotFound
from storage.queries import allocations, jobs
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation
from storage.records.job import JobStatus

_CHUNK = 64 * 1024  # bytes of a log per read
_LEAST_CHUNK = 4 * 1024  # lower limit when many logs are merged
_AT_ONCE = 4 * 1024 * 1024  # bytes of all logs together
_SHOWN = 8  # characters of an allocation ID

Key = tuple[str, str, str]  # allocation, task, kind


class LogSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The selection of lines: task, streams, text, and start.

    `since` is a time (nanoseconds since the epoch). `previous` selects the attempt before the
    current one. `alloc_id` selects one allocation, empty means all. Without `labels`, lines are
    unchanged.
    """

    task: str
    kinds: tuple[str, ...]
    contains: bytes
    begin: str
    offset: int
    follow: bool
    since: int
    previous: bool
    alloc_id: str
    labels: bool


async def stream_job_logs(request: Request) -> HandlerReply:
    """Show the logs of a job's allocations; with `follow`, stream new output."""
    query = request.query
    kind = query.text("type")
    if kind not in ("", "stdout", "stderr"):
        raise Malformed("must provide log type (stdout/stderr), or none for both")
    wanted = LogSelection(
        task=query.text("task"),
        kinds=(kind,) if kind else ("stdout", "stderr"),
        contains=query.text("contains").encode(),
        begin=parse_origin(query),
        offset=parse_number(query, "offset"),
        follow=parse_flag(query, "follow"),
        since=parse_number(query, "since"),
        previous=parse_flag(query, "previous"),
        alloc_id=query.text("allocation"),
        labels="labels" not in query or parse_flag(query, "labels"),
    )
    if wanted.previous and wanted.follow:
        raise Malformed("the attempt before has ended: follow or previous, not both")
    merged = MergedLogs(request, wanted)
    if not merged.is_known:
        raise NotFound("job not found")
    await merged.find_more()  # before the response begins, so that an error can replace it
    pieces = merged.pieces()
    return HandlerReply(
        stream=while_authorized(request, pieces) if wanted.follow else pieces,
        is_endless=wanted.follow,
        content_type=TEXT,
    )


class MergedLogs:
    """The logs of one job during a request."""

    def __init__(self, request: Request, wanted: LogSelection) -> None:
        self._request, self._store = request, request.parts.store
        self._job = (request.namespace, request["job_id"])
        self._wanted = wanted
        self._open: dict[Key, Tail] = {}
        self._seen: set[Key] = set()
        self._index = -1  # of the allocations at the last check

    @property
    def is_known(self) -> bool:
        """Return whether the job exists."""
        return self._store.read(lambda db: jobs.current(db, *self._job)) is not None

    @property
    def _may_grow(self) -> bool:
        job = self._store.read(lambda db: jobs.current(db, *self._job))
        return bool(self._open) or (job is not None and job.status != JobStatus.DEAD)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the lines."""
        with register_follower() as pace:
            await self.find_more()
            async with aclosing(self._merged([*self._open.values()])) as past:
                async for piece in past:
                    pace.hurry()
                    yield piece
            while self._wanted.follow and self._may_grow:
                for key, tail in [*self._open.items()]:
                    # This check comes before the last read, so that no output is missed.
                    over = tail.is_over()
                    while await tail.pull(_CHUNK, is_last=over):
                        pace.hurry()
                        if piece := tail.take():
                            yield piece
                        await trio.lowlevel.checkpoint()
                    if piece := tail.take():
                        yield piece
                    await trio.lowlevel.checkpoint()
                    if over:
                        del self._open[key]
                await pace.rest()
                await self.find_more()

    async def _merged(self, tails: list[Tail]) -> AsyncGenerator[bytes, None]:
        """Yield the existing lines, merged by time."""
        is_last = not self._wanted.follow
        most = min(_CHUNK, max(_LEAST_CHUNK, _AT_ONCE // (len(tails) or 1)))
        # a heap of the time of the next line, and the number of its log
        coming: list[tuple[int, int]] = []
        for place, tail in enumerate(tails):
            if await _fill(tail, most, is_last=is_last):
                heapq.heappush(coming, (tail.queue[0].time, place))
        while coming:
            _, place = heapq.heappop(coming)
            tail = tails[place]
            yield tail.take(coming[0][0] if coming else None)
            if tail.queue or await _fill(tail, most, is_last=is_last):
                heapq.heappush(coming, (tail.queue[0].time, place))
            await trio.lowlevel.checkpoint()

    async def find_more(self) -> None:
        """Open the logs of new allocations, with pauses for other tasks of the event loop."""
        index = await self._store.look(lambda db: allocations.highest_index(db, *self._job))
        if index == self._index:
            return
        self._index = index
        found = await self._store.look(self._every)
        while found:  # each is dropped separately, because freeing many at a time takes long
            allocation = found.popleft()
            await trio.lowlevel.checkpoint()
            for key, log in await self._logs(allocation):
                if key in self._seen:
                    continue
                self._seen.add(key)
                if (tail := await self._tail(allocation, key, log)) is not None:
                    self._open[key] = tail

    def _every(self, db: ReadSnapshot) -> deque[Allocation]:
        """Return the selected allocations of the job, oldest first."""
        wanted = self._wanted.alloc_id
        found = [one for one in allocations.of_job(db, *self._job) if wanted in ("", one.id)]
        if self._wanted.previous:
            found = [one for one in found if not one.desired.next_allocation]
        return deque(sorted(found, key=lambda one: one.create_index))

    async def _logs(self, allocation: Allocation) -> list[tuple[Key, TaskLog]]:
        _, group = self._store.read(partial(resolve_allocation, alloc_id=allocation.id))
        try:
            source = await sources_of_group(self._request, allocation, group)
        except NotFound:  # the logs were deleted
            return []
        return [
            ((allocation.id, task, kind), source.log(task, kind))
            for task in source.tasks
            for kind in self._wanted.kinds
            if self._wanted.task in ("", task)
        ]

    async def _tail(self, allocation: Allocation, key: Key, log: TaskLog) -> Tail | None:
        """Return a log for reading, or None if nothing of it is selected."""
        wanted, (alloc_id, task, kind) = self._wanted, key
        if wanted.since and ended_before(allocation, task, wanted.since):
            return None
        stretch = None
        if wanted.previous:
            before = partial(attempt_before, allocation=allocation, task=task, kind=kind)
            found = await self._store.look(before)
            if found is None:
                return None
            log, stretch = log.of(found.alloc_id), found.stretch
        ends = await self._store.look(
            partial(attempt_ends, alloc_id=log.place[0], task=task, kind=kind)
        )
        stream = await log.look()
        written = dates(ends, log, stream, self._request.parts.clock.now())
        if stretch is None:
            begin = stream.locate(wanted.begin, wanted.offset)
            skipped = written.since(wanted.since) if wanted.since else 0
            stretch = LogSection(max(begin, skipped), None)
        return Tail(
            label=f"{log.place[0][:_SHOWN]} {task} | ".encode() if wanted.labels else b"",
            log=log,
            stretch=stretch,
            contains=wanted.contains,
            since=wanted.since,
            dates=written,
            is_over=lambda: has_ended(self._store, alloc_id, task),
        )


async def _fill(tail: Tail, most: int, *, is_last: bool) -> bool:
    """Read until there are lines, or until the end; return whether there are lines."""
    while not tail.queue and await tail.pull(most, is_last=is_last):
        await trio.lowlevel.checkpoint()
    return bool(tail.queue)
