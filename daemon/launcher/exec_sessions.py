"""Exec sessions: child processes of the launcher that each lead a session.

The daemon identifies them by numbers that are never reused, and gets each exit status once.
"""

import os
import signal
from contextlib import suppress

from daemon.launcher.shims import fields

_SIGNALLED = 128
_MOST = 10_000  # exit statuses that were not requested
_SESSION = 3  # field of `stat` after the name


class ExecSessions:
    """The sessions of one launcher."""

    def __init__(self) -> None:
        self._last = 0
        self._pids: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._statuses: dict[int, int] = {}

    def note(self, pid: int) -> int:
        """Register a started command and return its number."""
        self._last += 1
        self._pids[self._last], self._numbers[pid] = pid, self._last
        return self._last

    def bury(self, pid: int, status: int) -> None:
        """Record the exit status of a child, if it is a session."""
        if (number := self._numbers.pop(pid, None)) is None:
            return
        del self._pids[number]
        self._statuses[number] = status if status >= 0 else _SIGNALLED - status
        if len(self._statuses) > _MOST:
            del self._statuses[next(iter(self._statuses))]

    def take_status(self, number: int) -> int:
        """Return an exit status once; -1 while the command is running or if it is unknown."""
        return self._statuses.pop(number, -1)

    def kill(self, number: int, *, hang_up: bool) -> None:
        """Kill the process group of a command, or send SIGHUP to its whole session."""
        # The process is not reaped, so its ID, session ID and group ID cannot be reused.
        if (pid := self._pids.get(number)) is None:
            return
        if not hang_up:
            os.killpg(pid, signal.SIGKILL)
            return
        for one in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            if _is_in(one, pid):
                _send(one, pid, signal.SIGHUP)


def _send(pid: int, session: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            # Still in the session after the pidfd was opened, so the ID was not reused.
            if _is_in(pid, session):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _is_in(pid: int, session: int) -> bool:
    return fields(pid)[_SESSION:][:1] == [b"%d" % session]
