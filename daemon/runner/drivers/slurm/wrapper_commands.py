"""Numbered commands to the wrapper of an attempt; the wrapper acknowledges their numbers.

A wrapper outlives the daemon, and so do its acknowledgements. Therefore each daemon uses higher
numbers than the daemons before it.
"""

from collections.abc import Callable

import msgspec

from daemon.clock import Clock
from daemon.runner.core.notifier import Notifier
from daemon.runner.drivers.process_handle import signal_number
from daemon.runner.drivers.slurm.cluster import seconds

# Signals that clusters also use to end jobs. Like a stop, they may terminate the task.
_ENDS = frozenset({"signal TERM", "signal KILL"})


class WrapperCommand(msgspec.Struct):
    """A command to the wrapper. Acknowledging its number acknowledges all earlier commands."""

    number: int
    text: str


class WrapperCommandQueue:
    """The commands of one attempt. `changes` is notified when their state changes."""

    def __init__(self, changes: Notifier, clock: Clock) -> None:
        self._changes, self._clock = changes, clock
        self._given: list[WrapperCommand] = []
        self._waiting = 0  # wrapper requests that are waiting for a command
        self._is_known = False  # whether this daemon has received a request from the wrapper
        self._is_over = False
        self._taken = 0  # the last acknowledged number

    @property
    def is_waiting(self) -> bool:
        """Return whether the wrapper is waiting for a command now."""
        return self._waiting > 0

    @property
    def may_have_ended_it(self) -> bool:
        """Return whether a queued stop or signal command may have ended the task."""
        return any(
            wrapper_command.text in _ENDS or wrapper_command.text.startswith("stop ")
            for wrapper_command in self._given
        )

    def stop(self, signal: str, grace: float) -> None:
        """Order the wrapper to signal the task, and to kill it after `grace` seconds."""
        self._add(f"stop {_shell_name(signal)} {seconds(grace)}")

    def signal(self, name: str) -> None:
        """Order the wrapper to signal the main process of the task."""
        self._add(f"signal {_shell_name(name)}")

    def fetch_files(self) -> WrapperCommand:
        """Order the wrapper to download the files of the task again."""
        return self._add("files")

    def _add(self, text: str) -> WrapperCommand:
        """Add a command with a number higher than those of earlier daemons."""
        last = self._given[-1].number if self._given else 0
        command = WrapperCommand(max(last, self._taken, self._clock.now() // 1_000_000) + 1, text)
        self._given.append(command)
        self._changes.announce()
        return command

    def is_acknowledged(self, command: WrapperCommand) -> bool:
        """Return whether the wrapper has acknowledged a command."""
        return self._taken >= command.number

    async def after(self, seen: int, is_wanted: Callable[[], bool]) -> str:
        """Wait for commands with numbers above `seen`; return them, one per line.

        All earlier commands count as acknowledged. The result is empty if `is_wanted` returns
        false, or after `close`.
        """
        if not self._is_known:  # numbers depend on the system clock, which may have been set back
            self._is_known = True
            for step, command in enumerate(self._given, 1):
                command.number = max(command.number, seen + step)
        if seen > self._taken:
            self._taken = seen
            self._changes.announce()
        self._waiting += 1
        try:
            while is_wanted() and not self._is_over:
                if commands := [
                    wrapper_command
                    for wrapper_command in self._given
                    if wrapper_command.number > seen
                ]:
                    return "".join(
                        f"{wrapper_command.number} {wrapper_command.text}\n"
                        for wrapper_command in commands
                    )
                await self._changes.wait()
            return ""
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Answer all waiting requests, because the daemon exits."""
        self._is_over = True
        self._changes.announce()


def _shell_name(signal: str) -> str:
    """Return a signal as a shell's `kill` expects it."""
    return signal_number(signal).name.removeprefix("SIG")
