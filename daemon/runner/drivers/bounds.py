"""How much a task may have, where the kernel's old groups say so: control groups of version 1.

They keep account of each kind apart (`/sys/fs/cgroup/memory`, `pids`, ...), so a task enters one
more group for each, beside the one by which it is ended (`cgroup.py`).
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from daemon.runner.drivers.limits import CONTROLLERS, CPUSET, SHARED, Limits, by_groups, left
from daemon.runner.usage import Account
from storage.records.usage import MemoryUsage

_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")
_ACCOUNTS = "cpuacct"  # bounds nothing, but says what was used
_KINDS = frozenset({*CONTROLLERS.values(), _ACCOUNTS})
_HOW = "cgroup v1"
_WITH_SWAP = "memory.memsw.limit_in_bytes"  # not every kernel counts what was swapped out
_COUNTED = ("RSS", "Cache", "Swap", "Mapped File", "Usage", "Max Usage")


class OldGroups:
    """The groups below the daemon's own, by the name of their controller."""

    def __init__(self, bases: Mapping[str, Path], missing: Mapping[str, str]) -> None:
        self._bases = bases
        self._sharing: set[str] = set()  # whose processes may be about to enter the shared group
        self.held = by_groups(_HOW, bases)
        self.missing = {kind: why for kind, why in missing.items() if kind not in self.held}

    def _wanted(self, limits: Limits) -> dict[str, dict[str, int | str]]:
        """Return what is to be written into the groups of a task that has them."""
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
        """Return the groups of a task by controller; those without cores of their own share one."""
        groups = {name: self._group(name, alloc_id, task) for name in self._bases}
        if CPUSET in groups and not pinned:
            groups[CPUSET] = self._bases[CPUSET] / SHARED
        return groups

    def entries(self, alloc_id: str, task: str, limits: Limits) -> list[str]:
        """Return the files by which a process enters the groups that `prepare` makes for a task."""
        groups = self._groups(alloc_id, task, pinned=bool(limits.cores)).values()
        # Two controllers may share a place.
        return list(dict.fromkeys(f"{group}/tasks" for group in groups))

    def prepare(self, alloc_id: str, task: str, limits: Limits) -> None:
        """Make a task's groups, with its limits. Raises `OSError`."""
        wanted = self._wanted(limits)
        if not limits.cores:
            self._sharing.add(f"{alloc_id}.{task}")
        for name, group in self._groups(alloc_id, task, pinned=bool(limits.cores)).items():
            group.mkdir(parents=True, exist_ok=True)
            if name == CPUSET:
                _inherit(group.parent)
                _inherit(group)
            for file, value in wanted[name].items():
                if value and (file != _WITH_SWAP or (group / file).exists()):
                    (group / file).write_text(str(value))
        self._share_cores()

    def _share_cores(self) -> None:
        """Leave those without cores of their own what nobody has for itself. Raises `OSError`."""
        base = self._bases.get(CPUSET, Path())
        shared = base / SHARED / "cpuset.cpus"
        if not shared.exists():
            return
        held = [_text(one) for one in base.glob("*.*/cpuset.cpus")]
        cores = left(_text(base / "cpuset.cpus"), held)
        if cores != left(_text(shared), ()):
            shared.write_text(cores)

    def present(self, alloc_id: str, task: str) -> list[str]:
        """Return the files by which one enters a task's groups, of those that there are."""
        pinned = CPUSET in self._bases and self._group(CPUSET, alloc_id, task).exists()
        groups = self._groups(alloc_id, task, pinned=pinned).values()
        return [one for group in groups if os.path.exists(one := f"{group}/tasks")]

    def killed(self, alloc_id: str, task: str) -> bool:
        """Tell whether the kernel has killed something of a task because of its memory."""
        return (
            "memory" in self._bases
            and _numbers(self._group("memory", alloc_id, task) / "memory.oom_control").get(
                "oom_kill", 0
            )
            > 0
        )

    def account(self, alloc_id: str, task: str) -> Account | None:
        """Return what all of a task has used; None where nobody keeps account of it."""
        if not {"memory", _ACCOUNTS} <= self._bases.keys():
            return None
        spent, memory = (self._group(name, alloc_id, task) for name in (_ACCOUNTS, "memory"))
        parts = _numbers(memory / "memory.stat")
        try:
            return Account(
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
        """Remove a task's groups, when nothing of it is left, and what is above them if it is empty."""
        self._sharing.discard(f"{alloc_id}.{task}")
        for name, base in self._bases.items():
            _remove(self._group(name, alloc_id, task), base)
        self._let_go_of_cores()

    def remove_all(self, alloc_id: str) -> None:
        """Remove what is left of the groups of an allocation."""
        self._sharing = {one for one in self._sharing if not one.startswith(f"{alloc_id}.")}
        for base in self._bases.values():
            # One pattern for all: each that there ever was stays compiled in the interpreter.
            _remove(*(one for one in base.glob("*.*") if one.name.startswith(f"{alloc_id}.")), base)
        self._let_go_of_cores()

    def _let_go_of_cores(self) -> None:
        """Leave the others what somebody had for himself; what they share goes with the last one."""
        if CPUSET not in self._bases:
            return
        if not self._sharing:
            _remove(self._bases[CPUSET] / SHARED, self._bases[CPUSET])
        with suppress(OSError):  # somebody may tidy up as well
            self._share_cores()


def _inherit(group: Path) -> None:
    """Give a new group the processors and memory of the one above: without any, nobody enters it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (group / name).read_text().strip():
            (group / name).write_text((group.parent / name).read_text())


def _text(path: Path) -> str:
    """Return what a file says; nothing where it has just gone."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int:
    return int(path.read_text())


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a file that has one a line, by name; of one that is not there, none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}


def _remove(*groups: Path) -> None:
    """Remove groups; one that somebody is still in stays."""
    for group in groups:
        with suppress(OSError):
            group.rmdir()


def find(owner: Path, missing: Mapping[str, str]) -> OldGroups:
    """Return the groups that this daemon may make, in places of their own for each `owner`.

    `missing` says of each limit why nobody enforces it where there are no such groups for it.
    """
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
    return OldGroups(bases, missing)


def mounts(mountinfo: str) -> dict[str, Path]:
    """Return where each kind is mounted, from the text of a `mountinfo`."""
    found = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words = after.split()
        if words[:1] == ["cgroup"]:
            for kind in _KINDS.intersection(words[-1].split(",")):
                found[kind] = Path(before.split()[4].encode().decode("unicode_escape"))
    return found


def memberships(text: str) -> dict[str, str]:
    """Return a process's own group of each kind, from the text of its `/proc/.../cgroup`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        found |= dict.fromkeys(kinds.split(","), path)
    return found
