"""All processes of one attempt at a task, whoever started them: what is ended together.

A kernel that has control groups of version 2 keeps account itself, wherever the daemon may make
groups (`cgroup.py`). Elsewhere the processes are found by looking at all there are (`scan.py`).
"""

from typing import Protocol

from daemon.runner.drivers.claim import Trace


class Group(Protocol):
    """The processes of one attempt, without the shim that watches it."""

    @property
    def label(self) -> str:
        """Return the text by which the same group is found again."""
        ...

    @property
    def entry(self) -> str:
        """Return the file by which a process enters the group, if there is one."""
        ...

    def is_populated(self) -> bool:
        """Tell whether processes are in it; where nobody keeps account, there are none."""
        ...

    def prepare(self) -> None:
        """Make the group ready for its first process. Raises `OSError`."""
        ...

    async def clear(self, trace: Trace) -> str:
        """End every process, and the group; return what could not be ended, or nothing."""
        ...

    async def members(self, trace: Trace) -> list[int]:
        """Return the numbers of all processes; those of threads may be among them."""
        ...

    async def pause(self, trace: Trace) -> None:
        """Stop every process for a moment."""
        ...

    async def resume(self, trace: Trace) -> None:
        """Let them go on."""
        ...


class Groups(Protocol):
    """How this machine tells the processes of one attempt from all others."""

    @property
    def attributes(self) -> dict[str, str]:
        """Return what a node says of it: whether every process is sure to be found."""
        ...

    @property
    def parent(self) -> str:
        """Return the name of the group above all, or nothing."""
        ...

    def of(self, alloc_id: str, task: str, *, pinned: bool = False) -> Group:
        """Return the group for attempts at a task; one that begins may have cores of its own."""
        ...

    def release(self) -> bool:
        """Let go of what was made for all groups; tell whether none of them is in use any more."""
        ...
