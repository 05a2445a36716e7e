"""Connections of both servers: they close correctly, and end their requests."""

import json
import os
import re
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypercorn.config import Config as ServerConfig
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from daemon.acl.check import ANYONE
from daemon.config.settings import Settings
from daemon.web import http_connection, reply, stream_limit
from daemon.web.connections import ConnectionListener
from daemon.web.listeners import listen
from daemon.web.reason import reason
from daemon.web.reply import HandlerReply
from daemon.web.request import ReadRoute, Request, StreamRoute, WebSocketRoute, WriteRoute
from daemon.web.send import STALLED
from daemon.web.server import MAX_BODY, open_web
from daemon.web.websocket import MAX_FRAME, WebSocketChannel
from storage.read_pool import ReadSnapshot
from storage.store import Store
from tests.fuzz import frames
from tests.parts.api.requests import parts_of

LONG = [b"%08d" % number * 100_000 for number in range(20)]  # 16 MB


async def long(request: Request) -> HandlerReply:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in LONG:
            yield piece

    return HandlerReply(stream=pieces())


async def talk(request: Request, socket: WebSocketChannel) -> None:
    while said := await socket.receive():
        await socket.send(b"%d" % len(said))


class Server:
    """A listening daemon with a few routes, and its recorded events."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.entered = trio.Event()
        self.cancelled = trio.Event()

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def talk(self, text: str) -> bytes:
        """Send a request and return everything up to the end of the connection."""
        async with await self.connect() as stream:
            await stream.send_all(text.encode())
            answer = b""
            with trio.fail_after(5):
                while piece := await stream.receive_some():
                    answer += piece
            assert unreasoned(answer) == []
            return answer


def unreasoned(answer: bytes) -> list[bytes]:
    """Return the status lines that lack the reason phrase of their status."""
    return [
        line
        for line, status, phrase in re.findall(rb"(HTTP/1.1 (\d{3}) ?([^\r]*))\r\n", answer)
        if phrase.decode() != reason(int(status))
    ]


MUCH = 64 * 1024 * 1024  # bytes, more than any kernel keeps for a connection
JUMP = 0.05  # seconds without activity before the clock advances
WISH = (
    "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


class EndOfAnswer(Exception):
    """An answer ended before it was complete."""


@asynccontextmanager
async def serving_much(
    store: Store, directory: Path, lean: bool
) -> AsyncIterator[trio.SocketStream]:
    """Yield a connection with a long answer that the client does not read.

    `lean` selects the fast path.
    """
    asked = trio.Event()

    def much(request: Request, db: ReadSnapshot) -> HandlerReply:
        asked.set()
        return HandlerReply(body=bytes(MUCH))

    with listen("127.0.0.1", 0) as listener:
        parts = parts_of(store, Settings(data_dir=directory, lean_door=lean), asks=False)
        routes = [ReadRoute("/much", much, ANYONE, ("things/",))]
        async with open_web(parts, routes, (), [plain(listener)]):
            stream = await trio.open_tcp_stream("127.0.0.1", listener.getsockname()[1])
            await stream.send_all(asking("GET", "/much").encode())
            await asked.wait()
            yield stream


async def read_all(stream: trio.SocketStream) -> None:
    """Read the long answer to its end. Raises `EndOfAnswer` if the answer is incomplete."""
    left = MUCH
    while left > 0:
        piece = await stream.receive_some()
        if not piece:
            raise EndOfAnswer
        left -= len(piece)


def plain(listener: socket.socket) -> ConnectionListener:
    return ConnectionListener(listener)


@pytest.fixture(params=[True, False], ids=["lean", "wide"])
async def server(
    store: Store, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Server]:
    with listen("127.0.0.1", 0) as listener:
        server = Server(listener.getsockname()[1])

        def show(request: Request, db: ReadSnapshot) -> HandlerReply:
            return reply.read_reply({"Path": request.path}, db.last_index())

        def where(request: Request, db: ReadSnapshot) -> HandlerReply:
            return reply.read_reply({"Namespace": request.namespace}, db.last_index())

        async def hang(request: Request) -> HandlerReply:
            server.entered.set()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                server.cancelled.set()
                raise

        async def fail(request: Request) -> HandlerReply:
            raise ZeroDivisionError("a defect")

        async def echo(request: Request) -> HandlerReply:
            return HandlerReply(body={"Length": len(request.body)})

        async def pieces() -> AsyncIterator[bytes]:
            await trio.sleep_forever()
            yield b""

        async def stream(request: Request) -> HandlerReply:
            return HandlerReply(stream=pieces())

        routes = (
            ReadRoute("/show", show, ANYONE, ("things/",)),
            ReadRoute("/where", where, ANYONE),
            ReadRoute("/v1/show/{name}", show, ANYONE),
            ReadRoute("/ui/", show, ANYONE),
            ReadRoute("/any", show, ANYONE, any_method=True),
            WriteRoute("POST", "/hang", hang, ANYONE, hot=True),
            WriteRoute("POST", "/fail", fail, ANYONE, hot=True),
            WriteRoute("POST", "/echo", echo, ANYONE, hot=True),
            StreamRoute("/stream", stream, ANYONE),
            StreamRoute("/long", long, ANYONE),
            WebSocketRoute("/talk", talk, ANYONE),
        )
        config = Settings(data_dir=tmp_path, lean_door=request.param)
        parts = parts_of(store, config, asks=False)
        async with open_web(parts, routes, (), [plain(listener)]):
            yield server


@pytest.mark.parametrize(
    "request_text",
    [
        "GET /show HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "GET /show HTTP/1.0\r\nHost: localhost\r\n\r\n",
        "GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
async def test_connection_closes_on_request_of_the_client(
    server: Server, request_text: str
) -> None:
    assert (await server.talk(request_text)).startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("more", ["\r\n", "}", "GET /show HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_bytes_after_the_last_request_are_ignored(server: Server, more: str) -> None:
    answer = await server.talk(asking("POST", "/echo", "{}") + more)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert body_of(answer) == b'{"Length":2}'


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/where?namespace=blå", '{"Namespace":"blå"}'),
        ("/where?namespace=bl%C3%A5", '{"Namespace":"blå"}'),
        ("/v1/show/blå", '{"Path":"/v1/show/blå"}'),
    ],
)
async def test_target_that_is_not_ascii_is_read_as_utf_8(
    server: Server, target: str, body: str
) -> None:
    answer = await server.talk(asking("GET", target))
    assert body_of(answer) == body.encode(), answer


async def test_http_1_0_client_without_a_host_header_is_served(server: Server) -> None:
    assert (await server.talk("GET /show HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_empty_host_header_is_no_host(server: Server) -> None:
    assert (await server.talk(asking("GET", "/show", Host=""))).startswith(b"HTTP/1.1 421 ")


async def test_connection_made_during_shutdown_is_answered(
    store: Store, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    def show(request: Request, db: ReadSnapshot) -> HandlerReply:
        return reply.read_reply({}, db.last_index())

    leave, parts = trio.Event(), parts_of(store, Settings(data_dir=tmp_path), asks=False)

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        with listen("127.0.0.1", 0) as listener:
            routes = (ReadRoute("/show", show, ANYONE),)
            async with open_web(parts, routes, (), [plain(listener)]):
                task_status.started(listener.getsockname()[1])
                await leave.wait()

    async with trio.open_nursery() as nursery:
        port = await nursery.start(serve)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await trio.testing.wait_all_tasks_blocked(0.01)  # until the connection is accepted
            leave.set()
            await trio.testing.wait_all_tasks_blocked(0.01)
            await stream.send_all(asking("GET", "/show").encode())
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_connection_serves_consecutive_requests(server: Server) -> None:
    async with await server.connect() as stream:
        for _ in range(3):
            await stream.send_all(b"GET /show HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            with trio.fail_after(5):
                while b'{"Path":"/show"}' not in answer:
                    answer += await stream.receive_some()


@pytest.mark.parametrize("target", ["GET /show", "HEAD /show", "GET /nothing", "DELETE /show"])
async def test_response_is_sent_in_one_segment(
    server: Server, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    sent: list[bytes] = []
    send_all, write = trio.SocketStream.send_all, os.write

    async def noted(stream: trio.SocketStream, data: bytes) -> None:
        sent.append(data)
        await send_all(stream, data)

    def written(descriptor: int, data: bytes) -> int:
        sent.append(data)
        return write(descriptor, data)

    monkeypatch.setattr(trio.SocketStream, "send_all", noted)
    monkeypatch.setattr(os, "write", written)
    answer = await server.talk(f"{target} HTTP/1.0\r\n\r\n")
    assert sent[1:] == [answer]  # the first is the request


async def test_slow_reader_gets_all_events_in_order(server: Server) -> None:
    """The response exceeds the kernel's buffer, so the client gets it in several parts."""
    async with await server.connect() as stream:
        await stream.send_all(b"GET /long HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = await stream.receive_some(1)
        await trio.testing.wait_all_tasks_blocked()
        while piece := await stream.receive_some():
            answer += piece
    assert answer.partition(b"\r\n\r\n")[2] == b"".join(LONG)


@pytest.mark.parametrize("target", ["/stream", "/show?index=1000000"])
async def test_streams_leave_connections_to_other_clients(
    server: Server, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(stream_limit, "MOST", 2)
    async with await server.connect() as first, await server.connect() as second:
        for stream in (first, second):
            await stream.send_all(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        await trio.testing.wait_all_tasks_blocked()
        refused = await server.talk(f"GET {target} HTTP/1.0\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 429 ")
        assert b"the limit of 2 open streams" in refused
        assert (await server.talk("GET /show HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await first.aclose()
        async with await server.connect() as third:
            answer = b""
            while not answer.startswith(b"HTTP/1.1 200 "):
                await third.send_all(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = await third.receive_some()


async def test_stream_head_is_sent_before_its_first_chunk(server: Server) -> None:
    async with await server.connect() as stream:
        await stream.send_all(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with trio.fail_after(5):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("target", ["DELETE /show", "POST /echo?region=elsewhere", "POST /nothing"])
async def test_error_response_keeps_the_connection_open(server: Server, target: str) -> None:
    async with await server.connect() as stream:
        answers = b""
        for number in range(1, 4):
            head = f"{target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"
            await stream.send_all(head.encode())
            await trio.testing.wait_all_tasks_blocked()  # the body comes later than the head
            await stream.send_all(b"body")
            with trio.fail_after(5):
                while answers.count(b"HTTP/1.1 ") < number:
                    answers += await stream.receive_some()


async def test_disconnect_cancels_the_request(server: Server) -> None:
    stream = await server.connect()
    await stream.send_all(b"POST /hang HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
    await server.entered.wait()
    await stream.aclose()
    with trio.fail_after(5):
        await server.cancelled.wait()


async def test_idle_connection_ends_with_its_client(server: Server) -> None:
    before = len(os.listdir("/proc/self/fd"))
    stream = await server.connect()
    await stream.send_all(b"GET /show HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await stream.receive_some()
    await stream.aclose()
    with trio.fail_after(5):
        while len(os.listdir("/proc/self/fd")) > before:
            await trio.lowlevel.checkpoint()


async def test_disconnect_ends_a_blocking_query(server: Server, store: Store) -> None:
    stream = await server.connect()
    await stream.send_all(b"GET /show?index=99 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    while not store._topics._prefixes:
        await trio.lowlevel.checkpoint()
    await stream.aclose()
    with trio.fail_after(5):
        while store._topics._prefixes:
            await trio.lowlevel.checkpoint()


def head_of(answer: bytes) -> str:
    return answer.partition(b"\r\n\r\n")[0].decode().lower()


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def asking(method: str, path: str, body: str = "", **headers: str) -> str:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Connection: close",
        f"Content-Length: {len(body)}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    if "Host" not in headers:
        lines.append("Host: localhost")
    return "\r\n".join(lines) + "\r\n\r\n" + body


@pytest.mark.parametrize(
    ("target", "headers", "namespace"),
    [
        ("/where", {}, "default"),
        ("/where", {"X_Service_Namespace": "a"}, "a"),
        ("/where", {"X_Nomad_Namespace": "a"}, "a"),
        ("/where?namespace=", {"X_Service_Namespace": "a"}, "a"),
        ("/where?namespace=b", {"X_Service_Namespace": "a"}, "b"),
    ],
)
async def test_namespace_is_read_from_the_query_or_a_header(
    server: Server, target: str, headers: dict[str, str], namespace: str
) -> None:
    answer = await server.talk(asking("GET", target, **headers))
    assert json.loads(body_of(answer)) == {"Namespace": namespace}


async def test_a_defect_is_a_plain_500_without_its_traceback(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await server.talk(asking("POST", "/fail"))
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"ZeroDivisionError" not in answer
    assert "a defect" in caplog.text


async def test_unknown_host_header_is_rejected(server: Server) -> None:
    answer = await server.talk(asking("GET", "/show", Host="evil.example"))
    assert answer.startswith(b"HTTP/1.1 421 ")


async def test_cross_origin_write_is_rejected(server: Server) -> None:
    answer = await server.talk(asking("POST", "/echo", Origin="http://evil.example"))
    assert answer.startswith(b"HTTP/1.1 403 ")


async def test_oversized_body_is_refused(server: Server) -> None:
    too_long = f"POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n"
    assert (await server.talk(too_long)).startswith(b"HTTP/1.1 413 ")


async def test_oversized_headers_are_refused(server: Server) -> None:
    answer = await server.talk(asking("GET", "/show", X_Long="x" * 70_000))
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))


@pytest.mark.parametrize(
    "request_text",
    [
        "\x00\x01\x02\r\n\r\n",
        "GET\r\n\r\n",
        "POST /echo HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ],
)
async def test_input_that_is_not_http_is_refused_and_closed(
    server: Server, request_text: str
) -> None:
    answer = await server.talk(request_text)
    assert not answer or answer.startswith(b"HTTP/1.1 4")


async def test_both_spellings_of_the_state_headers_are_sent(server: Server) -> None:
    head = head_of(await server.talk(asking("GET", "/show")))
    for vendor in ("service", "nomad"):
        assert f"x-{vendor}-index: 1" in head
        assert f"x-{vendor}-knownleader: true" in head
        assert f"x-{vendor}-lastcontact: 0" in head


async def test_pretty_is_indented_and_ends_with_a_newline(server: Server) -> None:
    body = body_of(await server.talk(asking("GET", "/show?pretty")))
    assert body == b'{\n    "Path": "/show"\n}\n'


async def test_gzip_is_sent_on_request(server: Server) -> None:
    answer = await server.talk(asking("GET", "/show", Accept_Encoding="gzip"))
    assert "content-encoding: gzip" in head_of(answer)
    assert body_of(answer).startswith(b"\x1f\x8b")


async def test_empty_response_is_not_compressed(server: Server) -> None:
    answer = await server.talk(asking("GET", "/nothing", Accept_Encoding="gzip"))
    assert "content-encoding" not in head_of(answer)
    assert body_of(answer) == b""


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("index=x", "Invalid index"),
        ("index=-1", "Invalid index"),
        ("wait=5", "Invalid wait time"),
        ("stale=maybe", "Expect `true` or `false` for `stale` query string parameter"),
        ("per_page=x", "Expect a number for `per_page` query string parameter"),
        ("per_page=99999999999", "Expect a number for `per_page` query string parameter"),
    ],
)
async def test_invalid_parameter_is_named(server: Server, query: str, text: str) -> None:
    answer = await server.talk(asking("GET", f"/show?{query}"))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert body_of(answer).decode() == text


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/", "/ui/"),
        ("/ui", "/ui/"),
        ("//show", "/show"),
        ("/a//b/../show?x=1", "/a/show?x=1"),
        ("//a%00b%0d%0aX:%20y", "/a%00b%0d%0ax:%20y"),
        ("//%C3%A9%20b", "/%c3%a9%20b"),
    ],
)
async def test_path_with_a_known_target_is_redirected(
    server: Server, path: str, target: str
) -> None:
    answer = await server.talk(asking("GET", path))
    assert answer.startswith(b"HTTP/1.1 307 ")
    assert f"location: {target}".encode() in answer.lower().split(b"\r\n")


async def test_an_unknown_path_has_no_body(server: Server) -> None:
    answer = await server.talk(asking("GET", "/nothing"))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert "content-type" not in head_of(answer)
    assert body_of(answer) == b""


async def test_wrong_method_is_rejected_with_allowed_methods(server: Server) -> None:
    answer = await server.talk(asking("DELETE", "/show"))
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert body_of(answer) == b"Invalid method"


async def test_a_tunnel_is_refused_on_a_route_of_any_method(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await server.talk(asking("PATCH", "/any"))).startswith(b"HTTP/1.1 200 ")
    answer = await server.talk(asking("CONNECT", "/any"))
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert body_of(answer) == b"Invalid method"
    assert not caplog.records


async def test_put_is_equal_to_post(server: Server) -> None:
    answer = await server.talk(asking("PUT", "/echo", "abc"))
    assert json.loads(body_of(answer)) == {"Length": 3}


async def test_upgrade_to_another_protocol_is_ignored(server: Server) -> None:
    upgrade = {"Upgrade": "h2c", "HTTP2_Settings": "AAMAAABkAAQAAP__"}
    request = asking("GET", "/show", **upgrade).replace(
        "n: close", "n: Upgrade, HTTP2-Settings, close"
    )
    answer = await server.talk(request.replace("Content-Length: 0\r\n", ""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert body_of(answer) == b'{"Path":"/show"}'


async def test_another_version_of_the_protocol_is_refused(server: Server) -> None:
    answer = await server.talk("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
    assert answer.startswith(b"HTTP/1.1 505 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("query", ["index", "per_page", "wait"])
async def test_a_number_of_thousands_of_digits_is_refused(server: Server, query: str) -> None:
    answer = await server.talk(asking("GET", f"/show?{query}={'9' * 5000}"))
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "head",
    [
        "GET /show HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
        "GET /show HTTP/1.1\r\nHost: localhost\r\nX: a\r\n\tb\r\n\r\n",
        "GET /show HTTP/1.1\nHost: localhost\n\n",
        "GET /show HTTP/1.1\r\nHost: localhost\nX: a\r\n\r\n",
        "GET /show HTTP/1.1\r\nHost: localhost\r\n\nX: a\r\n\r\n",
        "\nGET /show HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
@pytest.mark.parametrize("is_second", [False, True])
async def test_head_with_folded_or_bare_lines_is_refused(
    server: Server, head: str, is_second: bool
) -> None:
    first = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n\n "
    answer = await server.talk(first * is_second + head)
    assert re.findall(rb"HTTP/1\.1 (\d{3}) ", answer) == [*([b"200"] * is_second), b"400"]


@pytest.mark.parametrize("target", ["?", "?x=1", "?/show"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_target_without_a_path_is_refused(
    server: Server, caplog: pytest.LogCaptureFixture, method: str, target: str
) -> None:
    answer = await server.talk(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    ("target", "path"),
    [("http://localhost/show?x=1", "/show"), ("HTTPS://localhost:80/show", "/show")],
)
async def test_target_in_absolute_form_is_served(server: Server, target: str, path: str) -> None:
    answer = await server.talk(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert json.loads(body_of(answer)) == {"Path": path}


async def test_host_of_an_absolute_target_overrides_the_header(server: Server) -> None:
    line = "GET http://elsewhere.example/show HTTP/1.1\r\nHost: localhost\r\nConnection: close"
    assert (await server.talk(f"{line}\r\n\r\n")).startswith(b"HTTP/1.1 421 ")


async def test_first_of_repeated_headers_is_used(server: Server) -> None:
    namespaces = "X-Nomad-Namespace: first\r\nX-Nomad-Namespace: second\r\n"
    answer = await server.talk(
        f"GET /where HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{namespaces}\r\n"
    )
    assert json.loads(body_of(answer)) == {"Namespace": "first"}


SMUGGLED = "0\r\n\r\nGET /show HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "framing",
    [
        f"Content-Length: {len(SMUGGLED)}\r\nTransfer-Encoding: chunked\r\n",
        f"Transfer-Encoding: chunked\r\nContent-Length: {len(SMUGGLED)}\r\n",
        f"Content-Length: 5\r\nContent-Length: {len(SMUGGLED)}\r\n",
        f"Content-Length: {len(SMUGGLED)}, 5\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        f"Content-Length: +{len(SMUGGLED)}\r\n",
        f"X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: {len(SMUGGLED)}\r\nHost: b\r\n",
    ],
)
async def test_request_with_ambiguous_length_cannot_smuggle_another(
    server: Server, framing: str
) -> None:
    head = f"POST /echo HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n"
    answer = await server.talk(f"{head}{SMUGGLED}")
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 "))
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("method", ["get", "Get", "FOO"])
@pytest.mark.parametrize("upgrade", ["close", "close, Upgrade\r\nUpgrade: websocket"])
async def test_unknown_method_is_rejected_and_methods_are_case_sensitive(
    server: Server, method: str, upgrade: str
) -> None:
    head = f"{method} /show HTTP/1.1\r\nHost: localhost\r\nConnection: {upgrade}\r\n\r\n"
    answer = await server.talk(head)
    assert answer.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("GET /show HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "200 OK"),
        (
            "GET /show HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n",
            "421 Misdirected Request",
        ),
        ("GET /nothing HTTP/1.0\r\nHost: localhost\r\n\r\n", "404 Not Found"),
        ("GET /show?index=x HTTP/1.0\r\nHost: localhost\r\n\r\n", "400 Bad Request"),
        ("POST /fail HTTP/1.0\r\nHost: localhost\r\n\r\n", "500 Internal Server Error"),
        ("PUT /show HTTP/1.0\r\nHost: localhost\r\n\r\n", "405 Method Not Allowed"),
        ("GET / HTTP/1.0\r\nHost: localhost\r\n\r\n", "307 Temporary Redirect"),
        ("nonsense\r\n\r\n", "400 Bad Request"),
        ("GET /show HTTP/2.0\r\nHost: localhost\r\n\r\n", "505 HTTP Version Not Supported"),
        (
            f"POST /echo HTTP/1.0\r\nHost: localhost\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n",
            "413 Request Entity Too Large",
        ),
        (
            "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            "Connection: close\r\nContent-Length: 1\r\n\r\nx",
            "100 Continue",
        ),
        (WISH.format(path="/talk") + "x", "400 Bad Request"),
    ],
)
async def test_response_has_the_reason_phrase_of_its_status(
    server: Server, text: str, first: str
) -> None:
    answer = await server.talk(text)
    assert answer.decode().startswith(f"HTTP/1.1 {first}\r\n")


async def test_accepted_upgrade_has_the_reason_phrase_of_its_status(server: Server) -> None:
    async with await server.connect() as stream:
        await stream.send_all(WISH.format(path="/talk").encode())
        answer = await stream.receive_some()
    assert answer.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")


# ---- WebSockets ---------------------------------------------------------------------------------

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


@pytest.mark.parametrize(
    "extensions",
    [
        "permessage-deflate",
        "permessage-deflate; client_max_window_bits=x",
        "permessage-deflate; server_max_window_bits=99999999999999999999",
        "permessage-deflate; client_max_window_bits=, permessage-deflate",
        "=;,",
    ],
)
async def test_websocket_extensions_are_never_accepted(server: Server, extensions: str) -> None:
    wish = asking("GET", "/talk", **UPGRADE, **{"Sec-WebSocket-Extensions": extensions})
    async with await server.connect() as stream:
        await stream.send_all(wish.replace("Connection: close\r\n", "").encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += await stream.receive_some()
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"extensions" not in answer.lower()
        packed = frames.frame(frames.TEXT, zlib.compress(b"x" * 1000), reserved=4)
        await stream.send_all(packed)
        while piece := await stream.receive_some():
            answer += piece
    assert b"1000" not in answer.partition(b"\r\n\r\n")[2]
    assert (await server.talk(asking("GET", "/show"))).startswith(b"HTTP/1.1 200 ")


async def test_messages_after_an_oversized_message_are_ignored(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    wish = asking("GET", "/talk", **UPGRADE).replace("Connection: close\r\n", "")
    async with await server.connect() as stream:
        await stream.send_all(wish.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += await stream.receive_some()
        large = frames.frame(frames.TEXT, b"x" * (MAX_FRAME + 1))
        await stream.send_all(large + frames.frame(frames.BINARY, b"y"))
        await stream.send_eof()
        answer = answer.partition(b"\r\n\r\n")[2]
        while piece := await stream.receive_some():
            answer += piece
    assert frames.codes(answer) == [1009]
    assert "failed" not in caplog.text


@pytest.mark.parametrize("name", sorted({*UPGRADE} - {"Connection", "Upgrade"}))
async def test_incomplete_websocket_request_is_refused_and_closed(
    server: Server, name: str
) -> None:
    given = {key: value for key, value in UPGRADE.items() if key != name}
    wish = asking("GET", "/talk", **given).replace("Connection: close\r\n", "")
    assert (await server.talk(wish)).startswith(b"HTTP/1.1 400 ")


async def test_data_sent_before_the_handshake_is_refused(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/talk", "/nothing"):
        wish = WISH.format(path=path) + "x"
        for _ in range(10):  # the result could depend on timing
            assert b"HTTP/1.1 101" not in await server.talk(wish)
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("name", ["Connection", "Sec-WebSocket-Protocol"])
async def test_non_ascii_handshake_is_refused(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    wish = WISH.format(path="/talk")[:-2] + f"{name}: Upgrade, \u00ff\r\n\r\n"
    async with await server.connect() as stream:
        await stream.send_all(wish.encode("latin-1"))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 400 ")
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("is_endless", [True, False])
async def test_endless_stream_gets_its_last_chunk_at_shutdown(
    store: Store, tmp_path: Path, mock_clock: trio.testing.MockClock, is_endless: bool
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        await trio.sleep_forever()

    async def stream(request: Request) -> HandlerReply:
        return HandlerReply(stream=pieces(), is_endless=is_endless)

    with listen("127.0.0.1", 0) as listener:
        parts = parts_of(store, Settings(data_dir=tmp_path), asks=False)
        async with open_web(parts, [StreamRoute("/s", stream, ANYONE)], (), [plain(listener)]):
            client = await trio.open_tcp_stream("127.0.0.1", listener.getsockname()[1])
            await client.send_all(b"GET /s HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b"first" not in answer:
                answer += await client.receive_some()
            mock_clock.autojump_threshold = JUMP
        async with client:
            while piece := await client.receive_some():
                answer += piece
    # An aborted snapshot must not look complete.
    assert answer.endswith(b"0\r\n\r\n") is is_endless


@pytest.mark.parametrize("lean", [True, False])
async def test_client_that_reads_nothing_does_not_delay_the_shutdown(
    store: Store, tmp_path: Path, mock_clock: trio.testing.MockClock, lean: bool
) -> None:
    async with serving_much(store, tmp_path, lean) as stream:
        mock_clock.autojump_threshold = JUMP
        began = trio.current_time()
    assert trio.current_time() - began < STALLED / 2
    async with stream:
        with pytest.raises((trio.BrokenResourceError, EndOfAnswer)):
            await read_all(stream)


@pytest.mark.parametrize("lean", [True, False])
async def test_client_that_does_not_read_is_disconnected(
    store: Store, tmp_path: Path, mock_clock: trio.testing.MockClock, lean: bool
) -> None:
    async with serving_much(store, tmp_path, lean) as stream:
        mock_clock.autojump_threshold = JUMP
        await trio.sleep(STALLED + 1)
        async with stream:
            with pytest.raises((trio.BrokenResourceError, EndOfAnswer)):
                await read_all(stream)


async def test_failed_connection_affects_no_other(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a defect of the library")

    async with await server.connect() as other:
        with monkeypatch.context() as broken:
            broken.setattr(H11Protocol, "_create_stream", fail)
            assert await server.talk(asking("GET", "/stream")) == b""  # Hypercorn answers it
        await other.send_all(asking("GET", "/show").encode())
        assert (await other.receive_some()).startswith(b"HTTP/1.1 200 ")
    assert "a connection failed" in caplog.text


@pytest.mark.parametrize(
    "error", [trio.BusyResourceError, trio.BrokenResourceError, trio.ClosedResourceError]
)
async def test_answer_to_a_connection_that_closes_is_no_error(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[Exception],
) -> None:
    async def busy(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(http_connection, "send_now", lambda _, data: data)
        patched.setattr(http_connection, "send_with_timeout", busy)
        async with await server.connect() as stream:
            await stream.send_all(b"POST /echo HTTP/1.1\r\nContent-Length: x\r\n\r\n")
            with trio.fail_after(5):
                assert await stream.receive_some() == b""
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@asynccontextmanager
async def one_connection() -> AsyncIterator[tuple[Any, socket.socket]]:
    """Yield a connection whose application answers no request, and the socket of its client."""

    async def app(*_: object) -> None:
        """Answer no request."""

    near, far = socket.socketpair()
    with far:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(near))
        async with stream:
            settings = ServerConfig()
            context, state = WorkerContext(None), ConnectionState({})
            yield http_connection.ServerConnection(app, settings, context, state, stream), far


async def test_bytes_do_not_overtake_those_of_a_waiting_send() -> None:
    async with one_connection() as (connection, far), trio.open_nursery() as nursery:
        first = b"a" * 1024 * 1024
        nursery.start_soon(connection._send, first)
        await trio.testing.wait_all_tasks_blocked()
        # Then the buffer has space, and the first task has not run yet.
        received = far.recv(len(first))
        nursery.start_soon(connection._send, b"b")
        while len(received) <= len(first):
            await trio.lowlevel.wait_readable(far)
            received += far.recv(len(first))
    assert received == first + b"b"


async def test_bytes_that_fit_the_buffer_are_sent_without_a_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object) -> None:
        pytest.fail("the send uses the slow way")

    monkeypatch.setattr(http_connection, "send_with_timeout", refuse)
    async with one_connection() as (connection, far):
        await connection._send(b"a")
        assert far.recv(10) == b"a"


async def test_listener_has_no_options_by_default() -> None:
    near, far = socket.socketpair()
    with listen("127.0.0.1", 0) as listener, far:
        async with trio.SocketStream(trio.socket.from_stdlib_socket(near)) as stream:
            assert plain(listener).peer(stream) is None
            peer = ConnectionListener(listener, knows_peers=True).peer(stream)
            assert peer is not None
            assert peer.uid == os.getuid()
        assert plain(listener).has_hosts is False
        assert ConnectionListener(listener, has_hosts=True).has_hosts is True
        assert plain(listener).is_encrypted is False
