"""How the launcher comes to be: by a fork, before the daemon imports what it is made of."""

import ctypes
import gc
import os
import signal
import socket
import sys
import traceback

from daemon.hardening import come_before_tasks, keep_memory_private
from daemon.launcher.channel import pair
from daemon.launcher.serve import Server

_NULL = "/dev/null"
_FIRST = 3  # the descriptors before it are the standard ones
_PR_SET_NAME = 15  # linux/prctl.h
_NAME = b"steward-launch"  # what `ps` shows; 15 bytes at most


def begin() -> socket.socket:
    """Fork the launcher; return the daemon's end of the channel to it."""
    ours, theirs = pair()
    gc.freeze()  # so that neither process writes to what both have
    if os.fork() == 0:
        os._exit(become(theirs))
    theirs.close()
    return ours


def become(channel: socket.socket) -> int:
    """Be the launcher until the daemon's end closes; return the exit status."""
    try:
        return Server(_alone(channel)).run()
    except BaseException:  # a fault of ours ends both
        traceback.print_exc()
        return 1


def _alone(channel: socket.socket) -> socket.socket:
    """Leave everything behind that was the daemon's but the channel and the standard error."""
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    keep_memory_private()
    come_before_tasks()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(_NULL, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    if channel.fileno() != _FIRST:
        os.dup2(channel.detach(), _FIRST, inheritable=False)
    channel.detach()
    os.closerange(_FIRST + 1, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = sys.stdout = None
    return socket.socket(fileno=_FIRST)
