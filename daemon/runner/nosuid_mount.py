"""A mount over all task directories that disables set-user-ID bits and device files.

It is a bind mount of the directory onto itself in the host's mount namespace. It outlives the
daemon, as the tasks do. Existing secrets mounts of tasks are moved into it. Without root, or in a
container that forbids mounts, there is no such mount.
"""

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from daemon.launcher.hardening import called
from daemon.launcher.secrets_tmpfs import FIRST, is_elsewhere

_NOSUID, _NODEV, _REMOUNT, _BIND, _RECURSIVE, _RELATIME = (
    2,
    4,
    32,
    4096,
    16384,
    1 << 21,
)  # from sys/mount.h
_DETACH, _NO_FOLLOW = 2, 8
# The flags of statvfs(3) and mount(2) have the same values.
_KEPT = os.ST_RDONLY | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
_WANTED = frozenset({"nosuid", "nodev"})
_ESCAPED = re.compile(r"\\([0-7]{3})")


class NosuidMount:
    """One mount: a line of the kernel's mount table."""

    def __init__(self, line: str) -> None:
        before = line.partition(" - ")[0].split(" ")
        self.place = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), before[4])
        self.options = frozenset(before[5].split(","))
        self.is_shared = any(part.startswith("shared:") for part in before[6:])


def cover(tasks: Path) -> str:
    """Create the mount over the directory of all tasks, unless the mount exists.

    Return the reason if the mount cannot be created, or an empty string.
    """
    path = os.path.realpath(tasks)
    if os.geteuid() != 0:
        return "the daemon is not root"
    if (mount := _topmost_mount(path)) and mount.options >= _WANTED:
        return ""
    try:
        if is_elsewhere(path):
            _in_child(lambda: _cover(path), FIRST)
        _in_child(lambda: _cover(path))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def unmount(tasks: Path) -> None:
    """Unmount the directory if it is mounted; call this only while no task runs."""
    path = os.path.realpath(tasks)
    if os.geteuid() != 0 or _topmost_mount(path) is None:
        return
    namespaces = [FIRST] if is_elsewhere(path) else []
    for namespace in (*namespaces, ""):
        with suppress(OSError):  # already unmounted with the previous mount
            _in_child(lambda: _unmount(path, _DETACH | _NO_FOLLOW), namespace)


def _cover(path: str) -> None:
    lower = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    below = f"/proc/self/fd/{lower}"
    if _topmost_mount(path) is None:
        above = max((mount for mount in mounts() if _is_below(path, mount.place)), key=_depth)
        inner = [mount.place for mount in mounts() if mount.place.startswith(f"{path}/")]
        _mount(below, below, _BIND | _RECURSIVE)
        # If the mount above is shared, unmounting a copy would also unmount the original.
        for mount_point in inner if not above.is_shared else ():
            _unmount(below + mount_point.removeprefix(path), _DETACH | _NO_FOLLOW)
    upper = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    mount_flags = os.statvfs(upper).f_flag
    flags = mount_flags & _KEPT | (_RELATIME if mount_flags & os.ST_RELATIME else 0)
    _mount("none", f"/proc/self/fd/{upper}", _REMOUNT | _BIND | _NOSUID | _NODEV | flags)


def mounts() -> Iterator[NosuidMount]:
    """Yield the mounts in the order of the kernel's table. Raises `OSError`."""
    with open("/proc/self/mountinfo", "rb") as lines:  # text mode would also end lines at `\r`
        yield from (NosuidMount(os.fsdecode(line)) for line in lines)


def _topmost_mount(path: str) -> NosuidMount | None:
    """Return the topmost mount at a path."""
    return next((mount for mount in reversed([*mounts()]) if mount.place == path), None)


def _is_below(path: str, mounted: str) -> bool:
    return mounted == "/" or f"{path}/".startswith(f"{mounted}/")


def _depth(nosuid_mount: NosuidMount) -> int:
    return len(nosuid_mount.place)


def _in_child(work: Callable[[], None], namespace: str = "") -> None:
    """Run a function in a child process that enters the given mount namespace. Raises `OSError`."""
    child = os.fork()
    if child == 0:
        os._exit(_status(work, namespace))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise OSError(status, os.strerror(status))


def _status(work: Callable[[], None], namespace: str) -> int:
    try:
        if namespace:
            called("setns", os.open(namespace, os.O_RDONLY), 0)
        work()
    except OSError as error:
        return error.errno or 1
    except BaseException:  # a forked child must not run on into its parent's code
        return 1
    return 0


def _mount(source: str, target: str, flags: int) -> None:
    called("mount", os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None)


def _unmount(path: str, flags: int) -> None:
    called("umount2", os.fsencode(path), flags)
