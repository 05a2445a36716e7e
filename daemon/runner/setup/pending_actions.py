"""Notes about pending change actions, for a later daemon."""

from collections.abc import Iterable
from contextlib import suppress

from daemon.launcher.messages import Kind
from daemon.runner.core.task_files import TaskFiles

_MOST = 4096  # inputs of a task whose pending change actions are stored


class PendingActions:
    """The inputs of a task whose change actions are pending, by their numbers.

    Store the numbers before the inputs are written, and forget them after the actions. If the
    daemon ends in between, the next daemon runs the actions. An action may run twice, but it is not
    lost.
    """

    def __init__(self, files: TaskFiles, kind: Kind) -> None:
        self._files = files
        self._kind: Kind = kind
        self._may_exist = True  # whether a note may exist; true also if this is not known yet

    async def store(self, numbers: Iterable[int]) -> None:
        """Replace the stored numbers. Raises `OSError`."""
        pending = sum(1 << number for number in {*numbers} if number < _MOST)
        if pending or self._may_exist:
            await self._files.write_note(self._kind, f"{pending:x}" if pending else None)
        self._may_exist = bool(pending)

    async def forget(self) -> None:
        """Delete the stored numbers. If this fails, a later daemon repeats the actions."""
        with suppress(OSError):  # a later daemon repeats the actions
            await self.store(())

    async def recall(self) -> set[int]:
        """Return the numbers that an earlier daemon stored; an unreadable note has none."""
        pending = 0
        with suppress(OSError, ValueError):  # an unreadable note has no numbers
            pending = int(await self._files.recall(self._kind) or "0", 16)
        return {number for number in range(pending.bit_length()) if pending >> number & 1}
