"""The file in which one attempt at a task leaves its trace: who runs it, and how it ended.

The launcher makes the file, locks it and starts the shim with the locked file as its standard
error; the shim alone keeps it open. So for as long as the lock is held the shim lives, and no pid
that was given to another process, no reboot and no restart of the daemon can deceive anyone. A
lock that is free says that the shim is gone; what the file holds then says how far it came:
nothing of a shim, and nothing was ever started; an exit, and the task ended with it; otherwise
the shim was killed.

    group <where its processes are>   written by the launcher
    shim <pid>                        from here on by the shim
    main <pid>                        only where processes are found by looking at all of them
    Killed                            the shell's word for a death by signal, or its own trouble
    exit <status>
"""

import fcntl
import os
import signal

import msgspec

from daemon.runner.drivers.driver import Exit

_MOST = 65536  # bytes that a claim can have: a few lines
_SIGNALLED = 128
# A shell says nothing of these deaths: its users know of them. A task that itself exits with
# 130 or 141 cannot be told from one that a signal ended.
_SILENT = frozenset({signal.SIGINT, signal.SIGPIPE})


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim file says."""

    group: str = ""
    shim: int = 0
    main: int = 0
    status: int | None = None
    words: str = ""

    @property
    def end(self) -> Exit:
        """Return how the task ended."""
        if self.status is None:
            return Exit(
                code=_SIGNALLED + signal.SIGKILL,
                signal=signal.SIGKILL,
                message="the shim that watched the task is gone: its exit status is unknown",
            )
        number = self.status - _SIGNALLED
        if number > 0 and (self.words or number in _SILENT):
            return Exit(code=self.status, signal=number)
        # The shell speaks of nothing else but what kept it from running the task.
        return Exit(code=self.status, message=self.words)


def parse(text: str) -> Trace:
    """Return what the text of a claim file says. What was not written to its end does not count."""
    trace = Trace()
    words = []
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        key, _, value = line[:-1].partition(" ")
        match key:
            case "group":
                trace = msgspec.structs.replace(trace, group=value)
            case "shim" | "main" if value.isdecimal():
                trace = msgspec.structs.replace(trace, **{key: int(value)})
            case "exit" if value.isdecimal():
                trace = msgspec.structs.replace(trace, status=int(value))
            case _:
                words.append(line[:-1])
    return msgspec.structs.replace(trace, words="; ".join(words))


def completed(trace: Trace, status: int) -> Trace:
    """Return a trace with the status that the launcher saw, -1 for none, where it has none of its own.

    A shell adds 128 to a signal. Without its word for that, a task that exits so cannot be told from one
    that a signal has ended.
    """
    if trace.status is not None or status < 0:
        return trace
    words = trace.words or ("Killed" if status > _SIGNALLED else "")
    return msgspec.structs.replace(trace, status=status, words=words)


def is_held(path: str) -> bool | None:
    """Tell whether a shim holds the file; None when there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read(path: str) -> Trace:
    """Return what a claim file says; of one that is not there, nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return Trace()
    try:
        return parse(os.pread(descriptor, _MOST, 0).decode(errors="replace"))
    finally:
        os.close(descriptor)
