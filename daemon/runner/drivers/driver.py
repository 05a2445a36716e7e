"""What a driver is: a way to run tasks. Nothing here knows a process, a path or a machine.

Calls are few and can be repeated: an attempt at a task has a name of its own, so starting it a
second time finds the first. What a driver needs to find a task again is opaque data that the
store keeps. So a driver may run tasks as processes of this machine or as jobs of a cluster.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeGuard

import msgspec

from daemon.launcher.messages import Owner
from daemon.runner.env import Directories
from daemon.runner.usage import Use
from storage.errors import Invalid, StewardError
from storage.records.allocation import AllocatedPort
from storage.records.task import LogConfig, NetworkDNS, Resources


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended. `message` says what its status alone does not.

    `at` is when (wall clock, nanoseconds), where nobody was there to see it; 0: at this moment.
    """

    code: int = 0
    signal: int = 0
    oom_killed: bool = False
    message: str = ""
    at: int = 0

    @property
    def ok(self) -> bool:
        """Tell whether it did what it should."""
        return not (self.code or self.signal or self.message)


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of a driver; with `trouble`, why no task can be run with it here."""

    attributes: dict[str, str] = {}
    trouble: str = ""


class StartFailed(StewardError):
    """A task could not be started; `recoverable` when another attempt may go better."""

    def __init__(self, message: str, *, recoverable: bool = False) -> None:
        super().__init__(message)
        self.recoverable = recoverable


class InvalidConfig(Invalid):
    """The block that a task gives its driver is wrong."""


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of the machine, where a task is to see it; an empty source: there is none."""

    name: str
    source: str
    destination: str
    read_only: bool = False


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a task: its name (the first three fields) and everything to run it with.

    `directory` is the allocation's, as the runner prepared it. References in `config` and `env`
    are resolved.
    """

    alloc_id: str
    task: str
    number: int
    directory: str
    config: Mapping[str, object]
    env: Mapping[str, str]
    user: str = ""
    resources: Resources = Resources()
    cores: tuple[int, ...] = ()  # that were reserved for it
    mhz: int = 0  # that it holds, with its cores
    log: LogConfig = LogConfig()
    network_mode: str = ""
    dns: NetworkDNS | None = None
    ports: tuple[AllocatedPort, ...] = ()  # of its group, and its own
    mounts: tuple[Mount, ...] = ()
    priority: int = 50  # of its job
    longest: int = 0  # nanoseconds that it may run; 0: as long as it likes
    disk_mb: int = 0  # that its group asks for
    features: tuple[str, ...] = ()  # of the hosts of a cluster, that its constraints name


class Running(Protocol):
    """An attempt that has been started, whether or not it has ended since."""

    @property
    def handle(self) -> bytes:
        """Return what the driver needs to find it again."""
        ...

    async def wait(self) -> Exit:
        """Return how it ended, once nothing of it is left. For one caller."""
        ...

    async def signal(self, name: str) -> None:
        """Send a signal to its main process; an unknown name means SIGINT."""
        ...

    async def usage(self) -> Use:
        """Return what it uses at this moment, its processes by any number that tells them apart."""
        ...

    async def stop(self, signal: str, grace: float) -> str:
        """Ask it to end with a signal, and end it after `grace` seconds, with all it has started.

        Return what could not be ended, as text, or nothing.
        """
        ...

    async def pause(self) -> None:
        """Hold it still for a moment; `resume` follows."""
        ...

    async def resume(self) -> None:
        """Let it go on."""
        ...

    def release(self) -> None:
        """Let go of it: it runs on, and may be adopted."""
        ...


class Queued(Running, Protocol):
    """An attempt that may have to wait for its turn after it was taken, somewhere else."""

    async def begun(self, note: Callable[[str], None]) -> int | None:
        """Return when it began to run (wall clock, nanoseconds); None: it ended without.

        Until then `note` is told where it stands, in plain words, whenever that changes. Raises
        `StartFailed` when nobody takes it. For one caller, before `wait`.
        """
        ...

    async def refresh(self) -> None:
        """Bring it the files that it was given, as they are now; return when it has them."""
        ...


def is_queued(running: Running | None) -> TypeGuard[Queued]:
    """Tell whether an attempt may have to wait for its turn."""
    # To ask for all of the protocol, as `isinstance` does, takes 0.1 to 0.2 ms.
    return hasattr(running, "begun")


class Session(Protocol):
    """A command that runs inside a task: what goes in, what comes out, and how it ended."""

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of what can be read: both streams, or one when it has a terminal."""
        ...

    async def read(self, output: str) -> bytes:
        """Return what it has written next; nothing when it has closed the stream."""
        ...

    async def write(self, data: bytes) -> None:
        """Hand it input; waits as long as it does not read, and ignores that it never will."""
        ...

    async def end_input(self) -> None:
        """Let it read the end of its input."""
        ...

    def resize(self, height: int, width: int) -> None:
        """Tell it the size of its terminal, if it has one."""
        ...

    async def wait(self) -> int:
        """Return its exit status, 128 and more when a signal ended it."""
        ...

    def kill(self) -> None:
        """Kill it, with what it has started, unless it has ended."""
        ...

    async def close(self) -> None:
        """Kill it unless it has ended, and let go of it."""
        ...


class Driver(Protocol):
    """A way to run tasks."""

    @property
    def name(self) -> str:
        """Return the name by which tasks ask for it."""
        ...

    @property
    def is_prompt(self) -> bool:
        """Tell whether a start is over in a moment: who asks about the task meanwhile waits for that."""
        ...

    def fingerprint(self) -> Fingerprint:
        """Return what a node says of it."""
        ...

    def places(self, directory: str, task: str) -> Directories:
        """Return where a task finds its directories, as it sees them."""
        ...

    def owner(self, user: str, alloc_id: str) -> Owner | None:
        """Return whom the files of an allocation's task are to belong to that names this user, or none.

        None: the daemon itself. Raises `StartFailed` when there is no such user.
        """
        ...

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless tasks with this block can be run."""
        ...

    async def start(self, attempt: Attempt) -> Running:
        """Start an attempt, or find it when it was started before.

        Raises `InvalidConfig` as `check` does, or `StartFailed`.
        """
        ...

    async def adopt(self, attempt: Attempt, handle: bytes) -> Running | None:
        """Find an attempt that was started; None when nothing is known of it any more."""
        ...

    async def open_session(self, attempt: Attempt, command: Sequence[str], *, tty: bool) -> Session:
        """Run a command inside a running attempt. Raises `StartFailed`."""
        ...

    async def destroy(self, alloc_id: str, directory: str) -> None:
        """End everything that runs for an allocation that nobody knows any more."""
        ...
