"""What holds for the memory of the daemon's process from its first moment.

What it keeps there stays there: no debugger attaches, no core is dumped. This holds against other
processes of the daemon's own user, tasks for example. Against root nothing does.

And all threads have one heap. By itself the C library gives each one of many, up to eight for each
processor; what is done in threads is done by whichever is free, so over hours each heap grows to what
the largest work took. The interpreter runs one thread at a time, so one heap is as fast.
"""

import ctypes
import os

_PR_SET_DUMPABLE = 4  # linux/prctl.h
_M_ARENA_MAX = -8  # malloc.h of the GNU C library


def keep_memory_private() -> None:
    """Make this process one that cannot be dumped; what it executes is not concerned."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def share_one_heap() -> None:
    """Give all threads one heap, before the first of them starts; other C libraries do so anyway."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
