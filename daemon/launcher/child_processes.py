"""Run long operations in child processes, so that they do not block other requests.

The kernel kills a child after its time limit, and when the launcher dies. A child writes its answer
to a memfd. A child that touches files of a task first changes irrevocably to the task's user.
"""

import ctypes
import errno
import os
import signal
import socket
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from daemon.launcher.channel import sendable
from daemon.launcher.hardening import disable_core_dumps
from daemon.launcher.messages import MOST_ERRANDS, Answer, OperationFailed, Owner

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_NICENESS = 10
_encoder = msgspec.msgpack.Encoder()
_answer = msgspec.msgpack.Decoder(Answer)


class ChildOperation(NamedTuple):
    """An operation: its function, time limit in seconds, user, and completion callback."""

    work: Callable[[], Answer]
    seconds: int
    user: Owner | None = None
    after: Callable[[], None] = lambda: None


class ChildOperations:
    """The running children. `channel` is a descriptor that the children must not keep open."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._children: dict[int, tuple[int, int, ChildOperation]] = {}

    def begin(self, number: int, operation: ChildOperation) -> OperationFailed | None:
        """Start an operation for the request `number`; return the error if the start fails."""
        if len(self._children) >= MOST_ERRANDS:
            operation.after()
            return OperationFailed(
                number=errno.EAGAIN, text=f"{MOST_ERRANDS} operations are in progress"
            )
        result, launcher = -1, os.getpid()
        try:
            result = os.memfd_create("result")
            if (pid := os.fork()) == 0:
                os._exit(self._run(operation, result, launcher))
        except OSError as error:
            if result >= 0:
                os.close(result)
            operation.after()
            return failure(error)
        self._children[pid] = number, result, operation
        return None

    def _run(self, operation: ChildOperation, result: int, launcher: int) -> int:
        """Run the operation in the child; return the exit status."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._channel.close()
            os.nice(_NICENESS)
            signal.alarm(operation.seconds)
            if operation.user is not None and os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(*[operation.user[1]] * 3)
                os.setresuid(*[operation.user[0]] * 3)
                disable_core_dumps()
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == launcher:
                os.write(result, _encoder.encode(done(operation)))
        except BaseException:  # a forked child must not run on into its parent's code
            return 1
        return 0

    def kill_stopped(self, pid: int) -> None:
        """Kill a stopped child.

        A task of the same user could have stopped the child, and an alarm does not end a stopped
        process.
        """
        if pid in self._children:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the process ID is still its own

    def end(self, pid: int, status: int) -> tuple[int, Answer] | None:
        """Return the request's number and the answer of an ended child; None for other processes."""
        number, result, operation = self._children.pop(pid, (0, -1, None))
        if operation is None:
            return None
        try:
            body = _answer.decode(os.pread(result, os.fstat(result).st_size, 0))
        except (msgspec.DecodeError, UnicodeDecodeError):
            late = status == -signal.SIGALRM
            why = f"timeout after {operation.seconds} s" if late else f"child exit status: {status}"
            body = OperationFailed(number=errno.ETIMEDOUT if late else errno.EIO, text=why)
        finally:
            os.close(result)
        operation.after()
        return number, body


def done(operation: ChildOperation) -> Answer:
    """Run an operation in this process, without a child; return the answer."""
    try:
        return operation.work()
    except (OSError, ValueError) as error:
        return failure(error)


def failure(error: OSError | ValueError) -> OperationFailed:
    """Return the answer that reports an error."""
    if isinstance(error, OSError):
        text = sendable(error.strerror or str(error))
        return OperationFailed(number=error.errno or errno.EIO, text=text)
    return OperationFailed(number=0, text=sendable(str(error)))
