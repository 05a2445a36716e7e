"""WebSockets: a conversation in JSON frames instead of one question and one answer.

As with the peer, the upgrade itself always succeeds where there is something to talk to. What goes
wrong afterwards is told in the close frame, 1008 when the client asked wrongly and 1011 otherwise;
a conversation that went well ends without one (golden: alloc-exec, actions).
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import msgspec
import trio
from hypercorn.protocol.events import Data
from hypercorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
from wsproto.events import Ping
from wsproto.utilities import LocalProtocolError

from daemon.web.parameters import BadParameter, Query
from daemon.web.reply import Reply
from storage.errors import Malformed, NotFound, StewardError, UnknownToken
from storage.records.codec import decode

MAX_FRAME = 1024 * 1024  # bytes of one message from a client
PING_EVERY = 20  # seconds; a client that is gone is noticed at the latest at the second one
NO_UPGRADE = "websocket connection not found in context"  # the peer's text for a plain request

_WRONG, _FAILED, _AWAY = 1008, 1011, 1001
_LONGEST_REASON = 123  # bytes that fit into a close frame
_LOOK = 1.0  # seconds between two looks whether a client that is not read from is gone
_HANDSHAKE_WITHIN = 10.0  # seconds
_GOODBYE = 1.0  # seconds that a client has to answer a close frame
_VERSION = 1


class Handshake(msgspec.Struct, frozen=True):
    """What a client says first when its query has `ws_handshake`: browsers can send no headers."""

    version: int = 0
    auth_token: str = ""


class Socket:
    """One accepted connection."""

    def __init__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self._receive, self._send = receive, send
        # Neither the framework's interface nor the server's tells a writer that nobody reads, or
        # lets a connection end without a close frame; the server's own object does.
        self._stream = cast(WSStream, getattr(send, "__self__", None))

    async def receive(self) -> bytes | None:
        """Return the next message; None when the client is gone."""
        event = await self._receive()
        if event["type"] != "websocket.receive":
            return None
        given = event.get("bytes")
        return given if given is not None else str(event.get("text") or "").encode()

    async def send(self, message: bytes) -> None:
        """Send a message; waits as long as the client does not read."""
        await self._send({"type": "websocket.send", "bytes": None, "text": message.decode()})

    async def until_lost(self) -> None:
        """Return when the client is gone, also while nobody receives."""
        while not self._stream.closed:  # noqa: ASYNC110  # nobody tells
            await trio.sleep(_LOOK)

    async def ping(self) -> None:
        """Ask again and again whether the client is there; one that is gone is noticed thereby.

        The server's own pings would hold the connection until the next is due, however it has ended.
        """
        while True:
            with suppress(LocalProtocolError):  # it is ending
                asked = Data(self._stream.stream_id, self._stream.connection.send(Ping()))
                await self._stream.send(asked)
            await trio.sleep(PING_EVERY)

    async def handshake(self, query: Query) -> str:
        """Return the token that the client sends first if it says so, else nothing.

        Raises `Malformed` in the peer's words.
        """
        try:
            wanted = query.flag("ws_handshake")
        except BadParameter as error:
            reason = str(error).partition(" as a bool: ")[2]
            raise Malformed(f"ws_handshake value is not a boolean: {reason}") from error
        if not wanted:
            return ""
        with trio.move_on_after(_HANDSHAKE_WITHIN):
            said = decode(Handshake, await self.receive() or b"")
            if said.version != _VERSION:
                raise Malformed(f"unexpected handshake value: {said.version}")
            return said.auth_token
        raise Malformed(f"no handshake within {_HANDSHAKE_WITHIN:g} seconds")

    async def end(self) -> None:
        """End the connection without a close frame."""
        self._stream.state = ASGIWebsocketState.CLOSED

    async def close(self, code: int, reason: str) -> None:
        """End the connection with a close frame, and give the client a moment to answer it."""
        short = reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
        await self._send({"type": "websocket.close", "code": code, "reason": short})
        with trio.move_on_after(_GOODBYE):
            while (await self._receive())["type"] != "websocket.disconnect":
                pass


async def refuse(send: ASGISendCallable, reply: Reply) -> None:
    """Answer a wish for an upgrade with a plain answer instead."""
    body = cast(bytes, reply.body or b"")
    headers = [
        (b"content-type", reply.content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send(
        {"type": "websocket.http.response.start", "status": reply.status, "headers": headers}
    )
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


async def converse(
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
    talk: Callable[[Socket], Awaitable[None]],
    closing: trio.Event,
) -> None:
    """Accept a connection, let `talk` use it, and end it as that ended; at once when `closing`."""
    await receive()  # the wish to connect
    await send({"type": "websocket.accept", "subprotocol": None, "headers": []})
    socket = Socket(receive, send)
    fault: StewardError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end, closing, nursery.cancel_scope)
        nursery.start_soon(socket.ping)
        try:
            await talk(socket)
        except StewardError as error:
            fault = error
        nursery.cancel_scope.cancel()
    if isinstance(fault, UnknownToken):
        await socket.close(_WRONG, f"rpc error: {fault.reason}")
    elif fault is not None:
        await socket.close(_code_of(fault), str(fault))
    elif closing.is_set():
        await socket.close(_AWAY, "the daemon is ending")
    else:
        await socket.end()


async def _end(closing: trio.Event, talking: trio.CancelScope) -> None:
    await closing.wait()
    talking.cancel()


def _code_of(error: StewardError) -> int:
    # A parameter that the peer answers with 500 is none of the client's faults to it.
    if isinstance(error, BadParameter) or not isinstance(error, Malformed | NotFound):
        return _FAILED
    return _WRONG
