"""Append the output of a remote task to its logs, each byte once and in order.

Each piece has its offset in the output. Bytes that are already stored are skipped, so a wrapper can
resend a piece after a lost response.
"""

import trio

from daemon.runner.core.opened_files import OpenedFile
from daemon.runner.core.task_log import TaskLog


class LogReceiver:
    """One output stream of an attempt; `base` is the log offset of its first byte."""

    def __init__(self, log: TaskLog, base: int) -> None:
        self.base = base
        self._log = log
        self._written: OpenedFile | None = None
        self._still = trio.Lock()  # acquired to pause writing

    async def end(self) -> int:
        """Return the length of the log."""
        return (await self._log.current()).pieces()[-1].end

    async def gap(self, offset: int) -> int:
        """Return the number of missing bytes between the end of the log and an offset.

        Bytes are lost when the host's power fails before they are written to disk.
        """
        return max(0, self.base + offset - await self.end())

    async def take(self, offset: int, data: bytes) -> int:
        """Append the new bytes of a chunk; return the next expected offset. Raises `OSError`."""
        async with self._still:
            if self._written is None or self._written.is_gone:
                self._written = await self._log.writing()
            there = await self.end() - self.base
            view = memoryview(data)[max(0, there - offset) :]
            await trio.to_thread.run_sync(self._written.write, view)
            return max(there, offset + len(data))

    async def pause(self) -> None:
        """Pause writing until `resume`."""
        await self._still.acquire()

    async def resume(self) -> None:
        """Resume writing, if this receiver has paused it.

        The recovery of an interrupted log rotation also calls this for writers that are not paused.
        """
        if self._still.statistics().owner is trio.lowlevel.current_task():
            self._still.release()
