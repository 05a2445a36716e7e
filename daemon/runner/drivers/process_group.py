"""The processes of one attempt, which are killed together.

With cgroup v2 the kernel tracks the processes, if the daemon may create cgroups (`cgroup_v2.py`).
Otherwise they are found by scanning /proc (`process_scan.py`). The launcher sends the signals,
because the processes belong to other users.
"""

from typing import Protocol

from daemon.launcher.client import Launcher


class ProcessGroup(Protocol):
    """The processes of one attempt, without its shim."""

    @property
    def label(self) -> str:
        """Return the label by which the group is found again."""
        ...

    @property
    def entry(self) -> str:
        """Return the file through which a process enters the group; empty without cgroups."""
        ...

    def is_populated(self) -> bool:
        """Return whether the group has processes; false without cgroups."""
        ...

    def prepare(self) -> None:
        """Prepare the group for its first process. Raises `OSError`."""
        ...

    async def clear(self, launcher: Launcher, attempt: int | None = None) -> str:
        """Kill all processes and remove the group; return the error or an empty string.

        With an `attempt`, its claim file also helps to find the processes.
        """
        ...

    async def members(self, launcher: Launcher, attempt: int) -> list[int]:
        """Return the IDs of all processes, and possibly the IDs of their other threads."""
        ...

    async def pause(self, launcher: Launcher, attempt: int) -> None:
        """Pause all processes."""
        ...

    async def resume(self, launcher: Launcher, attempt: int) -> None:
        """Resume all processes."""
        ...


class ProcessGroups(Protocol):
    """The mechanism that tracks the processes of attempts on this host."""

    @property
    def attributes(self) -> dict[str, str]:
        """Return the node attributes, such as whether tracking finds all processes."""
        ...

    @property
    def parent(self) -> str:
        """Return the name of the parent cgroup, or an empty string."""
        ...

    def of(self, alloc_id: str, task: str, *, pinned: bool = False) -> ProcessGroup:
        """Return the group for the attempts of a task; `pinned` means that cores are reserved."""
        ...

    def delegate(self, owner: tuple[int, int]) -> None:
        """Create the parent cgroup and delegate it to a user. Raises `OSError`."""
        ...

    def release(self) -> bool:
        """Remove the parent cgroup if it is empty; return whether no group is in use."""
        ...
