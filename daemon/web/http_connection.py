"""One connection of the HTTP server: HTTP/1 only, with stricter rules than the library's.

Only the protocol code of the HTTP server library is used. This module is imported late
(`late_server.py`).
"""

import re
import socket
from contextlib import suppress
from typing import Any

import h11
import trio
from h11._receivebuffer import ReceiveBuffer
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import FrameTooLargeError, WebsocketBuffer, WSStream
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.typing import (
    AppWrapper,
    ASGIReceiveCallable,
    ASGISendCallable,
    H11SendableEvent,
    Scope,
)
from wsproto.events import Message

from daemon.web.fast_path import HEAD_TIMEOUT, MOST, Handover
from daemon.web.library_methods import checked, private_override
from daemon.web.listeners import PeerAddress
from daemon.web.reason import reason
from daemon.web.send import Stream, send_now, send_with_timeout
from daemon.web.turns import ConnectionTurns
from daemon.web.websocket import MAX_HANDSHAKE, announces_handshake

_BAD_REQUEST, _METHOD_NOT_ALLOWED, _VERSION_NOT_SUPPORTED = 400, 405, 505
# headers that the library decodes as ASCII
_OF_UPGRADES = (b"connection", b"sec-websocket-protocol")
_EXTENSIONS = b"sec-websocket-extensions"
_TWO_WAYS = re.compile(rb"(?<!\r)\n|\n[ \t]")  # a bare line feed, and a folded line
_REQUEST_LINE = re.compile(rb"[!-~]+ [!-~\x80-\xff]+ HTTP/\d\.\d")
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#@]+)(.*)")
CLIENT = "steward.client"  # the key of the client's name in a request's scope
PEER = "steward.peer"  # the key of the connected user in a request's scope


@checked
class ServerConnection(TCPServer):
    """A connection for HTTP/1 only; it sends a response in one write, and ends at a disconnect.

    The server's own class keeps a disconnected client's socket until the idle timeout. It sends
    head, body and end separately, each with a lock and a system call. At the shutdown of the
    daemon, it closes idle connections, but not new ones.
    """

    _held = b""  # the head of a response, sent together with its body

    def use_turns(self, turns: ConnectionTurns) -> None:
        """Let received data, and each request, wait for a turn."""
        self._turns = turns

    async def take_over(self, handover: Handover) -> None:
        """Serve a connection that the fast path passes on, until it ends."""
        self._given, self._idle_since, self._has_asked = (
            handover.data,
            handover.since,
            handover.has_asked,
        )
        self._patience = trio.CancelScope(deadline=handover.until)
        self._awaits_head, self._has_begun = True, bool(handover.data)
        await self._turns.take()
        await self.run()

    @private_override
    async def _idle_timeout(self) -> None:
        since = self._idle_since
        with self._patience:
            await self.context.terminated.wait()
            patience = self.config.graceful_timeout
            if not self._has_asked and trio.current_time() <= since + patience:
                await trio.sleep(patience)
        if not self._awaits_head:  # a request has begun, and will cancel this wait
            return
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()

    @private_override
    async def _read_data(self) -> None:
        protocol = self.protocol
        self._http = protocol.protocol = _OnlyHTTP1(
            self._turns,
            protocol.app,
            protocol.config,
            protocol.context,
            protocol.task_group,
            protocol.state,
            protocol.ssl,
            protocol.client,
            protocol.server,
            protocol.send,
        )
        if self._given:
            await self.protocol.handle(RawData(self._given))
        # The client or the shutdown of the daemon may close the connection at any time.
        with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
            while data := await _receive(self.stream):
                self._limit_head()
                await self._turns.take()
                await self.protocol.handle(RawData(data))
            await self._turns.take()  # a client can close many connections at the same time
            await self.protocol.handle(RawData(b""))
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    @private_override
    async def _close(self) -> None:
        _end_sending(self.stream)
        await self.stream.aclose()

    def _limit_head(self) -> None:
        """Limit the time from the first byte of a head to its end."""
        if self._awaits_head and not self._has_begun:
            self._has_begun = True
            latest = trio.current_time() + HEAD_TIMEOUT
            self._patience.deadline = min(self._patience.deadline, latest)

    async def protocol_send(self, event: Event) -> None:
        """Send an event of the protocol."""
        if isinstance(event, Updated):
            self._has_asked, self._idle_since = True, trio.current_time()
            self._awaits_head, self._has_begun = event.idle, False
            self._patience = trio.CancelScope(
                deadline=self._idle_since + self.config.keep_alive_timeout
            )
        if isinstance(event, RawData):
            data, self._held = self._held + event.data, b""
            if _announces(data):
                self._held = data
            elif data:
                await self._send(data)
            return
        if self._held:
            data, self._held = self._held, b""
            await self._send(data)
        await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        """Send bytes; first try to send all of them without waiting.

        A send that may wait needs a lock and a timeout. They would be most of the cost when a
        thousand streams send the same change.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self.send_lock.locked():
            data = send_now(self.stream, data)
        if not data:
            await trio.lowlevel.cancel_shielded_checkpoint()  # lets other coroutines run
            return
        async with self.send_lock:
            try:
                with trio.CancelScope(shield=True):  # a partial frame would break the connection
                    await send_with_timeout(self.stream, data)
            except _GONE:
                self._http.drop_requests()
                await self.protocol.handle(Closed())


# Trio's stream translates errors in a generator. In Python 3.12 and 3.13, each translated error is
# part of a reference cycle, so these functions use the socket.


def _end_sending(stream: Stream) -> None:
    """Tell the client of a plain connection that no more bytes follow."""
    if isinstance(stream, trio.SocketStream):
        with suppress(OSError):  # the connection is broken
            stream.socket.shutdown(socket.SHUT_WR)


async def _receive(stream: Stream) -> bytes:
    """Wait for bytes of a client; return them, empty after the client has closed its side.

    Raises `trio.BrokenResourceError` or `trio.ClosedResourceError`.
    """
    if not isinstance(stream, trio.SocketStream):
        return bytes(await stream.receive_some(MOST))
    try:
        return await stream.socket.recv(MOST)
    except OSError as error:
        raise trio.BrokenResourceError(str(error)) from None


# Trio raises the last one if another task is closing the connection.
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError)


def _announces(data: bytes) -> bool:
    """Return whether these bytes are the head of a response that states its body's length."""
    is_head = data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n")
    return is_head and b"\r\ncontent-length:" in data


class _Strict(ReceiveBuffer):
    """A receive buffer that rejects heads which parsers interpret differently.

    The library's own buffer also accepts bare line feeds and folded lines (RFC 9112, sections 2.2
    and 5.2). A proxy in front of the daemon may interpret such a head as a different request.

    The library rejects a target that is not ASCII. Clients such as curl send the query of a URL as
    the user typed it, and Go's servers accept it. So the buffer encodes the bytes of such a target.
    """

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a complete head, or of trailers. Raises `h11.RemoteProtocolError`."""
        end = self._data.find(b"\r\n\r\n")
        if _TWO_WAYS.search(self._data, 0, len(self._data) if end < 0 else end):
            raise h11.RemoteProtocolError("a line is folded, or ends without a carriage return")
        lines = super().maybe_extract_lines()
        if lines and not lines[0].isascii() and _REQUEST_LINE.fullmatch(lines[0]):
            lines[0] = bytearray(_NOT_ASCII.sub(_encoded, lines[0]))
        return lines


def _encoded(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % ord(match[0])


class _ServerSide(h11.Connection):
    """The state of an HTTP/1 connection, which ignores everything after the last request.

    A client that announces the end of the connection sends no further request (RFC 9112, section
    9.6). If bytes follow anyway, such as an empty line, the library's own class reports an error,
    and the client gets no response to its request.
    """

    def __init__(self, longest_head: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=longest_head)
        self._receive_buffer = _Strict()
        self._is_dropped = False

    def drop(self) -> None:
        """Ignore all received data, and all data that follows."""
        self._is_dropped, self._receive_buffer = True, _Strict()

    def receive_data(self, data: bytes) -> None:
        """Add received bytes; empty at the end of the connection."""
        super().receive_data(b"" if self._is_dropped else data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event."""
        if self.their_state is h11.MUST_CLOSE:
            self._receive_buffer = _Strict()
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            # Otherwise a frame of the library and the traceback refer to each other.
            raise error.with_traceback(None) from None


@checked
class _OnlyHTTP1(H11Protocol):
    """The protocol of a connection, without upgrades from HTTP/1 to HTTP/2.

    Upgrades would bypass the limits of connections and headers.
    """

    def __init__(self, turns: ConnectionTurns, *arguments: Any) -> None:  # noqa: ANN401  # the library's own
        super().__init__(*arguments)
        self._turns = turns
        self._requests = _ServerSide(self.config.h11_max_incomplete_size)
        self.connection = self._requests

    def drop_requests(self) -> None:
        """Ignore the requests that a disconnected client has sent in advance."""
        self._requests.drop()

    async def handle(self, event: Event) -> None:
        """Handle an event. After a rejected WebSocket, close the connection.

        The server's own class neither closes the connection nor sends the rejection.
        """
        await super().handle(event)
        if isinstance(event, RawData) and isinstance(self.stream, WSStream) and self.stream.closed:
            await self.send(Closed())

    @private_override
    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore an upgrade to another protocol, as RFC 9110 allows."""

    @private_override
    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        """Send a part of a response, with the reason phrase that the library leaves out."""
        if isinstance(event, (h11.Response, h11.InformationalResponse)):
            # The event is not shared, and a copy would validate all headers again.
            object.__setattr__(event, "reason", reason(event.status_code).encode())
        await super()._send_h11_event(event)

    @private_override
    async def _create_stream(self, request: h11.Request) -> None:
        if not all(value.isascii() for name, value in request.headers if name in _OF_UPGRADES):
            await self._send_error_response(_BAD_REQUEST)
            await self.send(Closed())
            return
        if request.method != request.method.upper():  # the library would change the case
            await self._send_error_response(_METHOD_NOT_ALLOWED)
            await self.send(Closed())
            return
        if request.http_version in (b"1.0", b"1.1"):
            await self._turns.take_by_server()
            await super()._create_stream(_in_origin_form(_without_extensions(request)))
            if isinstance(self.stream, WSStream):
                most = self.config.websocket_max_message_size
                query = request.target.partition(b"?")[2].decode("latin-1")
                first = MAX_HANDSHAKE if announces_handshake(query) else most
                self.stream.buffer = _Messages(first, most)
            return
        await self._send_error_response(_VERSION_NOT_SUPPORTED)
        await self.send(Closed())


class _Messages(WebsocketBuffer):
    """A buffer for the parts of a message. After an oversized message, it accepts no more parts.

    The server's own class continues with the rest of the message, and fails if the rest has another
    type.
    """

    def __init__(self, first: int, most: int) -> None:
        """`first` is the size limit of the first message, `most` that of every other message."""
        super().__init__(first)
        self._most = most

    def clear(self) -> None:
        """Begin the next message."""
        super().clear()
        self.max_length = self._most

    def extend(self, event: Message[Any]) -> None:
        """Add a part of a message. Raises `FrameTooLargeError`."""
        if self.length > self.max_length:
            raise FrameTooLargeError
        super().extend(event)


def _in_origin_form(request: h11.Request) -> h11.Request:
    """Return a request with a relative target and a `Host` header.

    If the request is in absolute form, the target contains the host. That host replaces the header
    (RFC 9112, section 3.2.2).
    """
    match = _ABSOLUTE.fullmatch(request.target)
    if match is None:
        return request
    host, path = match.groups()
    headers = [header for header in request.headers if header[0] != b"host"]
    return h11.Request(
        method=request.method,
        target=path if path.startswith(b"/") else b"/" + path,
        headers=[(b"host", host), *headers],
        http_version=request.http_version,
    )


def _without_extensions(request: h11.Request) -> h11.Request:
    """Return a request without WebSocket extensions.

    The size limit applies to compressed messages before decompression, so compression is off.
    """
    headers = [header for header in request.headers if header[0] != _EXTENSIONS]
    if len(headers) == len(request.headers):
        return request
    return h11.Request(
        method=request.method,
        target=request.target,
        headers=headers,
        http_version=request.http_version,
    )


class Introduced:
    """The application, with the connection's peer added to the scope of each request."""

    def __init__(self, app: AppWrapper, peer: PeerAddress | None, client: str) -> None:
        self._app, self._peer, self._client = app, peer, client

    async def __call__(
        self,
        scope: Scope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        sync_spawn: object,
        call_soon: object,
    ) -> None:
        """Call the application for one request."""
        scope[PEER] = self._peer  # type: ignore[literal-required]  # a scope may hold more
        scope[CLIENT] = self._client  # type: ignore[literal-required]  # as above
        # Hypercorn passes its own types through; this class does not look at them.
        await self._app(scope, receive, send, sync_spawn, call_soon)  # type: ignore[arg-type]
