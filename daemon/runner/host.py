"""What all allocations of a node share: the place they run in."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import trio

from daemon.clock import Clock
from daemon.runner.artifacts.fetch import Fetcher
from daemon.runner.drivers.driver import Driver
from daemon.runner.identities import Signer
from daemon.runner.report import Reports
from daemon.runner.rotation import Sweeper
from storage.queries.variables import Entry
from storage.records.workload import Workload
from storage.store import Store


class Variables(Protocol):
    """What reads variables for tasks."""

    def read(self, workload: Workload, namespace: str, path: str) -> Mapping[str, str] | None:
        """Return the values of a variable; None: there is none. Raises `Refused`."""
        ...

    def listed(self, workload: Workload, namespace: str, prefix: str) -> list[Entry]:
        """Return the variables below a prefix that the task may list."""
        ...


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The place. `values` are what `${…}` may name of the node, `environment` what tasks inherit."""

    alloc_dir: Path
    store: Store
    variables: Variables  # that tasks may read
    rendering: trio.CapacityLimiter  # of templates that take long
    clock: Clock
    drivers: Mapping[str, Driver]
    reports: Reports
    sweeper: Sweeper
    fetcher: Fetcher
    values: Mapping[str, str]
    environment: Mapping[str, str]
    parent_cgroup: str
    mhz: float  # of one processor
    signer: Signer
    issuer: str  # by which others know the signer
    claims: Mapping[str, str]  # that identities may ask for
    task_socket: Path  # through which tasks reach our API
    chance: Callable[[], float]  # a random number from 0 up to 1

    def directory(self, alloc_id: str) -> str:
        """Return the directory of an allocation."""
        return f"{self.alloc_dir}/{alloc_id}"
