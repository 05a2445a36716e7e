"""Exec sessions and programs: child processes of the launcher that each lead a session.

The daemon identifies them by numbers that are never reused, and gets each exit status once.

A command on a terminal in a sandbox leads a separate session, below the programs that enter the
sandbox. A session and its process groups have no number in the sandbox's PID namespace if their
leader is outside. A shell then cannot control jobs.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from daemon.launcher import process_scan
from daemon.launcher.process_scan import Process

_SIGNALLED = 128
_MOST = 10_000  # maximum number of exit statuses that were not requested yet


class ExecSessions:
    """The sessions of one launcher."""

    def __init__(self) -> None:
        self._last = 0
        self._pids: dict[int, tuple[int, bool]] = {}
        self._numbers: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._deadlines: dict[int, float] = {}

    @property
    def bounded(self) -> int:
        """Return the number of running commands that have a time limit."""
        return len(self._deadlines)

    def register(self, pid: int, deadline: float | None = None, *, is_nested: bool = False) -> int:
        """Register a started command and its optional `deadline`; return its number.

        `is_nested` means that the command leads a separate session below the process `pid`.
        """
        self._last += 1
        if deadline is not None:
            self._deadlines[self._last] = deadline
        self._pids[self._last], self._numbers[pid] = (pid, is_nested), self._last
        return self._last

    def record_exit(self, pid: int, status: int) -> None:
        """Record the exit status of an ended child, if the child is a session."""
        if (number := self._numbers.pop(pid, None)) is None:
            return
        del self._pids[number]
        self._deadlines.pop(number, None)
        self._statuses[number] = status if status >= 0 else _SIGNALLED - status
        if len(self._statuses) > _MOST:
            del self._statuses[next(iter(self._statuses))]

    def kill_late(self, now: float) -> float | None:
        """Kill the commands whose deadline has passed.

        Return the seconds until the next deadline; None if no command has a deadline.
        """
        for number in [number for number, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[number]
            self.kill(number, hang_up=False)
        return max(0.0, min(self._deadlines.values()) - now) if self._deadlines else None

    def end_group(self, pid: int) -> None:
        """Kill the remaining processes in the group of an ended command that has a time limit."""
        if self._numbers.get(pid) in self._deadlines:
            with suppress(ProcessLookupError):  # the other processes have ended too
                os.killpg(pid, signal.SIGKILL)

    def take_status(self, number: int) -> int:
        """Return the exit status of a command.

        Return -1 while the command is running, or if the status is unknown or was returned before.
        """
        return self._statuses.pop(number, -1)

    def kill(self, number: int, *, hang_up: bool) -> None:
        """Kill the process group of a command, or send SIGHUP to its whole session."""
        # The process is not reaped, so its ID, session ID and group ID cannot be reused.
        pid, is_nested = self._pids.get(number, (0, False))
        if not pid:
            return
        if is_nested and not hang_up:
            # If they ran on, they could start the command after the scan.
            os.killpg(pid, signal.SIGSTOP)
        processes = process_scan.list_processes("") if is_nested or hang_up else []
        leader = _leader(processes, pid) if is_nested else pid
        if hang_up:
            process_scan.send((item for item in processes if item.session == leader), signal.SIGHUP)
            return
        # The command first: if the programs above it ended, no scan would find it.
        process_scan.send((item for item in processes if item.group == leader), signal.SIGKILL)
        os.killpg(pid, signal.SIGKILL)


def _leader(processes: Sequence[Process], pid: int) -> int:
    """Return the process ID of the session leader below the session `pid`.

    Return `pid` if the command does not lead its own session yet.
    """
    entering = {item.pid for item in processes if item.session == pid}
    leaders = (item for item in processes if item.pid == item.session != pid)
    return next((item.pid for item in leaders if item.parent in entering), pid)
