"""Open paths below an open directory without leaving it, no matter which links a task created.

The kernel resolves the whole path (openat2, RESOLVE_BENEATH). Links that stay below are followed,
others are rejected, and no process can swap a link in between. Without that call (before Linux 5.6,
or behind a seccomp filter) no links are followed. Links are not followed as root either: a task
must not reach through the launcher what it cannot reach itself.
"""

import errno
import os
from collections.abc import Callable
from functools import cache

_OPENAT2 = 437  # the same number on all architectures
_NO_MAGIC_LINKS, _NO_LINKS, _BENEATH = 0x02, 0x04, 0x08
_HOW_SIZE = 24  # bytes of `struct open_how`: flags, mode, resolve
_RETRIES = 8  # the kernel returns EAGAIN when a concurrent rename interferes
_MISSING = frozenset({errno.ENOSYS, errno.EPERM, errno.E2BIG})

Call = Callable[[int, str, int], int]


def open_beneath(above: int, path: str, flags: int) -> int:
    """Return a descriptor of `path` below an open directory.

    Raises `OSError`, with EXDEV for a path that leaves the directory.
    """
    return resolver(follows=os.geteuid() != 0)(above, path or ".", flags | os.O_CLOEXEC)


@cache
def resolver(*, follows: bool) -> Call:
    """Return the best available function to open paths below a directory."""
    by_kernel = _by_kernel(_BENEATH | (_NO_MAGIC_LINKS if follows else _NO_LINKS))
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

    class How(ctypes.Structure):
        _fields_ = (
            ("flags", ctypes.c_uint64),
            ("mode", ctypes.c_uint64),
            ("resolve", ctypes.c_uint64),
        )

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long

    def open_at(above: int, path: str, flags: int) -> int:
        how = How(flags, 0, resolve)
        for _ in range(_RETRIES):
            found = call(_OPENAT2, above, os.fsencode(path), ctypes.byref(how), _HOW_SIZE)
            if found >= 0:
                return int(found)
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
