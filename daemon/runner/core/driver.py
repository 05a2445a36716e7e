"""The driver interface, which does not depend on processes, paths or hosts.

All calls are idempotent. An attempt has a unique name, so a second `start` returns the attempt that
the first `start` began. The store keeps a handle with which the driver finds a task again. Only the
driver interprets the handle, so a task may be a local process or a job of a cluster.
"""

import signal as signals
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeGuard

import msgspec

from daemon.launcher.messages import Whose
from daemon.runner.core.resource_usage import UsageReading
from daemon.runner.core.task_env import TaskDirectories
from daemon.runner.core.task_log import TaskLog
from storage.errors import Invalid, StewardError
from storage.records.allocation import AllocatedPort
from storage.records.task import LogConfig, NetworkDNS, Resources


class DeliveredFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a task on another host sent before its exit result.

    `outputs` is the SHA-256 of the outputs file, if the daemon has received the file. Otherwise
    `fault` is the reason why the file did not arrive. `not_kept` has a reason for each file that
    was not kept.
    """

    outputs: str = ""
    fault: str = ""
    not_kept: tuple[str, ...] = ()


class ExitResult(msgspec.Struct, frozen=True, kw_only=True):
    """The exit result of a task. `message` adds details to the status.

    `at` is the end time in nanoseconds since the epoch; 0 means that the daemon has just observed
    the end. `log_sizes` are the sizes of the task's log files in bytes by kind, if they are known.
    `outputs` is the content of the task's outputs file, if it is known.
    """

    code: int = 0
    signal: int = 0
    oom_killed: bool = False
    message: str = ""
    at: int = 0
    delivered: DeliveredFiles = DeliveredFiles()
    log_sizes: Mapping[str, int] = {}
    outputs: bytes | None = None

    @property
    def ok(self) -> bool:
        """Return whether the task succeeded."""
        return not (self.code or self.signal or self.message)


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The node attributes of a driver; `trouble` is the reason why it cannot run tasks, if any."""

    attributes: dict[str, str] = {}
    trouble: str = ""


class StartFailed(StewardError):
    """A task could not be started; `recoverable` is true if another attempt may succeed."""

    def __init__(self, message: str, *, recoverable: bool = False) -> None:
        super().__init__(message)
        self.recoverable = recoverable


class InvalidConfig(Invalid):
    """The driver configuration of a task is not valid."""


class HostMount(msgspec.Struct, frozen=True, kw_only=True):
    """A host volume and its path in the task; an empty source means a missing volume.

    `name` is the name of the volume in the group, and `volume` its name in the configuration.
    """

    name: str
    source: str
    volume: str = ""
    destination: str
    read_only: bool = False


class TaskFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a task below its allocation directory."""

    path: str
    content: bytes
    mode: int = 0o600


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt: its name (the first three fields) and everything needed to run it.

    `directory` is the prepared allocation directory. `config` and `env` are interpolated.
    """

    alloc_id: str
    task: str
    number: int
    directory: str
    config: Mapping[str, object]
    env: Mapping[str, str]
    user: str = ""
    resources: Resources = Resources()
    cores: tuple[int, ...] = ()  # cores reserved for the task
    mhz: int = 0  # CPU of the task, including its reserved cores
    log: LogConfig = LogConfig()
    logs: Mapping[str, TaskLog] = {}  # keys: stdout and stderr; empty if logging is disabled
    beside: str = ""  # internal directory of the daemon for the allocation, if it exists
    network_mode: str = ""
    dns: NetworkDNS | None = None
    ports: tuple[AllocatedPort, ...] = ()  # ports of the group and of the task
    mounts: tuple[HostMount, ...] = ()
    priority: int = 50  # priority of the job
    longest: int = 0  # maximum run time in nanoseconds; 0 means no limit
    disk_mb: int = 0  # requested by the group
    features: tuple[str, ...] = ()  # required from the hosts of a cluster by constraints
    family: tuple[str, str] = ("", "")  # namespace and ID of its job, or of that job's parent
    outputs: str = ""  # path of the outputs file in `directory`; empty outside of workflows
    keep: tuple[str, ...] = ()  # patterns of the files to keep
    files: tuple[TaskFile, ...] = ()  # written at the start by drivers with `writes_files`


class TaskHandle(Protocol):
    """An attempt that was started. It may have ended."""

    @property
    def handle(self) -> bytes:
        """Return the handle with which `adopt` finds the attempt after a daemon restart."""
        ...

    async def wait(self) -> ExitResult:
        """Wait until no process is left and return the exit result. Only one caller may wait."""
        ...

    async def signal(self, name: str) -> None:
        """Send a signal to the main process; an unknown signal name means SIGINT."""
        ...

    async def usage(self) -> UsageReading:
        """Return the current resource usage; `processes` has a unique key for each process."""
        ...

    async def stop(self, signal: str, grace: float) -> str:
        """Send a signal, and kill all processes after `grace` seconds.

        Return the error if processes could not be killed, or an empty string.
        """
        ...

    async def pause(self) -> None:
        """Pause all processes until `resume`."""
        ...

    async def resume(self) -> None:
        """Resume all processes."""
        ...

    def release(self) -> None:
        """Stop watching the attempt. It keeps running and can be adopted."""
        ...


class QueuedTask(TaskHandle, Protocol):
    """An attempt that may wait in the queue of a cluster before it starts."""

    async def wait_for_start(self, note: Callable[[str], None]) -> int | None:
        """Wait until the attempt leaves the queue; return its start time, or None.

        The start time is in nanoseconds since the epoch. None means that the attempt ended in the
        queue. `note` receives a status message whenever the status changes. Raises `StartFailed`
        when the attempt is rejected. Only one caller may wait, and only before it calls `wait`.
        """
        ...

    async def refresh(self) -> None:
        """Deliver the current templates and tokens to the attempt, and wait until they arrive."""
        ...


def is_queued(running: TaskHandle | None) -> TypeGuard[QueuedTask]:
    """Return whether an attempt may wait in a queue."""
    # `isinstance` with a runtime protocol takes 0.1 to 0.2 ms.
    return hasattr(running, "wait_for_start")


def writes_files(driver: "Driver | None") -> bool:
    """Return whether a driver writes `Attempt.files` when it starts an attempt."""
    return getattr(driver, "writes_files", False)


class ExecStream(Protocol):
    """A command inside a task: its input, its output and its exit status."""

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of the output streams; a command with a terminal has only `stdout`."""
        ...

    async def read(self, output: str) -> bytes:
        """Return the next bytes of an output; empty when the output is closed."""
        ...

    async def write(self, data: bytes) -> None:
        """Write input, and wait until the command reads it. Ignore a closed input."""
        ...

    async def end_input(self) -> None:
        """Close the input."""
        ...

    def resize(self, height: int, width: int) -> None:
        """Set the size of the terminal, if there is one."""
        ...

    async def wait(self) -> int:
        """Wait until the command ends; return its exit status, or 128 plus the signal number."""
        ...

    async def kill(self) -> None:
        """Kill the command and its children, unless it has ended."""
        ...

    async def close(self) -> None:
        """Kill the command unless it has ended, and release its resources."""
        ...


class Driver(Protocol):
    """The interface that each task driver implements."""

    @property
    def name(self) -> str:
        """Return the name of the driver in job files."""
        ...

    @property
    def file_owner_rule(self) -> Whose:
        """Return the rule that determines which user owns the files of a task."""
        ...

    @property
    def is_prompt(self) -> bool:
        """Return whether tasks start so quickly that requests to a task can wait for its start."""
        ...

    def fingerprint(self) -> Fingerprint:
        """Return the node attributes of the driver."""
        ...

    def task_dirs(self, directory: str, task: str) -> TaskDirectories:
        """Return the task directories as the task sees them."""
        ...

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless the driver can run tasks with this configuration."""
        ...

    async def start(self, attempt: Attempt) -> TaskHandle:
        """Start an attempt, or return it if it was started before.

        Raises `InvalidConfig` like `check`, or `StartFailed`.
        """
        ...

    async def adopt(self, attempt: Attempt, handle: bytes) -> TaskHandle | None:
        """Re-attach to a started attempt; return None if the driver does not know it."""
        ...

    async def open_session(
        self, attempt: Attempt, command: Sequence[str], *, tty: bool
    ) -> ExecStream:
        """Run a command inside a running attempt. Raises `StartFailed`."""
        ...

    async def destroy(self, alloc_id: str, directory: str) -> None:
        """Kill everything that still runs for a purged allocation."""
        ...


def find_signal(name: str) -> signals.Signals | None:
    """Return a signal by name, with or without the prefix SIG; None if the name is unknown."""
    return signals.Signals.__members__.get(f"SIG{name.upper().removeprefix('SIG')}")
