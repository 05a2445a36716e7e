"""The framework's application, and the HTTP server that calls it: one task per request.

Requests go directly from the server to the dispatcher. Only the framework's connection, request and
response are used, without its routing and sessions.

The framework stores a body while it arrives, whether or not a handler waits for it. So each request
passes its pieces through a `BodyGate`. A short body passes. A long body waits until the dispatcher
has checked the caller, and counts against the `BodyBudget`, which all requests share.

This module is imported late (`late_server.py`).
"""

import logging
import os
from collections import Counter
from typing import cast

import h11
import trio
from hypercorn.config import Config as ServerConfig
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    ConnectionState,
    HTTPScope,
    Scope,
    WebsocketScope,
)
from hypercorn.utils import wrap_app
from quart import Request as FrameworkRequest
from quart import Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from wsproto.utilities import ProtocolError as WebSocketError

from daemon.app.context import AppContext
from daemon.web.dispatcher import BodyUnavailable, Dispatcher
from daemon.web.fast_path import HEAD_TIMEOUT, KEEP_ALIVE, Handover
from daemon.web.http_connection import CLIENT, PEER, Introduced, ServerConnection
from daemon.web.listeners import PeerAddress
from daemon.web.reply import TEXT, WireResponse, text
from daemon.web.request import SHORT_BODY
from daemon.web.request_head import RequestHead, has_long_body, headers
from daemon.web.send import Stream
from daemon.web.turns import ConnectionTurns
from daemon.web.websocket import MAX_FRAME
from daemon.web.websockets import WebSockets
from storage import request_context
from storage.errors import Unavailable, leaf_errors

log = logging.getLogger("steward.web")

MAX_HEAD = 32 * 1024  # bytes of request line and headers
BODY_TIMEOUT = 60  # seconds for the arrival of a body
_NO_TARGET = b"the target of the request has no path"
GATE = "steward.body"  # the key of the body's gate in a request's scope
_SHARE = 16  # long bodies may use 1/16 of the host's memory
_LEAST, _MOST = 64 * 1024 * 1024, 512 * 1024 * 1024  # lower and upper limit of this part, in bytes
_LINGER = 1.0  # seconds in which the rest of a rejected body is read and discarded


def body_memory(host: int) -> int:
    """Return the bytes that long bodies may use together, for a host with `host` bytes of memory.

    >>> body_memory(2**30) // 2**20, body_memory(2**32) // 2**20, body_memory(2**40) // 2**20
    (64, 256, 512)
    """
    return min(max(host // _SHARE, _LEAST), _MOST)


def host_memory() -> int:
    """Return the memory of this host in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class BodyBudget:
    """The memory for long bodies of unanswered requests. One client may use half of it."""

    def __init__(self, most: int) -> None:
        """`most` is in bytes."""
        self.most, self.used = most, 0
        self._by_client: Counter[str] = Counter()

    def take(self, client: str, size: int) -> None:
        """Count bytes of a client; an empty `client` is an operator, who may use the whole budget.

        Raises `Unavailable` if the bytes exceed the budget.
        """
        if client and self._by_client[client] + size > self.most // 2:
            raise Unavailable(
                f"the memory for bodies of unanswered requests of {client} is full "
                f"({self.most // 2} bytes): try again later, or send fewer bodies at the same time"
            )
        if self.used + size > self.most:
            raise Unavailable(
                f"the memory for bodies of unanswered requests is full ({self.most} bytes): "
                "try again later"
            )
        self.used += size
        self._by_client[client] += size

    def give_back(self, client: str, size: int) -> None:
        """Return the bytes of an answered request to the budget."""
        self.used -= size
        self._by_client[client] -= size
        if not self._by_client[client]:
            del self._by_client[client]


class BodyGate:
    """The chunks of one body on their way to the framework."""

    def __init__(self, receive: ASGIReceiveCallable, budget: BodyBudget, most: int) -> None:
        """`most` is the size limit of a body, which the framework enforces."""
        self._receive, self._budget, self._most = receive, budget, most
        self._client, self._received, self._taken = "", 0, 0
        self._opened, self._ended = trio.Event(), trio.Event()
        self._discards = self._has_given_end = False
        self._fault: Unavailable | None = None

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next event; a chunk beyond a short body waits until the gate opens."""
        event = await self._receive()
        while self._has_given_end and event["type"] == "http.request":
            # The framework accepts nothing after the end of a body.
            if not event.get("more_body", False):
                self._ended.set()
            event = await self._receive()
        if event["type"] != "http.request":
            return event
        is_last = not event.get("more_body", False)
        self._received += len(event.get("body", b""))
        if self._received > SHORT_BODY:
            await self._opened.wait()
            if not self._may_pass():
                # After a fault the framework gets the end of the body immediately.
                more = not is_last and self._fault is None
                event = {"type": "http.request", "body": b"", "more_body": more}
        self._has_given_end = not event.get("more_body", False)
        if is_last:
            self._ended.set()
        return event

    def _may_pass(self) -> bool:
        if self._discards or self._fault is not None:
            return False
        try:
            self._take(min(self._received, self._most))
        except Unavailable as error:
            self._fault = error
            return False
        return True

    def _take(self, size: int) -> None:
        if size > self._taken:
            self._budget.take(self._client, size - self._taken)
            self._taken = size

    def open(self, client: str, length: int) -> None:
        """Let a long body pass; `length` is its announced size, or 0. Raises `Unavailable`."""
        self._client = client
        self._take(min(max(length, self._received), self._most))
        self._opened.set()

    def check(self) -> None:
        """Raise `Unavailable` if a body without an announced size exceeded the budget."""
        if self._fault is not None:
            raise self._fault

    async def discard(self) -> None:
        """Read and discard the rest of a rejected body, for a limited time.

        If the connection were closed with unread data, the client would lose the response.
        """
        if self._ended.is_set():
            return
        self._discards = True
        self._opened.set()
        with trio.move_on_after(_LINGER):
            await self._ended.wait()

    def close(self) -> None:
        """Return the bytes of the body to the budget after the response."""
        if self._taken:
            self._budget.give_back(self._client, self._taken)
            self._taken = 0


class AsgiApp(QuartTrio):
    """The framework's application, for HTTP and WebSockets."""

    def __init__(self, dispatcher: Dispatcher, websockets: WebSockets, most: int) -> None:
        """`most` is the size limit of a body in bytes."""
        super().__init__("steward", static_folder=None)
        self.config["MAX_CONTENT_LENGTH"] = self._most = most
        self.config["BODY_TIMEOUT"] = BODY_TIMEOUT
        self._answering, self._talks = dispatcher, websockets

    async def handle_request(self, request: FrameworkRequest) -> Response:
        """Answer one request."""
        head = _head(request.scope, request.method)
        gate: BodyGate = cast("dict[str, BodyGate]", request.scope)[GATE]
        length = request.content_length or 0
        is_long = has_long_body(head) and length <= self._most

        async def body() -> bytes:
            if is_long:
                gate.open(self._answering.client(head), length)
            try:
                data = cast(bytes, await request.get_data(cache=False))
            except RequestEntityTooLarge:
                raise BodyUnavailable(
                    text(f"the body is larger than {self._most} bytes", 413)
                ) from None
            except HTTPException as error:  # such as a body that arrived too late
                reply = text(error.description or error.name, error.code or 400)
                raise BodyUnavailable(reply) from None
            gate.check()
            return data

        answer = await self._answering.answer(head, body)
        if is_long:
            await gate.discard()
        return _response(answer)

    async def serve_websocket(
        self, scope: WebsocketScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Accept a WebSocket for its route, unless a check rejects it."""
        head = _head(scope, "GET")
        with request_context.request_scope(self._answering.id_of(head.headers)):
            address, client = self._answering.address(head), self._answering.client(head)
            await self._talks.answer(head, address, client, receive, send)


def _head(scope: HTTPScope | WebsocketScope, method: str) -> RequestHead:
    client = scope["client"]
    return RequestHead(
        method=method,
        target=scope["raw_path"],
        query=scope["query_string"].decode("latin-1"),
        headers=headers(scope["headers"]),
        client=client[0] if client else "",
        peer=cast("dict[str, PeerAddress | None]", scope).get(PEER),
        user=cast("dict[str, str]", scope).get(CLIENT, ""),
        is_secure=scope["scheme"] in ("https", "wss"),
    )


def _response(answer: WireResponse) -> Response:
    response = Response(answer.stream or answer.body, answer.status, answer.headers)
    if answer.stream is not None:
        response.timeout = None  # the task ends when its client disconnects
    elif "Content-Type" not in answer.headers:
        del response.headers["Content-Type"]  # the framework sets a default
    return response


class _Shielded:
    """The application that Hypercorn calls; it shields the last `send` from cancellation.

    After `Connection: close`, the server closes the socket inside this `send`. The framework
    cancels itself at that time. Without the shield, the socket would stay open.
    """

    def __init__(self, app: AsgiApp, most: int) -> None:
        """`most` is the size limit of a body in bytes."""
        self._app, self._most = app, most
        self._budget = BodyBudget(body_memory(host_memory()))

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] == "websocket":
            await self._app.serve_websocket(scope, receive, send)
            return
        if (
            scope["type"] == "http" and not scope["path"]
        ):  # the framework fails on a target such as `?`
            await _refuse_target(send)
            return

        async def shielded(message: ASGISendEvent) -> None:
            if message.get("more_body", True):  # a response head has no `more_body`
                await send(message)
                return
            with trio.CancelScope(shield=True):
                await send(message)

        gate = BodyGate(receive, self._budget, self._most)
        cast("dict[str, BodyGate]", scope)[GATE] = gate
        try:
            await self._app(scope, gate.receive, shielded)
        finally:
            gate.close()


async def _refuse_target(send: ASGISendCallable) -> None:
    """Reject a request whose target has no path, with the same response as Go's server."""
    headers = [(b"content-type", TEXT.encode()), (b"content-length", b"%d" % len(_NO_TARGET))]
    await send(
        {
            "type": "http.response.start",
            "status": 400,
            "headers": [*headers, (b"connection", b"close")],
        }
    )
    await send({"type": "http.response.body", "body": _NO_TARGET, "more_body": False})


class FrameworkServer:
    """The HTTP server of some listeners."""

    def __init__(
        self,
        parts: AppContext,
        dispatcher: Dispatcher,
        closing: trio.Event,
        most: int,
        grace: float,
    ) -> None:
        """`most` limits the bytes of a body.

        After `closing`, running requests may continue for `grace` seconds.
        """
        self._settings = _settings(grace)
        websockets = WebSockets(
            parts,
            dispatcher.router,
            dispatcher.pages,
            dispatcher.guard,
            closing,
            dispatcher.fairness,
        )
        app = _Shielded(AsgiApp(dispatcher, websockets, most), most)
        self._app = wrap_app(app, most, "asgi")
        self._context = WorkerContext(None)
        self._lifespan = Lifespan(self._app, self._settings, {})

    async def start(self, nursery: trio.Nursery) -> None:
        """Start the application, whose tasks run in `nursery`."""
        await nursery.start(self._lifespan.handle_lifespan)
        await self._lifespan.wait_for_startup()

    async def terminate(self) -> None:
        """Close idle connections, and the others after their response."""
        await self._context.terminated.set()

    async def stop(self) -> None:
        """Stop the application after the last connection has ended."""
        await self._lifespan.wait_for_shutdown()

    async def serve(
        self,
        stream: Stream,
        peer: PeerAddress | None,
        client: str,
        handover: Handover,
        turns: ConnectionTurns,
    ) -> None:
        """Serve one connection of a client until it ends."""
        try:
            await self._speak(stream, Introduced(self._app, peer, client), handover, turns)
        except* (h11.ProtocolError, WebSocketError) as group:
            log.info(
                "a connection was closed after an invalid request: %s", next(leaf_errors(group))
            )

    async def _speak(
        self, stream: Stream, app: Introduced, handover: Handover, turns: ConnectionTurns
    ) -> None:
        # It also accepts plain streams, contrary to its types.
        connection = ServerConnection(
            app,
            self._settings,
            self._context,
            ConnectionState({}),
            stream,  # type: ignore[arg-type]  # see above
        )
        connection.use_turns(turns)
        try:
            await connection.take_over(handover)
        finally:
            # Its protocol refers to the connection. Without this cycle, all objects of the
            # connection are freed now, and not by the next garbage collection.
            vars(connection).clear()


def _settings(grace: float) -> ServerConfig:
    settings = ServerConfig()
    settings.errorlog = logging.getLogger("steward.web.server")
    settings.errorlog.setLevel(logging.WARNING)
    settings.include_server_header = False
    settings.h11_max_incomplete_size = MAX_HEAD
    settings.keep_alive_timeout = KEEP_ALIVE
    settings.ssl_handshake_timeout = HEAD_TIMEOUT
    settings.keep_alive_max_requests = 2**31
    settings.graceful_timeout = grace
    settings.websocket_max_message_size = MAX_FRAME
    return settings
