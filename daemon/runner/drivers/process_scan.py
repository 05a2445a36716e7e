"""Track the processes of tasks without cgroups, by scanning all processes.

The launcher scans (`daemon/launcher/process_scan.py`). A scan does not find a process that has left
its session, has lost its parent, and has cleared its environment or changed to another user. A node
attribute states this limitation.

Concurrent requests share one scan. After each scan there is a pause, so that scans use only a small
part of one core and of the launcher's time.
"""

from collections import Counter

import trio

from daemon.launcher.client import Launcher
from daemon.launcher.messages import MOST_MARKS, Action, ScanProcesses, ScanTarget

_PATIENCE = 10.0  # seconds, as for cgroups
_SHARE = 10  # the pause after a scan is this many times its duration


class ScannedGroup:
    """The processes of one attempt."""

    entry = ""
    label = "-"

    def __init__(self, scanner: "ProcessScanner", alloc_id: str, task: str) -> None:
        self._scanner, self._alloc_id, self._task = scanner, alloc_id, task

    def is_populated(self) -> bool:
        """Return false: a scan for each start would be too expensive."""
        return False

    def prepare(self) -> None:
        """Do nothing: there is no cgroup."""

    async def _act_on_processes(
        self, launcher: Launcher, action: Action, attempt: int | None
    ) -> list[int]:
        task = self._task or None
        mark = ScanTarget(allocation=self._alloc_id, task=task, attempt=attempt, action=action)
        return await self._scanner.scan_attempt(launcher, mark)

    async def clear(self, launcher: Launcher, attempt: int | None = None) -> str:
        """Kill all processes that can be found; return the error or an empty string."""
        remaining: list[int] = []
        with trio.move_on_after(_PATIENCE):
            while remaining := await self._act_on_processes(launcher, "end", attempt):
                pass
        return f"these processes do not end: {' '.join(map(str, remaining))}" if remaining else ""

    async def members(self, launcher: Launcher, attempt: int) -> list[int]:
        """Return the processes of an attempt, found by a scan of all processes."""
        return await self._act_on_processes(launcher, "find", attempt)

    async def pause(self, launcher: Launcher, attempt: int) -> None:
        """Pause all processes."""
        await self._act_on_processes(launcher, "hold", attempt)

    async def resume(self, launcher: Launcher, attempt: int) -> None:
        """Resume all processes."""
        await self._act_on_processes(launcher, "let_go", attempt)


class ProcessScanner:
    """The scans of all processes, one at a time; each scan serves all waiting requests."""

    parent = ""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._wanted: Counter[ScanTarget] = Counter()  # the number of waiting callers, by target
        self._found: dict[ScanTarget, list[int]] = {}
        self._not_before = 0.0

    @property
    def attributes(self) -> dict[str, str]:
        """Return the node attributes."""
        return {
            "containment": "scan",
            "unenforced.stop": (
                "a process that has left its session, has lost its parent, and has cleared its "
                "environment or changed to another user outlives its task; let the daemon create "
                "control groups to prevent this"
            ),
        }

    def of(self, alloc_id: str, task: str, *, pinned: bool = False) -> ScannedGroup:
        """Return the process group for the attempts of a task. `pinned` has no effect."""
        return ScannedGroup(self, alloc_id, task)

    def delegate(self, owner: tuple[int, int]) -> None:
        """Do nothing."""

    def release(self) -> bool:
        """Return true: there is no cgroup to remove."""
        return True

    async def scan_attempt(self, launcher: Launcher, mark: ScanTarget) -> list[int]:
        """Return the process IDs of an attempt, from a scan that began after the call.

        No later scan acts on the attempt for a caller that was cancelled. The next attempt of the
        task has the same target.
        """
        self._wanted[mark] += 1
        self._found.pop(mark, None)
        try:
            async with self._lock:
                if mark not in self._found:
                    await self._look(launcher, mark)
                return self._found.pop(mark, [])
        finally:
            self._wanted[mark] -= 1
            if not self._wanted[mark]:
                del self._wanted[mark]
                self._found.pop(mark, None)

    async def _look(self, launcher: Launcher, first: ScanTarget) -> None:
        await trio.sleep_until(self._not_before)
        others = self._wanted.keys() - self._found.keys() - {first}
        marks = [first, *others][:MOST_MARKS]
        began = trio.current_time()
        scanned = await launcher.sweep(ScanProcesses(marks=marks))
        ended = trio.current_time()
        self._not_before = ended + _SHARE * (ended - began)
        self._found.update(zip(marks, scanned, strict=True))
