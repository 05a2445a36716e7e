"""How much a task may have, where control groups of version 2 say so.

Controllers work in a part of the tree that was handed to this daemon, and only below a group in
which no process is. So it needs a group beside its own: that of a unit with `Delegate=yes` and
`DelegateSubgroup=`, that of the unit steward-tasks.service beside its own, one that the
configuration names (`cgroup_parent`), or the tree's root.
A task's group is then also the one by which it is ended. It costs some milliseconds more to enter
than a threaded one (`cgroup.py`), which no memory can be accounted to.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from daemon.runner.drivers.cgroup import ASIDE, Cgroup, is_delegated, mount_point, own_path
from daemon.runner.drivers.limits import (
    CONTROLLERS,
    CPUSET,
    SHARED,
    Limits,
    by_groups,
    left,
)
from daemon.runner.usage import Account
from storage.records.usage import MemoryUsage

_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")
_HOW = "cgroup v2"
_MICROSECOND = 1000
_COUNTED = ("RSS", "Cache", "Swap", "Mapped File", "Usage", "Max Usage", "Kernel Usage")


class Files:
    """The files of the tree, as the kernel shows them."""

    def read(self, path: str) -> str:
        """Return what a file says; nothing where there is none."""
        try:
            return Path(path).read_text()
        except OSError:
            return ""

    def write(self, path: str, text: str) -> None:
        """Write into a file that is there. Raises `OSError`."""
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def make(self, path: str) -> None:
        """Make a group unless it is there. Raises `OSError`."""
        with suppress(FileExistsError):
            os.mkdir(path)

    def remove(self, path: str) -> None:
        """Remove a group; one that is in use stays."""
        with suppress(OSError):
            os.rmdir(path)

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file or group."""
        return os.path.exists(path)

    def groups(self, path: str) -> list[str]:
        """Return the groups below one."""
        try:
            return [one.path for one in os.scandir(path) if one.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def is_delegated(self, path: str) -> bool:
        """Tell whether whoever rules the tree has handed a group over."""
        return is_delegated(path)


class Subtree:
    """The groups of tasks that are held to limits, below `base`."""

    def __init__(
        self,
        base: str,
        mount: str,
        controllers: frozenset[str],
        missing: Mapping[str, str],
        files: Files,
    ) -> None:
        self._base, self._controllers, self._files = base, controllers, files
        self.parent = base.removeprefix(mount.rstrip("/"))
        self.held = by_groups(_HOW, controllers)
        self.missing = {kind: why for kind, why in missing.items() if kind not in self.held}

    # ---- as what holds the processes of a task together ------------------------------------------

    @property
    def attributes(self) -> dict[str, str]:
        """Return what a node says of it."""
        return {"containment": "cgroup"}

    def of(self, alloc_id: str, task: str, *, pinned: bool = False) -> Cgroup:
        """Return the group for attempts at a task; one that begins may have cores of its own."""
        return Cgroup(self._group(alloc_id, task, pinned=pinned))

    def release(self) -> bool:
        """Remove the group above all if it is empty; tell whether it is gone."""
        self._files.remove(self._shared)
        self._files.remove(self._base)
        return not self._files.exists(self._base)

    # ---- as what holds a task to its limits --------------------------------------------------------

    @property
    def _shared(self) -> str:
        """Return the group of all that have no cores of their own, so that they keep off others'."""
        return f"{self._base}/{SHARED}"

    def _group(self, alloc_id: str, task: str, *, pinned: bool = False) -> str:
        own = f"{self._base}/{alloc_id}.{task}"
        if pinned or CPUSET not in self._controllers or self._files.exists(own):
            return own
        return f"{self._shared}/{alloc_id}.{task}"

    def entries(self, alloc_id: str, task: str, limits: Limits) -> list[str]:
        """Return nothing: by the group in which a task is held together it is in the right one."""
        return []

    def present(self, alloc_id: str, task: str) -> list[str]:
        """Return nothing, as above."""
        return []

    def prepare(self, alloc_id: str, task: str, limits: Limits) -> None:
        """Make a task's group, with its limits. Raises `OSError`."""
        _open(self._base, self._controllers, self._files)
        group = self._group(alloc_id, task, pinned=bool(limits.cores))
        if group.startswith(self._shared):
            _open(self._shared, self._controllers, self._files)
        self._files.make(group)
        for name, value in self._values(limits).items():
            # Those of a controller that is not there are missing, and a few in some kernels.
            if self._files.exists(f"{group}/{name}"):
                self._files.write(f"{group}/{name}", str(value))
        self._share_cores()

    def _share_cores(self) -> None:
        """Leave those without cores of their own what nobody has for itself. Raises `OSError`."""
        shared = f"{self._shared}/cpuset.cpus"
        if not self._files.exists(shared):
            return
        every = self._files.read(f"{self._base}/cpuset.cpus.effective")
        groups = [one for one in self._files.groups(self._base) if one != self._shared]
        cores = left(every, [self._files.read(f"{one}/cpuset.cpus") for one in groups])
        if cores != left(self._files.read(shared), ()):
            self._files.write(shared, cores)

    def _values(self, limits: Limits) -> dict[str, int | str]:
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
        """Tell whether the kernel has killed something of a task because of its memory."""
        return self._numbers(f"{self._group(alloc_id, task)}/memory.events").get("oom_kill", 0) > 0

    def account(self, alloc_id: str, task: str) -> Account | None:
        """Return what all of a task has used; None where nobody keeps account of its memory."""
        group = self._group(alloc_id, task)
        spent, parts = (self._numbers(f"{group}/{name}") for name in ("cpu.stat", "memory.stat"))
        usage, peak, swap = (
            self._files.read(f"{group}/memory.{name}").strip()
            for name in ("current", "peak", "swap.current")
        )
        if not usage or "user_usec" not in spent:
            return None
        return Account(
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
        """Remove the groups above all when no task is left; a task's own goes with its processes."""
        if not self.release():
            with suppress(OSError):  # somebody may tidy up as well
                self._share_cores()

    def remove_all(self, alloc_id: str) -> None:
        """Do as above."""
        self.remove(alloc_id, "")


class Tree(msgspec.Struct, frozen=True):
    """Where the tree is mounted, and the daemon's own group, as a path from there."""

    mount: str
    own: str


def own_tree() -> Tree | None:
    """Return the tree that this process is in; None where there is none."""
    mount, own = mount_point(_MOUNTS.read_text()), own_path(_OWN.read_text())
    return None if mount is None or own is None else Tree(str(mount), own)


def find(owner: Path, parent: str, tree: Tree | None, files: Files) -> Subtree | str:
    """Return the groups that tasks can be held to limits by, or why there are none.

    They have a place of their own for each `owner`, the directory whose allocations run in them.
    `parent` is the group in which that place is to be; empty: what was handed to this daemon.
    """
    if tree is None:
        return "no cgroup v2 is mounted"
    above = _above(parent, tree, files)
    if above is None:
        return (
            "of cgroup v2 no group was handed to the daemon beside its own "
            "(a unit steward-tasks.service beside its own, DelegateSubgroup= of its unit, "
            "or the setting cgroup_parent)"
        )
    wanted = frozenset(CONTROLLERS.values())
    offered = frozenset(files.read(f"{above}/cgroup.controllers").split())
    if not wanted & offered:
        return f"cgroup v2 has no controller of {', '.join(sorted(wanted))} at {above}"
    name = hashlib.blake2b(str(owner).encode(), digest_size=4).hexdigest()
    base = f"{above}/steward-limits-{name}"
    try:
        _enable(above, wanted & offered, files)
        _open(base, wanted & offered, files)
        controllers = wanted & frozenset(files.read(f"{base}/cgroup.subtree_control").split())
    except OSError as error:
        return f"cgroup v2 lets the daemon make no groups at {above}: {error.strerror}"
    finally:
        files.remove(base)
    if not controllers:
        return f"no controller of cgroup v2 can be used at {above}: there are processes in it"
    missing = dict.fromkeys(CONTROLLERS, f"cgroup v2 has no such controller at {above}")
    return Subtree(base, tree.mount, controllers, missing, files)


def _above(parent: str, tree: Tree, files: Files) -> str | None:
    """Return the group in which ours may be made, one that no process is in; or None."""
    root = tree.mount.rstrip("/")
    if parent:
        return f"{root}/{parent.strip('/')}".rstrip("/")
    own = f"{root}{tree.own}".rstrip("/")
    if own == root:
        # The tree's true root alone has no type; below it processes may be as they like.
        return None if files.exists(f"{own}/cgroup.type") else own
    # In its unit's group, into which the daemon is started again, no controller may be enabled.
    own = own.removesuffix(f"/{ASIDE}")
    places = (os.path.dirname(own), f"{own.removesuffix('.service')}-tasks.service")
    return next((one for one in places if files.is_delegated(one)), None)


def _open(base: str, controllers: frozenset[str], files: Files) -> None:
    """Make the group above all tasks. Raises `OSError`."""
    files.make(base)
    _enable(base, controllers, files)


def _enable(group: str, controllers: frozenset[str], files: Files) -> None:
    """Let the groups below one have controllers, those that they can have."""
    there = set(files.read(f"{group}/cgroup.subtree_control").split())
    for name in sorted(controllers - there):
        with suppress(OSError):  # another one may go; what came of it is read afterwards
            files.write(f"{group}/cgroup.subtree_control", f"+{name}")
