"""The servers of the daemon: listeners, a dispatcher, a fast path, and an HTTP server.

There is one task per connection and one per request, cancelled at a disconnect.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec
import trio

from daemon.app.context import AppContext
from daemon.web.connections import ConnectionListener, serve
from daemon.web.dispatcher import Dispatcher, Doorkeeper
from daemon.web.fast_path import FastPath
from daemon.web.late_server import LateHttpServer
from daemon.web.request import Endpoint, Route
from daemon.web.request_guard import ANY_NAME
from daemon.web.ui_session import UiPage

MAX_BODY = 16 * 1024 * 1024  # bytes; the largest job seen in the wild is 2 MiB long


def public_context(parts: AppContext) -> AppContext:
    """Return a copy of `parts` that accepts any host name; public documents are served with it."""
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
    authenticate_wrapper: Doorkeeper | None = None,
) -> AsyncIterator[None]:
    """Serve the listeners from these tables of routes; `most` limits the bytes of a body.

    `authenticate_wrapper` may reject a request before its body is read.

    At the end of the block, blocking queries are answered immediately, and other requests have two
    seconds.
    """
    closing = trio.Event()
    dispatcher = Dispatcher(parts, routes, endpoints, closing, pages, authenticate_wrapper)
    fast_path = FastPath(dispatcher) if parts.config.lean_door else None
    server = LateHttpServer(parts, dispatcher, closing, most)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, server, listeners, parts.config, closing, fast_path)
        try:
            yield
        finally:
            closing.set()
            dispatcher.close()
            parts.store.wake_all()
