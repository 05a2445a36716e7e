"""Move container output from the file of podman's monitor into the logs of the task.

The monitor (conmon) outlives the daemon, and its file keeps the output in the meantime. A line is
`<time> <stdout|stderr> <F|P> <text>`; P marks a partial line. Moved output is removed from the file
by punching a hole, and the offset is stored, so that a new daemon continues there.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

import trio

from daemon.launcher.claims_and_logs import HolePunchUnsupported, punch_hole
from daemon.runner.core.opened_files import OpenedFile
from daemon.runner.core.task_log import TaskLog

_CHUNK = 256 * 1024  # bytes per move
_BLOCK = 4096
_FIRST_LOOK, _LAST_LOOK = 0.005, 0.25  # seconds between two polls
_WHOLE = b"F"


class ContainerLogReader:
    """Moves the output of one container from podman's file into the logs of the task."""

    def __init__(self, path: str, logs: Mapping[str, TaskLog]) -> None:
        self._path, self._noted = path, f"{path}.moved"
        self._logs = logs
        self._written: dict[str, OpenedFile] = {}
        self._moved = self._recall()
        self._still = trio.Lock()  # acquired to pause writing

    def _recall(self) -> int:
        try:
            with open(self._noted, encoding="ascii") as file:
                return int(file.read() or 0)
        except (OSError, ValueError):
            return 0

    async def follow(self) -> None:
        """Move new output until cancelled."""
        pause = _FIRST_LOOK
        while True:
            moved = await self.move()
            pause = _FIRST_LOOK if moved else min(2 * pause, _LAST_LOOK)
            await trio.sleep(pause)

    async def move(self) -> bool:
        """Move the available output; return whether there was any."""
        async with self._still:
            if _size(self._path) <= self._moved:
                return False
            for kind, log in self._logs.items():
                if kind not in self._written or self._written[kind].is_gone:
                    self._written[kind] = await log.writing()
            return await trio.to_thread.run_sync(self._move)

    async def finish(self) -> None:
        """Move the remaining output of an ended container."""
        while await self.move():
            pass

    async def pause(self) -> None:
        """Pause writing until `resume`."""
        await self._still.acquire()

    async def resume(self) -> None:
        """Resume writing."""
        self._still.release()

    def remove(self) -> None:
        """Delete the file after all output was moved."""
        for path in (self._path, self._noted):
            with suppress(OSError):  # a remaining file is deleted with the allocation
                os.unlink(path)

    def _move(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            chunk = os.pread(descriptor, _CHUNK, self._moved)
            end = chunk.rfind(b"\n") + 1
            # A line longer than the chunk, which conmon never writes.
            if not end and len(chunk) == _CHUNK:
                end = len(chunk)
            if not end:
                return False
            self._write(chunk[:end])
            self._moved += end
            with open(self._noted, "w", encoding="ascii") as file:
                file.write(str(self._moved))
            # Without hole punching, the file keeps its size until the container is removed.
            with suppress(HolePunchUnsupported, OSError):
                punch_hole(descriptor, 0, self._moved // _BLOCK * _BLOCK)
            return True
        finally:
            os.close(descriptor)

    def _write(self, chunk: bytes) -> None:
        texts: dict[str, bytearray] = {}
        for kind, text in lines(chunk):
            texts.setdefault(kind, bytearray()).extend(text)
        for kind, whole in texts.items():
            if kind in self._written:
                self._written[kind].write(whole)


def lines(chunk: bytes) -> Iterator[tuple[str, bytes]]:
    r"""Yield the text of each line with its stream.

    >>> list(lines(b"t stdout P a\nt stdout F b\nt stderr F c d\n"))
    [('stdout', b'a'), ('stdout', b'b\n'), ('stderr', b'c d\n')]
    """
    for line in chunk.split(b"\n"):
        _, kind, tag, text = [*line.split(b" ", 3), b"", b"", b""][:4]
        if kind in {b"stdout", b"stderr"}:
            yield kind.decode(), text + (b"\n" if tag == _WHOLE else b"")


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
