"""How much memory and how many processes a task may have, where the kernel's old groups say so.

Control groups of version 1 keep account of each kind apart (`/sys/fs/cgroup/memory`, `pids`), so a
task enters one more group for each, beside the one by which it is ended (`cgroup.py`). A machine
that has these kinds in version 2, or where the daemon may make no such groups, bounds nothing:
what a node says of its driver names that.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from storage.records.task import Resources

_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")
_MEGABYTE = 1024 * 1024
MOST_PROCESSES = 4096  # of a task, threads included
_KINDS = ("memory", "pids")


class Bounds:
    """The groups below the daemon's own, for each kind that it may bound."""

    def __init__(self, bases: dict[str, Path]) -> None:
        self._bases = bases

    @property
    def kinds(self) -> frozenset[str]:
        """Return what is bounded: memory, pids."""
        return frozenset(self._bases)

    def enter(self, alloc_id: str, task: str, resources: Resources) -> list[str]:
        """Make a task's groups with its bounds; return the files by which one enters them.

        Raises `OSError`.
        """
        memory = max(resources.memory_mb, resources.memory_max_mb) * _MEGABYTE
        wanted = {
            "memory": ("memory.limit_in_bytes", memory),
            "pids": ("pids.max", MOST_PROCESSES),
        }
        for kind, base in self._bases.items():
            group = base / f"{alloc_id}.{task}"
            group.mkdir(parents=True, exist_ok=True)
            name, most = wanted[kind]
            if most > 0:
                (group / name).write_text(str(most))
        return self.entries(alloc_id, task)

    def entries(self, alloc_id: str, task: str) -> list[str]:
        """Return the files by which one enters a task's groups, of those that there are."""
        found = [f"{base}/{alloc_id}.{task}/tasks" for base in self._bases.values()]
        return [one for one in found if os.path.exists(one)]

    def killed(self, alloc_id: str, task: str) -> bool:
        """Tell whether the kernel has killed something of a task because of its memory."""
        base = self._bases.get("memory")
        if base is None:
            return False
        try:
            said = (base / f"{alloc_id}.{task}" / "memory.oom_control").read_text()
        except OSError:
            return False
        return any(
            name == "oom_kill" and count != "0"
            for name, _, count in (line.partition(" ") for line in said.splitlines())
        )

    def remove(self, alloc_id: str, task: str) -> None:
        """Remove a task's groups, when nothing of it is left, and what is above them if it is empty."""
        for base in self._bases.values():
            _remove(base / f"{alloc_id}.{task}", base)

    def remove_all(self, alloc_id: str) -> None:
        """Remove what is left of the groups of an allocation."""
        for base in self._bases.values():
            _remove(*base.glob(f"{alloc_id}.*"), base)


def _remove(*groups: Path) -> None:
    """Remove groups; one that somebody is still in stays."""
    for group in groups:
        with suppress(OSError):
            group.rmdir()


def find(owner: Path) -> Bounds:
    """Return the groups that this daemon may make, in places of their own for each `owner`."""
    name = f"steward-{hashlib.blake2b(str(owner).encode(), digest_size=4).hexdigest()}"
    own = memberships(_OWN.read_text())
    bases = {}
    for kind, mount in mounts(_MOUNTS.read_text()).items():
        base = mount / own.get(kind, "/").lstrip("/") / name
        try:
            trial = base / f"trial-{os.getpid()}"
            trial.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        _remove(trial, base)
        bases[kind] = base
    return Bounds(bases)


def mounts(mountinfo: str) -> dict[str, Path]:
    """Return where each kind is mounted, from the text of a `mountinfo`."""
    found = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words = after.split()
        if words[:1] == ["cgroup"]:
            for kind in set(words[-1].split(",")).intersection(_KINDS):
                found[kind] = Path(before.split()[4].encode().decode("unicode_escape"))
    return found


def memberships(text: str) -> dict[str, str]:
    """Return a process's own group of each kind, from the text of its `/proc/.../cgroup`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        found |= dict.fromkeys(kinds.split(","), path)
    return found


class Bounded(msgspec.Struct, frozen=True):
    """The groups of one task."""

    bounds: Bounds
    alloc_id: str
    task: str

    def end(self) -> bool:
        """Remove them; tell whether the kernel had killed something because of its memory."""
        killed = self.bounds.killed(self.alloc_id, self.task)
        self.bounds.remove(self.alloc_id, self.task)
        return killed
