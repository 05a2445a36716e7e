"""What holds for the memory of the daemon's process from its first moment.

What it keeps there stays there: no debugger attaches, no core is dumped. This holds against other
processes of the daemon's own user, tasks for example. Against root nothing does.

And all threads have one heap. By itself the C library gives each one of many, up to eight for each
processor; what is done in threads is done by whichever is free, so over hours each heap grows to what
the largest work took. The interpreter runs one thread at a time, so one heap is as fast.
"""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

# The kernel shares the CPU among sessions, and each task has a session of its own: the niceness of a
# process counts within its session only. This is the niceness of the session.
_AUTOGROUP, _NICE = Path("/proc/self/autogroup"), -10
_OOM_SCORE, _RATHER_NOT = Path("/proc/self/oom_score_adj"), -500  # in thousandths of the memory
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


def come_before_tasks() -> None:
    """Prefer this process to tasks for CPU time and memory, as far as it may; the shim lifts this.

    A session of others, such as the terminal of a user, keeps its share of the CPU.
    """
    with suppress(OSError):  # without CAP_SYS_NICE, or the kernel has no such groups
        if os.getsid(0) == os.getpid():
            _AUTOGROUP.write_text(str(_NICE))
    with suppress(OSError, ValueError):  # without CAP_SYS_RESOURCE
        if int(_OOM_SCORE.read_text()) > _RATHER_NOT:
            _OOM_SCORE.write_text(str(_RATHER_NOT))
