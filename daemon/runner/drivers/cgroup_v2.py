"""Track the processes of tasks with cgroup v2.

A process cannot leave its cgroup by changing its session, parent or user. No controller is needed,
only permission to create child cgroups. This works for root, in a delegated unit, and in a user
slice.

Cgroups are threaded if the kernel permits it. Entering a threaded cgroup is immediate, while
entering any other cgroup waits for all CPUs: 0.1 ms instead of 7 to 15 ms, measured on an idle
host. Without threaded cgroups, this wait is most of the time that the start of a task takes. A
threaded cgroup has no `cgroup.kill`: the daemon freezes the cgroup, and then kills its processes
one by one.

In a delegated systemd unit, the daemon and its launcher first move into a child cgroup. The service
manager starts other commands of the unit (`ExecReload=`) in a sibling of this child cgroup. A
cgroup with processes cannot be a sibling of a threaded cgroup.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import trio

from daemon.launcher.client import Launcher
from daemon.launcher.messages import KillAttempt
from daemon.launcher.shims import children
from storage.errors import is_descriptor_shortage

_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")
ASIDE = "main"  # child cgroup of the daemon in a delegated unit
# Extended attributes with which systemd marks a delegated cgroup.
_DELEGATED = ("trusted.delegate", "user.delegate")
# Files whose ownership is delegated; the first three in version 2, the others in version 1.
_DELEGATED_FILES = ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "tasks")
GUARDED = "trusted.steward_egress"  # marks a cgroup with programs of `runner/task_egress.py`
# Seconds; a process in uninterruptible sleep must not block the cleanup indefinitely.
_PATIENCE = 10.0
# Seconds between two polls; a threaded cgroup sends no notification.
_FIRST_LOOK, _LAST_LOOK = 0.001, 0.05
_MOST_READ = 4096  # bytes of a file of a cgroup


class CgroupV2:
    """The cgroup with the processes of one attempt."""

    def __init__(self, path: str, *, threaded: bool = False, is_given: bool = False) -> None:
        """Initialize; with `is_given`, the cgroup can be created only if its parent exists.

        With `threaded`, the cgroup is created as a threaded cgroup.
        """
        self.label = path
        self._threaded, self._is_given = threaded, is_given

    @property
    def entry(self) -> str:
        """Return the file through which a process enters the cgroup."""
        return f"{self.label}/cgroup.{'threads' if self._threaded else 'procs'}"

    def is_populated(self) -> bool:
        """Return whether the cgroup or a descendant has processes.

        Raises `OSError` if there is no free file descriptor.
        """
        try:
            return b"populated 1" in _read(f"{self.label}/cgroup.events")
        except OSError as error:
            if is_descriptor_shortage(error):  # the cgroup may have processes
                raise
            return False  # not created yet

    def prepare(self) -> None:
        """Create the cgroup. Raises `OSError`."""
        try:
            _make(self.label, threaded=self._threaded)
        except FileNotFoundError:  # the parent was removed by a concurrent cleanup
            if self._is_given:
                raise
            _make(os.path.dirname(self.label), threaded=self._threaded)
            _make(self.label, threaded=self._threaded)

    async def clear(self, launcher: Launcher, attempt: int | None = None) -> str:
        """Kill all processes and remove the cgroup; return the error or an empty string."""
        if _remove(self.label):
            return ""
        allocation, _, task = os.path.basename(self.label).partition(".")
        request = KillAttempt(allocation=allocation, task=task, attempt=attempt)
        pause = _FIRST_LOOK
        with trio.move_on_after(_PATIENCE):
            while True:
                await launcher.end(request)
                await trio.sleep(pause)
                if _remove(self.label):
                    return ""
                pause = min(2 * pause, _LAST_LOOK)
        return f"these processes do not end: {' '.join(map(str, _members(self.label)))}"

    async def members(self, launcher: Launcher, attempt: int) -> list[int]:
        """Return the IDs of all threads, including the process IDs."""
        del launcher, attempt
        return _members(self.label)

    async def pause(self, launcher: Launcher, attempt: int) -> None:
        """Freeze all processes."""
        del launcher, attempt
        _write(f"{self.label}/cgroup.freeze", "1")
        with trio.move_on_after(_PATIENCE):
            # Freezing sends no notification in threaded cgroups.
            while not _has_event(self.label, "frozen 1"):  # noqa: ASYNC110
                await trio.sleep(_FIRST_LOOK)

    async def resume(self, launcher: Launcher, attempt: int) -> None:
        """Thaw all processes."""
        del launcher, attempt
        _write(f"{self.label}/cgroup.freeze", "0")


class CgroupV2Groups:
    """The parent cgroup of tasks, which is below one of the daemon's cgroups."""

    def __init__(self, base: Path, mount: Path, *, threaded: bool) -> None:
        self._base, self._threaded = base, threaded
        self._is_given = False
        self.parent = f"/{base.relative_to(mount)}"

    @property
    def attributes(self) -> dict[str, str]:
        """Return the node attributes."""
        return {"containment": "cgroup"}

    def of(self, alloc_id: str, task: str, *, pinned: bool = False) -> CgroupV2:
        """Return the cgroup for the attempts of a task.

        `pinned` means that the task has reserved cores.
        """
        path = f"{self._base}/{alloc_id}.{task}"
        return CgroupV2(path, threaded=self._threaded, is_given=self._is_given)

    def delegate(self, owner: tuple[int, int]) -> None:
        """Create the parent cgroup and delegate it to a user. Raises `OSError`."""
        _make(str(self._base), threaded=self._threaded)
        delegate_cgroup(self._base, owner)
        self._is_given = True

    def release(self) -> bool:
        """Remove the parent cgroup if it has no children; return whether it no longer exists.

        Empty children are not removed, because a task that has just started may enter one of them.
        """
        try:
            os.rmdir(self._base)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def delegate_cgroup(base: Path, owner: tuple[int, int]) -> None:
    """Delegate a cgroup to a user, who may then create children and move processes.

    Root keeps control of the limits. Child cgroups that an earlier daemon left are delegated
    completely. Raises `OSError`.
    """
    for name in ("", *_DELEGATED_FILES):
        with suppress(FileNotFoundError):  # cgroup v1 has other files
            os.chown(base / name, *owner)
    for directory, folders, files in os.walk(base):
        for name in folders if directory == str(base) else (*folders, *files):
            with suppress(FileNotFoundError):  # its task has just ended
                os.chown(f"{directory}/{name}", *owner)


def mount_points(*groups: str) -> list[Path]:
    """Return the directories of cgroups below the mount point of cgroup v2.

    `groups` are paths in the hierarchy; empty paths are skipped. The result is empty if cgroup v2
    is not mounted.
    """
    mount = mount_point(os.fsdecode(_MOUNTS.read_bytes()))
    return [mount / group.lstrip("/") for group in sorted(set(groups)) if group and mount]


def is_guarded(path: Path) -> bool:
    """Return whether a daemon has attached an egress policy to a cgroup."""
    with suppress(OSError):  # an unguarded cgroup has no such attribute
        return os.getxattr(path, GUARDED) == b"1"
    return False


def name_of(owner: Path, kind: str = "") -> str:
    """Return the name of the parent cgroup of all tasks; `owner` is the allocations' directory."""
    return f"steward-{kind}{hashlib.blake2b(str(owner).encode(), digest_size=4).hexdigest()}"


def find(owner: Path) -> CgroupV2Groups | None:
    """Return the cgroups that this daemon may create, or None.

    `owner` is the directory of the allocations. Each such directory has a separate parent cgroup.
    """
    mount = mount_point(os.fsdecode(_MOUNTS.read_bytes()))
    own = own_path(_OWN.read_text())
    if mount is None or own is None:
        return None
    above = _move_into_child(mount / own.lstrip("/"))
    base = above / name_of(owner)
    try:
        base.mkdir(exist_ok=True)
        threaded = _make_threaded(str(base))
        trial = CgroupV2(f"{base}/trial-{os.getpid()}", threaded=threaded)
        trial.prepare()
        _remove(trial.label)
    except OSError:
        return None
    # Moving a process also needs write permission to the common ancestor of both cgroups.
    if not os.access(above / "cgroup.procs", os.W_OK):
        return None
    return CgroupV2Groups(base, mount, threaded=threaded)


def _move_into_child(own: Path) -> Path:
    """Return the daemon's cgroup. If it is delegated, first move the daemon into a child cgroup."""
    aside = own / ASIDE
    if not is_delegated(str(own)):
        return own
    try:
        aside.mkdir(exist_ok=True)
    except OSError:
        return own
    # This fails if tasks of an older daemon are in threaded cgroups.
    if not _write(f"{aside}/cgroup.procs", str(os.getpid())):
        return own
    for child in children(os.getpid()):  # the launcher, the only child before any task
        _write(f"{aside}/cgroup.procs", str(child))
    return aside


def is_delegated(path: str) -> bool:
    """Return whether the service manager has delegated a cgroup."""
    for name in _DELEGATED:
        with suppress(OSError):  # only a delegated cgroup has the attribute
            if os.getxattr(path, name) == b"1":
                return True
    return False


def mount_point(mountinfo: str) -> Path | None:
    """Return the mount point of cgroup v2, from the text of `mountinfo`."""
    for line in mountinfo.split("\n"):  # a path may contain other line separators
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return Path(before.split(" ")[4].encode().decode("unicode_escape"))
    return None


def own_path(memberships: str) -> str | None:
    """Return the cgroup of a process, from the text of `/proc/.../cgroup`."""
    for line in memberships.splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    return None


def _make(path: str, *, threaded: bool) -> None:
    """Create a cgroup, or finish the creation that a killed daemon began. Raises `OSError`."""
    with suppress(FileExistsError):  # left by a killed daemon
        os.mkdir(path)
    if threaded and not _make_threaded(path):
        raise OSError(f"cannot make {path} a threaded cgroup")


def _make_threaded(path: str) -> bool:
    """Make a cgroup threaded; return false if the kernel refuses.

    Raises `OSError` if there is no free file descriptor.
    """
    if _write(f"{path}/cgroup.type", "threaded"):
        return True
    try:
        return Path(path, "cgroup.type").read_text() == "threaded\n"
    except OSError as error:
        if is_descriptor_shortage(error):
            raise
        return False


def _remove(path: str) -> bool:
    """Remove a cgroup and the children that a task created; return whether that succeeded."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        below = _below(path)
        if not below or not all(_remove(child) for child in below):
            return False
        return _remove(path)
    return True


def _below(path: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _members(path: str) -> list[int]:
    """Return the thread IDs in a cgroup tree; a signal to a thread reaches its process."""
    threads: list[int] = []
    for group in (path, *_below(path)):
        try:
            threads += map(int, Path(group, "cgroup.threads").read_text().split())
        except OSError:
            continue
    return threads


def _has_event(path: str, event: str) -> bool:
    try:
        return event in Path(path, "cgroup.events").read_text()
    except OSError:
        return True


def _read(path: str) -> bytes:
    """Return the content of a small file; `Path` would take several times as long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_READ)
    finally:
        os.close(descriptor)


def _write(path: str, text: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(descriptor, text.encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
