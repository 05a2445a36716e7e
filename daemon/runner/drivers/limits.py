"""What a task may have at most, and how a driver says who holds it to that.

Whoever can hold tasks to limits is one of: control groups of version 2 (`subtree.py`), those of
version 1 (`bounds.py`), or the limits that every process has by itself. What of it a machine has
is found once, when the daemon starts; a node's attributes name each limit with who enforces it, or
why nobody does.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Protocol

import msgspec

from daemon.runner.usage import Account
from storage.records.task import Resources

CPU, CORES, MEMORY, PROCESSES = "cpu", "cores", "memory", "processes"
# Where the kernel keeps account of each: names of controllers, the same in both versions.
CONTROLLERS = {CPU: "cpu", CORES: "cpuset", MEMORY: "memory", PROCESSES: "pids"}
CPUSET = CONTROLLERS[CORES]
SHARED = "shared"  # what is held to the cores that nobody has for itself
KEPT_FREE = "; other tasks that are held to limits keep off them"
BY_RLIMIT = "rlimit (each process alone, by what it maps for itself)"

_MEGABYTE = 1024 * 1024
_KILOBYTE = 1024
_LEAST_SHARES, _LEAST_WEIGHT, _MOST_WEIGHT = 2, 1, 10_000  # that the kernel takes
_MHZ_OF_A_WEIGHT = 10  # so that weights keep their proportions up to 100 GHz


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one task may have; bytes. 0 and no cores mean: no limit.

    `memory` is what is kept for it, `memory_max` what it may not exceed.
    """

    mhz: int = 0
    cores: tuple[int, ...] = ()
    memory: int = 0
    memory_max: int = 0
    processes: int = 0  # threads included

    @property
    def shares(self) -> int:
        """Return its part of busy processors beside others, for version 1: a number as large as its MHz."""
        return max(_LEAST_SHARES, self.mhz)

    @property
    def weight(self) -> int:
        """Return the same for version 2.

        >>> [Limits(mhz=mhz).weight for mhz in (1, 500, 5_000_000)]
        [1, 50, 10000]
        """
        return min(max(_LEAST_WEIGHT, self.mhz // _MHZ_OF_A_WEIGHT), _MOST_WEIGHT)

    @property
    def cpus(self) -> str:
        """Return its cores as the kernel writes a list of them."""
        return ",".join(map(str, self.cores))


def left(every: str, held: Iterable[str]) -> str:
    """Return the cores of a list that no other list has; all of them when none is left.

    >>> left("0-3", ["1", "3"]), left("0-1", ["0-1"])
    ('0,2', '0,1')
    """
    all_of_them = _cores(every)
    rest = all_of_them.difference(*map(_cores, held))
    return ",".join(map(str, sorted(rest or all_of_them)))


def _cores(text: str) -> set[int]:
    """Return the cores of a list as the kernel writes it, such as `0-3,7`."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def limits_of(
    resources: Resources, cores: tuple[int, ...] = (), mhz: int = 0, processes: int = 0
) -> Limits:
    """Return the limits of a task that asks for `resources` and was given `cores` with `mhz`."""
    return Limits(
        mhz=mhz or resources.cpu,
        cores=cores,
        memory=resources.memory_mb * _MEGABYTE,
        memory_max=max(resources.memory_mb, resources.memory_max_mb) * _MEGABYTE,
        processes=processes,
    )


class Bounds(Protocol):
    """What holds tasks to limits."""

    @property
    def held(self) -> Mapping[str, str]:
        """Return by what each limit is enforced that is."""
        ...

    @property
    def missing(self) -> Mapping[str, str]:
        """Return why each other one is not."""
        ...

    def entries(self, alloc_id: str, task: str, limits: Limits) -> list[str]:
        """Return the files by which a process enters the groups that `prepare` makes for a task."""
        ...

    def prepare(self, alloc_id: str, task: str, limits: Limits) -> None:
        """Make a task's groups, with its limits. Raises `OSError`."""
        ...

    def present(self, alloc_id: str, task: str) -> list[str]:
        """Return the files by which a process enters a task's groups, of those that there are."""
        ...

    def killed(self, alloc_id: str, task: str) -> bool:
        """Tell whether the kernel has killed something of a task for its memory."""
        ...

    def account(self, alloc_id: str, task: str) -> Account | None:
        """Return what all of a task has used; None where nobody keeps account."""
        ...

    def remove(self, alloc_id: str, task: str) -> None:
        """Remove a task's groups, when nothing of it is left."""
        ...

    def remove_all(self, alloc_id: str) -> None:
        """Remove what is left of the groups of an allocation."""
        ...


class NoGroups:
    """No groups: `held` can only be what every process is held to by itself."""

    def __init__(self, held: Mapping[str, str], missing: Mapping[str, str]) -> None:
        self.held, self.missing = held, missing

    def entries(self, alloc_id: str, task: str, limits: Limits) -> list[str]:
        """Return nothing: there are no groups."""
        return []

    def prepare(self, alloc_id: str, task: str, limits: Limits) -> None:
        """Make nothing."""

    def present(self, alloc_id: str, task: str) -> list[str]:
        """Return nothing."""
        return []

    def killed(self, alloc_id: str, task: str) -> bool:
        """Nobody would know."""
        return False

    def account(self, alloc_id: str, task: str) -> Account | None:
        """Nobody keeps account."""
        return None

    def remove(self, alloc_id: str, task: str) -> None:
        """Remove nothing."""

    def remove_all(self, alloc_id: str) -> None:
        """Remove nothing."""


# Where a driver is to hold tasks to nothing.
UNLIMITED = NoGroups(
    {},
    dict.fromkeys(CONTROLLERS, "tasks are held to it where the agent has raw_exec_limits = true"),
)


def by_groups(version: str, controllers: Container[str]) -> dict[str, str]:
    """Return what holds tasks to limits where groups have these controllers."""
    held = {
        kind: f"{version} ({name})" for kind, name in CONTROLLERS.items() if name in controllers
    }
    if CORES in held:
        held[CORES] += KEPT_FREE
    return with_rlimits(held)


def with_rlimits(held: Mapping[str, str]) -> dict[str, str]:
    """Return what holds tasks to limits, with the last resort where no group bounds their memory."""
    return {MEMORY: BY_RLIMIT, **held}


def data_limit(bounds: Bounds, limits: Limits) -> int:
    """Return how much each process of a task may map for itself, KiB; 0: as much as it likes."""
    by_rlimit = bounds.held.get(MEMORY) == BY_RLIMIT
    return limits.memory_max // _KILOBYTE if by_rlimit else 0


def said(bounds: Bounds) -> dict[str, str]:
    """Return what a node says of a driver that holds tasks to limits, by the name of an attribute."""
    held, missing = bounds.held, bounds.missing
    return {
        **{f"enforced.{name}": how for name, how in held.items()},
        **{f"unenforced.{name}": why for name, why in missing.items() if name not in held},
    }
