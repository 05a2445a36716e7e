"""The runtime context: the parts and values that all allocations of a node share."""

from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio

from daemon.clock import Clock
from daemon.fences import Fences
from daemon.launcher.alloc_removal import GONE
from daemon.launcher.client import Launcher
from daemon.net.http_client import Permit
from daemon.net.port_listeners import PortListener
from daemon.runner.core.driver import Driver
from daemon.runner.core.resource_usage import TrafficSample
from daemon.runner.core.status_report import ReportQueue
from daemon.runner.core.task_log import Logs
from daemon.runner.logs.rotation import LogRotator
from daemon.runner.setup.given_secrets import SecretKeeper
from daemon.runner.setup.secrets_tmpfs import SecretsTmpfs
from daemon.runner.setup.workload_identity import IdentitySigner
from storage.queries.variables import VariableRow
from storage.records.node import HostVolume
from storage.records.task import SecretsConfig
from storage.records.workload import Workload
from storage.store import Store

if TYPE_CHECKING:
    from daemon.runner.setup.artifacts.fetch import ArtifactFetcher
    from daemon.runner.setup.file_keeper import FileKeeper

# Return the processes that listen on any of these ports of the host.
Listeners = Callable[[Set[int]], list[PortListener]]


# Return the traffic of an allocation on the bridge; None if it has no interface there.
Traffic = Callable[[str], TrafficSample | None]


def no_traffic(alloc_id: str) -> None:
    """Return None: a node without a bridge has no bridge traffic."""


def no_listeners(ports: Set[int]) -> list[PortListener]:
    """Return no listeners, for a cluster pool, whose hosts the daemon cannot examine."""
    return []


class VariableReader(Protocol):
    """Reads variables for tasks."""

    async def read(self, workload: Workload, namespace: str, path: str) -> Mapping[str, str] | None:
        """Return the items of a variable, or None if it does not exist. Raises `Refused`."""
        ...

    async def listed(self, workload: Workload, namespace: str, prefix: str) -> list[VariableRow]:
        """Return the variables below a prefix that the task may list."""
        ...


class TaskToken(Protocol):
    """A Vault token of a task. Times and durations are in nanoseconds.

    The secret is only available right after the token is created.
    """

    @property
    def accessor(self) -> str:
        """Return the accessor of the token."""
        ...

    @property
    def secret(self) -> str:
        """Return the secret of the token."""
        ...

    @property
    def ttl(self) -> int:
        """Return the TTL with which the token was created."""
        ...

    @property
    def renewed_at(self) -> int:
        """Return the time of the last renewal."""
        ...

    @property
    def expires_at(self) -> int:
        """Return the expiry time."""
        ...


class TokenProvider(Protocol):
    """Issues Vault tokens to tasks."""

    async def make(self, workload: Workload, block: SecretsConfig) -> TaskToken:
        """Return a new token. Raises `Refused`."""
        ...

    async def renew(self, accessor: str) -> TaskToken:
        """Renew a token within its maximum TTL. Raises `Refused` when it has expired."""
        ...

    def find(self, accessor: str) -> TaskToken | None:
        """Return an existing token, or None when it has expired."""
        ...

    def is_secret(self, accessor: str, secret: str) -> bool:
        """Return whether `secret` is the secret of the valid token with this accessor."""
        ...

    async def end(self, accessor: str) -> None:
        """Revoke a token."""
        ...


def unguarded() -> tuple[bool, str]:
    """Return the egress state of a host without a policy: not enforced, and the reason."""
    return False, "task_egress is open: tasks can connect to every address that the host can reach"


class RuntimeContext(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime context of a node. `values` has the values of `${…}` references to the node.

    Tasks inherit `environment`. `capacity` is CPU (MHz), memory and disk (MB), or None for a
    cluster with a queue.
    """

    node_id: str
    capacity: tuple[int, int, int] | None
    alloc_dir: Path
    logs_dir: Path  # retained logs of removed allocations
    logs: Logs
    store: Store
    variables: VariableReader  # variables of the store
    launcher: Launcher  # performs privileged operations
    secret_dirs: SecretsTmpfs  # secrets directories on tmpfs
    credentials: TokenProvider  # issues tokens of the Vault API
    rendering: trio.CapacityLimiter  # limits concurrent slow template renderings
    clock: Clock
    fences: Fences
    drivers: Mapping[str, Driver]
    reports: ReportQueue
    sweeper: LogRotator
    fetcher: "Callable[[], ArtifactFetcher]"
    permit: Permit  # checks addresses that a job names
    volumes: Mapping[str, HostVolume]  # by name
    values: dict[str, str]
    environment: Mapping[str, str]
    parent_cgroup: str
    mhz: float  # clock rate of one core
    signer: IdentitySigner
    issuer: str  # issuer URL of workload identity tokens
    claims: Mapping[str, str]  # additional claims that an identity may request
    disk_is_limit: bool  # stop allocations that exceed their disk limit
    task_socket: Path  # path of the socket of the API for tasks
    listeners: Listeners
    chance: Callable[[], float]  # return a random number in [0, 1)
    traffic: Traffic = no_traffic
    egress: Callable[[], tuple[bool, str]] = unguarded  # returns the state of the egress policy
    # Whether git runs in a sandbox, or why not; and the allocation IDs of its open sandboxes, which
    # are not in the store.
    git: tuple[bool, str] = (False, "")
    workshops: Set[str] = frozenset()
    # Keeps files of ended tasks; None on clusters, whose hosts send them.
    file_keeper: "Callable[[], FileKeeper] | None" = None
    secret_keeper: SecretKeeper | None = None  # stores the secrets of tasks for masking

    def directory(self, alloc_id: str) -> str:
        """Return the directory of an allocation."""
        return f"{self.alloc_dir}/{alloc_id}"

    def renew_metadata(self, meta: Mapping[str, str]) -> None:
        """Set the metadata of the node."""
        for name in [key for key in self.values if key.startswith("meta.")]:
            del self.values[name]
        self.values.update({f"meta.{name}": value for name, value in meta.items()})

    async def destroy(self, alloc_id: str) -> None:
        """Kill all processes of an allocation, through each driver.

        If the allocation directory is being removed, `alloc_id` may end with the suffix `GONE`.
        """
        for driver in self.drivers.values():
            await driver.destroy(alloc_id.removesuffix(GONE), self.directory(alloc_id))
