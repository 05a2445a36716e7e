"""The claim file of an attempt records its shim and its exit status.

The launcher creates and locks the file, and starts the shim with the file as standard error. Only
the shim keeps the file open, so the lock is held exactly as long as the shim is alive. The lock is
reliable even if process IDs are reused, and after reboots and daemon restarts.

A free lock means that the shim has exited. The lines of the file show how far the shim got.
Without a line `shim`, nothing was started. With a line `exit`, the task ended with that status.
Otherwise the shim was killed.

    group <label of the process group>  written by the launcher
    logs <bytes>                        that each log keeps while no daemon runs
    shim <pid>                          from here on by the shim
    main <pid>                          only where processes are found by scanning /proc
    Killed                              the shell's message about the signal that killed the task,
                                        or about an error of the shell itself
    exit <status>
"""

import signal

import msgspec

from daemon.runner.core.driver import ExitResult

_SIGNALLED = 128
# A shell prints no message for these signals. A task that itself exits with 130 or 141 is then
# indistinguishable from one that was killed by the signal.
_SILENT = frozenset({signal.SIGINT, signal.SIGPIPE})


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed content of a claim file."""

    group: str = ""
    shim: int = 0
    main: int = 0
    status: int | None = None
    words: str = ""

    @property
    def end(self) -> ExitResult:
        """Return the exit result of the task."""
        if self.status is None:
            return ExitResult(
                code=_SIGNALLED + signal.SIGKILL,
                signal=signal.SIGKILL,
                message=(
                    "the shim that watched the task has ended: the task's exit status is unknown"
                ),
            )
        number = self.status - _SIGNALLED
        if number > 0 and (self.words or number in _SILENT):
            return ExitResult(code=self.status, signal=number)
        # The shell prints only the reason if it cannot run the task, and nothing else.
        return ExitResult(code=self.status, message=self.words)


def parse(text: str) -> ClaimRecord:
    """Parse the text of a claim file; ignore incomplete lines."""
    trace = ClaimRecord()
    words = []
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        key, _, value = line[:-1].partition(" ")
        match key:
            case "group":
                trace = msgspec.structs.replace(trace, group=value)
            case "logs" if value.isdecimal():
                pass  # read by `log_guard.py`
            case "shim" | "main" if value.isdecimal():
                trace = msgspec.structs.replace(trace, **{key: int(value)})
            case "exit" if value.isdecimal():
                trace = msgspec.structs.replace(trace, status=int(value))
            case _:
                words.append(line[:-1])
    return msgspec.structs.replace(trace, words="; ".join(words))


def completed(trace: ClaimRecord, status: int) -> ClaimRecord:
    """Return a record that has the exit status `status` if the shim wrote none.

    The launcher has observed `status`; -1 means unknown. A status above 128 counts as 128 plus the
    number of a signal, even if the record has no message from the shell about the signal.
    """
    if trace.status is not None or status < 0:
        return trace
    words = trace.words or ("Killed" if status > _SIGNALLED else "")
    return msgspec.structs.replace(trace, status=status, words=words)
