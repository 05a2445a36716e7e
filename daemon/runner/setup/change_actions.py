"""Change actions: signal or restart a task, or run a script, after its inputs changed.

Pending actions are stored for a later daemon.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from daemon.launcher.messages import Kind
from daemon.runner.core import task_events
from daemon.runner.core.driver import ExecStream, StartFailed
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.core.task_script import run_script
from storage.errors import NotFound
from storage.records.allocation import TaskEvent
from storage.records.base import SECOND
from storage.records.task import ChangeScript

_MOST_STORED = 4096  # inputs of a task whose pending change actions are stored


class ChangeAction(msgspec.Struct, frozen=True, kw_only=True):
    """A change action: none, a signal, a restart or a script, and the text of its event."""

    mode: str
    signal: str = ""
    script: ChangeScript | None = None
    description: str = task_events.BY_USER


class ChangeTarget(Protocol):
    """A task that receives change actions."""

    @property
    def is_running(self) -> bool:
        """Return whether an attempt is running."""
        ...

    async def signal(self, name: str) -> None:
        """Send a signal to the main process."""
        ...

    async def restart(self, reason: str = "", *, description: str = "") -> None:
        """Restart the task."""
        ...

    async def fail(self) -> None:
        """Stop the task as failed, without another attempt."""
        ...

    async def open_session(self, command: Sequence[str], *, tty: bool) -> ExecStream:
        """Run a command inside the task."""
        ...


async def apply_change(
    task: ChangeTarget,
    actions: list[ChangeAction],
    note: Callable[[TaskEvent], None],
    now: Callable[[], int],
) -> None:
    """Merge the change actions, and run each of the merged actions once."""
    for action in _summed_up(actions):
        if action.mode == "restart":
            await task.restart(description=action.description)
        elif action.mode == "signal" and task.is_running:
            await task.signal(action.signal)
        elif action.script is not None:
            await _run(task, action.script, note, now)


def _summed_up(actions: list[ChangeAction]) -> list[ChangeAction]:
    """Return the merged actions; a restart replaces all others."""
    if restart := next((action for action in actions if action.mode == "restart"), None):
        return [restart]
    signals = {action.signal: action for action in actions if action.mode == "signal"}
    return [*signals.values(), *(action for action in actions if action.mode == "script")]


async def _run(
    task: ChangeTarget,
    script: ChangeScript,
    note: Callable[[TaskEvent], None],
    now: Callable[[], int],
) -> None:
    called = f"{script.command} with arguments [{' '.join(script.args or ())}]"
    try:
        session = await task.open_session([script.command, *(script.args or ())], tty=False)
        end = await run_script(session, script.timeout / SECOND)
        problem = "" if end.code == 0 else f"on change: {end.said}. Exit code: {end.code}"
    except NotFound:  # the task has ended in the meantime
        return
    except StartFailed as error:
        problem = f"on change: {error}"
    if not problem:
        note(
            task_events.template(now(), f"Template successfully ran script {called}. Exit Code: 0")
        )
        return
    note(task_events.template(now(), f"Template failed to run script {called} {problem}"))
    if script.fail_on_error:
        await task.fail()


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
        pending = sum(1 << number for number in {*numbers} if number < _MOST_STORED)
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
