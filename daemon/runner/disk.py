"""How much disk an allocation takes beside what its group asked for (`ephemeral_disk`).

The directories of running allocations are measured one after the other, in a thread and in steps,
with a pause after each that is many times as long: however many files tasks have made, that leaves
nearly all of a processor to others. Logs count, and so does what was fetched; holes in files do not,
nor does what is mounted from elsewhere.
"""

import os
import stat
from collections.abc import Callable, Iterable
from typing import Protocol

import trio

from daemon.runner.beneath import below
from daemon.runner.room import in_rounds

_STEP = 2000  # files and directories that are looked at in one go
_PAUSE = 50  # times the length of a step
_BLOCK = 512  # bytes, the unit of st_blocks


class Measuring:
    """One look at all that lies below a directory."""

    def __init__(self, root: str) -> None:
        self.used = 0  # bytes, so far
        self._linked: set[int] = set()  # inodes that have several names
        self._device = _device_of(root)
        self._found = below(root, self._is_here)

    def step(self, most: int = _STEP) -> bool:
        """Look at so many files and directories; tell whether that was all."""
        for _ in range(most):
            found = next(self._found, None)
            if found is None:
                return True
            self._count(found)
        return False

    def _is_here(self, found: os.stat_result) -> bool:
        return found.st_dev == self._device

    def _count(self, found: os.stat_result) -> None:
        if not stat.S_ISDIR(found.st_mode) and found.st_nlink > 1:
            if found.st_ino in self._linked:
                return
            self._linked.add(found.st_ino)
        self.used += found.st_blocks * _BLOCK


def _device_of(root: str) -> int | None:
    try:
        return os.lstat(root).st_dev
    except OSError:  # there is nothing to look at
        return None


class Tenant(Protocol):
    """An allocation that runs."""

    @property
    def directory(self) -> str:
        """Return where it lives."""
        ...

    @property
    def disk(self) -> int:
        """Return how many bytes it may take; 0: as many as it likes."""
        ...

    async def take_less(self, used: int) -> None:
        """Know that it takes so many bytes, and more than it may."""
        ...


async def measure(directory: str) -> int:
    """Return how many bytes a directory takes, all that lies below it included."""
    measuring = Measuring(directory)
    over = False
    while not over:
        began = trio.current_time()
        # A file system that hangs holds up this look alone, and not the daemon's end.
        over = await trio.to_thread.run_sync(measuring.step, abandon_on_cancel=True)
        await trio.sleep(_PAUSE * (trio.current_time() - began))
    return measuring.used


async def watch(tenants: Callable[[], Iterable[Tenant]], period: float) -> None:
    """Look at all allocations that run, again and again with `period` seconds between, until cancelled."""
    await in_rounds("look at disk usage", lambda: look(tenants()), period=period, first=period)


async def look(tenants: Iterable[Tenant]) -> None:
    """Tell each allocation that takes more than it may."""
    for one in list(tenants):
        if one.disk and (used := await measure(one.directory)) > one.disk:
            await one.take_less(used)
