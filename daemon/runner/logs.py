"""A task's output: where it goes, and how it is read as the numbered files that clients expect.

A task writes straight to one file, opened for append, which never changes under it. What clients
see as `<task>.stdout.0`, `.1`, … are stretches of that stream, `max_file_size_mb` each, of which
the last `max_files` count. What lies before them is taken out of the file by `rotation.py`: as a
hole, so that positions stay what they are, or, where the file system has no holes, by moving what
is kept into files beside it, named by the position at which they begin.

Whatever a task does to these files, no link is followed.
"""

import os
import stat
from collections.abc import AsyncGenerator, Callable

import msgspec
import trio

from daemon.launcher.places import below, open_log
from daemon.runner.pace import following
from daemon.runner.taskdir import MOVED, SHARED
from storage.records.task import LogConfig

_MEGABYTE = 1024 * 1024
_CHUNK = 64 * 1024  # bytes that a follower gets at once, as from the peer
_MODE = 0o644
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class File(msgspec.Struct, frozen=True):
    """A numbered file as clients see it: a stretch of the stream, by its first position."""

    name: str
    start: int
    size: int


class Chunk(msgspec.Struct, frozen=True):
    """Bytes of a numbered file, the offset in it after them, and the same in the whole stream."""

    file: str
    offset: int
    data: bytes
    end: int


class Piece(msgspec.Struct, frozen=True):
    """A file on disk that holds the stream from a position on."""

    path: str
    start: int
    size: int

    @property
    def end(self) -> int:
        """Return the position after its last byte."""
        return self.start + self.size


class TaskLog:
    """One stream of a task's output: `kind` is stdout or stderr."""

    def __init__(self, directory: str, task: str, kind: str, config: LogConfig) -> None:
        self._folder = f"{directory}/{SHARED}/logs"
        self._beside = f"{directory}/{MOVED}"
        self._stem = f"{task}.{kind}"
        self.limit = max(1, config.max_file_size_mb) * _MEGABYTE
        self.most = max(1, config.max_files)

    @property
    def path(self) -> str:
        """Return the file that the task writes to."""
        return f"{self._folder}/{self._stem}.0"

    def moved_path(self, start: int) -> str:
        """Return the file for what was moved out of the way, from this position on."""
        return f"{self._beside}/{self._stem}.{start}"

    # ---- writing ---------------------------------------------------------------------------

    def open(self) -> int:
        """Return a descriptor for the task to write to. Raises `OSError`.

        A link, a pipe, a directory or a file of somebody else in the file's place is not written to:
        a new file takes it. Nor is a file that has another name elsewhere.
        """
        with below(self._folder) as folder:
            return open_log(folder, f"{self._stem}.0")

    # ---- reading ---------------------------------------------------------------------------

    def pieces(self) -> list[Piece]:
        """Return the files on disk, in the order of the stream."""
        pieces = sorted(self._moved(), key=lambda piece: piece.start)
        start = pieces[-1].end if pieces else 0
        return [*pieces, Piece(self.path, start, _size(self.path))]

    def _moved(self) -> list[Piece]:
        prefix = f"{self._stem}."
        try:
            names = os.listdir(self._beside)
        except OSError:
            return []
        return [
            Piece(f"{self._beside}/{name}", int(start), _size(f"{self._beside}/{name}"))
            for name in names
            if name.startswith(prefix) and (start := name.removeprefix(prefix)).isdecimal()
        ]

    def kept_from(self, end: int) -> int:
        """Return the first position that counts in a stream of this length."""
        last = max(0, end - 1) // self.limit
        return max(0, last + 1 - self.most) * self.limit

    def span(self) -> tuple[int, int]:
        """Return the first position that can be read, and the one after the last."""
        end = self.pieces()[-1].end
        return self.kept_from(end), end

    def files(self) -> list[File]:
        """Return the numbered files that clients see; empty when the task has no log."""
        if not os.path.lexists(self.path):
            return []
        first, end = self.span()
        return [
            File(self._name(start), start, min(self.limit, end - start))
            for start in range(first, max(end, first + 1), self.limit)
        ]

    def _name(self, position: int) -> str:
        return f"{SHARED}/logs/{self._stem}.{position // self.limit}"

    def locate(self, origin: str, offset: int) -> int:
        """Return the position that lies `offset` bytes after the start, or before the end."""
        first, end = self.span()
        return max(first, end - offset) if origin == "end" else min(end, first + offset)

    def read(self, position: int, most: int = _CHUNK) -> Chunk | None:
        """Return what follows a position, up to the end of its numbered file; None at the end.

        A position that has been dropped since means the first one that is still there.
        """
        pieces = self.pieces()
        position = max(position, self.kept_from(pieces[-1].end))
        piece = next((one for one in pieces if one.start <= position < one.end), None)
        if piece is None:
            return None
        most = min(most, self.limit - position % self.limit)
        data = _read(piece.path, position - piece.start, most)
        if not data:
            return None
        end = position + len(data)
        return Chunk(self._name(position), position % self.limit + len(data), data, end)

    def chunks(self, position: int) -> list[Chunk]:
        """Return everything from a position to the present end."""
        found = []
        while (chunk := self.read(position)) is not None:
            found.append(chunk)
            position = chunk.end
        return found

    def last_file(self) -> int:
        """Return the position at which the last of the numbered files begins."""
        _, end = self.span()
        return max(0, end - 1) // self.limit * self.limit

    async def follow(
        self, position: int, ended: Callable[[], bool]
    ) -> AsyncGenerator[Chunk | None, None]:
        """Yield what follows a position, as it is written, until the task has ended.

        `ended` tells whether nothing more will be written. None tells that nothing came for a beat.
        """
        with following() as pace:
            while True:
                over = ended()  # asked before the last reading, so that nothing is missed
                while (chunk := self.read(position)) is not None:
                    position = chunk.end
                    pace.hurry()
                    yield chunk
                    await trio.lowlevel.checkpoint()
                if over:
                    return
                await pace.rest()
                if pace.beats():
                    yield None


def _size(path: str) -> int:
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _read(path: str, offset: int, most: int) -> bytes:
    try:
        descriptor = os.open(path, _OPEN | os.O_RDONLY)
    except OSError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return os.pread(descriptor, most, offset)
    finally:
        os.close(descriptor)
