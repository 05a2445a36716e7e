"""Limit the logs of running tasks while no daemon runs.

The launcher does this after its daemon has ended. It cannot pause tasks, and a limit that the
kernel enforces would affect the tasks. So it punches holes over the data that the logs do not keep,
which neither blocks a writer nor changes an offset. It keeps the claims and the logs open, so a
task cannot redirect it to another file. On file systems without hole punching, logs grow until the
next daemon starts.

Each pass holds the launcher's lock, so the next launcher waits for the end of the pass. The guard
ends when it finds the lock held by the next launcher, or when the last task has ended.
"""

import fcntl
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from daemon.launcher.channel import close
from daemon.launcher.claims_and_logs import (
    LOGS,
    SHARED,
    HolePunchUnsupported,
    attempts,
    below,
    is_locked,
    open_own,
    opened_claim,
    punch_hole,
)

_PERIOD = 1.0  # seconds between two passes
_BLOCK = 4096  # holes consist of whole blocks
_LEAST = 256 * 1024  # bytes by which a hole must grow before it is punched again


class _GuardedLog(msgspec.Struct):
    """An open log, and the offset at which the hole at its start ends."""

    descriptor: int
    keeps: int
    dropped: int = 0

    def trim(self) -> None:
        """Punch a hole over the data that the log does not keep.

        Raises `HolePunchUnsupported` or `OSError`.
        """
        end = (os.fstat(self.descriptor).st_size - self.keeps) // _BLOCK * _BLOCK
        if end - self.dropped >= _LEAST:
            punch_hole(self.descriptor, 0, end)
            self.dropped = end


class LogGuard:
    """Limits the logs of all tasks that are running when the daemon ends."""

    def __init__(self, directory: str) -> None:
        """Open the logs below the directory of all allocations. Raises `OSError`."""
        self._attempts = dict(_running(directory))

    def run(self, lock: str) -> None:
        """Limit the logs until the next launcher holds the lock, or the last task has ended.

        Raises `OSError`.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        while self._attempts:
            with _held(lock) as is_held:
                if not is_held:
                    return
                self.look()
            signal.sigtimedwait({signal.SIGCHLD}, _PERIOD)
            with suppress(ChildProcessError):  # there are no children
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass

    def look(self) -> None:
        """Trim each log once, and drop attempts that have ended."""
        for claim, logs in list(self._attempts.items()):
            if not is_locked(claim):
                close([claim, *(log.descriptor for log in self._attempts.pop(claim))])
                continue
            for log in logs:
                # The next pass tries again, even if the file system does not support hole punching.
                with suppress(OSError, HolePunchUnsupported):
                    log.trim()


def limit_logs(directory: str, lock: str) -> None:
    """Limit the logs of all running tasks until the next launcher holds the lock."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with suppress(OSError):  # the next launcher limits them
        LogGuard(directory).run(lock)


def _running(directory: str) -> Iterator[tuple[int, list[_GuardedLog]]]:
    """For each attempt whose shim is alive, yield a descriptor of the claim, and the open logs.

    Raises `OSError`.
    """
    for allocation in os.listdir(directory):
        if allocation.startswith("."):
            continue
        # The allocation may be removed, or its logs replaced. If no descriptor is free, only the
        # logs that are already open are limited.
        with suppress(OSError), below(directory, allocation) as folder:
            for task, attempt in attempts(folder):
                if (opened_log := opened_claim(folder, task, attempt)) is not None:
                    yield opened_log[0], list(_logs(folder, task, opened_log[1]))


def _logs(folder: int, task: str, keeps: int) -> Iterator[_GuardedLog]:
    for kind in ("stdout", "stderr"):
        # A log that its task has removed or replaced is not limited.
        with suppress(OSError), below(folder, SHARED, LOGS) as logs:
            yield _GuardedLog(open_own(logs, f"{task}.{kind}.0", os.O_WRONLY), keeps)


@contextmanager
def _held(lock: str) -> Iterator[bool]:
    """Try to hold the launcher's lock in the block; yield whether it was free. Raises `OSError`."""
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield not is_locked(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)
