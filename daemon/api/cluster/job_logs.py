"""Merged logs of all allocations of a job, each line with its allocation and task.

Existing lines are merged by time (`log_lines.py`). New output follows in the order of its arrival,
including the output of allocations that start later. The number of logs is limited: only the newest
allocations are shown, and the response states how many allocations are left out.
"""

import heapq
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from itertools import islice, takewhile

import msgspec
import trio

from daemon.api.cluster.log_lines import (
    MOST_LINES,
    LogSection,
    Tail,
    attempt_before,
    attempt_ends,
    dates,
    ended_before,
)
from daemon.api.cluster.log_sources import (
    has_ended,
    log_configs,
    source_of_tasks,
    tasks_of_current_version,
)
from daemon.api.cluster.logs import parse_flag, parse_number, parse_origin
from daemon.runner.core.poll_interval import register_follower
from daemon.runner.core.task_log import TaskLog
from daemon.web.reply import TEXT, HandlerReply
from daemon.web.request import Request
from daemon.web.stream_auth import while_authorized
from storage.errors import Malformed, NotFound
from storage.queries import allocations, job_status, jobs
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation
from storage.records.job import JobStatus
from storage.records.task import LogConfig

OMITTED_HEADER = "X-Steward-Omitted-Allocations"
_CHUNK = 64 * 1024  # bytes of a log per read
_LEAST_CHUNK = 4 * 1024  # lower limit when many logs are merged
_AT_ONCE = 4 * 1024 * 1024  # bytes of all logs together
_LEAST_LINES = 100  # lower limit of lines per read when many logs are merged
_LINES_AT_ONCE = 32_000  # lines of all logs together
_MOST_STREAMS = 256  # logs that are open at the same time
_MOST_ALLOCATIONS = 128  # newest allocations whose logs are shown
_OMITTED = b"--- %d older allocations are omitted: select one of them by its ID ---\n"
_SHOWN = 8  # characters of an allocation ID

Key = tuple[str, str, str]  # allocation, task, kind


class _Newest(msgspec.Struct, frozen=True, kw_only=True):
    """The newest allocations with the log configuration of their tasks, newest first.

    `begin` is the position of the oldest of these allocations in the creation order. `omitted` is
    the number of still older allocations. `known` has the names of the job's tasks.
    """

    found: deque[tuple[Allocation, dict[str, LogConfig]]]
    ids: set[str]
    begin: tuple[int, str]
    omitted: int
    known: list[str]


class LogSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The selection of lines: task, streams, text, and start.

    `since` is a time (nanoseconds since the epoch). `previous` selects the attempt before the
    current one. `alloc_id` selects one allocation; if it is empty, all are selected. If `labels` is
    false, lines are not labeled with their allocation and task.
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
    log_selection = LogSelection(
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
    if log_selection.previous and log_selection.follow:
        raise Malformed("follow = true and previous = true contradict each other: set only one")
    merged = MergedLogs(request, log_selection)
    if not merged.is_known:
        raise NotFound("job not found")
    await merged.find_more()  # now, so that an error can replace the response
    chunks = merged.pieces()
    return HandlerReply(
        stream=while_authorized(request, chunks) if log_selection.follow else chunks,
        is_endless=log_selection.follow,
        content_type=TEXT,
        headers={OMITTED_HEADER: str(merged.omitted)} if merged.omitted else {},
    )


class MergedLogs:
    """The logs of one job during a request."""

    def __init__(self, request: Request, selection: LogSelection) -> None:
        self._request, self._store = request, request.parts.store
        self._job = (request.namespace, request["job_id"])
        self._wanted = selection
        self._open: dict[Key, Tail] = {}
        self._seen: set[str] = set()  # IDs of allocations whose logs were opened
        self._from = (0, "")  # position in the creation order; older allocations are not shown
        self._index = -1  # index of the allocations at the last check
        self._waiting = 0  # new allocations wait until fewer logs than this are open
        self.omitted = 0  # allocations whose logs are not shown, or not all

    @property
    def is_known(self) -> bool:
        """Return whether the job exists."""
        return self._store.read(lambda db: job_status.load_summary(db, *self._job)) is not None

    @property
    def _may_grow(self) -> bool:
        row = self._store.read(lambda db: job_status.load_summary(db, *self._job))
        return bool(self._open) or (row is not None and row["status"] != JobStatus.DEAD)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the existing lines, and with `follow` also new output."""
        with register_follower() as pace:
            await self.find_more()
            if self.omitted and self._wanted.labels:
                yield _OMITTED % self.omitted
            async with aclosing(self._merged([*self._open.values()])) as past:
                async for chunk in past:
                    pace.reset()
                    yield chunk
            while self._wanted.follow and self._may_grow:
                for key, tail in [*self._open.items()]:
                    # This check comes before the last read, so that no output is missed.
                    over = tail.is_over()
                    while await tail.pull(_CHUNK, is_last=over):
                        pace.reset()
                        if chunk := tail.take():
                            yield chunk
                        await trio.lowlevel.checkpoint()
                    if chunk := tail.take():
                        yield chunk
                    await trio.lowlevel.checkpoint()
                    if over:
                        del self._open[key]
                await pace.wait()
                await self.find_more()

    async def _merged(self, tails: list[Tail]) -> AsyncGenerator[bytes, None]:
        """Yield the existing lines, merged by time."""
        read = partial(
            _fill,
            most=min(_CHUNK, max(_LEAST_CHUNK, _AT_ONCE // (len(tails) or 1))),
            lines=min(MOST_LINES, max(_LEAST_LINES, _LINES_AT_ONCE // (len(tails) or 1))),
            is_last=not self._wanted.follow,
        )
        # a heap of the time of the next line, and the number of its log
        coming: list[tuple[int, int]] = []
        for index, tail in enumerate(tails):
            if await read(tail):
                heapq.heappush(coming, (tail.queue[0].time, index))
        while coming:
            _, index = heapq.heappop(coming)
            tail = tails[index]
            yield tail.take(coming[0][0] if coming else None)
            if tail.queue or await read(tail):
                heapq.heappush(coming, (tail.queue[0].time, index))
            await trio.lowlevel.checkpoint()

    async def find_more(self) -> None:
        """Open the logs of new allocations, and let other tasks of the event loop run in between.

        The newest allocations come first. New allocations beyond the limit wait until other logs
        have ended.
        """
        index = await self._store.read_any(lambda db: allocations.highest_index(db, *self._job))
        if index == self._index and len(self._open) >= self._waiting:
            return
        is_first = self._index < 0
        newest = await self._store.read_any(self._newest)
        self._index, self._waiting = index, 0
        self._from, self._seen = newest.begin, self._seen & newest.ids
        opened: list[tuple[Key, Tail]] = []  # newest allocation first
        while newest.found:  # each is dropped separately, because freeing many at a time takes long
            allocation, tasks = newest.found.popleft()
            await trio.lowlevel.checkpoint()
            if allocation.id in self._seen:
                continue
            logs = await self._logs(allocation, tasks)
            used = len(self._open) + len(opened)
            if len(logs) > _MOST_STREAMS - used and used and not is_first:
                self._waiting = len(self._open) + len(opened)
                break
            self._seen.add(allocation.id)
            if len(logs) > _MOST_STREAMS - used:
                self.omitted += 1
                if used:
                    self.omitted += len(newest.found)
                    self._seen |= newest.ids
                    break
            tails = []
            for key, log in logs[:_MOST_STREAMS]:
                if (tail := await self._tail(allocation, key, log)) is not None:
                    tails.append((key, tail))
            opened += reversed(tails)
        if is_first:
            self.omitted += newest.omitted
            self._check_task(newest.known)
        self._open.update(reversed(opened))

    def _check_task(self, task_names: list[str]) -> None:
        task = self._wanted.task
        if task and task not in task_names:
            listed = ", ".join(task_names) or "none"
            raise Malformed(f"the job has no task {task!r}; its tasks are {listed}")

    def _newest(self, db: ReadSnapshot) -> _Newest:
        """Find the newest selected allocations; each version of the job is decoded once.

        At the first call, raises `NotFound` if the job does not have the selected allocation.
        """
        if self._wanted.alloc_id:
            alloc = allocations.find(db, self._wanted.alloc_id)
            is_known = alloc is not None and (alloc.namespace, alloc.job_id) == self._job
            if not is_known and self._index < 0:
                raise NotFound(f"the job has no allocation {self._wanted.alloc_id!r}")
            page = iter([alloc] if alloc is not None and is_known else [])
        else:
            page = allocations.job_page(db, *self._job, PageRequest(namespace="*", reverse=True))
        new: Iterator[Allocation] = takewhile(
            lambda alloc: (alloc.create_index, alloc.id) >= self._from, page
        )
        if self._wanted.previous:
            new = (alloc for alloc in new if not alloc.desired.next_allocation)
        versions: dict[int, dict[str, dict[str, LogConfig]]] = {}
        newest: deque[tuple[Allocation, dict[str, LogConfig]]] = deque()
        task_names: dict[str, None] = {}  # task names, in order, without duplicates
        for alloc in islice(new, _MOST_ALLOCATIONS):
            if alloc.job_version not in versions:
                job = jobs.version(db, *self._job, alloc.job_version)
                groups = (job.task_groups if job else None) or ()
                versions[alloc.job_version] = {group.name: log_configs(group) for group in groups}
            tasks = versions[alloc.job_version].get(alloc.task_group, {})
            newest.append((alloc, tasks))
            task_names |= dict.fromkeys(tasks)
        if self._wanted.task and self._wanted.task not in task_names:
            task_names |= dict.fromkeys(tasks_of_current_version(db, *self._job))
        is_full = len(newest) == _MOST_ALLOCATIONS
        return _Newest(
            found=newest,
            ids={alloc.id for alloc, _ in newest},
            begin=(newest[-1][0].create_index, newest[-1][0].id) if is_full else self._from,
            omitted=sum(1 for _ in new) if is_full else 0,
            known=list(task_names),
        )

    async def _logs(
        self, allocation: Allocation, tasks: dict[str, LogConfig]
    ) -> list[tuple[Key, TaskLog]]:
        try:
            source = await source_of_tasks(self._request, allocation, tasks)
        except NotFound:  # the logs were deleted
            return []
        return [
            ((allocation.id, task, kind), source.log(task, kind))
            for task in source.tasks
            for kind in self._wanted.kinds
            if self._wanted.task in ("", task)
        ]

    async def _tail(self, allocation: Allocation, key: Key, log: TaskLog) -> Tail | None:
        """Return a reader for the selected part of a log, or None if no part is selected."""
        selection, (alloc_id, task, kind) = self._wanted, key
        if selection.since and ended_before(allocation, task, selection.since):
            return None
        section = None
        if selection.previous:
            before = partial(attempt_before, allocation=allocation, task=task, kind=kind)
            earlier = await self._store.read_any(before)
            if earlier is None:
                return None
            log, section = log.of(earlier.alloc_id), earlier.stretch
        ends = await self._store.read_any(
            partial(attempt_ends, alloc_id=log.place[0], task=task, kind=kind)
        )
        stream = await log.current()
        written = dates(ends, log, stream, self._request.parts.clock.now())
        if section is None:
            begin = stream.locate(selection.begin, selection.offset)
            skipped = written.since(selection.since) if selection.since else 0
            section = LogSection(max(begin, skipped), None)
        return Tail(
            label=f"{log.place[0][:_SHOWN]} {task} | ".encode() if selection.labels else b"",
            log=log,
            section=section,
            contains=selection.contains,
            since=selection.since,
            dates=written,
            is_over=lambda: has_ended(self._store, alloc_id, task),
        )


async def _fill(tail: Tail, *, most: int, lines: int, is_last: bool) -> bool:
    """Read from a log until its queue has lines, or until its end; return whether it has lines.

    Each read gets up to `most` bytes and `lines` lines. `is_last` means that the log no longer
    grows.
    """
    while not tail.queue and await tail.pull(most, is_last=is_last, lines=lines):
        await trio.lowlevel.checkpoint()
    return bool(tail.queue)
