"""Launchers for tests: each is a fork of one small process that has imported nothing else.

    python -m tests.launchers SOCKET

The process of the tests is large and has threads; a fork of it would be slow, and unsafe.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
from functools import cache

from daemon.launcher.begin import become
from daemon.launcher.channel import pair


def begin() -> socket.socket:
    """Return the daemon's end of a channel to a new launcher."""
    ours, theirs = pair()
    with theirs:
        socket.send_fds(_nursery(), [b"1"], [theirs.fileno()])
    return ours


@cache
def _nursery() -> socket.socket:
    """Start the process that is forked; it ends with the tests."""
    ours, theirs = pair()
    with theirs:
        words = [sys.executable, "-m", "tests.launchers", str(theirs.fileno())]
        null = subprocess.DEVNULL
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=null, stdout=null)
    atexit.register(process.wait)
    atexit.register(ours.close)  # called first
    return ours


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the launchers
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        while True:
            data, (*descriptors,), _, _ = socket.recv_fds(orders, 1, 1)
            if not data:
                return
            with socket.socket(fileno=descriptors[0]) as channel:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os._exit(become(channel))


if __name__ == "__main__":
    main()
