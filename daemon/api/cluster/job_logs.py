"""What all allocations of a job print, line by line, each behind the allocation and the task it is of.

The logs of allocations that have ended come first, the oldest first; those that still grow are
mixed as they grow, and so are those of allocations that begin meanwhile.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import trio

from daemon.api.cluster.find import find_group
from daemon.api.cluster.log_sources import has_ended, of_group
from daemon.api.cluster.logs import flag, number, origin
from daemon.runner import kept_logs
from daemon.runner.logs import Chunk, TaskLog
from daemon.runner.pace import following
from daemon.web.readers import while_known
from daemon.web.reply import TEXT, Reply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound
from storage.queries import allocations, jobs
from storage.readers import Snapshot
from storage.records.allocation import Allocation
from storage.records.job import JobStatus
from storage.records.task import LogConfig

_LONGEST = 64 * 1024  # bytes of a line that is waited for; a longer one is cut
_SHOWN = 8  # digits of an allocation

Key = tuple[str, str, str]  # allocation, task, kind
Find = Callable[[], TaskLog]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines are wanted: of one task or all, of these kinds, with this text; and from where."""

    task: str
    kinds: tuple[str, ...]
    contains: bytes
    begin: str
    offset: int
    follow: bool


async def show(request: Request) -> Reply:
    """Show what the allocations of a job have printed, and go on when `follow` says so."""
    query = request.query
    kind = query.text("type")
    if kind not in ("", "stdout", "stderr"):
        raise Malformed("must provide log type (stdout/stderr), or none for both")
    wanted = Wanted(
        task=query.text("task"),
        kinds=(kind,) if kind else ("stdout", "stderr"),
        contains=query.text("contains").encode(),
        begin=origin(query),
        offset=number(query, "offset"),
        follow=flag(query, "follow"),
    )
    merged = Merged(request, wanted)
    if not merged.is_known:
        raise NotFound("job not found")
    pieces = merged.pieces()
    return Reply(
        stream=while_known(request, pieces) if wanted.follow else pieces,
        is_endless=wanted.follow,
        content_type=TEXT,
    )


class Merged:
    """The logs of one job while somebody reads them."""

    def __init__(self, request: Request, wanted: Wanted) -> None:
        self._store, self._config = request.parts.store, request.parts.config
        self._job = (request.namespace, request["job_id"])
        self._wanted = wanted
        self._open: dict[Key, Tail] = {}
        self._seen: set[Key] = set()
        self._index = -1  # of the allocations when they were last looked at

    @property
    def is_known(self) -> bool:
        """Tell whether there is such a job."""
        return self._store.read(lambda db: jobs.current(db, *self._job)) is not None

    @property
    def _may_grow(self) -> bool:
        job = self._store.read(lambda db: jobs.current(db, *self._job))
        return bool(self._open) or (job is not None and job.status != JobStatus.DEAD)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the lines."""
        with following() as pace:
            while True:
                await self._find_more()
                for key, tail in [*self._open.items()]:
                    # Asked before the last reading, so that nothing is missed.
                    over = tail.is_over()
                    for piece in tail.pieces(is_last=over or not self._wanted.follow):
                        pace.hurry()
                        if piece:
                            yield piece
                        await trio.lowlevel.checkpoint()
                    await trio.lowlevel.checkpoint()
                    if over:
                        del self._open[key]
                if not (self._wanted.follow and self._may_grow):
                    return
                await pace.rest()

    async def _find_more(self) -> None:
        """Open the logs of allocations that were not there before; others have turns in between."""
        index = await self._store.look(lambda db: allocations.highest_index(db, *self._job))
        if index == self._index:
            return
        self._index = index
        found = await self._store.look(self._every)
        while found:  # each is let go of by itself: many at once take long
            allocation = found.popleft()
            await trio.lowlevel.checkpoint()
            for key, find in self._logs(allocation):
                if key not in self._seen:
                    self._seen.add(key)
                    self._open[key] = self._tail(key, find)

    def _every(self, db: Snapshot) -> deque[Allocation]:
        """Return the allocations of the job, oldest first."""
        found = allocations.of_job(db, *self._job)
        return deque(sorted(found, key=lambda one: one.create_index))

    def _logs(self, allocation: Allocation) -> Iterator[tuple[Key, Find]]:
        alloc_id = allocation.id
        _, group = self._store.read(partial(find_group, alloc_id=alloc_id))
        try:
            source = of_group(allocation, group, self._directory(alloc_id))
        except NotFound:  # they are not kept any more
            return
        for task, config in source.tasks.items():
            for kind in self._wanted.kinds:
                if self._wanted.task in ("", task):
                    yield (alloc_id, task, kind), partial(self._log, alloc_id, task, kind, config)

    def _directory(self, alloc_id: str) -> Path:
        return kept_logs.directory_of(self._config.alloc_dir, self._config.logs_dir, alloc_id)

    def _log(self, alloc_id: str, task: str, kind: str, config: LogConfig) -> TaskLog:
        return TaskLog(str(self._directory(alloc_id)), task, kind, config)

    def _tail(self, key: Key, find: Find) -> "Tail":
        alloc_id, task, _ = key
        return Tail(
            label=f"{alloc_id[:_SHOWN]} {task} | ".encode(),
            find=find,
            position=find().locate(self._wanted.begin, self._wanted.offset),
            contains=self._wanted.contains,
            is_over=lambda: has_ended(self._store, alloc_id, task),
        )


class Tail:
    """One log as it is read: in whole lines. `find` returns it where it lies at the moment."""

    def __init__(
        self,
        *,
        label: bytes,
        find: Find,
        position: int,
        contains: bytes,
        is_over: Callable[[], bool],
    ) -> None:
        self.is_over = is_over
        self._label, self._contains = label, contains
        self._find, self._log, self._position = find, find(), position
        self._rest = b""

    def pieces(self, *, is_last: bool) -> Iterator[bytes]:
        """Yield the lines that are there; the last one has no end, unless more may come."""
        while (chunk := self._next()) is not None:
            self._position = chunk.end
            *lines, self._rest = (self._rest + chunk.data).split(b"\n")
            if len(self._rest) > _LONGEST:
                lines, self._rest = [*lines, self._rest], b""
            yield self._shown(lines)  # also nothing: so that others have their turn in between
        if is_last and self._rest:
            lines, self._rest = [self._rest], b""
            if text := self._shown(lines):
                yield text

    def _next(self) -> Chunk | None:
        """Return what comes next, also of logs that were put aside since they were found."""
        chunk = self._log.read(self._position)
        if chunk is None and (found := self._find()).path != self._log.path:
            self._log = found
            chunk = found.read(self._position)
        return chunk

    def _shown(self, lines: list[bytes]) -> bytes:
        return b"".join(b"%b%b\n" % (self._label, line) for line in lines if self._contains in line)
