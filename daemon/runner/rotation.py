"""Keeping logs within their limits without the help of the tasks that write them.

One loop looks after the logs of all running tasks. What no numbered file shows any more is taken
out of a log as a hole. Where the file system has no holes, and before a log reaches the largest
size of a file, what is kept is moved aside while the task stands still, and the log begins again
empty; no byte is lost, also when the daemon is killed in the middle of it.
"""

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import trio

from daemon.runner import holes
from daemon.runner.holes import NoHoles
from daemon.runner.logs import Piece, TaskLog

# Seconds between two looks. What all tasks together can write in that time is the most that is kept
# too much; looking more often would only hold up those that write.
_PERIOD = 1.0
_BLOCK = 4096  # holes begin and end at whole blocks
_LARGEST = 4 << 40  # bytes: file systems allow 16 TiB or more
_COPY_AT_ONCE = 4 << 20  # bytes
_UNFINISHED = ".copy"

_report = logging.getLogger("steward.runner")

Punch = Callable[[int, int, int], None]


class Writers(Protocol):
    """The processes that write to a log."""

    async def pause(self) -> None:
        """Hold them still."""
        ...

    async def resume(self) -> None:
        """Let them go on."""
        ...


class _Watched:
    """A log that is looked after."""

    def __init__(self, log: TaskLog, writers: Writers) -> None:
        self.log, self.writers = log, writers
        self.dropped = 0  # position before which the log is a hole
        self.ended = False


class Sweeper:
    """The loop. `punch` makes holes; tests bring one that cannot."""

    def __init__(self, punch: Punch = holes.punch) -> None:
        self._punch = punch
        self._watched: dict[str, _Watched] = {}
        self._arrived = trio.Event()

    def add(self, log: TaskLog, writers: Writers) -> None:
        """Look after a log from now on."""
        self._watched[log.path] = _Watched(log, writers)
        self._arrived.set()

    def update(self, log: TaskLog) -> None:
        """Keep as much of a log as its definition says now."""
        if watched := self._watched.get(log.path):
            watched.log = log

    def remove(self, log: TaskLog) -> None:
        """Look at a log once more: nobody writes to it now."""
        if watched := self._watched.get(log.path):
            watched.ended = True

    async def run(self) -> None:
        """Look after the logs for ever."""
        while True:
            if not self._watched:
                self._arrived = trio.Event()
                await self._arrived.wait()
            await trio.sleep(_PERIOD)
            await self.look()

    async def look(self) -> None:
        """Trim every log that holds more than is kept."""
        for path, watched in list(self._watched.items()):
            # Asked before the last look; and another attempt may have put a new one in its place.
            over = watched.ended
            await self._trim(watched)
            if over and self._watched.get(path) is watched:
                del self._watched[path]

    async def _trim(self, watched: _Watched) -> None:
        log = watched.log
        if _regular_size(log.path) <= log.limit or log.span()[0] <= watched.dropped:
            return
        try:
            watched.dropped = await trio.to_thread.run_sync(self._drop, log)
        except NoHoles:
            await self._move(watched)
        except FileNotFoundError:
            return  # the allocation has just been removed
        except OSError as error:
            _report.warning("cannot trim %s: %s", log.path, error)

    def _drop(self, log: TaskLog) -> int:
        """Make a hole of what is not kept; return where it ends. Raises `NoHoles` or `OSError`."""
        *moved, present = log.pieces()
        if present.size > _LARGEST:
            raise NoHoles
        first = log.kept_from(present.end)
        _forget(log, moved, first)
        end = (first - present.start) // _BLOCK * _BLOCK
        if end > 0:
            descriptor = os.open(present.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    self._punch(descriptor, 0, end)
            finally:
                os.close(descriptor)
        return first

    async def _move(self, watched: _Watched) -> None:
        """Move what is kept aside, and let the log begin again."""
        log = watched.log
        try:
            copy = await trio.to_thread.run_sync(_begin_copy, log)
            mark = _mark(log)
            mark.touch(mode=0o600)
            try:
                await watched.writers.pause()
                copy = await trio.to_thread.run_sync(_copy, log, copy)
                # Not in a thread: nobody reads between the two halves of it.
                _swap(log, copy)
                # As long as nobody writes: of what comes afterwards nothing has been dropped yet.
                watched.dropped = log.span()[0]
            finally:
                with trio.CancelScope(shield=True):
                    await watched.writers.resume()
                mark.unlink()
        except OSError as error:
            _report.warning("cannot move what %s keeps: %s", log.path, error)
            watched.dropped = log.span()[0]  # tried again when there is more


def _regular_size(path: str) -> int:
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _forget(log: TaskLog, moved: list[Piece], first: int) -> None:
    """Remove what was moved aside and is not kept any more.

    The last piece says where the log itself begins: an empty one takes its place.
    """
    for piece in moved:
        last = piece is moved[-1]
        if piece.end > first or (last and not piece.size):
            continue
        if last:
            Path(log.moved_path(piece.end)).touch(mode=0o600)
        os.unlink(piece.path)


def _copy_path(log: TaskLog, start: int) -> str:
    return f"{log.moved_path(start)}{_UNFINISHED}"


def _begin_copy(log: TaskLog) -> Piece:
    """Copy what is kept of the log to a file that does not count yet."""
    present = log.pieces()[-1]
    start = max(present.start, log.kept_from(present.end))
    path = _copy_path(log, start)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    Path(path).unlink(missing_ok=True)
    return _copy(log, Piece(path, start, 0))


def _copy(log: TaskLog, copy: Piece) -> Piece:
    """Copy what the log holds beyond an earlier copy; return the copy as it is then."""
    present = log.pieces()[-1]
    with open(present.path, "rb") as source, open(copy.path, "ab") as target:
        source.seek(copy.end - present.start)
        while data := source.read(_COPY_AT_ONCE):
            target.write(data)
        return Piece(copy.path, copy.start, target.tell())


def _swap(log: TaskLog, copy: Piece) -> None:
    """Empty the log, and let the copy count."""
    os.truncate(log.path, 0)
    os.rename(copy.path, log.moved_path(copy.start))
    *moved, present = log.pieces()
    _forget(log, moved, log.kept_from(present.end))


def _mark(log: TaskLog) -> Path:
    """Return the file that is there while the writers of a log may be held still."""
    return Path(f"{log.moved_path(0).removesuffix('0')}held")


async def finish_move(log: TaskLog, writers: Writers) -> None:
    """Finish or undo what a daemon before us was killed in, and let the writers go on."""
    try:
        recover(log)
        mark = _mark(log)
        if mark.exists():
            await writers.resume()
            mark.unlink()
    except OSError as error:
        _report.warning("cannot finish a move of %s: %s", log.path, error)


def recover(log: TaskLog) -> None:
    """Finish or undo a move that was interrupted.

    A log that is shorter than its copy has been emptied: then the copy is all there is.
    """
    found = _unfinished(log)
    if found is None:
        return
    present = log.pieces()[-1]
    if present.size < found.end - present.start:
        os.rename(found.path, log.moved_path(found.start))
    else:
        os.unlink(found.path)


def _unfinished(log: TaskLog) -> Piece | None:
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
            return Piece(path, int(start), os.path.getsize(path))
    return None
