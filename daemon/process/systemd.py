"""Client of the service manager's protocol sd_notify(3): readiness, status and watchdog.

The daemon sends lines of text to the socket whose address is in `NOTIFY_SOCKET`. Without this
variable, it sends nothing. With `WatchdogSec=`, the manager gets a message whenever the health
check succeeds. If a part hangs, the messages stop, and the manager restarts the daemon. The manager
may also pass listening sockets to the daemon.
"""

import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import trio

_SIGNS = 3  # messages per watchdog interval, so that two may be late


class ServiceManager:
    """The connection to the service manager; without a manager, messages are dropped."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.patience = _watchdog_interval(environment)

    def ready(self, status: str) -> None:
        """Report that the daemon serves requests, after its start or a reload."""
        self._send(READY="1", STATUS=status)

    def reloading(self) -> None:
        """Report the start of a reload; `ready` follows."""
        self._send(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))

    def stopping(self) -> None:
        """Report the shutdown of the daemon."""
        self._send(STOPPING="1", STATUS="stopping; tasks keep running")

    def send_watchdog(self) -> None:
        """Send a watchdog message."""
        self._send(WATCHDOG="1")

    def _send(self, **values: str) -> None:
        if not self._address:
            return
        lines = "\n".join(f"{name}={value}" for name, value in values.items())
        where = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        # An absent or slow manager must not disturb the daemon.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify_socket:
            notify_socket.setblocking(False)
            notify_socket.connect(where)
            notify_socket.send(lines.encode())


def inherited_sockets(environment: Mapping[str, str], *, first: int = 3) -> list[socket.socket]:
    """Return the sockets passed by the manager (sd_listen_fds(3)), from descriptor `first` on.

    While the daemon restarts, new connections wait at these sockets for the new process.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = environment.get("LISTEN_FDS", "")
    descriptors = range(first, first + (int(count) if count.isdecimal() else 0))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # tasks must not inherit them
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


def _watchdog_interval(environment: Mapping[str, str]) -> float | None:
    """Return the watchdog interval in seconds, or None if the watchdog is disabled."""
    allowed = environment.get("WATCHDOG_USEC", "")
    is_own = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(allowed) / 1e6 if is_own and allowed.isdecimal() and int(allowed) else None


async def run_watchdog(manager: ServiceManager, examine: Callable[[], Awaitable[None]]) -> None:
    """Send watchdog messages indefinitely, each after a successful health check."""
    if manager.patience is None:
        return
    while True:
        await examine()
        manager.send_watchdog()
        await trio.sleep(manager.patience / _SIGNS)
