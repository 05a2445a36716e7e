"""Groups of processes that the kernel keeps account of: control groups, version 2.

No process leaves its group: neither a new session nor a new parent nor another user changes it.
No controller is needed, only the right to make groups below the daemon's own, so this works for
root, in a delegated unit and in a user's own slice.

The groups are threaded where the kernel allows that. A process enters such a group at once, while
entering any other kind waits for all processors (measured: 0.1 ms against 7 to 15 ms on an idle
machine, most of the time to a task's first instruction). They cannot be killed with one word,
but held still and then killed one by one, which comes to the same.

In a unit that systemd has delegated, the daemon and its launcher go into a group of their own first: systemd puts
the commands of a unit (`ExecReload=`) into a group beside the processes, and beside groups of threads
there can be none that holds processes.
"""

import hashlib
import os
import signal
from contextlib import suppress
from pathlib import Path

import trio

from daemon.runner.drivers.claim import Trace
from daemon.runner.drivers.scan import children

_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")
ASIDE = "main"  # the daemon's own group in a delegated unit
_DELEGATED = ("trusted.delegate", "user.delegate")  # by which systemd marks a group
GUARDED = "trusted.steward_egress"  # marks a group that has programs of `runner/egress.py`
_PATIENCE = 10.0  # seconds: a process that the kernel does not let go cannot be waited for for ever
_FIRST_LOOK, _LAST_LOOK = 0.001, 0.05  # seconds between two looks; a group says nothing by itself


class Cgroup:
    """The processes of one attempt at a task."""

    def __init__(self, path: str, *, threaded: bool = False) -> None:
        self.label = path
        self._threaded = threaded

    @property
    def entry(self) -> str:
        """Return the file by which a process enters the group."""
        return f"{self.label}/cgroup.{'threads' if self._threaded else 'procs'}"

    def is_populated(self) -> bool:
        """Tell whether processes are in it, or below it."""
        try:
            return "populated 1" in Path(self.label, "cgroup.events").read_text()
        except OSError:  # it was not made yet
            return False

    def prepare(self) -> None:
        """Make the group. Raises `OSError`."""
        try:
            _make(self.label, threaded=self._threaded)
        except FileNotFoundError:  # somebody has tidied up above
            _make(os.path.dirname(self.label), threaded=self._threaded)
            _make(self.label, threaded=self._threaded)

    async def clear(self, trace: Trace) -> str:
        """End every process and remove the group; return what could not be ended, or nothing."""
        del trace  # the kernel knows better
        if _remove(self.label):
            return ""
        look = _FIRST_LOOK
        with trio.move_on_after(_PATIENCE):
            while True:
                self._kill()
                await trio.sleep(look)
                if _remove(self.label):
                    return ""
                look = min(2 * look, _LAST_LOOK)
        return f"processes that do not end: {' '.join(map(str, _members(self.label)))}"

    def _kill(self) -> None:
        if _write(f"{self.label}/cgroup.kill", "1"):
            return
        # In threaded groups, and before Linux 5.14. What is frozen starts nothing new, but dies.
        _write(f"{self.label}/cgroup.freeze", "1")
        for pid in _members(self.label):
            _send_kill(pid)

    async def members(self, trace: Trace) -> list[int]:
        """Return the numbers of all threads: those of processes are among them."""
        del trace
        return _members(self.label)

    async def pause(self, trace: Trace) -> None:
        """Freeze every process."""
        del trace
        _write(f"{self.label}/cgroup.freeze", "1")
        with trio.move_on_after(_PATIENCE):
            while not _says(self.label, "frozen 1"):  # noqa: ASYNC110  # the kernel rings no bell
                await trio.sleep(_FIRST_LOOK)

    async def resume(self, trace: Trace) -> None:
        """Let every process go on."""
        del trace
        _write(f"{self.label}/cgroup.freeze", "0")


class Cgroups:
    """The groups below one of the daemon's own."""

    def __init__(self, base: Path, mount: Path, *, threaded: bool) -> None:
        self._base, self._threaded = base, threaded
        self.parent = f"/{base.relative_to(mount)}"

    @property
    def attributes(self) -> dict[str, str]:
        """Return what a node says of it."""
        return {"containment": "cgroup"}

    def of(self, alloc_id: str, task: str, *, pinned: bool = False) -> Cgroup:
        """Return the group for attempts at a task."""
        return Cgroup(f"{self._base}/{alloc_id}.{task}", threaded=self._threaded)

    def release(self) -> bool:
        """Remove the group above all if nothing is in it; tell whether it is gone.

        A group below may be empty because its task has just begun, and is about to join it.
        """
        try:
            os.rmdir(self._base)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def places(*groups: str) -> list[Path]:
    """Return where groups of version 2 lie that are named from the root of their tree; no name: none."""
    mount = mount_point(_MOUNTS.read_text())
    return [mount / one.lstrip("/") for one in sorted(set(groups)) if one and mount]


def is_guarded(place: Path) -> bool:
    """Return whether a daemon has begun to keep the tasks of a group from some addresses."""
    with suppress(OSError):
        return os.getxattr(place, GUARDED) == b"1"
    return False


def find(owner: Path) -> Cgroups | None:
    """Return the groups that this daemon may make, or None where it may make none.

    They have a place of their own for each `owner`, the directory whose allocations run in them.
    """
    mount = mount_point(_MOUNTS.read_text())
    own = own_path(_OWN.read_text())
    if mount is None or own is None:
        return None
    above = _aside(mount / own.lstrip("/"))
    base = above / f"steward-{hashlib.blake2b(str(owner).encode(), digest_size=4).hexdigest()}"
    try:
        base.mkdir(exist_ok=True)
        threaded = _make_threaded(str(base))
        trial = Cgroup(f"{base}/trial-{os.getpid()}", threaded=threaded)
        trial.prepare()
        _remove(trial.label)
    except OSError:
        return None
    # Moving a process needs the right to write to the nearest group above both places, too.
    if not os.access(above / "cgroup.procs", os.W_OK):
        return None
    return Cgroups(base, mount, threaded=threaded)


def _aside(own: Path) -> Path:
    """Return the group of this process, once it has gone aside if it can and has to."""
    aside = own / ASIDE
    if not is_delegated(str(own)):
        return own
    try:
        aside.mkdir(exist_ok=True)
    except OSError:
        return own
    # Not where tasks that an older daemon has started are in groups of threads.
    if not _write(f"{aside}/cgroup.procs", str(os.getpid())):
        return own
    for child in children(os.getpid()):  # the launcher: the one that there is before any task
        _write(f"{aside}/cgroup.procs", str(child))
    return aside


def is_delegated(path: str) -> bool:
    """Tell whether whoever rules the tree has handed a group over."""
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(path, name) == b"1":
                return True
    return False


def mount_point(mountinfo: str) -> Path | None:
    """Return where version 2 is mounted, from the text of a `mountinfo`."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return Path(before.split()[4].encode().decode("unicode_escape"))
    return None


def own_path(memberships: str) -> str | None:
    """Return a process's own group, from the text of its `/proc/.../cgroup`."""
    for line in memberships.splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    return None


def _make(path: str, *, threaded: bool) -> None:
    """Make a group, or finish one that a daemon was killed over. Raises `OSError`."""
    with suppress(FileExistsError):
        os.mkdir(path)
    if threaded and not _make_threaded(path):
        raise OSError(f"cannot make a threaded group of {path}")


def _make_threaded(path: str) -> bool:
    """Make a group a threaded one; tell whether it is one now."""
    if _write(f"{path}/cgroup.type", "threaded"):
        return True
    try:
        return Path(path, "cgroup.type").read_text() == "threaded\n"
    except OSError:
        return False


def _remove(path: str) -> bool:
    """Remove a group and those that a task has made below it; tell whether that was possible."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        below = _below(path)
        if not below or not all(_remove(one) for one in below):
            return False
        return _remove(path)
    return True


def _below(path: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _members(path: str) -> list[int]:
    """Return the threads in a group and in those below it; a signal to one reaches its process."""
    threads: list[int] = []
    for place in (path, *_below(path)):
        try:
            threads += map(int, Path(place, "cgroup.threads").read_text().split())
        except OSError:
            continue
    return threads


def _send_kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _says(path: str, event: str) -> bool:
    try:
        return event in Path(path, "cgroup.events").read_text()
    except OSError:
        return True


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
