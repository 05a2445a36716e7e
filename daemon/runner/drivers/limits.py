"""The resource limits of a task, and their enforcement.

Limits are enforced by cgroup v2 (`cgroup_v2_limits.py`), by cgroup v1 (`cgroup_v1.py`), or by
resource limits of each process. The daemon detects the available mechanism at its start. Node
attributes name the mechanism for each limit, or the reason why Steward cannot enforce it.
"""

from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from daemon.runner.core.resource_usage import CpuAccount
from storage.records.task import Resources

CPU, CORES, MEMORY, PROCESSES = "cpu", "cores", "memory", "processes"
# The controller of each limit; the names are the same in both versions.
CONTROLLERS = {CPU: "cpu", CORES: "cpuset", MEMORY: "memory", PROCESSES: "pids"}
CPUSET = CONTROLLERS[CORES]
SHARED = "shared"  # the cgroup for tasks without reserved cores
KEPT_FREE = "; other tasks with enforced limits do not use the reserved cores"
BY_RLIMIT = "rlimit (for each process separately; only its private mappings count)"

_MEGABYTE = 1024 * 1024
_KILOBYTE = 1024
_LEAST_SHARES, _LEAST_WEIGHT, _MOST_WEIGHT = 2, 1, 10_000  # limits of the kernel
_MHZ_OF_A_WEIGHT = 10  # keeps weights proportional up to 100 GHz


class ResourceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one task, with sizes in bytes; 0 or an empty `cores` means no limit.

    `memory` is the reservation, `memory_max` the hard limit.
    """

    mhz: int = 0
    cores: tuple[int, ...] = ()
    memory: int = 0
    memory_max: int = 0
    processes: int = 0  # the limit includes threads

    @property
    def shares(self) -> int:
        """Return the CPU shares for cgroup v1; equal to the MHz of the task."""
        return max(_LEAST_SHARES, self.mhz)

    @property
    def weight(self) -> int:
        """Return the CPU weight for cgroup v2.

        >>> [ResourceLimits(mhz=mhz).weight for mhz in (1, 500, 5_000_000)]
        [1, 50, 10000]
        """
        return min(max(_LEAST_WEIGHT, self.mhz // _MHZ_OF_A_WEIGHT), _MOST_WEIGHT)

    @property
    def cpus(self) -> str:
        """Return the cores as a kernel CPU list."""
        return ",".join(map(str, self.cores))


def exclusive_cores(all_cores: str, core_lists: Iterable[str]) -> str:
    """Return the cores that are in none of `core_lists`; all cores if no core is left.

    >>> exclusive_cores("0-3", ["1", "3"]), exclusive_cores("0-1", ["0-1"])
    ('0,2', '0,1')
    """
    all_of_them = _cores(all_cores)
    free_cores = all_of_them.difference(*map(_cores, core_lists))
    return ",".join(map(str, sorted(free_cores or all_of_them)))


def _cores(text: str) -> set[int]:
    """Parse a kernel CPU list such as `0-3,7`."""
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            cores.update(range(int(first), int(last or first) + 1))
    return cores


def limits_of(
    resources: Resources, cores: tuple[int, ...] = (), mhz: int = 0, processes: int = 0
) -> ResourceLimits:
    """Return the limits of a task. If `mhz` is 0, `resources` determines the MHz.

    `cores` are the task's reserved cores, and `processes` is its limit of processes and threads.
    """
    return ResourceLimits(
        mhz=mhz or resources.cpu,
        cores=cores,
        memory=resources.memory_mb * _MEGABYTE,
        memory_max=max(resources.memory_mb, resources.memory_max_mb) * _MEGABYTE,
        processes=processes,
    )


class LimitEnforcer(Protocol):
    """The mechanism that enforces limits."""

    @property
    def held(self) -> Mapping[str, str]:
        """Return the mechanism of each enforced limit, by limit name."""
        ...

    @property
    def missing(self) -> Mapping[str, str]:
        """Return the reason for each limit that is not enforced, by limit name."""
        ...

    @property
    def above(self) -> list[Path]:
        """Return the parent cgroups that only enforce limits and do not track processes."""
        ...

    def entries(self, alloc_id: str, task: str, limits: ResourceLimits) -> list[str]:
        """Return the files through which a process enters the cgroups of a task."""
        ...

    def prepare(self, alloc_id: str, task: str, limits: ResourceLimits) -> None:
        """Create the cgroups of a task and set its limits. Raises `OSError`."""
        ...

    def present(self, alloc_id: str, task: str) -> list[str]:
        """Return the entry files of the existing cgroups of a task."""
        ...

    def killed(self, alloc_id: str, task: str) -> bool:
        """Return whether the kernel killed a process of a task for exceeding its memory limit."""
        ...

    def account(self, alloc_id: str, task: str) -> CpuAccount | None:
        """Return the total usage of a task; None if it is not measured."""
        ...

    def remove(self, alloc_id: str, task: str) -> None:
        """Remove the cgroups of an ended task."""
        ...

    def remove_all(self, alloc_id: str) -> None:
        """Remove the remaining cgroups of an allocation."""
        ...

    def delegate(self, owner: tuple[int, int]) -> None:
        """Create the parent cgroups and delegate them to a user. Raises `OSError`."""
        ...

    def release(self) -> object:
        """Release the parent cgroups if no task uses them."""
        ...


class RlimitEnforcer:
    """Enforces only the resource limits of single processes, without cgroups."""

    def __init__(self, enforced: Mapping[str, str], missing: Mapping[str, str]) -> None:
        self.held, self.missing = enforced, missing
        self.above: list[Path] = []

    def entries(self, alloc_id: str, task: str, limits: ResourceLimits) -> list[str]:
        """Return no cgroup files."""
        return []

    def prepare(self, alloc_id: str, task: str, limits: ResourceLimits) -> None:
        """Do nothing."""

    def present(self, alloc_id: str, task: str) -> list[str]:
        """Return no cgroup files."""
        return []

    def killed(self, alloc_id: str, task: str) -> bool:
        """Return false: OOM kills are not detected."""
        return False

    def account(self, alloc_id: str, task: str) -> CpuAccount | None:
        """Return None: usage is not measured."""
        return None

    def remove(self, alloc_id: str, task: str) -> None:
        """Do nothing."""

    def remove_all(self, alloc_id: str) -> None:
        """Do nothing."""

    def delegate(self, owner: tuple[int, int]) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


# For a driver that enforces no limits.
UNLIMITED = RlimitEnforcer(
    {},
    dict.fromkeys(CONTROLLERS, "enforced only if the agent has raw_exec_limits = true"),
)


def cgroup_enforcement(version: str, controllers: Container[str]) -> dict[str, str]:
    """Return the mechanism of each limit that these cgroup controllers can enforce."""
    enforced = {
        kind: f"{version} ({name})" for kind, name in CONTROLLERS.items() if name in controllers
    }
    if CORES in enforced:
        enforced[CORES] += KEPT_FREE
    return with_rlimits(enforced)


def with_rlimits(enforced: Mapping[str, str]) -> dict[str, str]:
    """Return `enforced`, with RLIMIT_DATA as the memory limit if no cgroup limits memory."""
    return {MEMORY: BY_RLIMIT, **enforced}


def data_limit(bounds: LimitEnforcer, limits: ResourceLimits) -> int:
    """Return RLIMIT_DATA in KiB for each process of a task; 0 means no limit."""
    by_rlimit = bounds.held.get(MEMORY) == BY_RLIMIT
    return limits.memory_max // _KILOBYTE if by_rlimit else 0


def limit_attributes(bounds: LimitEnforcer) -> dict[str, str]:
    """Return the node attributes of the limit enforcement."""
    enforced, missing = bounds.held, bounds.missing
    return {
        **{f"enforced.{name}": how for name, how in enforced.items()},
        **{f"unenforced.{name}": why for name, why in missing.items() if name not in enforced},
    }
