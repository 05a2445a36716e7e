"""Memory protection and priority of the daemon's process.

The daemon's memory stays private: no debugger can attach, and no core is dumped. This protects
against other processes of the daemon's user, such as tasks. It does not protect against root.

All threads share one heap. By default, the C library creates up to eight heaps for each core. Over
hours, each heap grows to the size of its largest operation. Python runs one thread at a time, so
one heap is as fast.

This module does not use `pathlib`, which would take 0.6 MiB of the launcher.
"""

import ctypes
import errno
import os
from contextlib import suppress

# The kernel shares the CPU among sessions, and each task has its own session. The niceness of a
# process counts only within its session, so this sets the niceness of the session.
_AUTOGROUP, _NICE = "/proc/self/autogroup", -10
# The score is in thousandths of the memory.
_OOM_SCORE, _RATHER_NOT = "/proc/self/oom_score_adj", -500
_PR_SET_DUMPABLE, _PR_SET_SECCOMP = 4, 22  # linux/prctl.h
_MODE_FILTER = 2  # linux/seccomp.h
_M_ARENA_MAX = -8  # malloc.h of the GNU C library


def called(name: str, *arguments: object) -> None:
    """Call the named function of the C library. Raises `OSError`."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def disable_core_dumps() -> None:
    """Forbid dumps and debuggers for this process. Programs that it executes are not affected."""
    called("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


def supports_filters() -> bool:
    """Return whether the kernel has system call filters.

    The call passes an invalid address, so it installs no filter.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() != errno.EINVAL  # EFAULT if the kernel has filters


def use_single_heap() -> None:
    """Make all threads share one heap. Call it before the first thread; glibc only."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)


def set_priority() -> None:
    """Give this process priority over tasks for CPU and memory, as far as permitted.

    The shim resets the priority for its task. If the daemon runs in a session that it did not
    create, such as a terminal's, the CPU priority does not change.
    """
    with suppress(OSError):  # without CAP_SYS_NICE, or the kernel has no autogroups
        if os.getsid(0) == os.getpid():
            _write(_AUTOGROUP, _NICE)
    with suppress(OSError, ValueError):  # without CAP_SYS_RESOURCE
        with open(_OOM_SCORE) as file:
            score = int(file.read())
        if score > _RATHER_NOT:
            _write(_OOM_SCORE, _RATHER_NOT)


def _write(path: str, value: int) -> None:
    with open(path, "w") as file:
        file.write(str(value))
