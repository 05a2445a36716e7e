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
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from daemon.launcher.begin import become
from daemon.launcher.channel import pair
from daemon.launcher.client import Launcher, answer_of
from daemon.launcher.messages import Answer, Question, Request
from daemon.launcher.serve import Server


def begin() -> socket.socket:
    """Return the daemon's end of a channel to a new launcher."""
    ours, theirs = pair()
    with theirs:
        socket.send_fds(_nursery(), [b"1"], [theirs.fileno()])
    return ours


class Direct(Launcher):
    """A launcher in the process of the test itself: for clocks that jump, which wait for no other process."""

    def __init__(self, directory: Path) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._server = Server(None)  # type: ignore[arg-type]  # nobody sends it anything
        self._server._directory = str(directory)

    async def _ask(
        self, request: Request, descriptors: Sequence[int] = (), spare: int | None = None
    ) -> tuple[Answer, list[int]]:
        if spare is not None:
            os.close(spare)
        question = Question(number=0, descriptors=len(descriptors), body=request)
        return answer_of(*self._server._answer(question, descriptors))


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
