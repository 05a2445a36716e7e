"""The HTTP server: one task per connection and one per request, cancelled at a disconnect.

Requests go directly from the server to the dispatcher. Only the framework's connection, request and
response are used, without its routing and sessions.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec
import trio
from hypercorn.config import Config as ServerConfig
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
    Scope,
    WebsocketScope,
)
from hypercorn.utils import wrap_app
from quart import Request as FrameworkRequest
from quart import Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from daemon.app.context import AppContext
from daemon.web.connections import CLIENT, PEER, ConnectionListener, serve
from daemon.web.dispatcher import BodyUnavailable, Dispatcher, Doorkeeper
from daemon.web.fast_path import HEAD_TIMEOUT, FastPath
from daemon.web.listeners import PeerAddress
from daemon.web.reply import TEXT, WireResponse, text
from daemon.web.request import Endpoint, Route
from daemon.web.request_guard import ANY_NAME
from daemon.web.request_head import RequestHead, headers
from daemon.web.ui_session import UiPage
from daemon.web.websocket import MAX_FRAME
from daemon.web.websockets import WebSockets
from storage import request_context

MAX_BODY = 16 * 1024 * 1024  # bytes; the largest job seen in the wild has 2 MiB
MAX_HEAD = 32 * 1024  # bytes of request line and headers
BODY_TIMEOUT = 60  # seconds for the arrival of a body
KEEP_ALIVE = 120  # seconds until an idle connection is closed
_NO_TARGET = b"the target of the request has no path"
CLOSING = 2  # seconds for running requests at the shutdown


class AsgiApp(QuartTrio):
    """The framework's application, for HTTP and WebSockets."""

    def __init__(self, answering: Dispatcher, talks: WebSockets, most: int = MAX_BODY) -> None:
        """`most` is the size limit of a body in bytes."""
        super().__init__("steward", static_folder=None)
        self.config["MAX_CONTENT_LENGTH"] = self._most = most
        self.config["BODY_TIMEOUT"] = BODY_TIMEOUT
        self._answering, self._talks = answering, talks

    async def handle_request(self, request: FrameworkRequest) -> Response:
        """Answer one request."""

        async def body() -> bytes:
            try:
                return cast(bytes, await request.get_data())
            except RequestEntityTooLarge:
                raise BodyUnavailable(
                    text(f"the body is larger than {self._most} bytes", 413)
                ) from None
            except HTTPException as error:  # such as a body that arrived too late
                reply = text(error.description or error.name, error.code or 400)
                raise BodyUnavailable(reply) from None

        answer = await self._answering.answer(_head(request.scope, request.method), body)
        return _response(answer)

    async def talk(
        self, scope: WebsocketScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Accept a WebSocket for its route, unless a check rejects it."""
        head = _head(scope, "GET")
        with request_context.request_scope(self._answering.id_of(head.headers)):
            await self._talks.answer(head, self._answering.address(head), receive, send)


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
        response.timeout = None  # it ends at the disconnect of its client
    elif "Content-Type" not in answer.headers:
        del response.headers["Content-Type"]  # the framework sets a default
    return response


class _Shielded:
    """The application as the server calls it; the end of a response cannot be cancelled.

    After `Connection: close` the server closes the socket inside the application's last `send`. The
    framework cancels itself at that time, and the socket would stay open.
    """

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] == "websocket":
            await self._app.talk(scope, receive, send)
            return
        if (
            scope["type"] == "http" and not scope["path"]
        ):  # the framework fails on a target such as `?`
            await _refuse_target(send)
            return

        async def shielded(message: ASGISendEvent) -> None:
            if message.get("more_body", True):  # the head does not contain it
                await send(message)
                return
            with trio.CancelScope(shield=True):
                await send(message)

        await self._app(scope, receive, shielded)


async def _refuse_target(send: ASGISendCallable) -> None:
    """Answer a request whose target has no path, as Go does."""
    headers = [(b"content-type", TEXT.encode()), (b"content-length", b"%d" % len(_NO_TARGET))]
    await send(
        {
            "type": "http.response.start",
            "status": 400,
            "headers": [*headers, (b"connection", b"close")],
        }
    )
    await send({"type": "http.response.body", "body": _NO_TARGET, "more_body": False})


def public_context(parts: AppContext) -> AppContext:
    """Return the same parts for public documents, which accept any host name."""
    config = msgspec.structs.replace(parts.config, host_names=[ANY_NAME])
    return msgspec.structs.replace(parts, config=config)


@asynccontextmanager
async def open_web(
    parts: AppContext,
    routes: Iterable[Route],
    endpoints: Iterable[Endpoint],
    listeners: Sequence[ConnectionListener],
    pages: Iterable[UiPage] = (),
    most: int = MAX_BODY,
    doorkeeper: Doorkeeper | None = None,
) -> AsyncIterator[None]:
    """Serve the listeners from these tables of routes; `most` limits the bytes of a body.

    `doorkeeper` may reject a request before its body is read.

    At the end of the block, blocking queries are answered immediately, and other requests have two
    seconds.
    """
    settings = ServerConfig()
    settings.errorlog = logging.getLogger("steward.web.server")
    settings.errorlog.setLevel(logging.WARNING)
    settings.include_server_header = False
    settings.h11_max_incomplete_size = MAX_HEAD
    settings.keep_alive_timeout = KEEP_ALIVE
    settings.ssl_handshake_timeout = HEAD_TIMEOUT
    settings.keep_alive_max_requests = 2**31
    settings.graceful_timeout = CLOSING
    settings.websocket_max_message_size = MAX_FRAME
    closing = trio.Event()
    answering = Dispatcher(parts, routes, endpoints, closing, pages, doorkeeper)
    lean = FastPath(answering, settings) if parts.config.lean_door else None
    talks = WebSockets(parts, answering.router, answering.pages, answering.guard, closing)
    app = wrap_app(_Shielded(AsgiApp(answering, talks, most)), most, "asgi")
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, app, settings, listeners, parts.config, closing, lean)
        try:
            yield
        finally:
            closing.set()
            answering.close()
            parts.store.wake_all()
