"""Fork the launcher, before the daemon imports its modules."""

import ctypes
import gc
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress

from daemon.launcher.channel import pair
from daemon.launcher.hardening import disable_core_dumps, set_priority
from daemon.launcher.server import Server

_NULL = "/dev/null"
_FIRST = 3  # lower descriptors are the standard streams
_PR_SET_NAME = 15  # from linux/prctl.h
_NAME = b"steward-launch"  # shown by `ps`; at most 15 bytes
_GUARD = b"steward-logs"  # the name after the end of the daemon


def begin() -> socket.socket:
    """Fork the launcher; return the daemon's end of the channel."""
    own_end, child_end = pair()
    gc.freeze()  # keeps garbage collection from writing to shared memory pages
    if os.fork() == 0:
        os._exit(become(child_end))
    child_end.close()
    return own_end


def become(channel: socket.socket) -> int:
    """Run the launcher until the daemon closes its end of the channel; return the exit status.

    After the daemon has ended, limit the logs of running tasks until the next launcher starts.
    """
    try:
        return _serve(_detach(channel))
    except BaseException:  # a defect ends both processes
        traceback.print_exc()
        return 1


def _serve(channel: socket.socket) -> int:
    server = Server(channel)
    status = server.run()
    if status == 0:
        _name(_GUARD)
        # If the daemon's log is a pipe, its reader waits until all processes have closed it.
        os.dup2(os.open(_NULL, os.O_RDWR), 2)
        server.limit_logs()
    return status


def _name(name: bytes) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


def _detach(channel: socket.socket) -> socket.socket:
    """Separate the launcher from the daemon's session, signals and descriptors.

    Keep only standard error and the channel open, and return the channel.
    """
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    disable_core_dumps()
    set_priority()
    # A message that wakes the launcher must not preempt the daemon's event loop, its sender.
    with suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    _name(_NAME)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(_NULL, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    if channel.fileno() != _FIRST:
        os.dup2(channel.detach(), _FIRST, inheritable=False)
    channel.detach()
    os.set_inheritable(_FIRST, False)  # child processes must not inherit the channel
    os.closerange(_FIRST + 1, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = sys.stdout = None
    return socket.socket(fileno=_FIRST)
