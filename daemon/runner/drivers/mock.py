"""The driver `mock_driver`, which simulates tasks without processes, for tests.

Its tasks are lost when the daemon exits.
"""

from collections.abc import Mapping, Sequence

import msgspec
import trio

from daemon.launcher.messages import Whose
from daemon.runner.core.driver import (
    Attempt,
    ExecStream,
    ExitResult,
    Fingerprint,
    InvalidConfig,
    StartFailed,
    TaskHandle,
)
from daemon.runner.core.resource_usage import UsageReading
from daemon.runner.core.task_dir import directories
from daemon.runner.core.task_env import TaskDirectories
from daemon.runner.drivers import driver_config
from storage.records import durations
from storage.records.base import SECOND

_KILLED = ExitResult(code=137, signal=9)
_INTERRUPTED = ExitResult(code=130, signal=2)


class MockConfig(msgspec.Struct, frozen=True):
    """The driver configuration: the simulated behavior. Durations are strings such as 1s."""

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
    """Simulates tasks as their configuration describes."""

    name = "mock_driver"
    file_owner_rule: Whose = "ours"
    is_prompt = False  # a start may be configured to block

    def fingerprint(self) -> Fingerprint:
        """Return the node attributes."""
        return Fingerprint(attributes={"driver.mock_driver": "true"})

    def task_dirs(self, directory: str, task: str) -> TaskDirectories:
        """Return the task directories on this host."""
        return directories(directory, task)

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless the configuration is valid."""
        settings = driver_config.read(MockConfig, block)
        for name in ("run_for", "start_block_for", "kill_after", "stdout_repeat_duration"):
            try:
                durations.nanoseconds(getattr(settings, name))
            except ValueError as error:
                raise InvalidConfig(f"{name}: {error}") from error

    async def start(self, attempt: Attempt) -> TaskHandle:
        """Simulate a start. Raises `StartFailed` if configured."""
        settings = driver_config.read(MockConfig, attempt.config)
        await trio.sleep(_seconds(settings.start_block_for))
        if settings.start_error:
            raise StartFailed(settings.start_error, recoverable=settings.start_error_recoverable)
        return MockTask(settings, attempt)

    async def adopt(self, attempt: Attempt, handle: bytes) -> TaskHandle | None:
        """Return None: simulated tasks do not survive the daemon."""
        del attempt, handle
        return None

    async def open_session(
        self, attempt: Attempt, command: Sequence[str], *, tty: bool
    ) -> ExecStream:
        """Raise `StartFailed`: there is no process."""
        raise StartFailed("exec is not supported by the mock driver")

    async def destroy(self, alloc_id: str, directory: str) -> None:
        """Do nothing."""


class MockTask:
    """A simulated task."""

    handle = b"mock"

    def __init__(self, settings: MockConfig, attempt: Attempt) -> None:
        self._settings = settings
        self._log = attempt.logs.get("stdout")
        self._stopped = trio.Event()
        self._ended = trio.Event()
        self._forced = False

    async def wait(self) -> ExitResult:
        """Return the configured result after the configured time."""
        settings = self._settings
        await self._write_output()  # also if the run time is zero
        with trio.move_on_after(_seconds(settings.run_for)) as time:
            for _ in range(settings.stdout_repeat):
                await trio.sleep(_seconds(settings.stdout_repeat_duration))
                await self._write_output()
            await self._stopped.wait()
        self._ended.set()
        if time.cancelled_caught:
            return ExitResult(
                code=settings.exit_code, signal=settings.exit_signal, message=settings.exit_err_msg
            )
        return _KILLED if self._forced else _INTERRUPTED

    async def _write_output(self) -> None:
        if self._settings.stdout_string and self._log is not None:
            (await self._log.writing()).write(self._settings.stdout_string.encode())

    async def signal(self, name: str) -> None:
        """Ignore the signal."""

    async def stop(self, signal: str, grace: float) -> str:
        """End the task after the configured time, but after no more than `grace` seconds."""
        del signal
        patience = _seconds(self._settings.kill_after)
        self._forced = patience > grace
        with trio.move_on_after(min(patience, grace)):
            await self._ended.wait()
        self._stopped.set()
        await self._ended.wait()
        return ""

    async def usage(self) -> UsageReading:
        """Return an empty usage."""
        return UsageReading()

    async def pause(self) -> None:
        """Do nothing."""

    async def resume(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


def _seconds(span: str) -> float:
    return durations.nanoseconds(span) / SECOND
