"""What the daemon tells the service manager: that it is ready, what it does, that it is alive.

The protocol is that of sd_notify(3): lines of text to a socket that the environment names. Without
one nobody is told. A manager that expects signs of life (`WatchdogSec=`) gets one whenever the parts
of the daemon have shown theirs; while one of them is stuck, it gets none and starts the daemon anew. It may also hold the socket at which
the daemon listens.
"""

import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import trio

_SIGNS = 3  # of life in the time that the manager allows: two may be late


class ServiceManager:
    """The way to the service manager; without one, what is told goes nowhere."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.patience = _patience(environment)

    def ready(self, status: str) -> None:
        """Tell that the daemon answers, after its start or after a reload."""
        self._tell(READY="1", STATUS=status)

    def reloading(self) -> None:
        """Tell that settings are being read anew; `ready` follows."""
        self._tell(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))

    def stopping(self) -> None:
        """Tell that the daemon ends."""
        self._tell(STOPPING="1", STATUS="ending; tasks go on")

    def alive(self) -> None:
        """Give a sign of life."""
        self._tell(WATCHDOG="1")

    def _tell(self, **values: str) -> None:
        if not self._address:
            return
        lines = "\n".join(f"{name}={value}" for name, value in values.items())
        where = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        # A manager that is gone, or has no time, is no reason to do anything else.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            way.connect(where)
            way.send(lines.encode())


def inherited(environment: Mapping[str, str], *, first: int = 3) -> list[socket.socket]:
    """Return the sockets that the manager has opened for us (sd_listen_fds(3)), from a descriptor on.

    Clients that connect while the daemon is away wait there for the next one.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = environment.get("LISTEN_FDS", "")
    descriptors = range(first, first + (int(count) if count.isdecimal() else 0))
    for one in descriptors:
        os.set_inheritable(one, False)  # tasks are not to have them
    return [socket.socket(fileno=one) for one in descriptors]


def _patience(environment: Mapping[str, str]) -> float | None:
    """Return how many seconds without a sign of life the manager bears; None: as many as you like."""
    allowed = environment.get("WATCHDOG_USEC", "")
    ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(allowed) / 1e6 if ours and allowed.isdecimal() and int(allowed) else None


async def give_signs_of_life(
    manager: ServiceManager, examine: Callable[[], Awaitable[None]]
) -> None:
    """Give signs for ever, each after an examination that came to its end."""
    if manager.patience is None:
        return
    while True:
        await examine()
        manager.alive()
        await trio.sleep(manager.patience / _SIGNS)
