"""The components of the daemon that the request handlers use."""

from collections import Counter
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING, Protocol, TypeVar

import msgspec
import trio

from daemon.acl.audit import Audit
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.tokens import TokenStore
from daemon.app.event_feed import EventFeed
from daemon.app.status_lines import StatusLines
from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.fences import Fences
from daemon.identity.issuer import Issuer
from daemon.identity.key_cache import KeyCache
from daemon.identity.lazy_methods import LazyMethods
from daemon.jobspec.policies import JobPolicySet
from daemon.log.daemon_log import LogMonitor
from daemon.runner.core.task_log import Logs as TaskLogs
from daemon.text.masking import Matcher
from storage import garbage
from storage.errors import TooOften
from storage.records.notification import ReceiverResult
from storage.records.service import CheckResult
from storage.records.usage import AllocationUsage, AllocationUsageLine, HostStats
from storage.records.usage_history import SeriesKey, UsageBlock
from storage.store import Store

if TYPE_CHECKING:
    from daemon.acl.explain import RequestedCapability

T = TypeVar("T")

_AT_ONCE = 2  # long operations at the same time
_EACH = 8  # requests of one client, running or queued


class MessageChannel(Protocol):
    """A bidirectional message channel between a client and a command inside a task."""

    async def receive(self) -> bytes | None:
        """Return the next message, or None after the client disconnected."""
        ...

    async def send(self, message: bytes) -> None:
        """Send a message; wait while the client does not read."""
        ...

    async def until_lost(self) -> None:
        """Wait until the client disconnects, even if no call of `receive` is pending."""
        ...


class TaskActions(Protocol):
    """The operations of the runner. They raise `NotFound` for an allocation that does not run."""

    node_id: str

    async def restart(self, alloc_id: str, task: str | None, *, all_tasks: bool = False) -> None:
        """Restart one task, all running tasks, or all tasks. Raises `Refused`."""
        ...

    async def signal(self, alloc_id: str, task: str | None, name: str) -> None:
        """Send a signal to the main process of one task or of all running tasks. Raises `Refused`."""
        ...

    async def create_volume(self, volume_id: str, mode: int, owner: tuple[int, int]) -> None:
        """Create the directory of a volume. Raises `OSError`."""
        ...

    async def remove_volume(self, volume_id: str) -> None:
        """Delete the directory of a volume. Raises `OSError`."""
        ...

    async def usage(self, alloc_id: str) -> AllocationUsage:
        """Return the resource usage of an allocation."""
        ...

    async def brief_usages(
        self, ids: Iterable[str], sees: Callable[[str], bool]
    ) -> list[AllocationUsageLine]:
        """Return the usage of the running allocations in the namespaces that `sees` accepts."""
        ...

    async def usage_history(
        self, key: SeriesKey, begin: int, end: int, step: int
    ) -> dict[str, UsageBlock] | None:
        """Return the samples from `begin` to `end`, one per `step`, for each task of an object.

        All times are in seconds. The result is None if the usage history is turned off.
        """
        ...

    def checks(self, alloc_id: str) -> list[CheckResult]:
        """Return the latest results of an allocation's service checks."""
        ...

    def host_usage(self) -> HostStats:
        """Return the resource usage of the host."""
        ...

    def egress(self) -> tuple[bool, str]:
        """Return whether an egress policy is enforced, and the mechanism or the reason why not."""
        ...

    def git_isolation(self) -> tuple[bool, str]:
        """Return whether git runs in its own sandbox, and the reason if it does not."""
        ...

    async def collect(self, alloc_id: str) -> None:
        """Delete the directory of a terminal allocation. Raises `Refused`."""
        ...

    def collect_all(self) -> None:
        """Schedule the deletion of the directories of all terminal allocations."""
        ...

    async def run_exec_session(
        self, alloc_id: str, task: str, command: Sequence[str], line: MessageChannel, *, tty: bool
    ) -> None:
        """Run a command inside a task. Its input and output go through `line`. Raises `Refused`."""
        ...


class Receivers(Protocol):
    """The notification receivers of the configuration."""

    async def test(self, name: str = "") -> list[ReceiverResult]:
        """Send a test message to one receiver, or to all if no name is given. Raises `NotFound`."""
        ...


class WrapperProtocol(Protocol):
    """The operations of wrappers, which run tasks on cluster hosts with the secret of an attempt.

    The operations raise `Denied` for an unknown secret. The `status` of any other error is the HTTP
    status of the response.
    """

    def admit(self, secret: str) -> None:
        """Raise `Denied` unless the secret belongs to an attempt, even a withdrawn one."""
        ...

    async def claim(self, secret: str, *, nonce: str, job_id: str, host: str) -> IO[bytes]:
        """Claim an attempt for a host; return the open file with its artifacts."""
        ...

    async def files(self, secret: str) -> IO[bytes]:
        """Return an open file with the files of an attempt."""
        ...

    def pieces(self, file: IO[bytes]) -> AsyncIterator[bytes]:
        """Yield the content of a file that another operation returned, then close the file."""
        ...

    async def log(self, secret: str, kind: str, offset: int, data: bytes) -> int:
        """Store a chunk of output; return the offset of the next chunk."""
        ...

    async def orders(self, secret: str, seen: int, used: tuple[int, int, int], span: float) -> str:
        """Return the commands with numbers above `seen`, one per line; wait up to `span` seconds.

        `used` are the CPU ticks of the task in user and system mode, and its memory pages. The
        result is empty if there are no commands.
        """
        ...

    async def list_kept(self, secret: str, listing: bytes, *, is_root: bool, is_whole: bool) -> str:
        """Return the files that the wrapper must send, chosen from its `listing`.

        `is_root` means that the task ran as root, and `is_whole` that the host could list all
        files.
        """
        ...

    async def keep(
        self, secret: str, number: int, offset: int, data: bytes, *, is_end: bool
    ) -> None:
        """Store a chunk of a file to retain.

        `number` is the number of the file in the answer of `list_kept`, and `is_end` marks the last
        chunk.
        """
        ...

    async def result(
        self,
        secret: str,
        code: int,
        why: str,
        outputs: str = "",
        kept_paths: str = "",
        content: bytes = b"",
    ) -> None:
        """Store the exit code of a task, the reason `why` it ended, and its outputs file.

        `outputs` states whether `content` is the outputs file, or why it is not. `kept_paths`
        states whether the files to keep were sent.
        """
        ...


class RightsLookup(Protocol):
    """The lookup of the permission that a request needs."""

    endpoint_paths: list[str]

    def of(
        self, method: str, target: str, is_mount: Callable[[str], bool]
    ) -> "RequestedCapability":
        """Return the permission that a request needs. Raises `NotFound`."""
        ...


class AdmissionControl:
    """Concurrency limit for long operations in threads, with a fair share for each client.

    The threads share the GIL. So more threads would not answer any request sooner, and would delay
    the event loop more often.
    """

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._clients: Counter[str] = Counter()

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        """Wait for a free slot and hold it while the block runs.

        A caller that already holds a slot uses that slot.

        Raises `TooOften` if the client already has too many requests queued.
        """
        if trio.lowlevel.current_task() in self._limiter.statistics().borrowers:
            yield
            return
        if self._clients[client] >= _EACH:
            raise TooOften(
                f"this client already has {_EACH} large requests running or queued: send the "
                "next request after a response"
            )
        self._clients[client] += 1
        try:
            async with self._limiter:
                yield
        finally:
            self._clients[client] -= 1
            self._clients += Counter()  # drops clients whose count is zero

    async def run(self, client: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return its result. Raises its exceptions and `TooOften`."""
        async with self.slot(client):
            result = await garbage.in_thread(work)
        garbage.free_in_thread(result)
        return result


class OutputMasks(Protocol):
    """The secrets that are masked in the output of tasks."""

    async def matcher(self, alloc_id: str) -> Matcher | None:
        """Return the matcher of an allocation, or None if its tasks received no secrets."""
        ...


class JobMaskSource(Protocol):
    """The sensitive variables of job files, which are masked in responses."""

    async def jobs(self) -> Collection[tuple[str, str]]:
        """Return the namespace and ID of each job with sensitive variables."""
        ...

    async def matcher(self, key: tuple[str, str]) -> Matcher | None:
        """Return the matcher of one job, or None if it has no sensitive variables."""
        ...


class AppContext(msgspec.Struct, frozen=True, kw_only=True):
    """The components of one daemon."""

    config: Settings
    store: Store
    clock: Clock
    ids: Iterator[str]
    seal: EnvelopeCipher
    audit: Audit
    issuer: Issuer
    tasks: TaskActions
    logs: TaskLogs
    tokens: TokenStore
    rights: "Callable[[], RightsLookup]"
    fences: Fences
    door: LazyMethods  # the login methods
    notify: Receivers
    output: OutputMasks
    job_masks: JobMaskSource | None = None  # None without access control
    wrappers: WrapperProtocol | None = None  # None without clusters
    # seconds until the certificates of the listeners expire, by setting; the argument is the time
    certificates: Callable[[int], Mapping[str, float]] = lambda _: {}
    policies: JobPolicySet = JobPolicySet()
    feed: EventFeed = msgspec.field(default_factory=EventFeed)
    brief_feed: EventFeed = msgspec.field(default_factory=lambda: EventFeed(is_brief=True))
    status_lines: StatusLines = msgspec.field(default_factory=StatusLines)
    key_cache: KeyCache = msgspec.field(default_factory=KeyCache)  # fetched keys of auth methods
    monitor: LogMonitor = msgspec.field(default_factory=LogMonitor)
    admission: AdmissionControl = msgspec.field(default_factory=AdmissionControl)
    # Each snapshot needs disk space for the store and its compressed copy.
    snapshots: trio.CapacityLimiter = msgspec.field(default_factory=lambda: trio.CapacityLimiter(1))
