"""What all allocations of a node share: the place they run in."""

from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Protocol

import msgspec
import trio

from daemon.clock import Clock
from daemon.launcher.client import Launcher
from daemon.listening import Listener
from daemon.runner.artifacts.fetch import Fetcher
from daemon.runner.drivers.driver import Driver
from daemon.runner.identities import Signer
from daemon.runner.report import Reports
from daemon.runner.rotation import Sweeper
from daemon.runner.secret_dirs import SecretDirs
from daemon.runner.taskdir import GONE
from daemon.runner.uids import Uids
from storage.queries.variables import Entry
from storage.records.node import HostVolume
from storage.records.task import SecretsConfig
from storage.records.workload import Workload
from storage.store import Store

# Who listens on any of these ports of the machine, whoever that is.
Listeners = Callable[[Set[int]], list[Listener]]


def nobody(ports: Set[int]) -> list[Listener]:
    """Say that nobody listens."""
    return []


class Variables(Protocol):
    """What reads variables for tasks."""

    def read(self, workload: Workload, namespace: str, path: str) -> Mapping[str, str] | None:
        """Return the values of a variable; None: there is none. Raises `Refused`."""
        ...

    def listed(self, workload: Workload, namespace: str, prefix: str) -> list[Entry]:
        """Return the variables below a prefix that the task may list."""
        ...


class Held(Protocol):
    """A token of a task; times and spans are nanoseconds. `secret` is known when it is made."""

    @property
    def accessor(self) -> str:
        """Return by what it can be found without its secret."""
        ...

    @property
    def secret(self) -> str:
        """Return what the task shows."""
        ...

    @property
    def ttl(self) -> int:
        """Return how long it was to live when it was made."""
        ...

    @property
    def renewed_at(self) -> int:
        """Return when its life was last prolonged."""
        ...

    @property
    def expires_at(self) -> int:
        """Return when it ends."""
        ...


class Credentials(Protocol):
    """What gives tokens of the secrets side to tasks."""

    async def make(self, workload: Workload, block: SecretsConfig) -> Held:
        """Return a new token. Raises `Refused`."""
        ...

    async def renew(self, accessor: str) -> Held:
        """Let a token live on, as far as it may. Raises `Refused` when it has ended."""
        ...

    def find(self, accessor: str) -> Held | None:
        """Return a token that was made before; None when it has ended."""
        ...

    def is_secret(self, accessor: str, secret: str) -> bool:
        """Tell whether this is the secret of a token that has not ended."""
        ...

    async def end(self, accessor: str) -> None:
        """Let nobody use a token any more."""
        ...


def unguarded() -> tuple[bool, str]:
    """Return that tasks are kept from no address."""
    return False, "task_egress is open: tasks reach what the machine reaches"


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The place. `values` are what `${…}` may name of the node, `environment` what tasks inherit.

    `capacity` is CPU (MHz), memory and disk (MB); None where a cluster lets wait what it has no
    room for.
    """

    node_id: str
    capacity: tuple[int, int, int] | None
    alloc_dir: Path
    logs_dir: Path  # of allocations whose directory is gone
    store: Store
    variables: Variables  # that tasks may read
    launcher: Launcher  # that has the rights of the machine
    secret_dirs: SecretDirs  # in memory
    credentials: Credentials  # of the secrets side
    rendering: trio.CapacityLimiter  # of templates that take long
    clock: Clock
    drivers: Mapping[str, Driver]
    reports: Reports
    sweeper: Sweeper
    fetcher: Fetcher
    volumes: Mapping[str, HostVolume]  # by name
    values: dict[str, str]
    environment: Mapping[str, str]
    parent_cgroup: str
    mhz: float  # of one processor
    signer: Signer
    issuer: str  # by which others know the signer
    claims: Mapping[str, str]  # that identities may ask for
    disk_is_limit: bool  # an allocation that takes more disk than it may fails
    task_socket: Path  # through which tasks reach our API
    listeners: Listeners
    chance: Callable[[], float]  # a random number from 0 up to 1
    egress: Callable[[], tuple[bool, str]] = unguarded  # whether tasks are kept from addresses
    uids: Uids | None = None  # of allocations; None: their tasks have no users of their own

    def directory(self, alloc_id: str) -> str:
        """Return the directory of an allocation."""
        return f"{self.alloc_dir}/{alloc_id}"

    def renew_metadata(self, meta: Mapping[str, str]) -> None:
        """Take over the metadata of the node."""
        for name in [one for one in self.values if one.startswith("meta.")]:
            del self.values[name]
        self.values.update({f"meta.{name}": value for name, value in meta.items()})

    async def destroy(self, alloc_id: str) -> None:
        """End every process of an allocation that a driver knows, also of one that is being removed."""
        for driver in self.drivers.values():
            await driver.destroy(alloc_id.removesuffix(GONE), self.directory(alloc_id))
