"""Open paths below an open directory without leaving it, no matter which links a task created.

The kernel resolves the whole path (openat2, RESOLVE_BENEATH). Links that stay below the directory
are followed, other links are rejected, and no process can swap a link in between. If this call is
not available (before Linux 5.6, or behind a seccomp filter), no links are followed. As root, the
launcher follows no links either: a task must not gain access to other files through the launcher.

No path enters a mount, except Steward's tmpfs for secrets. A user can mount a FUSE file system in a
task directory, and the first access to it could block the launcher indefinitely.
"""

import errno
import os
import struct
import sys
from collections.abc import Callable
from functools import cache

_OPENAT2 = 437  # the same number on all architectures
_NO_MOUNTS, _NO_MAGIC_LINKS, _NO_LINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_HOW_SIZE = 24  # bytes of `struct open_how`: flags, mode, resolve
_RETRIES = 8  # the kernel returns EAGAIN when a concurrent rename interferes
_MISSING = frozenset({errno.ENOSYS, errno.EPERM, errno.E2BIG})

SECRETS_MOUNT = "tmpfs steward "  # type and source of Steward's mounts
_MOUNT_ID = b"mnt_id:"
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

# With these arguments, `encode` and `decode` do the same as `os.fsencode` in a third of the time.
CODE, ODD = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

Call = Callable[[int, str, int], int]


def open_beneath(above: int, path: str, flags: int, *, follows: bool | None = None) -> int:
    """Return a descriptor of `path` below an open directory; by default, root follows no links.

    Raises `OSError`, with EXDEV for a path that leaves the directory, or enters a mount that is not
    Steward's.
    """
    follows = os.geteuid() != 0 if follows is None else follows
    call = resolver(follows=follows, enters=False)
    try:
        return call(above, path or ".", flags | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        inside, remaining = _entered(call, above, path.split("/"))
    try:
        return call(inside, remaining or ".", flags & ~os.O_NOFOLLOW | os.O_CLOEXEC)
    finally:
        os.close(inside)


def step(above: int, name: str, flags: int) -> int:
    """Open an entry in the directory `above`; return its descriptor.

    Raises `OSError`, including for a link.
    """
    try:
        return open_beneath(above, name, flags | os.O_NOFOLLOW, follows=False)
    except OSError as error:
        if error.errno == errno.ELOOP and flags & os.O_DIRECTORY:  # report it like `open`
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from None
        raise


def facts_of(directory: int, name: str) -> os.stat_result:
    """Return the metadata of an entry in an open directory, without following links.

    Raises `OSError`.
    """
    descriptor = open_beneath(directory, name, os.O_PATH | os.O_NOFOLLOW, follows=True)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _entered(call: Call, above: int, names: list[str]) -> tuple[int, str]:
    """Open the secrets mount on a path; return its descriptor, and the rest of the path.

    Raises `OSError`, with EXDEV for any other mount, and for a path that leaves the directory.
    """
    directory = os.dup(above)
    try:
        for number, name in enumerate(names, 1):
            try:
                deeper = call(directory, name, _LOOK)
            except NotADirectoryError:  # `name` is a link, by which the path left the directory
                break
            except OSError as error:
                if error.errno != errno.EXDEV or name == "..":
                    raise
                child = os.open(name, _LOOK, dir_fd=directory)
                if _is_secrets_mount(child):
                    return child, "/".join(names[number:])
                os.close(child)
                raise
            os.close(directory)
            directory = deeper
    finally:
        os.close(directory)
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), "/".join(names))


def _is_secrets_mount(descriptor: int) -> bool:
    """Return whether a file is in Steward's tmpfs, without access to the file system itself."""
    # Compare bytes: a process with a task's user may not import Python's module for an encoding.
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as lines:
        mount_line = next((line for line in lines if line.startswith(_MOUNT_ID)), b"")
    mark = mount_line.removeprefix(_MOUNT_ID).strip() + b" "
    with open("/proc/self/mountinfo", "rb") as lines:
        line = next((line for line in lines if line.startswith(mark)), b"")
    return line.partition(b" - ")[2].startswith(SECRETS_MOUNT.encode())


@cache
def resolver(*, follows: bool, enters: bool = True) -> Call:
    """Return the best available function to open paths below a directory.

    Without `enters`, no path crosses into a mount; an old kernel cannot enforce this.
    """
    how = _BENEATH | (_NO_MAGIC_LINKS if follows else _NO_LINKS)
    by_kernel = _by_kernel(how | (0 if enters else _NO_MOUNTS))
    above = os.open("/", os.O_PATH)
    try:
        os.close(by_kernel(above, ".", os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        return without_links
    finally:
        os.close(above)
    return by_kernel


def _by_kernel(resolve: int) -> Call:
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long

    @cache  # the callers use only a few different flags
    def how_of(flags: int) -> ctypes.Array[ctypes.c_char]:
        return ctypes.create_string_buffer(struct.pack("QQQ", flags, 0, resolve), _HOW_SIZE)

    def open_at(above: int, path: str, flags: int) -> int:
        how, name = how_of(flags), path.encode(CODE, ODD)
        for _ in range(_RETRIES):
            result = call(_OPENAT2, above, name, how, _HOW_SIZE)
            if result >= 0:
                return int(result)
            if ctypes.get_errno() != errno.EAGAIN:
                break
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)

    return open_at


def without_links(above: int, path: str, flags: int) -> int:
    """Open a path component by component, without following links. Raises `OSError`."""
    *folders, last = path.split("/")
    opened: list[int] = []
    try:
        for name in folders:
            step = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            above = os.open(name, step, dir_fd=above)
            opened.append(above)
        return os.open(last, flags | os.O_NOFOLLOW, dir_fd=above)
    finally:
        for descriptor in opened:
            os.close(descriptor)
