"""The fast path and the server behind it: routing of requests, and shared state."""

import os
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
import trio
import trio.testing

from daemon.acl.check import ANYONE
from daemon.config.settings import Settings
from daemon.web import reply
from daemon.web.fast_path import KEEP_ALIVE, Handover
from daemon.web.http_connection import ServerConnection
from daemon.web.late_server import CLOSING
from daemon.web.listeners import listen
from daemon.web.reply import HandlerReply, ListPart
from daemon.web.request import ReadRoute, Request, Route, StreamRoute, WriteRoute
from daemon.web.server import open_web
from storage.errors import Denied, Malformed
from storage.read_pool import ReadSnapshot
from storage.store import Store
from storage.writer import Transaction
from tests.http_clients import trusted
from tests.parts.api.requests import parts_of
from tests.parts.web.test_connections import plain

READ = b"GET /show HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r\r\n\r\n"


def show(request: Request, db: ReadSnapshot) -> HandlerReply:
    return reply.read_reply({"Path": request.path, "Name": request.parameters}, db.last_index())


def deny(request: Request, db: ReadSnapshot) -> HandlerReply:
    raise Denied


def fail(request: Request, db: ReadSnapshot) -> HandlerReply:
    raise ZeroDivisionError("a defect")


def change(tx: Transaction) -> None:
    tx.execute("UPDATE store SET created_at = created_at + 1", {})
    tx.touch("things", "things/a")


async def echo(request: Request) -> HandlerReply:
    return HandlerReply(
        body={"Body": request.body.decode()}, headers={"X-Said": "a\r\nX-Split: \u65e5"}
    )


async def nothing(request: Request) -> HandlerReply:
    return HandlerReply(status=204)


async def stream(request: Request) -> HandlerReply:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"{}"

    return HandlerReply(stream=pieces())


def parts_of_a_list(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Answer with a list in three parts; the last part cannot be read if the query contains
    `breaks`.
    """

    def last(_: ReadSnapshot) -> ListPart:
        if "breaks" in request.query:
            raise Malformed("the filter does not fit")
        return ListPart([b"4"])

    handler_reply = reply.read_reply(None, 7, next_token="then")
    part = ListPart([b"1", b"2"], lambda _: ListPart([], lambda _: ListPart([b"3"], last)))
    return msgspec.structs.replace(handler_reply, part=part)


ROUTES = (
    ReadRoute("/parts", parts_of_a_list, ANYONE),
    ReadRoute("/show", show, ANYONE, ("things/",)),
    ReadRoute("/v1/show/{name}", show, ANYONE),
    ReadRoute("/long", show, ANYONE, long=True),
    ReadRoute("/deny", deny, ANYONE),
    ReadRoute("/fail", fail, ANYONE),
    WriteRoute("POST", "/echo", echo, ANYONE, hot=True),
    WriteRoute("POST", "/nothing", nothing, ANYONE, hot=True),
    WriteRoute("POST", "/cold", echo, ANYONE),
    StreamRoute("/stream", stream, ANYONE),
)


@asynccontextmanager
async def serving(
    store: Store, directory: Path, *, lean: bool = True, routes: tuple[Route, ...] = ROUTES
) -> AsyncIterator[int]:
    """Answer requests on a port, with `lean` over the fast path; yield the port."""
    parts = parts_of(store, Settings(data_dir=directory, lean_door=lean), asks=False)
    with listen("127.0.0.1", 0) as listener:
        async with open_web(parts, routes, (), [plain(listener)]):
            yield listener.getsockname()[1]


@pytest.fixture
async def port(store: Store, tmp_path: Path) -> AsyncIterator[int]:
    async with serving(store, tmp_path) as port:
        yield port


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[Handover]:
    """Return the connections that the fast path passes to Hypercorn."""
    handovers: list[Handover] = []
    take_over = ServerConnection.take_over

    async def noted(connection: ServerConnection, handover: Handover) -> None:
        handovers.append(handover)
        await take_over(connection, handover)

    monkeypatch.setattr(ServerConnection, "take_over", noted)
    return handovers


def asking(line: str, *headers: str, body: str = "") -> bytes:
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{line} HTTP/1.1", "Host: localhost", "X-Request-Id: r", *headers, *length]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


async def answered(stream: trio.SocketStream, number: int = 1) -> bytes:
    """Return this many answers, each with its whole body."""
    data = rest = b""
    while number:
        head, end, body = rest.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if end and (not length or len(body) >= int(length[1])):
            rest, number = body[int(length[1]) if length else 0 :], number - 1
            continue
        piece = await stream.receive_some()
        assert piece, data
        data, rest = data + piece, rest + piece
    return data


async def to_its_end(stream: trio.SocketStream) -> bytes:
    return b"".join([piece async for piece in stream])


HOT = [
    asking("GET /show"),
    asking("GET /show?pretty"),
    asking("GET /v1/show/a%2Fb"),
    asking("GET /show?index=0"),
    asking("GET /show?%69ndex=0"),
    asking("GET /show?index=9&wait=1ms"),
    asking("GET /show?index=x"),
    asking("GET /show?stale=maybe"),
    asking("GET /show?region=elsewhere"),
    asking("GET /show", "Accept-Encoding: gzip"),
    asking("GET /show", "Connection: close"),
    asking("GET /show", body="as good as none"),
    asking("GET /show").replace(b"localhost", b"evil.example"),
    asking("GET /deny"),
    asking("GET /fail"),
    asking("POST /echo", body="abc"),
    asking("PUT /echo", body="abc"),
    asking("POST /echo"),
    asking("POST /echo", "Origin: http://evil.example", body="abc"),
    asking("POST /echo", "Sec-Fetch-Site: cross-site", body="abc"),
    asking("POST /nothing"),
]


@pytest.mark.parametrize("request_", HOT)
async def test_fast_path_and_server_give_the_same_response(
    store: Store, tmp_path: Path, request_: bytes
) -> None:
    answers = []
    for lean in (True, False):
        async with (
            serving(store, tmp_path, lean=lean) as port,
            await trio.open_tcp_stream("127.0.0.1", port) as stream,
        ):
            await stream.send_all(request_)
            answer = await answered(stream)
            answers.append(re.sub(rb"date: [^\r]*", b"date: now", answer))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("request_", HOT)
async def test_frequent_requests_stay_on_the_fast_path(
    port: int, handed: list[Handover], request_: bytes
) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request_)
        await answered(stream)
    assert handed == []


WARM = [
    asking("GET /long"),
    asking("GET /stream"),
    asking("GET /elsewhere"),
    asking("DELETE /show"),
    asking("POST /show"),
    asking("POST /cold", body="abc"),
    asking("POST /echo", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n",
    asking("POST /echo", "Expect: 100-continue", body="abc"),
    asking("GET /show", "Upgrade: websocket", "Connection: Upgrade"),
    asking("GET /show", "Upgrade: h2c"),
    asking("GET http://localhost/show"),
    asking("GET /show").replace(b"1.1", b"1.0"),
    asking("GET /show", f"X: {'x' * 10_000}"),
    asking("POST /echo", body="x" * 100_000),
    asking("GET /show", "X: a", " b"),
    READ + READ,
    b"GET /show HTTP/1.1\r\nHo",
    b"\x16\x03\x01\x00",
]


@pytest.mark.parametrize("request_", WARM)
async def test_other_requests_are_forwarded_with_their_bytes(
    port: int, handed: list[Handover], request_: bytes
) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(READ)
        assert (await answered(stream)).startswith(b"HTTP/1.1 200 ")
        await stream.send_all(request_)
        while not handed:
            await trio.lowlevel.checkpoint()
    assert request_.startswith(handed[0].data)
    assert handed[0].data
    assert handed[0].has_asked


async def test_blocking_query_stays_on_the_fast_path(
    store: Store, port: int, handed: list[Handover]
) -> None:
    index = store.read(lambda db: db.last_index())
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(asking(f"GET /show?index={index}"))
        while not store._topics._prefixes:
            await trio.lowlevel.checkpoint()
        await store.write(change)
        assert f"x-nomad-index: {index + 1}\r\n".encode() in await answered(stream)
        await stream.send_all(READ)
        assert (await answered(stream)).startswith(b"HTTP/1.1 200 ")
    assert handed == []


async def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(
            asking("GET /v1/show/1") + asking("GET /v1/show/2") + asking("GET /v1/show/3")
        )
        answers = await answered(stream, 3)
    assert re.findall(rb'"name":"(\d)"', answers) == [b"1", b"2", b"3"]


async def test_forwarded_connection_stays_with_the_server(
    port: int, handed: list[Handover]
) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        for request in (asking("GET /long"), READ, asking("POST /echo", body="abc")):
            await stream.send_all(request)
            assert (await answered(stream)).startswith(b"HTTP/1.1 200 ")
    assert len(handed) == 1


async def test_body_can_arrive_after_its_head(port: int) -> None:
    """The response is the same with and without the fast path."""
    request = asking("POST /echo", body="abc")
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request[:-3])
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_all(request[-3:-2])
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_all(request[-2:])
        assert b'{"Body":"abc"}' in await answered(stream)


async def test_slow_body_is_forwarded_to_the_server(
    port: int, handed: list[Handover], mock_clock: trio.testing.MockClock
) -> None:
    request = asking("POST /echo", body="abc")
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request[:-2])
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(1)
        while not handed:
            await trio.lowlevel.checkpoint()
        await stream.send_all(request[-2:])
        assert b'{"Body":"abc"}' in await answered(stream)


@pytest.mark.parametrize("begun", [b"", b"GET /sh", asking("GET /long")[:-2]])
async def test_idle_and_slow_connections_have_the_timeouts_of_the_server(
    port: int, mock_clock: trio.testing.MockClock, begun: bytes
) -> None:
    """The idle time counts from the last response, not from the handover to the server."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(READ)
        await answered(stream)
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(KEEP_ALIVE - 1)
        if begun:
            await stream.send_all(begun)
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(2)
        assert await to_its_end(stream) == b""


async def test_each_response_restarts_the_idle_timeout(
    port: int, mock_clock: trio.testing.MockClock
) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        for _ in range(3):
            await stream.send_all(READ)
            await answered(stream)
            await trio.testing.wait_all_tasks_blocked(0.01)
            mock_clock.jump(KEEP_ALIVE - 1)


@pytest.mark.parametrize("has_asked", [True, False])
async def test_idle_connections_end_at_shutdown(
    store: Store, tmp_path: Path, mock_clock: trio.testing.MockClock, has_asked: bool
) -> None:
    """At shutdown, the daemon does not wait for clients that have sent no request."""
    async with serving(store, tmp_path) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        if has_asked:
            await stream.send_all(READ)
            await answered(stream)
        await trio.testing.wait_all_tasks_blocked(0.01)
        if not has_asked:
            mock_clock.jump(CLOSING + 1)
    # The mock clock has not advanced, so the shutdown waited for nothing.
    assert await to_its_end(stream) == b""
    await stream.aclose()


@pytest.mark.parametrize("lean", [True, False])
async def test_requests_that_arrive_during_shutdown_are_answered(
    store: Store, tmp_path: Path, *, lean: bool
) -> None:
    """At its end, the daemon closes no connection on which a request has arrived."""
    each, steps = 5, 20
    async with trio.open_nursery() as nursery:
        async with serving(store, tmp_path, lean=lean) as port:
            streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(each * steps)]
            await trio.testing.wait_all_tasks_blocked(0.01)

            async def send() -> None:
                for first in range(0, len(streams), each):
                    for stream in streams[first : first + each]:
                        os.write(stream.socket.fileno(), READ)
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(send)
        answers = [await to_its_end(stream) for stream in streams]
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200"] * len(streams)
    for stream in streams:
        await stream.aclose()


async def test_request_answered_during_shutdown_is_processed_once(
    store: Store, tmp_path: Path
) -> None:
    begun, goes_on, done = trio.Event(), trio.Event(), list[bytes]()

    async def slow(request: Request) -> HandlerReply:
        begun.set()
        await goes_on.wait()
        done.append(request.body)
        return HandlerReply(status=204)

    async def go_on() -> None:
        await trio.testing.wait_all_tasks_blocked(0.01)
        goes_on.set()

    routes = (WriteRoute("POST", "/slow", slow, ANYONE, hot=True),)
    async with trio.open_nursery() as nursery, serving(store, tmp_path, routes=routes) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(asking("POST /slow", body="once"))
        await begun.wait()
        nursery.start_soon(go_on)
    assert (await to_its_end(stream)).count(b"HTTP/1.1 ") == 1
    assert done == [b"once"]
    await stream.aclose()


async def test_clients_that_disconnect_affect_no_other_client(port: int) -> None:
    linger = struct.pack("ii", 1, 0)  # closing resets the connection
    for begun in (b"", READ[:20], READ, asking("POST /echo", body="abc")[:-1], READ + READ):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if begun:
            await stream.send_all(begun)
        await stream.aclose()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(READ)
        assert (await answered(stream)).startswith(b"HTTP/1.1 200 ")


async def test_header_value_of_a_handler_cannot_add_headers(port: int) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(asking("POST /echo", body="abc"))
        assert "\r\nx-said: a  X-Split: \u65e5\r\n".encode() in await answered(stream)


@pytest.mark.parametrize("lean", [True, False])
async def test_list_in_parts_is_complete_on_both_paths(
    store: Store, tmp_path: Path, *, lean: bool
) -> None:
    async with (
        serving(store, tmp_path, lean=lean) as port,
        httpx.AsyncClient(verify=trusted(), base_url=f"http://127.0.0.1:{port}") as client,
    ):
        for _ in range(2):  # the connection stays open
            answer = await client.get("/parts")
            assert answer.json() == [1, 2, 3, 4]
            assert answer.headers["transfer-encoding"] == "chunked"
            assert (answer.headers["x-nomad-index"], answer.headers["x-nomad-nexttoken"]) == (
                "7",
                "then",
            )


@pytest.mark.parametrize("lean", [True, False])
async def test_aborted_list_is_not_mistaken_for_a_complete_one(
    store: Store, tmp_path: Path, *, lean: bool
) -> None:
    async with (
        serving(store, tmp_path, lean=lean) as port,
        httpx.AsyncClient(verify=trusted(), base_url=f"http://127.0.0.1:{port}") as client,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/parts?breaks")
        assert (await client.get("/parts")).json() == [1, 2, 3, 4]
