"""Connections: accepted, bounded, and told apart by who is at their other end.

Of the HTTP server we use what speaks the protocol; its own way to listen knows neither the
credentials of a peer nor a limit.
"""

import logging
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import h11
import msgspec
import trio
from h11._receivebuffer import ReceiveBuffer
from hypercorn.config import Config as ServerConfig
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import FrameTooLargeError, WebsocketBuffer, WSStream
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    AppWrapper,
    ASGIReceiveCallable,
    ASGISendCallable,
    ConnectionState,
    H11SendableEvent,
    Scope,
)
from wsproto.events import Message
from wsproto.utilities import ProtocolError as WebSocketError

from daemon.config import Config
from daemon.web.admission import Admission, Seldom, Share, TooMany, accept
from daemon.web.lean import HEAD_TIMEOUT, MOST, Handed, Lean
from daemon.web.listeners import (
    Peer,
    group_id,
    listen,
    listen_here,
    load_certificate,
    peer_of,
    tls_context,
)
from daemon.web.reason import reason
from daemon.web.sending import Stream, send_now, send_patiently
from storage.errors import leaves

log = logging.getLogger("steward.web")

_BAD_REQUEST, _VERSION_NOT_SUPPORTED = 400, 505
_OF_UPGRADES = (b"connection", b"sec-websocket-protocol")  # which the library reads as ASCII
_EXTENSIONS = b"sec-websocket-extensions"
_TWO_WAYS = re.compile(rb"(?<!\r)\n|\n[ \t]")  # a line end that is none, and one that may be none
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#@]+)(.*)")
PEER = "steward.peer"  # the key of the peer in a request's scope


class Listener:
    """A place to listen at. Where it knows its peers, root and members of a group are operators."""

    def __init__(
        self,
        listener: trio.SocketListener | trio.SSLListener[trio.SocketStream],
        *,
        knows_peers: bool = False,
        group: int | None = None,
        share: Share = Share.PORT,
        has_hosts: bool = False,
    ) -> None:
        """With `has_hosts`, each address that connects is a host of many clients."""
        self.listener, self.share, self.has_hosts = listener, share, has_hosts
        self._knows_peers, self._group = knows_peers, group

    def peer(self, stream: Stream) -> Peer | None:
        """Return who has connected, where that is known."""
        if not self._knows_peers or not isinstance(stream, trio.SocketStream):
            return None
        return peer_of(stream, self._group)


class Listeners(msgspec.Struct, frozen=True):
    """All places, and the port of the one that has one."""

    port: int
    places: Sequence[Listener]
    context: ssl.SSLContext | None = None

    def reload(self, config: Config) -> None:
        """Read the certificate anew, if there is one. Raises `Invalid`; then all is as before."""
        if self.context is not None:
            load_certificate(self.context, config)


@contextmanager
def open_listeners(config: Config, given: Sequence[socket.socket] = ()) -> Iterator[Listeners]:
    """Listen where the settings say, at a socket that was given if there is one for the port.

    Raises `ListenError`, `Invalid`.
    """
    context = tls_context(config)
    with ExitStack() as sockets:
        for one in given:
            sockets.enter_context(one)
        port = _at_port(config, given) or sockets.enter_context(listen(config.bind, config.port))
        places = [Listener(_accepting(port, context))]
        if config.socket_path is not None:
            group = group_id(config.operator_group) if config.operator_group else None
            here = sockets.enter_context(listen_here(config.socket_path, group=group))
            places.append(
                Listener(_accepting(here), knows_peers=True, group=group, share=Share.OPERATORS)
            )
        tasks = sockets.enter_context(listen_here(config.task_socket_path, is_open=True))
        places.append(Listener(_accepting(tasks), share=Share.TASKS))
        yield Listeners(port.getsockname()[1], places, context)


def _at_port(config: Config, given: Sequence[socket.socket]) -> socket.socket | None:
    wanted, found = (config.bind, config.port), None
    for one in given:
        if one.getsockname()[:2] == wanted:
            found = one
        else:
            log.warning(
                "a socket at %s was given, and is of no use: set bind, port", one.getsockname()
            )
    return found


@contextmanager
def open_public_listeners(config: Config) -> Iterator[Sequence[Listener]]:
    """Listen where the settings want public documents served, if anywhere. Raises `ListenError`."""
    if not config.issuer_bind:
        yield ()
        return
    context = tls_context(config)
    with listen(config.issuer_bind, config.issuer_port) as port:
        number = port.getsockname()[1]
        log.info("public documents are at %s port %s", config.issuer_bind, number)
        yield [Listener(_accepting(port, context))]


@contextmanager
def open_wrapper_listeners(config: Config) -> Iterator[Listeners]:
    """Listen to what runs on clusters, with a certificate of its own if it has one.

    Raises `ListenError`, `Invalid`.
    """
    context = tls_context(config.of_wrappers)
    with listen(config.wrapper_host, config.wrapper_port) as port:
        number = port.getsockname()[1]
        log.info("what runs on clusters is heard at %s port %s", config.wrapper_host, number)
        places = [Listener(_accepting(port, context), has_hosts=True)]
        yield Listeners(number, places, context)


def _accepting(
    listener: socket.socket, context: ssl.SSLContext | None = None
) -> trio.SocketListener | trio.SSLListener[trio.SocketStream]:
    plain = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    return trio.SSLListener(plain, context, https_compatible=True) if context else plain


async def serve(
    app: AppWrapper,
    settings: ServerConfig,
    listeners: Sequence[Listener],
    config: Config,
    closing: trio.Event,
    lean: Lean | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve what connects until `closing`; what is under way then has the time of the settings.

    Connections without encryption come through the lean door first, if there is one.
    """
    lifespan = Lifespan(app, settings, {})
    context = WorkerContext(None)
    streams: set[Stream] = set()
    async with trio.open_nursery() as surroundings:
        await surroundings.start(lifespan.handle_lifespan)
        await lifespan.wait_for_startup()
        if lean is not None:
            surroundings.start_soon(lean.departures.run)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    admission = Admission(config, listener.share, has_hosts=listener.has_hosts)
                    handler = _Handler(app, settings, context, listener, streams, lean, admission)
                    accepting.start_soon(accept, listener.listener, handler.serve, connections)
                task_status.started()
                await closing.wait()
                accepting.cancel_scope.cancel()
            await context.terminated.set()
            if lean is not None:
                lean.close()
            connections.cancel_scope.deadline = trio.current_time() + settings.graceful_timeout
            surroundings.start_soon(_cut_off, streams, connections.cancel_scope.deadline)
        await lifespan.wait_for_shutdown()
        surroundings.cancel_scope.cancel()


async def _cut_off(streams: set[Stream], deadline: float) -> None:
    """End what is still open at a moment: who sends is not interrupted by anything else."""
    await trio.sleep_until(deadline)
    for stream in list(streams):
        await trio.aclose_forcefully(stream)


class _Handler:
    """What serves the connections of one listener; `streams` are those of all."""

    def __init__(
        self,
        app: AppWrapper,
        settings: ServerConfig,
        context: WorkerContext,
        listener: Listener,
        streams: set[Stream],
        lean: Lean | None,
        admission: Admission,
    ) -> None:
        self._app, self._settings, self._context, self._lean = app, settings, context, lean
        self._listener, self._streams, self._admission = listener, streams, admission
        self._refusals = Seldom("a connection was refused")

    async def serve(self, stream: Stream) -> None:
        """Serve one connection, unless its client has too many."""
        with suppress(OSError):  # the client has gone already
            try:
                with self._admission.admitted(stream):
                    await self._served(stream)
            except TooMany as error:
                self._refusals.warn(error)
                await self._admission.refuse(stream, str(error))

    async def _served(self, stream: Stream) -> None:
        self._streams.add(stream)
        try:
            await self._speak(stream)
        except* (h11.ProtocolError, WebSocketError) as group:
            log.info(
                "a connection was not to be understood, and was closed: %s", next(leaves(group))
            )
        except* Exception:
            # Of those who speak the protocol: it ends one connection, never the daemon.
            log.exception("a connection failed, and was closed")
        finally:
            self._streams.discard(stream)

    async def _speak(self, stream: Stream) -> None:
        now = trio.current_time()
        given = Handed(b"", now, has_asked=False, until=now + HEAD_TIMEOUT)
        peer = self._listener.peer(stream)
        if self._lean is not None and isinstance(stream, trio.SocketStream):
            handed = await self._lean.serve(stream, peer)
            if handed is None:
                return
            given = handed
        app = _Introduced(self._app, peer)
        # It speaks plain streams as well, whatever its types say.
        connection = _Connection(app, self._settings, self._context, ConnectionState({}), stream)  # type: ignore[arg-type]
        await connection.take_over(given)


class _Connection(TCPServer):
    """A connection that speaks HTTP/1 alone, sends an answer whole, and ends with its client.

    The server's own lives on, with its socket, until it would have been idle for too long. It
    sends head, body and end one by one, each with a lock and a system call. When the daemon ends it
    closes whatever is idle, but not who has just connected and is about to ask.
    """

    _held = b""  # the head of an answer, whose body follows at once

    async def take_over(self, given: Handed) -> None:
        """Serve the connection from here on."""
        self._given, self._idle_since, self._has_asked = given.data, given.since, given.has_asked
        self._patience = trio.CancelScope(deadline=given.until)
        self._awaits_head, self._has_begun = True, bool(given.data)
        await self.run()

    async def _idle_timeout(self) -> None:
        since = self._idle_since
        with self._patience:
            await self.context.terminated.wait()
            patience = self.config.graceful_timeout
            if not self._has_asked and trio.current_time() <= since + patience:
                await trio.sleep(patience)
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()

    async def _read_data(self) -> None:
        given = self.protocol
        given.protocol = _OnlyHTTP1(
            given.app,
            given.config,
            given.context,
            given.task_group,
            given.state,
            given.ssl,
            given.client,
            given.server,
            given.send,
        )
        if self._given:
            await self.protocol.handle(RawData(self._given))
        with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
            while data := bytes(await self.stream.receive_some(MOST)):
                self._limit_head()
                await self.protocol.handle(RawData(data))
            await self.protocol.handle(RawData(b""))
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    def _limit_head(self) -> None:
        """Limit the time that a head may take, from its first bytes on."""
        if self._awaits_head and not self._has_begun:
            self._has_begun = True
            latest = trio.current_time() + HEAD_TIMEOUT
            self._patience.deadline = min(self._patience.deadline, latest)

    async def protocol_send(self, event: Event) -> None:
        """Send what the protocol has to say."""
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
        """Send bytes: what the kernel takes at once without all that waiting needs.

        When a thousand streams are told of the same write, this is most of what each one costs.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self.send_lock.locked():
            data = send_now(self.stream, data)
        if not data:
            await trio.lowlevel.cancel_shielded_checkpoint()  # others come to their turn
            return
        async with self.send_lock:
            try:
                with trio.CancelScope(shield=True):  # half of a frame is none
                    await send_patiently(self.stream, data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self.protocol.handle(Closed())


def _announces(data: bytes) -> bool:
    """Tell whether these bytes are the head of an answer that says how long its body is."""
    is_head = data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n")
    return is_head and b"\r\ncontent-length:" in data


class _Strict(ReceiveBuffer):
    """What has come of a connection; its heads have lines that all readers take in one way.

    The library's own also takes bare line feeds and folded lines (RFC 9112, sections 2.2 and 5.2),
    in which a proxy before us may see another request.
    """

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a head, or of trailers, that are there. Raises `h11.RemoteProtocolError`."""
        end = self._data.find(b"\r\n\r\n")
        if _TWO_WAYS.search(self._data, 0, len(self._data) if end < 0 else end):
            raise h11.RemoteProtocolError("a line is folded, or ends without a carriage return")
        return super().maybe_extract_lines()


class _OnlyHTTP1(H11Protocol):
    """The protocol of a connection, without the ways from HTTP/1 to HTTP/2.

    Over them a request would come past the limits of connections and headers.
    """

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401  # the library's own
        super().__init__(*arguments)
        self.connection._receive_buffer = _Strict()  # type: ignore[union-attr]  # noqa: SLF001  # not a WebSocket yet

    async def handle(self, event: Event) -> None:
        """Take in what has come. A WebSocket that was refused ends its connection.

        The server's own leaves it open, without an end, and the refusal unsent.
        """
        await super().handle(event)
        if isinstance(event, RawData) and isinstance(self.stream, WSStream) and self.stream.closed:
            await self.send(Closed())

    async def _check_protocol(self, event: h11.Request) -> None:
        """Pass over the wish for another protocol, as RFC 9110 allows."""

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        """Send a piece of an answer. The server gives the head of an answer no reason phrase."""
        if isinstance(event, (h11.Response, h11.InformationalResponse)):
            # The event is ours alone, and a copy of it would have all its headers checked again.
            object.__setattr__(event, "reason", reason(event.status_code).encode())
        await super()._send_h11_event(event)

    async def _create_stream(self, request: h11.Request) -> None:
        if not all(value.isascii() for name, value in request.headers if name in _OF_UPGRADES):
            await self._send_error_response(_BAD_REQUEST)
            await self.send(Closed())
            return
        if request.http_version in (b"1.0", b"1.1"):
            await super()._create_stream(_in_origin_form(_without_extensions(request)))
            if isinstance(self.stream, WSStream):
                self.stream.buffer = _Messages(self.config.websocket_max_message_size)
            return
        await self._send_error_response(_VERSION_NOT_SUPPORTED)
        await self.send(Closed())


class _Messages(WebsocketBuffer):
    """The pieces of a message; after one that was too large there is none any more.

    The server's own goes on with what is left, and fails when that is of another kind.
    """

    def extend(self, event: Message[Any]) -> None:
        """Add a piece. Raises `FrameTooLargeError`."""
        if self.length > self.max_length:
            raise FrameTooLargeError
        super().extend(event)


def _in_origin_form(request: h11.Request) -> h11.Request:
    """Return a request that names its host in a header; in the absolute form the target does.

    That host counts then, whatever the header says (RFC 9112, section 3.2.2).
    """
    match = _ABSOLUTE.fullmatch(request.target)
    if match is None:
        return request
    host, path = match.groups()
    kept = [one for one in request.headers if one[0] != b"host"]
    return h11.Request(
        method=request.method,
        target=path if path.startswith(b"/") else b"/" + path,
        headers=[(b"host", host), *kept],
        http_version=request.http_version,
    )


def _without_extensions(request: h11.Request) -> h11.Request:
    """Return a request that asks for no extension of WebSockets.

    Of a compressed message only the length before unpacking is bounded by what is read at once.
    """
    headers = [one for one in request.headers if one[0] != _EXTENSIONS]
    if len(headers) == len(request.headers):
        return request
    return h11.Request(
        method=request.method,
        target=request.target,
        headers=headers,
        http_version=request.http_version,
    )


class _Introduced:
    """The application, told of each request who is at the other end of its connection."""

    def __init__(self, app: AppWrapper, peer: Peer | None) -> None:
        self._app, self._peer = app, peer

    async def __call__(
        self,
        scope: Scope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        sync_spawn: object,
        call_soon: object,
    ) -> None:
        scope[PEER] = self._peer  # type: ignore[literal-required]  # a scope may hold more
        await self._app(scope, receive, send, sync_spawn, call_soon)  # type: ignore[arg-type]
