"""WebSockets: bidirectional connections with JSON frames.

As in Nomad, the upgrade always succeeds if the route exists. Later errors are sent in the close
frame: 1008 for an error of the client, otherwise 1011. A successful session ends without a close
frame (source: Nomad's recorded responses `alloc-exec`, `actions`).
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import h11
import msgspec
import trio
from hypercorn.protocol.events import Data
from hypercorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
from wsproto.events import Ping
from wsproto.utilities import LocalProtocolError

from daemon.web.parameters import InvalidParameter, QueryParameters
from daemon.web.reply import HandlerReply
from daemon.web.turns import resume
from storage.errors import Malformed, NotFound, StewardError, UnknownToken
from storage.records.codec import decode

MAX_FRAME = 1024 * 1024  # bytes of one message from a client
PING_EVERY = 20  # seconds; a lost client is detected at the second ping at the latest
MAX_HANDSHAKE = 4 * 1024  # bytes of the first message, which is decoded before any check

_WRONG, _FAILED, _AWAY = 1008, 1011, 1001
_LONGEST_REASON = 123  # bytes that fit into a close frame
_LOOK = 1.0  # seconds between checks for a disconnect while no task reads
_HANDSHAKE_WITHIN = 10.0  # seconds
_GOODBYE = 1.0  # seconds for the client's answer to a close frame
_VERSION = 1


def announces_handshake(query: str) -> bool:
    """Return whether a client's first message is a handshake."""
    try:
        return QueryParameters(query).flag("ws_handshake")
    except (InvalidParameter, Malformed):
        return False


class WebSocketHandshake(msgspec.Struct, frozen=True):
    """The first message of a client that requests `ws_handshake`.

    It contains the token, because a browser cannot send the token in a header.
    """

    version: int = 0
    auth_token: str = ""


class WebSocketChannel:
    """One accepted WebSocket."""

    def __init__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self._receive, self._send = receive, send
        # The framework's and the server's interfaces cannot report a stalled reader, or close
        # without a close frame. The server's own stream object can.
        self._stream = cast(WSStream, getattr(send, "__self__", None))

    async def receive(self) -> bytes | None:
        """Return the next message; None after a disconnect."""
        event = await self._receive()
        if event["type"] != "websocket.receive":
            return None
        data = event.get("bytes")
        return data if data is not None else str(event.get("text") or "").encode()

    async def send(self, message: bytes) -> None:
        """Send a message; wait while the client does not read."""
        await resume()
        await self._send({"type": "websocket.send", "bytes": None, "text": message.decode()})

    @property
    def is_open(self) -> bool:
        """Return whether the client was accepted and is still connected."""
        return not self._stream.closed

    async def until_lost(self) -> None:
        """Wait until the client disconnects, even if no call of `receive` is pending."""
        while not self._stream.closed:  # noqa: ASYNC110  # no event
            await trio.sleep(_LOOK)

    async def ping(self) -> None:
        """Send pings repeatedly, so that a lost client is detected.

        Hypercorn's own ping task is not used, because it would keep a lost connection until its
        next ping is due.
        """
        while True:
            with suppress(LocalProtocolError):  # the connection is closing
                ping_frame = Data(self._stream.stream_id, self._stream.connection.send(Ping()))
                await self._stream.send(ping_frame)
            await trio.sleep(PING_EVERY)

    async def handshake(self, query: QueryParameters) -> str:
        """Return the token in the client's first message.

        If the query does not announce a handshake, return an empty string. Raises `Malformed` with
        Nomad's error texts.
        """
        try:
            is_wanted = query.flag("ws_handshake")
        except InvalidParameter as error:
            reason = str(error).partition(" as a bool: ")[2]
            raise Malformed(f"ws_handshake value is not a boolean: {reason}") from error
        if not is_wanted:
            return ""
        with trio.move_on_after(_HANDSHAKE_WITHIN):
            first = await self.receive() or b""
            if len(first) > MAX_HANDSHAKE:
                raise Malformed(
                    f"the handshake has {len(first)} bytes: send at most {MAX_HANDSHAKE}"
                )
            handshake = decode(WebSocketHandshake, first)
            if handshake.version != _VERSION:
                raise Malformed(f"unexpected handshake value: {handshake.version}")
            return handshake.auth_token
        raise Malformed(f"no handshake within {_HANDSHAKE_WITHIN:g} seconds")

    async def end(self) -> None:
        """Close the connection without a close frame."""
        self._stream.state = ASGIWebsocketState.CLOSED

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame, give the client a short time to answer, and disconnect."""
        short = reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
        await self._send({"type": "websocket.close", "code": code, "reason": short})
        with trio.move_on_after(_GOODBYE):
            while (await self._receive())["type"] != "websocket.disconnect":
                pass


async def reject_handshake(send: ASGISendCallable, reply: HandlerReply) -> None:
    """Answer an upgrade request with a plain response."""
    body = cast(bytes, reply.body or b"")
    headers = [
        (b"content-type", reply.content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    # the server rejected the client already, because it sent data too early
    with suppress(h11.LocalProtocolError):
        await send(
            {"type": "websocket.http.response.start", "status": reply.status, "headers": headers}
        )
        await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


async def run_websocket(
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
    converse: Callable[[WebSocketChannel], Awaitable[None]],
    closing: trio.Event,
) -> None:
    """Accept a connection, run `converse`, and close the connection according to the outcome.

    `closing` ends the connection immediately.
    """
    await receive()  # the connect event
    await send({"type": "websocket.accept", "subprotocol": None, "headers": []})
    socket = WebSocketChannel(receive, send)
    if not socket.is_open:  # a client that sends data before the upgrade was rejected
        return
    fault: StewardError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end, closing, nursery.cancel_scope)
        nursery.start_soon(socket.ping)
        try:
            await converse(socket)
        except StewardError as error:
            fault = error
        nursery.cancel_scope.cancel()
    if isinstance(fault, UnknownToken):
        await socket.close(_WRONG, f"rpc error: {fault.reason}")
    elif fault is not None:
        await socket.close(_code_of(fault), str(fault))
    elif closing.is_set():
        await socket.close(_AWAY, "the daemon is shutting down")
    else:
        await socket.end()


async def _end(closing: trio.Event, talking: trio.CancelScope) -> None:
    await closing.wait()
    talking.cancel()


def _code_of(error: StewardError) -> int:
    # Nomad does not treat a parameter error with status 500 as an error of the client.
    if isinstance(error, InvalidParameter) or not isinstance(error, Malformed | NotFound):
        return _FAILED
    return _WRONG
