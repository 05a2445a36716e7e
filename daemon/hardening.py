"""What the daemon keeps in memory stays there: no debugger attaches, no core is dumped.

This holds against other processes of the daemon's own user, tasks for example. Against root
nothing does.
"""

import ctypes
import os

_PR_SET_DUMPABLE = 4  # linux/prctl.h


def keep_memory_private() -> None:
    """Make this process one that cannot be dumped; what it executes is not concerned."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
