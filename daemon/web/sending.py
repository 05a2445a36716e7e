"""Sending to whoever has asked, and giving up on who reads nothing."""

import os
from contextlib import suppress

import trio

STALLED = 600.0  # seconds in which a client takes nothing of what is for it
_PIECE = 64 * 1024  # bytes that it has to take in that time

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
