"""What the handlers of requests work with: the open parts of the daemon, by what they offer."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import IO, Protocol, TypeVar

import msgspec
import trio

from daemon.acl.audit import Audit
from daemon.acl.explain import Right
from daemon.acl.seal import Seal
from daemon.acl.tokens import Tokens
from daemon.clock import Clock
from daemon.config import Config
from daemon.feed import Feed
from daemon.fences import Fences
from daemon.identity.door import Door
from daemon.identity.issuer import Issuer
from daemon.jobspec.policies import Policies
from daemon.logs import Monitor
from storage.errors import TooOften
from storage.records.service import CheckResult
from storage.records.usage import AllocationUsage, MachineUsage
from storage.store import Store

T = TypeVar("T")

_AT_ONCE = 2  # pieces of long work
_EACH = 8  # requests of one client that are worked on or wait


class Line(Protocol):
    """What a client and a command inside a task talk over: messages, one after the other."""

    async def receive(self) -> bytes | None:
        """Return the next message; None when the client is gone."""
        ...

    async def send(self, message: bytes) -> None:
        """Send a message; waits as long as the client does not read."""
        ...

    async def until_lost(self) -> None:
        """Return when the client is gone, also while nobody receives."""
        ...


class Tasks(Protocol):
    """What can be asked of the runner. Of an allocation that it does not run: `NotFound`."""

    node_id: str

    async def restart(self, alloc_id: str, task: str | None, *, all_tasks: bool = False) -> None:
        """Begin another attempt at one task, or at those that run, or at all. Raises `Refused`."""
        ...

    async def signal(self, alloc_id: str, task: str | None, name: str) -> None:
        """Send a signal to the main process of one task, or of all that run. Raises `Refused`."""
        ...

    async def usage(self, alloc_id: str) -> AllocationUsage:
        """Return what an allocation uses."""
        ...

    def checks(self, alloc_id: str) -> list[CheckResult]:
        """Return what the checks of an allocation's services found last."""
        ...

    def machine_usage(self) -> MachineUsage:
        """Return what the machine uses."""
        ...

    def egress(self) -> tuple[bool, str]:
        """Return whether tasks are kept from some addresses, and by what or why not."""
        ...

    async def collect(self, alloc_id: str) -> None:
        """Remove the directory of an allocation that has ended. Raises `Refused`."""
        ...

    def collect_all(self) -> None:
        """Have the directories of all allocations that have ended removed."""
        ...

    async def converse(
        self, alloc_id: str, task: str, command: Sequence[str], line: Line, *, tty: bool
    ) -> None:
        """Run a command inside a task and let a client talk with it. Raises `Refused`."""
        ...


class Wrappers(Protocol):
    """What those may ask who bring tasks to the hosts of a cluster, with the secret of an attempt.

    Raises `Denied` for a secret that is nobody's, and errors that have the `status` of an answer.
    """

    def admit(self, secret: str) -> None:
        """Let everybody pass who shows a secret of an attempt, also of one that is forgotten."""
        ...

    async def claim(self, secret: str, *, nonce: str, job_id: str, host: str) -> IO[bytes]:
        """Give an attempt away; return the open file with what it brings along."""
        ...

    async def files(self, secret: str) -> IO[bytes]:
        """Return an open file with the files of an attempt."""
        ...

    def pieces(self, file: IO[bytes]) -> AsyncIterator[bytes]:
        """Yield what is in such a file, which is gone afterwards."""
        ...

    async def log(self, secret: str, kind: str, offset: int, data: bytes) -> int:
        """Take a piece of output; return the offset to go on from."""
        ...

    async def orders(self, secret: str, seen: int, used: tuple[int, int, int], span: float) -> str:
        """Return the orders after one, one a line; nothing after a span of seconds."""
        ...

    async def result(self, secret: str, code: int, why: str) -> None:
        """Take how a task ended."""
        ...


class Rights(Protocol):
    """What can be asked about the rights that requests need."""

    endpoint_paths: list[str]

    def of(self, method: str, target: str, is_mount: Callable[[str], bool]) -> Right:
        """Return the right that a request needs. Raises `NotFound`."""
        ...


class Admission:
    """Who may have long work done: few at once, and few that wait, so that no client takes all of it.

    Threads do it. They share one interpreter, so that more of them at once would answer nobody sooner,
    and would have the event loop wait more often.
    """

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._clients: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Hold one of the few places while the block runs, when it is free.

        Raises `TooOften` where the client has too many requests that wait.
        """
        if self._clients[client] >= _EACH:
            raise TooOften(
                f"{_EACH} large requests of this client are worked on or wait already: send the next "
                "one when one of them is answered"
            )
        self._clients[client] += 1
        try:
            async with self._limiter:
                yield
        finally:
            self._clients[client] -= 1
            self._clients += Counter()  # forgets those without any

    async def run(self, client: str, work: Callable[[], T]) -> T:
        """Return what `work` returns, done in a thread. Raises `TooOften`, and what it raises."""
        async with self.turn(client):
            return await trio.to_thread.run_sync(work)


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The open parts of one daemon."""

    config: Config
    store: Store
    clock: Clock
    ids: Iterator[str]
    seal: Seal
    audit: Audit
    issuer: Issuer
    tasks: Tasks
    tokens: Tokens
    rights: Rights
    fences: Fences
    door: Door  # to the login methods
    wrappers: Wrappers | None = None  # where tasks run on clusters
    policies: Policies = Policies()
    feed: Feed = msgspec.field(default_factory=Feed)
    monitor: Monitor = msgspec.field(default_factory=Monitor)
    admission: Admission = msgspec.field(default_factory=Admission)
    # Each needs room on the disk for the store and its packed copy.
    snapshots: trio.CapacityLimiter = msgspec.field(default_factory=lambda: trio.CapacityLimiter(1))
