"""The objects of ended requests and connections are freed without the cyclic garbage collector.

A collection among the objects of a thousand ended connections would block the event loop for tens
of milliseconds.
"""

import gc
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.acl.check import KNOWN
from daemon.web.reply import HandlerReply
from daemon.web.request import ReadRoute, Request, StreamRoute
from storage.read_pool import ReadSnapshot
from storage.store import Store
from tests.parts.web.test_admission import left
from tests.parts.web.test_turns import serving

__all__ = ["left"]
MANY = 20


def shown(request: Request, db: ReadSnapshot) -> HandlerReply:
    return HandlerReply(body={}, index=1)


async def endless(request: Request) -> HandlerReply:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"begin"
        await trio.sleep_forever()

    return HandlerReply(stream=chunks(), is_endless=True)


ROUTES = (
    ReadRoute("/shown", shown, KNOWN, watch=("shown/",)),
    StreamRoute("/endless", endless, KNOWN),
)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/shown", id="fast path"),
        pytest.param("/shown?index=1", id="waiting"),
        pytest.param("/missing", id="HTTP server"),
        pytest.param("/endless", id="stream"),
        pytest.param("/bad\nheader", id="malformed"),
    ],
)
async def test_ended_connections_leave_no_cyclic_garbage(
    store: Store, tmp_path: Path, left: Callable[[int], trio.Event], path: str
) -> None:
    async with serving(store, tmp_path, *ROUTES) as port:

        async def connect_and_leave() -> None:
            ended = left(1)
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                if "?" not in path:
                    await trio.lowlevel.wait_readable(connection)
                await trio.testing.wait_all_tasks_blocked()
            await ended.wait()

        await connect_and_leave()  # modules are imported
        gc.collect()
        gc.disable()
        try:
            for _ in range(MANY):
                await connect_and_leave()
            assert gc.collect() < MANY
        finally:
            gc.enable()
