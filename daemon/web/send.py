"""Sending of responses, and detection of stalled and disconnected clients.

One wait for all connections detects a disconnect while a response is computed. A separate task for
each response would cost more than most responses.
"""

import fcntl
import os
import select
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio

STALLED = 600.0  # seconds in which a client must read `_PIECE` bytes
_PIECE = 64 * 1024  # bytes

_ENDS = select.EPOLLRDHUP | select.EPOLLONESHOT  # errors are always reported
_BROKEN = select.EPOLLHUP | select.EPOLLERR
_ENDED = 16  # disconnected clients whose requests are cancelled before other input is handled

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


def send_now(stream: object, data: bytes) -> bytes:
    """Send as many bytes as the kernel accepts without waiting; return the rest.

    For an encrypted or broken connection, nothing is sent.
    """
    if isinstance(stream, trio.SocketStream):
        try:
            return data[os.write(stream.socket.fileno(), data) :]
        except OSError:  # full or broken: the waiting send finds out which
            return data
    return data


async def send_with_timeout(stream: Stream, data: bytes) -> None:
    """Send all bytes; if the client stops reading, close the connection.

    Raises `trio.BrokenResourceError`, or `trio.ClosedResourceError` if another task has closed it.
    """
    for start in range(0, len(data), _PIECE):
        with trio.move_on_after(STALLED) as patience:
            await stream.send_all(data[start : start + _PIECE])
        if patience.cancelled_caught:
            await trio.aclose_forcefully(stream)
            raise trio.BrokenResourceError("the client has stopped reading")


class DisconnectWatcher:
    """A watcher that cancels a scope when its client disconnects. `run` runs in the background."""

    def __init__(self) -> None:
        self._ends = select.epoll()
        self._scopes: dict[int, trio.CancelScope] = {}  # scopes by descriptor

    @contextmanager
    def cancelling(self, descriptor: int, scope: trio.CancelScope) -> Iterator[None]:
        """Cancel a scope if a client disconnects during this block.

        A client that has sent more data counts as connected, unless it resets the connection.
        Raises `OSError` if the kernel cannot watch another connection.
        """
        self._ends.register(descriptor, _ENDS)
        self._scopes[descriptor] = scope
        try:
            yield
        finally:
            del self._scopes[descriptor]
            with suppress(OSError):  # another task has closed the connection
                self._ends.unregister(descriptor)

    async def run(self) -> None:
        """Watch for disconnects until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._ends.fileno())
            # A client can close many connections at the same time.
            for descriptor, events in self._ends.poll(0, _ENDED):
                scope = self._scopes.get(descriptor)
                if scope is not None and (events & _BROKEN or not _unread(descriptor)):
                    scope.cancel()


def _unread(descriptor: int) -> int:
    """Return the number of unread bytes; 0 if another task has closed the connection."""
    try:
        answer: tuple[int] = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    except OSError:
        return 0
    return answer[0]
