"""Holes in files: giving back the room of a stretch that nobody reads any more.

The interpreter has no call for it, so the C library is asked; what that needs is loaded when the
first hole is made.
"""

import errno
import os
from collections.abc import Callable
from functools import cache

_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01
_MISSING = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class NoHoles(Exception):
    """The file system cannot make holes."""


def punch(descriptor: int, start: int, end: int) -> None:
    """Make a hole of a stretch of a file. Raises `NoHoles` where there are none, or `OSError`."""
    number = _fallocate()(descriptor, start, end - start)
    if number in _MISSING:
        raise NoHoles
    if number:
        raise OSError(number, os.strerror(number))


@cache
def _fallocate() -> Callable[[int, int, int], int]:
    """Return a function that makes a hole and returns the number of an error, or 0."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    call = library.fallocate64 if hasattr(library, "fallocate64") else library.fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

    def fallocate(descriptor: int, offset: int, length: int) -> int:
        done = call(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length)
        return 0 if done == 0 else ctypes.get_errno()

    return fallocate
