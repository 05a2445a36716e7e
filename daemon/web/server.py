"""The listener: one task per connection, one per request, cancelled when the client goes away.

Requests pass from the server straight to what answers them: of the framework they use the
connection, the request and the response, but neither its routing nor its sessions.
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

from daemon.parts import Parts
from daemon.web.answering import Answering, Doorkeeper, Unread
from daemon.web.connections import PEER, Listener, serve
from daemon.web.guard import ANY_NAME
from daemon.web.head import Head, headers
from daemon.web.lean import HEAD_TIMEOUT, Lean
from daemon.web.listeners import Peer
from daemon.web.reply import Finished, text
from daemon.web.request import Endpoint, Route
from daemon.web.socket import MAX_FRAME
from daemon.web.talks import Talks
from daemon.web.visits import Page
from storage import origin

MAX_BODY = 16 * 1024 * 1024  # bytes; the largest job seen in the wild has 2 MiB
MAX_HEAD = 32 * 1024  # bytes of request line and headers
BODY_TIMEOUT = 60  # seconds for a body to arrive
KEEP_ALIVE = 120  # seconds that an idle connection lives after an answer
CLOSING = 2  # seconds that answers under way get when the daemon ends


class Door(QuartTrio):
    """The framework's application: a door for whatever HTTP and WebSockets can be."""

    def __init__(self, answering: Answering, talks: Talks, most: int = MAX_BODY) -> None:
        """`most` is how many bytes a body may have."""
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
                raise Unread(text(f"the body is larger than {self._most} bytes", 413)) from None
            except HTTPException as error:  # one that came too late, and the like
                reply = text(error.description or error.name, error.code or 400)
                raise Unread(reply) from None

        answer = await self._answering.answer(_head(request.scope, request.method), body)
        return _response(answer)

    async def talk(
        self, scope: WebsocketScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Let a WebSocket through to its route, unless something speaks against it."""
        head = _head(scope, "GET")
        with origin.serving(self._answering.id_of(head.headers)):
            await self._talks.answer(head, self._answering.address(head), receive, send)


def _head(scope: HTTPScope | WebsocketScope, method: str) -> Head:
    client = scope["client"]
    return Head(
        method=method,
        target=scope["raw_path"],
        query=scope["query_string"].decode("latin-1"),
        headers=headers(scope["headers"]),
        client=client[0] if client else "",
        peer=cast("dict[str, Peer | None]", scope).get(PEER),
        is_secure=scope["scheme"] in ("https", "wss"),
    )


def _response(answer: Finished) -> Response:
    response = Response(answer.stream or answer.body, answer.status, answer.headers)
    if answer.stream is not None:
        response.timeout = None  # it ends when the client goes away
    elif "Content-Type" not in answer.headers:
        del response.headers["Content-Type"]  # the framework has one for everything
    return response


class _Shielded:
    """The application as the server sees it, ending its answers without being interrupted.

    After `Connection: close` the server closes the socket from inside the application's last
    `send`. The framework cancels itself at that moment, and the socket would stay open for ever.
    """

    def __init__(self, app: Door) -> None:
        self._app = app

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] == "websocket":
            await self._app.talk(scope, receive, send)
            return

        async def shielded(message: ASGISendEvent) -> None:
            if message.get("more_body", True):  # a head says nothing of it
                await send(message)
                return
            with trio.CancelScope(shield=True):
                await send(message)

        await self._app(scope, receive, shielded)


def in_public(parts: Parts) -> Parts:
    """Return the same parts for what anybody may read, under whatever name they call us."""
    config = msgspec.structs.replace(parts.config, host_names=[ANY_NAME])
    return msgspec.structs.replace(parts, config=config)


@asynccontextmanager
async def open_web(
    parts: Parts,
    routes: Iterable[Route],
    endpoints: Iterable[Endpoint],
    listeners: Sequence[Listener],
    pages: Iterable[Page] = (),
    most: int = MAX_BODY,
    doorkeeper: Doorkeeper | None = None,
) -> AsyncIterator[None]:
    """Answer what comes in at the listeners from these tables; a body has at most so many bytes.

    `doorkeeper` may refuse a request before its body is read.

    When the block ends, waiting readers get their answer at once and other answers two seconds.
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
    answering = Answering(parts, routes, endpoints, closing, pages, doorkeeper)
    lean = Lean(answering, settings) if parts.config.lean_door else None
    talks = Talks(parts, answering.router, answering.pages, answering.guard, closing)
    app = wrap_app(_Shielded(Door(answering, talks, most)), most, "asgi")
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, app, settings, listeners, parts.config, closing, lean)
        try:
            yield
        finally:
            closing.set()
            answering.close()
            parts.store.wake_all()
