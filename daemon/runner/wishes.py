"""How a task wants to be told that something which it was given has changed, and telling it."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from daemon.runner import events
from daemon.runner.drivers.driver import Session, StartFailed
from daemon.runner.scripts import run_script
from storage.errors import NotFound
from storage.records.allocation import TaskEvent
from storage.records.base import SECOND
from storage.records.task import ChangeScript


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done: nothing, a signal, a restart or a script; and what is said of it."""

    mode: str
    signal: str = ""
    script: ChangeScript | None = None
    said: str = events.BY_USER


class Told(Protocol):
    """A task that is told."""

    @property
    def is_running(self) -> bool:
        """Tell whether there is an attempt that has not ended."""
        ...

    async def signal(self, name: str) -> None:
        """Send a signal to its main process."""
        ...

    async def restart(self, reason: str = "", *, said: str = "") -> None:
        """Begin another attempt."""
        ...

    async def fail(self) -> None:
        """End it as failed for good."""
        ...

    async def open_session(self, command: Sequence[str], *, tty: bool) -> Session:
        """Run a command inside."""
        ...


async def tell(
    task: Told, wishes: list[Wish], note: Callable[[TaskEvent], None], now: Callable[[], int]
) -> None:
    """Do what these wishes say, all together."""
    for wish in _summed_up(wishes):
        if wish.mode == "restart":
            await task.restart(said=wish.said)
        elif wish.mode == "signal" and task.is_running:
            await task.signal(wish.signal)
        elif wish.script is not None:
            await _run(task, wish.script, note, now)


def _summed_up(wishes: list[Wish]) -> list[Wish]:
    """Return what is left to do: a restart makes the others needless."""
    if restart := next((one for one in wishes if one.mode == "restart"), None):
        return [restart]
    signals = {one.signal: one for one in wishes if one.mode == "signal"}
    return [*signals.values(), *(one for one in wishes if one.mode == "script")]


async def _run(
    task: Told,
    script: ChangeScript,
    note: Callable[[TaskEvent], None],
    now: Callable[[], int],
) -> None:
    called = f"{script.command} with arguments [{' '.join(script.args or ())}]"
    try:
        session = await task.open_session([script.command, *(script.args or ())], tty=False)
        end = await run_script(session, script.timeout / SECOND)
        problem = "" if end.code == 0 else f"on change: {end.said}. Exit code: {end.code}"
    except NotFound:  # the task has ended meanwhile
        return
    except StartFailed as error:
        problem = f"on change: {error}"
    if not problem:
        note(events.template(now(), f"Template successfully ran script {called}. Exit Code: 0"))
        return
    note(events.template(now(), f"Template failed to run script {called} {problem}"))
    if script.fail_on_error:
        await task.fail()
