"""Connections: accepting them, limiting them, and identifying their clients.

Only the protocol code of the HTTP server library is used. The library's accept loop supports
neither peer credentials nor limits.
"""

import logging
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.config.settings import Settings
from daemon.web.admission import Acceptor, Admission, Share
from daemon.web.fast_path import HEAD_TIMEOUT, FastPath, Handover, receive_in_turn
from daemon.web.late_server import CLOSING, LateHttpServer
from daemon.web.listeners import (
    ListeningSockets,
    PeerAddress,
    check_certificate,
    load_certificate,
    peer_of,
)
from daemon.web.send import Stream
from daemon.web.turns import ConnectionTurns, Turns

if TYPE_CHECKING:
    from daemon.web.certificate_files import ServerContext
    from daemon.web.handshakes import HandshakeLog

log = logging.getLogger("steward.web")


class ConnectionListener:
    """A listening socket.

    With `knows_peers`, the kernel reports the user at the other end. Root and the members of
    `group` are then operators.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext | None = None,
        *,
        knows_peers: bool = False,
        group: int | None = None,
        share: Share = Share.PORT,
        has_hosts: bool = False,
    ) -> None:
        """With `has_hosts`, each connecting address is a host with many clients."""
        listener.setblocking(False)
        self.listener, self.share, self.has_hosts = listener, share, has_hosts
        self._context, self._knows_peers, self._group = context, knows_peers, group

    @property
    def is_encrypted(self) -> bool:
        """Return whether the listener has a certificate."""
        return self._context is not None

    def wrap(self, stream: trio.SocketStream) -> Stream:
        """Return a connection, encrypted if the listener has a certificate."""
        if self._context is None:
            return stream
        return trio.SSLStream(stream, self._context, server_side=True, https_compatible=True)

    def peer(self, stream: Stream) -> PeerAddress | None:
        """Return the user at the other end of a connection, if the kernel reports it."""
        if not self._knows_peers or not isinstance(stream, trio.SocketStream):
            return None
        return peer_of(stream, self._group)


class ConnectionListeners(msgspec.Struct, frozen=True):
    """All listeners, and the port of the TCP listener."""

    port: int
    places: Sequence[ConnectionListener]
    context: "ServerContext | None" = None

    def reload(self, config: Settings, opened: Mapping[Path, Path] = MappingProxyType({})) -> None:
        """Reload the certificate, if there is one. `opened` is described at `load_certificate`.

        If it raises `Invalid`, nothing has changed.
        """
        if self.context is not None:
            load_certificate(self.context, config, opened)

    def check(self, config: Settings, opened: Mapping[Path, Path] = MappingProxyType({})) -> None:
        """Raise `Invalid` if `reload` would."""
        if self.context is not None:
            check_certificate(config, opened)


def listeners_at(sockets: ListeningSockets) -> ConnectionListeners:
    """Return the listeners of the API: the port, and the Unix sockets."""
    listeners = [ConnectionListener(sockets.port, sockets.context)]
    if sockets.operators is not None:
        here = sockets.operators
        listeners.append(
            ConnectionListener(here, knows_peers=True, group=sockets.group, share=Share.OPERATORS)
        )
    listeners.append(ConnectionListener(sockets.tasks, share=Share.TASKS))
    return ConnectionListeners(sockets.port.getsockname()[1], listeners, sockets.context)


def public_listeners_at(sockets: ListeningSockets) -> Sequence[ConnectionListener]:
    """Return the listeners for public documents, if configured."""
    if sockets.public is None:
        return ()
    host, number, *_ = sockets.public.getsockname()
    log.info("public documents are at %s port %s", host, number)
    return [ConnectionListener(sockets.public, sockets.public_context)]


def wrapper_listeners_at(sockets: ListeningSockets) -> ConnectionListeners | None:
    """Return the listeners for cluster hosts, if configured."""
    if sockets.wrappers is None:
        return None
    host, number, *_ = sockets.wrappers.getsockname()
    log.info("cluster hosts can connect at %s port %s", host, number)
    listeners = [ConnectionListener(sockets.wrappers, sockets.wrappers_context, has_hosts=True)]
    return ConnectionListeners(number, listeners, sockets.wrappers_context)


async def serve(
    server: LateHttpServer,
    listeners: Sequence[ConnectionListener],
    config: Settings,
    closing: trio.Event,
    fast_path: FastPath | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve connections until `closing` is set. Running requests may then continue for `CLOSING`.

    With a fast path, connections without TLS go through it first.
    """
    streams: set[Stream] = set()
    turns = Turns()
    async with trio.open_nursery() as surroundings:
        surroundings.start_soon(turns.run)
        server.use(surroundings)
        if fast_path is not None:
            surroundings.start_soon(fast_path.departures.run)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    admission = Admission(config, listener.share, has_hosts=listener.has_hosts)
                    handler = _Handler(server, listener, streams, turns, closing, fast_path)
                    acceptor = Acceptor(
                        listener.listener,
                        admission,
                        handler.serve,
                        listener.wrap,
                        explains=not listener.is_encrypted,
                    )
                    accepting.start_soon(acceptor.run, connections)
                task_status.started()
                await closing.wait()
                accepting.cancel_scope.cancel()
            await server.terminate()
            if fast_path is not None:
                fast_path.close()
            connections.cancel_scope.deadline = trio.current_time() + CLOSING
            surroundings.start_soon(_cut_off, streams, connections.cancel_scope.deadline)
        await server.shut_down()
        surroundings.cancel_scope.cancel()


async def _cut_off(streams: set[Stream], deadline: float) -> None:
    """Close all open connections at `deadline`; blocked writers cannot be interrupted otherwise."""
    await trio.sleep_until(deadline)
    for stream in list(streams):
        await trio.aclose_forcefully(stream)


class _Handler:
    """The server of one listener's connections; `streams` has the open streams of all listeners."""

    def __init__(
        self,
        server: LateHttpServer,
        listener: ConnectionListener,
        streams: set[Stream],
        turns: Turns,
        closing: trio.Event,
        fast_path: FastPath | None,
    ) -> None:
        self._server, self._closing, self._lean = server, closing, fast_path
        self._listener, self._streams, self._turns = listener, streams, turns
        self._failures: HandshakeLog | None = None

    async def serve(self, stream: Stream, client: str) -> None:
        """Serve one connection of a client."""
        self._streams.add(stream)
        try:
            await self._speak(stream, client)
        except* Exception:
            # An error of the protocol code ends one connection, not the daemon.
            log.exception("a connection failed and was closed")
        finally:
            self._streams.discard(stream)

    async def _speak(self, stream: Stream, client: str) -> None:
        now = trio.current_time()
        handover: Handover | None = Handover(b"", now, has_asked=False, until=now + HEAD_TIMEOUT)
        peer = self._listener.peer(stream)
        # the clients of each listener take turns separately
        turns = ConnectionTurns(self._turns, f"{self._listener.share.name} {client}")
        turns.use()
        if isinstance(stream, trio.SocketStream):
            if self._lean is not None:
                handover = await self._lean.serve(stream, peer, client, turns)
            if handover is not None and not handover.data:
                handover = await _begun(stream, handover, turns, self._closing)
        else:
            await turns.take()
            if not await self._complete(stream):
                return
        if handover is not None:
            await self._server.serve(stream, peer, client, handover, turns)

    async def _complete(self, stream: trio.SSLStream[trio.SocketStream]) -> bool:
        """Complete the TLS handshake; return whether the connection can be used."""
        # Imported late: most daemons have no certificate.
        from daemon.web.handshakes import HandshakeLog, complete_handshake

        if self._failures is None:
            self._failures = HandshakeLog()
        return await complete_handshake(stream, HEAD_TIMEOUT, self._failures)


async def _begun(
    stream: trio.SocketStream, handover: Handover, turns: ConnectionTurns, closing: trio.Event
) -> Handover | None:
    """Wait for a request of an idle connection; None if its client or its time limit ends it.

    An idle connection needs no HTTP server, which may not be imported yet.
    """
    data = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_idleness, handover, closing, nursery.cancel_scope)
        with suppress(OSError, trio.ClosedResourceError):  # the connection is broken
            data = await receive_in_turn(stream, turns)
        nursery.cancel_scope.cancel()
    if not data:
        return None
    # A request that arrives late is answered, even if the shutdown has begun.
    now = trio.current_time()
    until = min(handover.until, now + HEAD_TIMEOUT)
    return msgspec.structs.replace(handover, data=data, since=now, until=until)


async def _end_idleness(handover: Handover, closing: trio.Event, waiting: trio.CancelScope) -> None:
    """Cancel the wait for a request at the time limit, or at the shutdown of the daemon.

    A client that has sent no request yet may still send one during the shutdown.
    """
    with trio.CancelScope(deadline=handover.until):
        await closing.wait()
        if not handover.has_asked and trio.current_time() <= handover.since + CLOSING:
            await trio.sleep(CLOSING)
    waiting.cancel()
