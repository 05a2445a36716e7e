"""A small HTTP server with the answers that a test configures, for the command line."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from click.testing import CliRunner, Result

from daemon.cli.core.command_tree import COMMANDS, CommandLine
from daemon.cli.core.http_client import ApiClient, HttpConnection


class Seen(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    connection: int  # the port it came from


class Told(NamedTuple):
    """An answer; `pieces` are sent one after the other, and then the connection is closed.

    With `hang_up`, the connection is closed before the last piece, or before any answer.
    """

    body: bytes = b""
    status: int = 200
    index: int = 7
    pieces: tuple[bytes, ...] = ()
    hang_up: bool = False
    kind: str = "application/json"


def _read(handler: BaseHTTPRequestHandler, body: bytes) -> Any:
    """Return the JSON document of a body, or the list of JSON documents on its lines."""
    if unquote(urlsplit(handler.path).path).endswith("/dispatch/bulk"):
        return [json.loads(line) for line in body.splitlines() if line]
    return json.loads(body)


def _usual(path: str) -> Told:
    """Return the default answer: a running job without deployments."""
    if path.endswith("/deployments"):
        return Told(b"[]")
    if path.startswith("/v1/job/") and path.endswith("/state"):
        return Told(b'{"State": "running", "Reason": ""}')
    if path.startswith("/v1/job/") and path.endswith("/links"):
        links = {"JobID": "web", "Namespace": "default", "When": "success", "Join": "each"}
        return Told(json.dumps({**links, "Sources": [], "Followers": []}).encode())
    if path.endswith("/error"):
        return Told(b'{"Error": null}')
    return Told(b"no such thing", 404)


def _from_offset(told: Told, query: dict[str, str]) -> Told:
    """Return the part of a plain log that a request asks for."""
    offset = int(query.get("offset") or 0)
    if not (offset and query.get("plain") == "true" and query.get("origin") != "end"):
        return told
    return told._replace(pieces=(b"".join(told.pieces)[offset:],))


class FakeDaemon:
    """Answers each path with the configured responses in order; the last one repeats."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._told: dict[tuple[str, str], list[Told]] = {}
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                fake.answer(self)

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def tell(self, path: str, *answers: object, method: str = "GET") -> None:
        """Configure the answers of a path; a value other than `Told` is sent as JSON."""
        self._told[method, path] = [
            answer if isinstance(answer, Told) else Told(json.dumps(answer).encode())
            for answer in answers
        ]

    def asked(self, path: str) -> list[Seen]:
        """Return the requests for a path."""
        return [seen for seen in self.seen if seen.path == path]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        path = unquote(parts.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        self.seen.append(
            Seen(
                handler.command,
                path,
                dict(parse_qsl(parts.query)),
                {name.lower(): value for name, value in handler.headers.items()},
                _read(handler, body) if body else None,
                handler.client_address[1],
            )
        )
        queue = self._told.get((handler.command, path), [_usual(path)])
        told = queue.pop(0) if len(queue) > 1 else queue[0]
        self._send(handler, _from_offset(told, dict(parse_qsl(parts.query))))

    def _send(self, handler: BaseHTTPRequestHandler, told: Told) -> None:
        handler.close_connection = told.hang_up or bool(told.pieces)
        if told.hang_up and not told.body and not told.pieces:
            return
        handler.send_response(told.status)
        handler.send_header("X-Service-Index", str(told.index))
        handler.send_header("Content-Type", told.kind)
        if told.pieces:
            handler.send_header("Connection", "close")
            if told.hang_up:
                handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for piece in told.pieces:
                size = b"%x\r\n" % len(piece) if told.hang_up else b""
                handler.wfile.write(size + piece)
            return
        handler.send_header("Content-Length", str(len(told.body)))
        handler.end_headers()
        handler.wfile.write(told.body)

    def __enter__(self) -> "FakeDaemon":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def fake() -> Iterator[FakeDaemon]:
    with FakeDaemon() as running:
        yield running


@pytest.fixture
def client(fake: FakeDaemon) -> Iterator[ApiClient]:
    with ApiClient(HttpConnection(address=fake.address)) as opened:
        yield opened


class Terminal:
    """A user who types commands, each followed by the fake daemon's address."""

    def __init__(self, fake: FakeDaemon) -> None:
        self._fake = fake

    def type(self, *words: str, stdin: str = "", **environment: str) -> Result:
        variables = {"STEWARD_ADDR": self._fake.address, **environment}
        command_line = CommandLine("steward", COMMANDS, "")
        return CliRunner(env=variables).invoke(command_line, list(words), input=stdin)


@pytest.fixture
def terminal(fake: FakeDaemon) -> Terminal:
    return Terminal(fake)
