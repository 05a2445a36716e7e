"""Sending to whoever has asked, and giving up on who reads nothing or has gone away.

That somebody goes away while his answer is made is noticed by one wait for all connections together: a
task beside each answer, which waits for the end of its connection, would cost more than most answers.
"""

import fcntl
import os
import select
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio

STALLED = 600.0  # seconds in which a client takes nothing of what is for it
_PIECE = 64 * 1024  # bytes that it has to take in that time

_ENDS = select.EPOLLRDHUP | select.EPOLLONESHOT  # errors are told in any case
_BROKEN = select.EPOLLHUP | select.EPOLLERR

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


def send_now(stream: object, data: bytes) -> bytes:
    """Send what the kernel takes at once, without all that waiting needs; return the rest.

    Of a connection that is encrypted, or broken, that is everything.
    """
    if isinstance(stream, trio.SocketStream):
        with suppress(OSError):
            return data[os.write(stream.socket.fileno(), data) :]
    return data


async def send_patiently(stream: Stream, data: bytes) -> None:
    """Send all, and end a connection that is stalled.

    Raises `trio.BrokenResourceError`, or `trio.ClosedResourceError` when somebody else has ended it.
    """
    for start in range(0, len(data), _PIECE):
        with trio.move_on_after(STALLED) as patience:
            await stream.send_all(data[start : start + _PIECE])
        if patience.cancelled_caught:
            await trio.aclose_forcefully(stream)
            raise trio.BrokenResourceError("the client reads nothing")


class Departures:
    """The connections of which an end matters now. `run` waits for them, as long as it runs."""

    def __init__(self) -> None:
        self._ends = select.epoll()
        self._scopes: dict[int, trio.CancelScope] = {}  # by descriptor

    @contextmanager
    def cancelling(self, descriptor: int, scope: trio.CancelScope) -> Iterator[None]:
        """Cancel a scope if the client of a connection goes away in this block.

        Who has sent something more is still there, even if nothing else comes, unless he breaks off.
        Raises `OSError` when the kernel keeps no more of them.
        """
        self._ends.register(descriptor, _ENDS)
        self._scopes[descriptor] = scope
        try:
            yield
        finally:
            del self._scopes[descriptor]
            with suppress(OSError):  # somebody else has closed the connection
                self._ends.unregister(descriptor)

    async def run(self) -> None:
        """Look at who goes away, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._ends.fileno())
            for descriptor, events in self._ends.poll(0):
                scope = self._scopes.get(descriptor)
                if scope is not None and (events & _BROKEN or not _unread(descriptor)):
                    scope.cancel()


def _unread(descriptor: int) -> int:
    """Return how many bytes have come that nobody has read; 0 when somebody has closed it."""
    try:
        answer: tuple[int] = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    except OSError:
        return 0
    return answer[0]
