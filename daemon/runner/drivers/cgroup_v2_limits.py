"""Enforce task limits with cgroup v2.

Controllers need a delegated part of the hierarchy, and a parent cgroup without processes. Possible
parents are a unit with `Delegate=yes` and `DelegateSubgroup=`, the unit steward-tasks.service next
to the daemon's unit, a configured cgroup (`cgroup_parent`), or the root of the hierarchy. Each task
is also killed through its own cgroup below this parent. Entering that cgroup takes some
milliseconds longer than entering a threaded one (`cgroup_v2.py`), but a threaded cgroup cannot
limit memory.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from daemon.runner.core.resource_usage import CpuAccount
from daemon.runner.drivers.cgroup_v2 import (
    ASIDE,
    CgroupV2,
    delegate_cgroup,
    is_delegated,
    mount_point,
    name_of,
    own_path,
)
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
_HOW = "cgroup v2"
_MICROSECOND = 1000
_COUNTED = ("RSS", "Cache", "Swap", "Mapped File", "Usage", "Max Usage", "Kernel Usage")


class CgroupFiles:
    """Access to the files of the cgroup hierarchy; tests replace it."""

    def read(self, path: str) -> str:
        """Return the text of a file; empty if it does not exist."""
        try:
            return Path(path).read_text()
        except OSError:
            return ""

    def write(self, path: str, text: str) -> None:
        """Write to an existing file. Raises `OSError`."""
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def make(self, path: str) -> None:
        """Create a cgroup unless it exists. Raises `OSError`."""
        with suppress(FileExistsError):  # it exists already
            os.mkdir(path)

    def remove(self, path: str) -> None:
        """Remove a cgroup, unless it is in use."""
        with suppress(OSError):  # it is in use
            os.rmdir(path)

    def exists(self, path: str) -> bool:
        """Return whether a file or cgroup exists."""
        return os.path.exists(path)

    def groups(self, path: str) -> list[str]:
        """Return the child cgroups."""
        try:
            return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def is_delegated(self, path: str) -> bool:
        """Return whether the service manager has delegated a cgroup."""
        return is_delegated(path)


class CgroupV2Enforcer:
    """Enforces limits with the cgroups of tasks below the parent cgroup `base`."""

    def __init__(
        self,
        base: str,
        mount: str,
        controllers: frozenset[str],
        missing: Mapping[str, str],
        files: CgroupFiles,
    ) -> None:
        self._base, self._controllers, self._files = base, controllers, files
        self.above: list[Path] = []  # empty: the cgroup that limits a task also tracks it
        self._is_given = False  # set up before there were tasks, and therefore never removed
        self.parent = base.removeprefix(mount.rstrip("/"))
        self.held = cgroup_enforcement(_HOW, controllers)
        self.missing = {kind: why for kind, why in missing.items() if kind not in self.held}

    # --- process tracking ---

    @property
    def attributes(self) -> dict[str, str]:
        """Return the node attributes."""
        return {"containment": "cgroup"}

    def of(self, alloc_id: str, task: str, *, pinned: bool = False) -> CgroupV2:
        """Return the cgroup for the attempts of a task; `pinned` means reserved cores."""
        return CgroupV2(self._group(alloc_id, task, pinned=pinned))

    def release(self) -> bool:
        """Remove the parent cgroup if it is empty; return whether it no longer exists."""
        self._is_given = False
        return self._remove()

    def delegate(self, owner: tuple[int, int]) -> None:
        """Create the parent cgroup and delegate it to a user. Raises `OSError`."""
        _open(self._base, self._controllers, self._files)
        delegate_cgroup(Path(self._base), owner)
        self._is_given = True

    def _remove(self) -> bool:
        """Remove the empty parent cgroups; return whether none remains."""
        self._files.remove(self._shared)
        if not self._is_given:
            self._files.remove(self._base)
        return not self._files.exists(self._base)

    # --- limit enforcement ---

    @property
    def _shared(self) -> str:
        """Return the cgroup of all tasks without reserved cores.

        It keeps these tasks off the reserved cores.
        """
        return f"{self._base}/{SHARED}"

    def _group(self, alloc_id: str, task: str, *, pinned: bool = False) -> str:
        own = f"{self._base}/{alloc_id}.{task}"
        if pinned or CPUSET not in self._controllers or self._files.exists(own):
            return own
        return f"{self._shared}/{alloc_id}.{task}"

    def entries(self, alloc_id: str, task: str, limits: ResourceLimits) -> list[str]:
        """Return no files: the tracking cgroup also enforces the limits."""
        return []

    def present(self, alloc_id: str, task: str) -> list[str]:
        """Return no files: the tracking cgroup also enforces the limits."""
        return []

    def prepare(self, alloc_id: str, task: str, limits: ResourceLimits) -> None:
        """Create the cgroup of a task and set its limits. Raises `OSError`."""
        if not self._is_given:
            _open(self._base, self._controllers, self._files)
        group = self._group(alloc_id, task, pinned=bool(limits.cores))
        if group.startswith(self._shared):
            _open(self._shared, self._controllers, self._files)
        self._files.make(group)
        for name, value in self._values(limits).items():
            # Files of unavailable controllers do not exist, and some kernels lack a few others.
            if self._files.exists(f"{group}/{name}"):
                self._files.write(f"{group}/{name}", str(value))
        self._share_cores()

    def _share_cores(self) -> None:
        """Set the cores of the shared cgroup to all unreserved cores. Raises `OSError`."""
        shared = f"{self._shared}/cpuset.cpus"
        if not self._files.exists(shared):
            return
        all_cores = self._files.read(f"{self._base}/cpuset.cpus.effective")
        groups = [group for group in self._files.groups(self._base) if group != self._shared]
        cores = exclusive_cores(
            all_cores, [self._files.read(f"{group}/cpuset.cpus") for group in groups]
        )
        if cores != exclusive_cores(self._files.read(shared), ()):
            self._files.write(shared, cores)

    def _values(self, limits: ResourceLimits) -> dict[str, int | str]:
        values: dict[str, int | str] = {"cpu.weight": limits.weight}
        if limits.processes:
            values["pids.max"] = limits.processes
        if limits.cores:
            values["cpuset.cpus"] = limits.cpus
        if limits.memory_max:
            values |= {
                "memory.max": limits.memory_max,
                "memory.low": limits.memory,
                "memory.swap.max": 0,
            }
        return values

    def killed(self, alloc_id: str, task: str) -> bool:
        """Return whether the kernel killed a process of a task for exceeding its memory limit."""
        return self._numbers(f"{self._group(alloc_id, task)}/memory.events").get("oom_kill", 0) > 0

    def account(self, alloc_id: str, task: str) -> CpuAccount | None:
        """Return the total usage of a task; None without the memory controller."""
        group = self._group(alloc_id, task)
        spent, parts = (self._numbers(f"{group}/{name}") for name in ("cpu.stat", "memory.stat"))
        usage, peak, swap = (
            self._files.read(f"{group}/memory.{name}").strip()
            for name in ("current", "peak", "swap.current")
        )
        if not usage or "user_usec" not in spent:
            return None
        return CpuAccount(
            user=spent["user_usec"] * _MICROSECOND,
            system=spent["system_usec"] * _MICROSECOND,
            memory=MemoryUsage(
                measured=_COUNTED,
                rss=parts.get("anon", 0),
                cache=parts.get("file", 0),
                swap=int(swap or 0),
                mapped_file=parts.get("file_mapped", 0),
                usage=int(usage),
                max_usage=int(peak or 0),
                kernel_usage=parts.get("kernel", 0),
            ),
        )

    def _numbers(self, path: str) -> dict[str, int]:
        lines = self._files.read(path).splitlines()
        return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}

    def remove(self, alloc_id: str, task: str) -> None:
        """Remove the parent cgroups if no task is left.

        A task's own cgroup is removed with its processes.
        """
        if not self._remove():
            with suppress(OSError):  # removed by a concurrent cleanup
                self._share_cores()

    def remove_all(self, alloc_id: str) -> None:
        """Remove the parent cgroups if no task is left."""
        self.remove(alloc_id, "")


class CgroupMount(msgspec.Struct, frozen=True):
    """The mount point of the hierarchy and the daemon's cgroup, relative to it."""

    mount: str
    own: str


def own_tree() -> CgroupMount | None:
    """Return the mount point and the cgroup of this process, or None without cgroup v2."""
    mount, own = mount_point(os.fsdecode(_MOUNTS.read_bytes())), own_path(_OWN.read_text())
    return None if mount is None or own is None else CgroupMount(str(mount), own)


def find(
    owner: Path, parent: str, tree: CgroupMount | None, files: CgroupFiles
) -> CgroupV2Enforcer | str:
    """Return the enforcer for the usable cgroups, or the reason why there is none.

    `owner` is the directory of the allocations. Each such directory has a separate parent cgroup,
    which is created below the configured cgroup `parent`. If `parent` is empty, a delegated cgroup
    is used instead.
    """
    if tree is None:
        return "no cgroup v2 is mounted"
    above = _parent_cgroup(parent, tree, files)
    if above is None:
        return (
            "no cgroup (v2) is delegated to the daemon in addition to its own (use a unit "
            "steward-tasks.service next to the daemon's unit, DelegateSubgroup= in the daemon's "
            "unit, or the setting cgroup_parent)"
        )
    needed = frozenset(CONTROLLERS.values())
    offered = frozenset(files.read(f"{above}/cgroup.controllers").split())
    if not needed & offered:
        return f"cgroup v2 has none of the controllers {', '.join(sorted(needed))} at {above}"
    base = f"{above}/{name_of(owner, 'limits-')}"
    try:
        _enable(above, needed & offered, files)
        _open(base, needed & offered, files)
        controllers = needed & frozenset(files.read(f"{base}/cgroup.subtree_control").split())
    except OSError as error:
        return f"the daemon cannot create cgroups (v2) in {above}: {error.strerror}"
    finally:
        files.remove(base)
    if not controllers:
        return f"no cgroup v2 controller can be enabled in {above}: the cgroup contains processes"
    missing = dict.fromkeys(CONTROLLERS, f"cgroup v2 has no controller for this limit at {above}")
    return CgroupV2Enforcer(base, tree.mount, controllers, missing, files)


def _parent_cgroup(parent: str, tree: CgroupMount, files: CgroupFiles) -> str | None:
    """Return the cgroup below which to create the parent cgroup of all tasks, or None."""
    root = tree.mount.rstrip("/")
    if parent:
        return f"{root}/{parent.strip('/')}".rstrip("/")
    own = f"{root}{tree.own}".rstrip("/")
    if own == root:
        # Only the real root has no `cgroup.type`; it may hold processes and child cgroups.
        return None if files.exists(f"{own}/cgroup.type") else own
    # In the unit's cgroup, where systemd starts the daemon, controllers cannot be enabled.
    own = own.removesuffix(f"/{ASIDE}")
    candidates = (os.path.dirname(own), f"{own.removesuffix('.service')}-tasks.service")
    return next((candidate for candidate in candidates if files.is_delegated(candidate)), None)


def _open(base: str, controllers: frozenset[str], files: CgroupFiles) -> None:
    """Create the parent cgroup of all tasks. Raises `OSError`."""
    files.make(base)
    _enable(base, controllers, files)


def _enable(group: str, controllers: frozenset[str], files: CgroupFiles) -> None:
    """Enable those `controllers` that are available, for the children of a cgroup."""
    there = set(files.read(f"{group}/cgroup.subtree_control").split())
    for name in sorted(controllers - there):
        # One write for each controller, because one may fail. The caller reads the result back.
        with suppress(OSError):
            files.write(f"{group}/cgroup.subtree_control", f"+{name}")
