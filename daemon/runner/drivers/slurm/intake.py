"""What a task prints on its host: into the logs of the task, each byte once and in order.

A wrapper says with each piece where in the output it begins. What is there already is passed over,
so it may send a piece again whenever it did not hear that it was taken.
"""

import os

import trio

from daemon.runner.logs import TaskLog


class Intake:
    """One stream of one attempt; `base` is where in the log its first byte stands."""

    def __init__(self, log: TaskLog, base: int) -> None:
        self.base = base
        self._log = log
        self._still = trio.Lock()  # held by whoever wants nothing to be written

    def end(self) -> int:
        """Return how long the log is."""
        return self._log.pieces()[-1].end

    def gap(self, offset: int) -> int:
        """Return how many bytes are missing before an offset: lost with the machine's power."""
        return max(0, self.base + offset - self.end())

    async def take(self, offset: int, data: bytes) -> int:
        """Add what is new of a piece; return the offset to go on from. Raises `OSError`."""
        async with self._still:
            return await trio.to_thread.run_sync(self._take, offset, data)

    def _take(self, offset: int, data: bytes) -> int:
        there = self.end() - self.base
        view = memoryview(data)[max(0, there - offset) :]
        descriptor = self._log.open()
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        return max(there, offset + len(data))

    async def pause(self) -> None:
        """Let nothing be written; `resume` follows."""
        await self._still.acquire()

    async def resume(self) -> None:
        """Go on, if this task has paused it: who finishes what an earlier daemon began has not."""
        if self._still.statistics().owner is trio.lowlevel.current_task():
            self._still.release()
