"""The output of a container: from the file that podman's watcher writes into the logs of the task.

That watcher (conmon) outlives the daemon, and its file keeps what was printed in the meantime. Each
line of it is `<time> <stdout|stderr> <F|P> <text>`; P says that the line goes on. What has been moved
is taken out of the file as a hole, and noted, so that another daemon goes on there.
"""

import os
from collections.abc import Iterator
from contextlib import suppress

import trio

from daemon.runner import holes
from daemon.runner.holes import NoHoles
from daemon.runner.logs import TaskLog

_CHUNK = 256 * 1024  # bytes that are moved at once
_BLOCK = 4096
_FIRST_LOOK, _LAST_LOOK = 0.005, 0.25  # seconds: the file says nothing by itself
_WHOLE = b"F"


class Output:
    """The file of one container, and where its lines go."""

    def __init__(self, path: str, logs: dict[str, TaskLog]) -> None:
        self._path, self._noted = path, f"{path}.moved"
        self._logs = logs
        self._moved = self._recall()
        self._still = trio.Lock()  # held by whoever wants nothing to be written

    def _recall(self) -> int:
        try:
            with open(self._noted, encoding="ascii") as file:
                return int(file.read() or 0)
        except (OSError, ValueError):
            return 0

    async def follow(self) -> None:
        """Move what comes, until cancelled."""
        look = _FIRST_LOOK
        while True:
            moved = await self.move()
            look = _FIRST_LOOK if moved else min(2 * look, _LAST_LOOK)
            await trio.sleep(look)

    async def move(self) -> bool:
        """Move what is there; tell whether there was anything."""
        async with self._still:
            if _size(self._path) <= self._moved:
                return False
            return await trio.to_thread.run_sync(self._move)

    async def finish(self) -> None:
        """Move all that is left: nothing more comes."""
        while await self.move():
            pass

    async def pause(self) -> None:
        """Let nothing be written; `resume` follows."""
        await self._still.acquire()

    async def resume(self) -> None:
        """Go on."""
        self._still.release()

    def remove(self) -> None:
        """Remove the file: all was moved."""
        for path in (self._path, self._noted):
            with suppress(OSError):
                os.unlink(path)

    def _move(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            said = os.pread(descriptor, _CHUNK, self._moved)
            end = said.rfind(b"\n") + 1
            if not end and len(said) == _CHUNK:  # a line that is longer than any that comes
                end = len(said)
            if not end:
                return False
            self._write(said[:end])
            self._moved += end
            with open(self._noted, "w", encoding="ascii") as file:
                file.write(str(self._moved))
            with suppress(NoHoles, OSError):
                holes.punch(descriptor, 0, self._moved // _BLOCK * _BLOCK)
            return True
        finally:
            os.close(descriptor)

    def _write(self, said: bytes) -> None:
        texts: dict[str, bytearray] = {}
        for kind, text in lines(said):
            texts.setdefault(kind, bytearray()).extend(text)
        for kind, whole in texts.items():
            log = self._logs.get(kind)
            if log is None:
                continue
            descriptor = log.open()
            try:
                view = memoryview(whole)
                while view:
                    view = view[os.write(descriptor, view) :]
            finally:
                os.close(descriptor)


def lines(said: bytes) -> Iterator[tuple[str, bytes]]:
    r"""Yield what was printed, and where.

    >>> list(lines(b"t stdout P a\nt stdout F b\nt stderr F c d\n"))
    [('stdout', b'a'), ('stdout', b'b\n'), ('stderr', b'c d\n')]
    """
    for line in said.split(b"\n"):
        _, kind, tag, text = [*line.split(b" ", 3), b"", b"", b""][:4]
        if kind in {b"stdout", b"stderr"}:
            yield kind.decode(), text + (b"\n" if tag == _WHOLE else b"")


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
