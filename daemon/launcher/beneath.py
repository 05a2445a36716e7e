"""Opening what lies below an open directory and nothing else, whatever links a task has made there.

The kernel resolves the whole path (openat2, RESOLVE_BENEATH): a link that stays below is followed,
one that leads out is refused, and nobody can change one for another in between. Where the kernel
has no such call, before Linux 5.6 or behind a filter, no link is followed at all. Root follows none
either: what a task may not reach it cannot reach through us.
"""

import errno
import os
from collections.abc import Callable
from functools import cache

_OPENAT2 = 437  # the same number on every architecture
_NO_MAGIC_LINKS, _NO_LINKS, _BENEATH = 0x02, 0x04, 0x08
_HOW_SIZE = 24  # bytes of its argument: flags, mode, resolve
_RETRIES = 8  # the kernel gives up when something is renamed at the same moment
_MISSING = frozenset({errno.ENOSYS, errno.EPERM, errno.E2BIG})

Call = Callable[[int, str, int], int]


def open_beneath(above: int, path: str, flags: int) -> int:
    """Return a descriptor of what lies at `path` below an open directory.

    Raises `OSError`: EXDEV for what leads out of it.
    """
    return resolver(follows=os.geteuid() != 0)(above, path or ".", flags | os.O_CLOEXEC)


@cache
def resolver(*, follows: bool) -> Call:
    """Return the best way that this kernel has to open what lies below a directory."""
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
    """Open a path step by step, and no link on the way. Raises `OSError`."""
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
