"""Punch holes into files to free the disk space of ranges that are no longer needed.

Python has no function for it, so this calls the C library. ctypes is loaded when the first hole is
punched.
"""

import errno
import os
from collections.abc import Callable
from functools import cache

_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01
_MISSING = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class HolePunchUnsupported(Exception):
    """The file system does not support holes."""


def punch_hole(descriptor: int, start: int, end: int) -> None:
    """Punch a hole from `start` to `end`. Raises `HolePunchUnsupported` if unsupported, or `OSError`."""
    number = _fallocate()(descriptor, start, end - start)
    if number in _MISSING:
        raise HolePunchUnsupported
    if number:
        raise OSError(number, os.strerror(number))


@cache
def _fallocate() -> Callable[[int, int, int], int]:
    """Return a function that punches a hole and returns an errno, or 0."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    call = library.fallocate64 if hasattr(library, "fallocate64") else library.fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

    def fallocate(descriptor: int, offset: int, length: int) -> int:
        done = call(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length)
        return 0 if done == 0 else ctypes.get_errno()

    return fallocate
