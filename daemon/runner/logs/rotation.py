"""Enforce log size limits without the cooperation of the tasks.

One loop handles the logs of all running tasks. Data outside the retained numbered files is removed
by punching a hole. Some file systems do not support hole punching, and a file may reach its maximum
size. In both cases, the loop pauses the task, moves the retained data to another file and truncates
the log. No byte is lost, even if the daemon is killed during the move.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

import trio

from daemon.fences import Fences
from daemon.launcher.claims_and_logs import HolePunchUnsupported, punch_hole
from daemon.runner.core.opened_files import OpenedFile
from daemon.runner.core.task_log import LogSegment, Place, Stream, TaskLog

# Seconds between two passes. Logs can exceed their limit by the output of all tasks in this time.
# Shorter periods would only slow down the writers.
_PERIOD = 1.0
_BLOCK = 4096  # alignment: holes consist of whole blocks
_LARGEST = 4 << 40  # bytes: file systems allow 16 TiB or more
_COPY_AT_ONCE = 4 << 20  # bytes
_UNFINISHED = ".copy"
_FENCED = "log"

_report = logging.getLogger("steward.runner")

Punch = Callable[[int, int, int], None]


class LogWriters(Protocol):
    """The processes that write to a log."""

    async def pause(self) -> None:
        """Pause the processes."""
        ...

    async def resume(self) -> None:
        """Resume the processes."""
        ...


class _Watched:
    """A log that the loop rotates."""

    def __init__(self, log: TaskLog, writers: LogWriters) -> None:
        self.log, self.writers = log, writers
        self.dropped = 0  # end of the hole at the start of the log
        self.ended = False


class LogRotator:
    """The rotation loop. `punch` punches a hole into a file. `now` returns nanoseconds."""

    def __init__(
        self,
        punch: Punch = punch_hole,
        fences: Fences | None = None,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self._punch, self._fences, self._now = punch, fences, now
        self._watched: dict[Place, _Watched] = {}
        self._arrived = trio.Event()

    def add(self, log: TaskLog, writers: LogWriters) -> None:
        """Start the rotation of a log."""
        log.grow(grows=True)
        self._watched[log.place] = _Watched(log, writers)
        self._arrived.set()

    def update(self, log: TaskLog) -> None:
        """Apply changed log settings."""
        if watched := self._watched.get(log.place):
            watched.log = log

    def remove(self, log: TaskLog, end: int | None = None) -> None:
        """Run a final pass over a log after its writers have ended.

        A log with a known `end` below its limit needs no final pass.
        """
        if (watched := self._watched.get(log.place)) is None:
            return
        watched.ended = True
        if end is not None and end <= log.limit:
            log.marks.note(self._now(), end)
            del self._watched[log.place]
            log.grow(grows=False)

    async def run(self) -> None:
        """Run the rotation loop until cancelled."""
        while True:
            if not self._watched:
                self._arrived = trio.Event()
                await self._arrived.wait()
            await trio.sleep(_PERIOD)
            await self.trim_all()

    async def trim_all(self) -> None:
        """Trim every log that exceeds its limits."""
        for key, watched in list(self._watched.items()):
            # Read before the last pass, because a new attempt may have replaced this entry by then.
            over = watched.ended
            with (
                self._fences.around(_FENCED, "/".join(map(str, key)))
                if self._fences
                else nullcontext()
            ):
                await self._trim(watched)
            if over and self._watched.get(key) is watched:
                del self._watched[key]
                watched.log.grow(grows=False)

    async def _trim(self, watched: _Watched) -> None:
        log = watched.log
        stream = await log.current()
        log.marks.note(self._now(), stream.span()[1])
        if stream.pieces()[-1].size <= log.limit or stream.span()[0] <= watched.dropped:
            return
        try:
            written = await log.writing()
            watched.dropped = await trio.to_thread.run_sync(self._drop, log, stream, written)
        except HolePunchUnsupported:
            await self._move(watched, stream, written)
        except FileNotFoundError:
            return  # the allocation was just removed
        except OSError as error:
            _report.warning("cannot trim %s: %s", log.name(0), error)

    def _drop(self, log: TaskLog, stream: Stream, written: OpenedFile) -> int:
        """Punch a hole over the data before the retained range; return the end of the hole.

        Raises `HolePunchUnsupported` or `OSError`.
        """
        *moved, present = stream.pieces()
        if present.size > _LARGEST:
            raise HolePunchUnsupported
        first = log.first_retained(present.end)
        _forget(log, moved, first)
        end = (first - present.start) // _BLOCK * _BLOCK
        if end > 0:
            self._punch(written.descriptor, 0, end)
        return first

    async def _move(self, watched: _Watched, stream: Stream, written: OpenedFile) -> None:
        """Move the retained data to another file and truncate the log."""
        log = watched.log
        try:
            copy = await trio.to_thread.run_sync(_begin_copy, log, stream)
            mark = _mark(log)
            mark.touch(mode=0o600)
            try:
                await watched.writers.pause()
                copy = await trio.to_thread.run_sync(_copy, stream, copy)
                # Runs on the event loop, so that no reader sees the state between truncation and
                # rename.
                _swap(log, stream, written, copy)
                # The writers are still paused, so nothing has been dropped since the copy.
                watched.dropped = stream.span()[0]
            finally:
                with trio.CancelScope(shield=True):
                    await watched.writers.resume()
                mark.unlink()
        except OSError as error:
            _report.warning("cannot move the retained data of %s: %s", log.name(0), error)
            watched.dropped = stream.span()[0]  # retried when the log has grown


def _forget(log: TaskLog, moved: list[LogSegment], first: int) -> None:
    """Delete moved data before the retained range.

    The end of the last moved file is the start offset of the log. To keep this offset, an empty
    file with the offset in its name replaces the last file when it is deleted.
    """
    for segment in moved:
        last = segment is moved[-1]
        if segment.end > first or (last and not segment.size):
            continue
        if last:
            Path(log.moved_path(segment.end)).touch(mode=0o600)
        os.unlink(segment.path)


def _copy_path(log: TaskLog, start: int) -> str:
    return f"{log.moved_path(start)}{_UNFINISHED}"


def _begin_copy(log: TaskLog, stream: Stream) -> LogSegment:
    """Copy the retained data to a temporary file that readers ignore."""
    present = stream.pieces()[-1]
    start = max(present.start, log.first_retained(present.end))
    path = _copy_path(log, start)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    Path(path).unlink(missing_ok=True)
    return _copy(stream, LogSegment(path, start, 0))


def _copy(stream: Stream, copy: LogSegment) -> LogSegment:
    """Append the data written since an earlier copy; return the updated copy."""
    present = stream.pieces()[-1]
    with open(copy.path, "ab") as target:
        offset = copy.end - present.start
        while data := stream.content(present, offset, _COPY_AT_ONCE):
            target.write(data)
            offset += len(data)
        return LogSegment(copy.path, copy.start, target.tell())


def _swap(log: TaskLog, stream: Stream, written: OpenedFile, copy: LogSegment) -> None:
    """Truncate the log and rename the copy to its final name."""
    os.truncate(written.descriptor, 0)
    os.rename(copy.path, log.moved_path(copy.start))
    *moved, present = stream.pieces()
    _forget(log, moved, log.first_retained(present.end))


def _mark(log: TaskLog) -> Path:
    """Return the marker file that exists while the writers of a log may be paused."""
    return Path(f"{log.moved_path(0).removesuffix('0')}held")


async def recover_all_rotations(log: TaskLog, writers: LogWriters) -> None:
    """Complete or undo a move that a killed daemon left, and resume the writers."""
    try:
        recover_rotation(log, await log.current())
        mark = _mark(log)
        if mark.exists():
            await writers.resume()
            mark.unlink()
    except OSError as error:
        _report.warning("cannot complete the interrupted rotation of %s: %s", log.name(0), error)


def recover_rotation(log: TaskLog, stream: Stream) -> None:
    """Complete or undo an interrupted move.

    A log that is shorter than its copy was already truncated, so only the copy has the data.
    """
    unfinished = _unfinished(log)
    if unfinished is None:
        return
    present = stream.pieces()[-1]
    if present.size < unfinished.end - present.start:
        os.rename(unfinished.path, log.moved_path(unfinished.start))
    else:
        os.unlink(unfinished.path)


def _unfinished(log: TaskLog) -> LogSegment | None:
    folder, _, stem = log.moved_path(0).rpartition("/")
    prefix = stem.removesuffix("0")
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    for name in names:
        start = name.removeprefix(prefix).removesuffix(_UNFINISHED)
        if name == f"{prefix}{start}{_UNFINISHED}" and start.isdecimal():
            path = f"{folder}/{name}"
            return LogSegment(path, int(start), os.path.getsize(path))
    return None
