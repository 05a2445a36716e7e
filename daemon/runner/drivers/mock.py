"""The driver `mock_driver`: does as it is told, without a process. For tests of everything else.

What it runs is forgotten with the daemon.
"""

import os
from collections.abc import Mapping, Sequence

import msgspec
import trio

from daemon.launcher.messages import Owner
from daemon.runner.drivers import config
from daemon.runner.drivers.driver import (
    Attempt,
    Exit,
    Fingerprint,
    InvalidConfig,
    Running,
    Session,
    StartFailed,
)
from daemon.runner.env import Directories
from daemon.runner.logs import TaskLog
from daemon.runner.taskdir import directories
from daemon.runner.usage import Use
from storage.records import durations
from storage.records.base import SECOND

_KILLED = Exit(code=137, signal=9)
_INTERRUPTED = Exit(code=130, signal=2)


class Settings(msgspec.Struct, frozen=True):
    """What it can be told; spans of time as text such as 1s."""

    run_for: str = "0s"
    exit_code: int = 0
    exit_signal: int = 0
    exit_err_msg: str = ""
    start_error: str = ""
    start_error_recoverable: bool = False
    start_block_for: str = "0s"
    kill_after: str = "0s"
    signal_error: str = ""
    stdout_string: str = ""
    stdout_repeat: int = 0
    stdout_repeat_duration: str = "0s"


class MockDriver:
    """The driver."""

    name = "mock_driver"
    is_prompt = False  # it may be told to block

    def fingerprint(self) -> Fingerprint:
        """Return what a node says of it."""
        return Fingerprint(attributes={"driver.mock_driver": "true"})

    def places(self, directory: str, task: str) -> Directories:
        """Return the directories of this machine."""
        return directories(directory, task)

    def owner(self, user: str, alloc_id: str) -> Owner | None:
        """Return nobody: there are no users."""
        return None

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless it can be told that."""
        settings = config.read(Settings, block)
        for name in ("run_for", "start_block_for", "kill_after", "stdout_repeat_duration"):
            try:
                durations.nanoseconds(getattr(settings, name))
            except ValueError as error:
                raise InvalidConfig(f"{name}: {error}") from error

    async def start(self, attempt: Attempt) -> Running:
        """Do as if the task was started. Raises `StartFailed` when told so."""
        settings = config.read(Settings, attempt.config)
        await trio.sleep(_seconds(settings.start_block_for))
        if settings.start_error:
            raise StartFailed(settings.start_error, recoverable=settings.start_error_recoverable)
        return MockTask(settings, attempt)

    async def adopt(self, attempt: Attempt, handle: bytes) -> Running | None:
        """Find nothing."""
        del attempt, handle
        return None

    async def open_session(self, attempt: Attempt, command: Sequence[str], *, tty: bool) -> Session:
        """Refuse: there is no process beside which another one could run."""
        raise StartFailed("exec is not supported by the mock driver")

    async def destroy(self, alloc_id: str, directory: str) -> None:
        """Nothing runs."""


class MockTask:
    """What does as if it was a task."""

    handle = b"mock"

    def __init__(self, settings: Settings, attempt: Attempt) -> None:
        self._settings = settings
        self._log = TaskLog(attempt.directory, attempt.task, "stdout", attempt.log)
        self._stopped = trio.Event()
        self._ended = trio.Event()
        self._forced = False

    async def wait(self) -> Exit:
        """Return what it was told to return, after the time that it was told."""
        settings = self._settings
        with trio.move_on_after(_seconds(settings.run_for)) as time:
            await self._speak()
            await self._stopped.wait()
        self._ended.set()
        if time.cancelled_caught:
            return Exit(
                code=settings.exit_code, signal=settings.exit_signal, message=settings.exit_err_msg
            )
        return _KILLED if self._forced else _INTERRUPTED

    async def _speak(self) -> None:
        settings = self._settings
        if not settings.stdout_string:
            return
        for turn in range(settings.stdout_repeat + 1):
            if turn:
                await trio.sleep(_seconds(settings.stdout_repeat_duration))
            descriptor = self._log.open()
            try:
                os.write(descriptor, settings.stdout_string.encode())
            finally:
                os.close(descriptor)

    async def signal(self, name: str) -> None:
        """Take no notice."""

    async def stop(self, signal: str, grace: float) -> str:
        """End, after the time that it was told or when `grace` is over."""
        del signal
        patience = _seconds(self._settings.kill_after)
        self._forced = patience > grace
        with trio.move_on_after(min(patience, grace)):
            await self._ended.wait()
        self._stopped.set()
        await self._ended.wait()
        return ""

    async def usage(self) -> Use:
        """Return nothing."""
        return Use()

    async def pause(self) -> None:
        """Nothing to hold."""

    async def resume(self) -> None:
        """Nothing was held."""

    def release(self) -> None:
        """Nothing to let go of."""


def _seconds(span: str) -> float:
    return durations.nanoseconds(span) / SECOND
