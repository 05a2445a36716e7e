"""Task output: its file on disk, and its view as the numbered files that clients expect.

A task writes directly to one file, opened for append, that is never replaced. Clients see the
content of this file as numbered files `<task>.stdout.0`, `.1`, … of `max_file_size_mb` each; the
last `max_files` are retained. `rotation.py` removes earlier data by punching a hole, which
preserves offsets. On file systems without hole punching, it moves retained data into files of the
daemon, which are named by their start offset.

The launcher opens the task's file without following links. While the task runs, a limited number of
descriptors is cached for the next readers.
"""

import errno
import os
import resource
import stat
from array import array
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Literal, cast

import msgspec
import trio

from daemon.launcher.client import Launcher
from daemon.launcher.messages import OpenLog
from daemon.runner.core.opened_files import OpenedFile
from daemon.runner.core.poll_interval import register_follower
from daemon.runner.core.task_dir import SHARED, can_name
from storage.records.task import LogConfig, Task

_MEGABYTE = 1024 * 1024
_CHUNK = 64 * 1024  # bytes that a follower gets in one chunk, as in Nomad
_MOST_MARKS = 128  # marks per log
_MOST_MARKED = 2000  # logs with marks at the same time
_PART = 4  # logs may use 1/4 of the daemon's file descriptors
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW

Place = tuple[str, str, str]  # allocation, task, and stdout or stderr


class LogFile(msgspec.Struct, frozen=True):
    """A numbered log file as clients see it: a range of the stream with its start offset."""

    name: str
    start: int
    size: int


class LogChunk(msgspec.Struct, frozen=True):
    """Bytes of a numbered file, with their end offsets in that file and in the stream."""

    file: str
    offset: int
    data: bytes
    end: int


class LogSegment(msgspec.Struct, frozen=True):
    """A file on disk with stream data from offset `start`; the task's file has an empty `path`."""

    path: str
    start: int
    size: int

    @property
    def end(self) -> int:
        """Return the offset after the last byte of the segment."""
        return self.start + self.size


_NOTHING = LogSegment("", 0, 0)


class Marks:
    """Lengths of a log over time, recorded each second; older marks are further apart."""

    def __init__(self) -> None:
        self.times = array("q")  # nanoseconds since the epoch
        self.ends = array("q")

    def note(self, now: int, end: int) -> None:
        """Record the length of a log at the time `now`."""
        if self.ends and end <= self.ends[-1]:
            return
        self.times.append(now)
        self.ends.append(end)
        if len(self.ends) > _MOST_MARKS:
            # If a position has no mark, the next mark counts, so that no line appears older than it
            # is.
            del self.times[: _MOST_MARKS // 2 : 2]
            del self.ends[: _MOST_MARKS // 2 : 2]


class Logs:
    """The logs of all tasks. `moved` contains a directory of rotated data per allocation."""

    def __init__(self, launcher: Launcher, moved: Path, most: int = 0) -> None:
        """Create a cache for up to `most` descriptors; 0 means 1/4 of the process's limit.

        `moved` is the directory for the rotated data of all allocations.
        """
        self.launcher, self.moved = launcher, moved
        self._most = most or resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _PART
        self._open: OrderedDict[Place, OpenedFile] = OrderedDict()
        self._grows: set[Place] = set()  # logs of running tasks
        self._marks: OrderedDict[Place, Marks] = OrderedDict()

    def log(self, alloc_id: str, task: str, kind: str, config: LogConfig) -> "TaskLog":
        """Return a stream of a task's output; `kind` is stdout or stderr."""
        return TaskLog(self, (alloc_id, task, kind), config)

    def moved_names(self, alloc_id: str) -> list[str]:
        """Return the names of the rotated data of an allocation, usually none."""
        try:
            return os.listdir(f"{self.moved}/{alloc_id}")
        except OSError:
            return []

    def of(self, alloc_id: str, task: Task) -> dict[str, "TaskLog"]:
        """Return the streams of a task by kind; empty if the output is discarded."""
        config = task.log_config
        kinds = () if config.disabled else ("stdout", "stderr")
        return {kind: self.log(alloc_id, task.name, kind, config) for kind in kinds}

    async def reading(self, key: Place) -> OpenedFile | None:
        """Return a task's log file, opened for reading, or None if it cannot be opened."""
        opened_file = self._open.pop(key, None)
        if opened_file is None or opened_file.is_gone:
            try:
                opened_file = await self._opened(key, "log")
            except OSError:
                return None
        if key in self._grows:
            self._open[key] = opened_file
        while len(self._open) > self._most:
            self._open.popitem(last=False)
        return opened_file

    async def writing(self, key: Place) -> OpenedFile:
        """Return a task's log file, opened so that the log can be rotated. Raises `OSError`.

        If the file does not exist, it is created.
        """
        return await self._opened(key, "rotate")

    async def _opened(self, key: Place, purpose: Literal["log", "rotate"]) -> OpenedFile:
        alloc_id, task, kind = key
        if not can_name(task):
            raise FileNotFoundError
        kind = cast(Literal["stdout", "stderr"], kind)
        request = OpenLog(allocation=alloc_id, task=task, kind=kind, purpose=purpose)
        return OpenedFile(await self.launcher.open_log(request))

    def marks(self, key: Place) -> Marks:
        """Return the marks of a log. Only the most recently used logs have marks."""
        marks = self._marks.pop(key, None) or Marks()
        self._marks[key] = marks
        while len(self._marks) > _MOST_MARKED:
            self._marks.popitem(last=False)
        return marks

    def grow(self, key: Place, *, grows: bool) -> None:
        """Record whether a log can still grow, and remove its descriptor from the cache.

        The next access opens the file again, because its name may refer to another file by then.
        """
        self._open.pop(key, None)
        (self._grows.add if grows else self._grows.discard)(key)


class TaskLog:
    """One stream of a task's output."""

    def __init__(self, logs: Logs, log_key: Place, config: LogConfig) -> None:
        self._logs, self.place = logs, log_key
        self.limit = max(1, config.max_file_size_mb) * _MEGABYTE
        self.most = max(1, config.max_files)

    def of(self, alloc_id: str) -> "TaskLog":
        """Return the same stream of another allocation."""
        other_log = copy(self)
        other_log.place = (alloc_id, *self.place[1:])
        return other_log

    @property
    def marks(self) -> Marks:
        """Return the marks of the stream."""
        return self._logs.marks(self.place)

    @property
    def kind(self) -> str:
        """Return `stdout` or `stderr`."""
        return self.place[-1]

    @property
    def stem(self) -> str:
        """Return the prefix of the names of the numbered files."""
        return "{1}.{2}".format(*self.place)

    @property
    def rotation_dir(self) -> str:
        """Return the directory of the rotated data of the allocation."""
        return f"{self._logs.moved}/{self.place[0]}"

    def moved_path(self, start: int) -> str:
        """Return the path of rotated data with this start offset."""
        return f"{self.rotation_dir}/{self.stem}.{start}"

    async def current(self) -> "Stream":
        """Return a snapshot of the current files of the stream."""
        return Stream(self, await self._logs.reading(self.place))

    def end_at(self, size: int, moved: Sequence[str]) -> int:
        """Return the end offset of the stream if the task's file has `size` bytes.

        `moved` has the names of the allocation's rotated data, from `Logs.moved_names`.
        """
        return (Stream(self, None).start() if moved else 0) + size

    async def writing(self) -> OpenedFile:
        """Return the task's log file, opened so that the log can be rotated. Raises `OSError`."""
        return await self._logs.writing(self.place)

    def grow(self, *, grows: bool) -> None:
        """Record whether the log can still grow; only descriptors of growing logs are cached."""
        self._logs.grow(self.place, grows=grows)

    @property
    def keeps(self) -> int:
        """Return the maximum number of retained bytes."""
        return self.limit * self.most

    def first_retained(self, end: int) -> int:
        """Return the first retained offset of a stream that ends at `end`."""
        last = max(0, end - 1) // self.limit
        return max(0, last + 1 - self.most) * self.limit

    def name(self, position: int) -> str:
        """Return the name of the numbered file that contains an offset."""
        return f"{SHARED}/logs/{self.stem}.{position // self.limit}"

    async def follow(
        self, position: int, ended: Callable[[], bool]
    ) -> AsyncGenerator[LogChunk | None, None]:
        """Yield the data after an offset, as the task writes it, until the task has ended.

        `ended` returns whether the task has stopped writing. None is yielded when a keep-alive is
        due because no data arrived.
        """
        with register_follower() as pace:
            while True:
                over = ended()  # evaluated before the last read, so that no data is missed
                stream = await self.current()
                while (chunk := await stream.fetch(position)) is not None:
                    position = chunk.end
                    pace.reset()
                    yield chunk
                    await trio.lowlevel.checkpoint()
                if over:
                    return
                await pace.wait()
                if pace.needs_keepalive():
                    yield None


class Stream:
    """A snapshot of the files of a log, for reading."""

    def __init__(self, log: TaskLog, present: OpenedFile | None) -> None:
        self._log, self._present = log, present

    @property
    def facts(self) -> os.stat_result | None:
        """Return the `stat` of the task's file, or None if the file does not exist."""
        return None if self._present is None else os.fstat(self._present.descriptor)

    def pieces(self) -> list[LogSegment]:
        """Return the files on disk in the order of the stream."""
        segments = sorted(self._moved(), key=lambda segment: segment.start)
        start, facts = segments[-1].end if segments else 0, self.facts
        return [*segments, LogSegment("", start, facts.st_size if facts else 0)]

    def start(self) -> int:
        """Return the offset at which the task's file begins."""
        return max(self._moved(), key=lambda segment: segment.start, default=_NOTHING).end

    def _moved(self) -> list[LogSegment]:
        beside, prefix = self._log.rotation_dir, f"{self._log.stem}."
        try:
            names = os.listdir(beside)
        except OSError:
            return []
        return [
            LogSegment(f"{beside}/{name}", int(start), _size(f"{beside}/{name}"))
            for name in names
            if name.startswith(prefix) and (start := name.removeprefix(prefix)).isdecimal()
        ]

    def span(self) -> tuple[int, int]:
        """Return the first readable offset and the end offset."""
        segments = self.pieces()
        return self.first(segments), segments[-1].end

    def first(self, segments: list[LogSegment]) -> int:
        """Return the first retained offset of a stream that consists of these files.

        If the log's limits were lower before, more data was removed. The result is then the first
        offset after the hole.
        """
        oldest, *_, present = (segments[0], *segments)
        first = max(self._log.first_retained(present.end), oldest.start)
        if self._present is None or not present.start <= first < present.end:
            return first
        return present.start + _data_from(self._present.descriptor, first - present.start)

    def numbers(self) -> range:
        """Return the numbers of the numbered files; empty when the task has no log.

        A task can enlarge its log by writing beyond its end, so there may be millions of numbers.
        """
        if self._present is None:
            return range(0)
        first, end = self.span()
        limit = self._log.limit
        begin = first // limit
        return range(begin, max(-(-end // limit), begin + 1))

    def files(self) -> list[LogFile]:
        """Return the numbered files."""
        _, end = self.span()
        return [self._file(number, end) for number in self.numbers()]

    def file(self, number: int) -> LogFile | None:
        """Return a numbered file, or None if it does not exist."""
        _, end = self.span()
        return self._file(number, end) if number in self.numbers() else None

    def _file(self, number: int, end: int) -> LogFile:
        limit = self._log.limit
        start = number * limit
        return LogFile(self._log.name(start), start, min(limit, end - start))

    def locate(self, origin: str, offset: int) -> int:
        """Return a stream offset between the first readable offset and the end offset.

        The result is `offset` bytes before the end if `origin` is `end`, otherwise after the start.
        """
        first, end = self.span()
        return max(first, end - offset) if origin == "end" else min(end, first + offset)

    def read(self, position: int, most: int = _CHUNK) -> LogChunk | None:
        """Return the data at an offset, up to the end of its numbered file; None at the end.

        If the offset is before the retained data, the result begins at the first retained offset.
        """
        segments = self.pieces()
        position = max(position, self.first(segments))
        segment = next(
            (candidate for candidate in segments if candidate.start <= position < candidate.end),
            None,
        )
        if segment is None:
            return None
        limit = self._log.limit
        most = min(most, limit - position % limit)
        data = self.content(segment, position - segment.start, most)
        if not data:
            return None
        end = position + len(data)
        return LogChunk(self._log.name(position), position % limit + len(data), data, end)

    async def fetch(self, position: int, most: int = _CHUNK) -> LogChunk | None:
        """Return the data at an offset as `read` does, possibly in a thread."""
        return self.read(position, most)

    def content(self, segment: LogSegment, offset: int, most: int) -> bytes:
        """Return bytes of a file on disk; empty if the file cannot be read."""
        if not segment.path:
            return os.pread(self._present.descriptor, most, offset) if self._present else b""
        try:
            descriptor = os.open(segment.path, _OPEN | os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.pread(descriptor, most, offset)
        finally:
            os.close(descriptor)

    def chunks(self, position: int) -> list[LogChunk]:
        """Return all data from an offset to the current end."""
        log_chunks = []
        while (chunk := self.read(position)) is not None:
            log_chunks.append(chunk)
            position = chunk.end
        return log_chunks

    def last_file(self) -> int:
        """Return the start offset of the last numbered file."""
        _, end = self.span()
        limit = self._log.limit
        return max(0, end - 1) // limit * limit


def _data_from(descriptor: int, offset: int) -> int:
    """Return the first offset at or after `offset` that has data, or the end of the file."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        # ENXIO means that no data follows. After other errors, assume that there are no holes.
        return os.fstat(descriptor).st_size if error.errno == errno.ENXIO else offset


def _size(path: str) -> int:
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
