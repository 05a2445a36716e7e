"""Enforce task limits with cgroup v1.

Version 1 has a separate tree per controller (`/sys/fs/cgroup/memory`, `pids`, ...). A task enters
one cgroup in each tree, in addition to the cgroup that is used for killing it (`cgroup_v2.py`).
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from daemon.runner.core.resource_usage import CpuAccount
from daemon.runner.drivers.cgroup_v2 import delegate_cgroup, name_of
from daemon.runner.drivers.limits import (
    CONTROLLERS,
    CPUSET,
    SHARED,
    ResourceLimits,
    cgroup_enforcement,
    exclusive_cores,
)
from storage.records.usage import MemoryUsage

_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")
_ACCOUNTS = "cpuacct"  # sets no limit; only measures CPU usage
_KINDS = frozenset({*CONTROLLERS.values(), _ACCOUNTS})
_HOW = "cgroup v1"
_WITH_SWAP = "memory.memsw.limit_in_bytes"  # only if the kernel accounts for swap
_COUNTED = ("RSS", "Cache", "Swap", "Mapped File", "Usage", "Max Usage")


class CgroupV1:
    """The parent cgroups below the daemon's own cgroups, by controller."""

    def __init__(self, bases: Mapping[str, Path], missing: Mapping[str, str]) -> None:
        self._bases = bases
        self.above = [*dict.fromkeys(bases.values())]
        # Tasks whose processes may be about to enter the shared cpuset.
        self._sharing: set[str] = set()
        self.held = cgroup_enforcement(_HOW, bases)
        self.missing = {kind: why for kind, why in missing.items() if kind not in self.held}

    def _limit_values(self, limits: ResourceLimits) -> dict[str, dict[str, int | str]]:
        """Return the values to write into the cgroups of a task, by controller and file name."""
        return {
            CPUSET: {"cpuset.cpus": limits.cpus},
            "cpu": {"cpu.shares": limits.shares},
            "memory": {"memory.limit_in_bytes": limits.memory_max, _WITH_SWAP: limits.memory_max},
            "pids": {"pids.max": limits.processes},
            _ACCOUNTS: {},
        }

    def _group(self, controller: str, alloc_id: str, task: str) -> Path:
        return self._bases[controller] / f"{alloc_id}.{task}"

    def _groups(self, alloc_id: str, task: str, *, pinned: bool) -> dict[str, Path]:
        """Return a task's cgroups by controller; tasks without reserved cores share one cpuset."""
        groups = {name: self._group(name, alloc_id, task) for name in self._bases}
        if CPUSET in groups and not pinned:
            groups[CPUSET] = self._bases[CPUSET] / SHARED
        return groups

    def entries(self, alloc_id: str, task: str, limits: ResourceLimits) -> list[str]:
        """Return the files through which a process enters the cgroups of a task."""
        groups = self._groups(alloc_id, task, pinned=bool(limits.cores)).values()
        # Two controllers may share one mount.
        return list(dict.fromkeys(f"{group}/tasks" for group in groups))

    def prepare(self, alloc_id: str, task: str, limits: ResourceLimits) -> None:
        """Create the cgroups of a task and set its limits. Raises `OSError`."""
        limit_values = self._limit_values(limits)
        if not limits.cores:
            self._sharing.add(f"{alloc_id}.{task}")
        for name, group in self._groups(alloc_id, task, pinned=bool(limits.cores)).items():
            group.mkdir(parents=True, exist_ok=True)
            if name == CPUSET:
                _inherit(group.parent)
                _inherit(group)
            for file, value in limit_values[name].items():
                if value and (file != _WITH_SWAP or (group / file).exists()):
                    (group / file).write_text(str(value))
        self._share_cores()

    def _share_cores(self) -> None:
        """Set the shared cpuset to all unreserved cores. Raises `OSError`."""
        base = self._bases.get(CPUSET, Path())
        shared = base / SHARED / "cpuset.cpus"
        if not shared.exists():
            return
        core_lists = [_text(path) for path in base.glob("*.*/cpuset.cpus")]
        cores = exclusive_cores(_text(base / "cpuset.cpus"), core_lists)
        if cores != exclusive_cores(_text(shared), ()):
            shared.write_text(cores)

    def present(self, alloc_id: str, task: str) -> list[str]:
        """Return the entry files of the existing cgroups of a task."""
        pinned = CPUSET in self._bases and self._group(CPUSET, alloc_id, task).exists()
        groups = self._groups(alloc_id, task, pinned=pinned).values()
        return [path for group in groups if os.path.exists(path := f"{group}/tasks")]

    def delegate(self, owner: tuple[int, int]) -> None:
        """Create the parent cgroups and make a user their owner. Raises `OSError`."""
        for name, base in self._bases.items():
            base.mkdir(parents=True, exist_ok=True)
            if name == CPUSET:
                _inherit(base)
            delegate_cgroup(base, owner)

    def release(self) -> None:
        """Remove all empty parent cgroups."""
        _remove(*self._bases.values())

    def killed(self, alloc_id: str, task: str) -> bool:
        """Return whether the kernel killed a process of a task for exceeding its memory limit."""
        return (
            "memory" in self._bases
            and _numbers(self._group("memory", alloc_id, task) / "memory.oom_control").get(
                "oom_kill", 0
            )
            > 0
        )

    def account(self, alloc_id: str, task: str) -> CpuAccount | None:
        """Return the total usage of a task; None if no controller measures it."""
        if not {"memory", _ACCOUNTS} <= self._bases.keys():
            return None
        spent, memory = (self._group(name, alloc_id, task) for name in (_ACCOUNTS, "memory"))
        parts = _numbers(memory / "memory.stat")
        try:
            return CpuAccount(
                user=_number(spent / "cpuacct.usage_user"),
                system=_number(spent / "cpuacct.usage_sys"),
                memory=MemoryUsage(
                    measured=_COUNTED,
                    rss=parts.get("total_rss", 0),
                    cache=parts.get("total_cache", 0),
                    swap=parts.get("total_swap", 0),
                    mapped_file=parts.get("total_mapped_file", 0),
                    usage=_number(memory / "memory.usage_in_bytes"),
                    max_usage=_number(memory / "memory.max_usage_in_bytes"),
                ),
            )
        except (OSError, ValueError):
            return None

    def remove(self, alloc_id: str, task: str) -> None:
        """Remove the cgroups of an ended task, and their parents if empty."""
        self._sharing.discard(f"{alloc_id}.{task}")
        for name, base in self._bases.items():
            _remove(self._group(name, alloc_id, task), base)
        self._release_cores()

    def remove_all(self, alloc_id: str) -> None:
        """Remove the remaining cgroups of an allocation."""
        self._sharing = {line for line in self._sharing if not line.startswith(f"{alloc_id}.")}
        for base in self._bases.values():
            # A constant pattern, because `glob` caches each compiled pattern permanently.
            _remove(
                *(path for path in base.glob("*.*") if path.name.startswith(f"{alloc_id}.")), base
            )
        self._release_cores()

    def _release_cores(self) -> None:
        """Return reserved cores to the shared cpuset, or remove that cpuset after the last task."""
        if CPUSET not in self._bases:
            return
        if not self._sharing:
            _remove(self._bases[CPUSET] / SHARED, self._bases[CPUSET])
        with suppress(OSError):  # removed by a concurrent cleanup
            self._share_cores()


def _inherit(group: Path) -> None:
    """Copy CPUs and memory nodes from the parent; without them, a cpuset accepts no process."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (group / name).read_text().strip():
            (group / name).write_text((group.parent / name).read_text())


def _text(path: Path) -> str:
    """Return the text of a file; empty if the file does not exist."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int:
    return int(path.read_text())


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a flat-keyed file by key; empty if the file does not exist."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}


def _remove(*groups: Path) -> None:
    """Remove those cgroups that have no processes."""
    for group in groups:
        with suppress(OSError):  # it still has processes
            group.rmdir()


def find(owner: Path, missing: Mapping[str, str]) -> CgroupV1:
    """Return the enforcer for the cgroups that this daemon may create.

    `owner` is the directory of the allocations. Each such directory has separate parent cgroups.
    `missing` has the reason for each limit that no cgroup can enforce.
    """
    name = name_of(owner)
    own = memberships(_OWN.read_text())
    bases = {}
    for kind, mount in mounts(os.fsdecode(_MOUNTS.read_bytes())).items():
        base = mount / own.get(kind, "/").lstrip("/") / name
        try:
            trial = base / f"trial-{os.getpid()}"
            trial.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        _remove(trial, base)
        bases[kind] = base
    return CgroupV1(bases, missing)


def mounts(mountinfo: str) -> dict[str, Path]:
    """Return the mount point of each controller, from the text of `mountinfo`."""
    mount_points = {}
    for line in mountinfo.split("\n"):  # a path may contain other line separators
        before, _, after = line.partition(" - ")
        words = after.split(" ")
        if words[:1] == ["cgroup"]:
            for kind in _KINDS.intersection(words[-1].split(",")):
                mount_points[kind] = Path(before.split(" ")[4].encode().decode("unicode_escape"))
    return mount_points


def memberships(text: str) -> dict[str, str]:
    """Return the cgroup of a process by controller, from the text of `/proc/.../cgroup`."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        paths |= dict.fromkeys(kinds.split(","), path)
    return paths
