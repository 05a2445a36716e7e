"""Commands whose daemon answers with JSON of an unexpected shape: an error, never a success."""

import ast
import json
import shlex
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from daemon.__main__ import command_line
from daemon.cli.core.http_client import (
    ApiClient,
    ClientResponse,
    DaemonUnreachable,
    HttpConnection,
    check_document,
)
from daemon.text.option_syntax import normalize_options, short_option
from storage.records.namespace import Namespace
from tests.parts.cli.conftest import FakeDaemon, Told
from tests.unit.cli.test_help import ALL

ROOT = Path(__file__).parents[3]
SHAPES = [b"null", b"[]", b'"x"', b"7", b"true", b"{}", b'{"message": "log in"}', b"[null]"]
SHAPES += [b'["x"]', b"[[]]", b"[{}]", b"{", b"\xff", b"[" * 10_000]
# Commands whose result does not depend on the shape of a response.
WITHOUT_SHAPE = {
    "agent": "is the daemon",
    "calendar init": "sends no request",
    "completion": "sends no request",
    "help": "sends no request",
    "install": "changes this host",
    "mcp": "speaks with a program",
    "operator api": "prints each response as it is",
    "operator debug": "collects each response as it is",
    "operator metrics": "prints each response as it is",
    "policy fmt": "sends no request",
    "ui": "opens a browser",
    "uninstall": "changes this host",
    "version": "sends no request",
}
# The responses to these commands have no content, so an object is accepted.
EMPTY = {
    *("acl policy apply", "acl policy delete", "auth disable", "auth enable", "auth tune"),
    *("calendar delete", "delete", "logout", "namespace delete", "operator fault release"),
    *("policy delete", "service delete", "system gc", "system reconcile summaries"),
    *("token revoke", "var purge"),
}
JOB = 'job "web" { group "g" { task "t" { driver = "exec" config { command = "/bin/true" } } } }'


class Server(ThreadingHTTPServer):
    """Answers each request with status 200 and `body`."""

    daemon_threads = True
    body = b""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        assert isinstance(self.server, Server)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def surroundings(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("STEWARD_ADDR", f"http://127.0.0.1:{server.server_port}")
    for name in ("web.hcl", "business.json"):
        Path(name).write_text(JOB if name.endswith(".hcl") else "{}")


def example_of(name: str) -> list[str]:
    """Return the words of the example in the help of a command."""
    _, _, example = (ALL[name].help or "").partition("Example: steward ")
    words = [short_option(word) for word in normalize_options(shlex.split(example))]
    return [word.replace("/var/www/html", "site") for word in words]


def run(words: list[str]) -> str:
    """Run a command; return its fault, or an empty string for a short error and exit status 1."""
    result = CliRunner().invoke(command_line(), words, prog_name="steward", input="y\n")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"raised {result.exception!r}"
    if "Traceback" in result.output:
        return "printed a traceback"
    return f"exit status 0, with {result.stdout!r}" if result.exit_code == 0 else ""


def faults(server: Server, words: list[str], shapes: list[bytes]) -> dict[bytes, str]:
    found = {}
    for shape in shapes:
        server.body = shape
        if fault := run(words):
            found[shape] = fault
    return found


@pytest.mark.parametrize("name", sorted(ALL.keys() - WITHOUT_SHAPE))
def test_response_of_an_unexpected_shape_is_an_error(server: Server, name: str) -> None:
    valid = {b"[]"} if "[]" in LISTS.get(name, "") else set()
    valid |= {b"{}", b'{"message": "log in"}'} if name in EMPTY else set()
    assert faults(server, example_of(name), [one for one in SHAPES if one not in valid]) == {}


def test_results_of_a_notification_test_are_printed_as_json(server: Server) -> None:
    results = [
        {"Name": "night", "Kind": "webhook", "Sent": True, "Answer": "200", "Milliseconds": 3}
    ]
    server.body = json.dumps(results).encode()
    result = CliRunner().invoke(
        command_line(), normalize_options(["notify", "test", "-json"]), prog_name="steward"
    )
    assert json.loads(result.stdout) == results


# Commands that list objects: there may be none.
LISTS = dict.fromkeys(
    (
        *("acl policy list", "acl role list", "acl token list", "calendar history"),
        *("calendar list", "deployment list", "eval list", "freezes", "namespace list"),
        *("operator audit", "operator fault list", "pool status", "queues list", "service list"),
        "var list",
    ),
    "[]",
)


@pytest.mark.parametrize(
    "words",
    [
        ["namespace", "inspect", "shop"],
        ["calendar", "inspect", "business"],
        ["acl", "token", "self", "-t", ".Policies"],
        ["acl", "role", "info", "-json", "r"],
        ["node", "meta", "read", "-json"],
        ["token", "lookup", "-json"],
        ["queues", "set", "-slots", "2", "-json", "warehouse"],
    ],
)
def test_document_of_an_unexpected_shape_is_an_error(server: Server, words: list[str]) -> None:
    words = [short_option(word) for word in normalize_options(words)]
    assert faults(server, words, SHAPES) == {}


def test_error_names_the_request_and_the_fix() -> None:
    with pytest.raises(DaemonUnreachable) as caught:
        ClientResponse(b"{}", 0, "GET /v1/namespace/shop").decode(Namespace)
    assert "the response to GET /v1/namespace/shop does not come from a Steward daemon" in str(
        caught.value
    )
    assert "check that --address or STEWARD_ADDR" in str(caught.value)


def test_no_command_ignores_a_response() -> None:
    ignored = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "daemon/cli").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in ("send", "call", "read")
        and "client" in ast.unparse(node.value.func.value)
    ]
    assert ignored == []


@pytest.mark.parametrize("body", [b"\xff", b'{"Name": "\xff"}', b"[" * 10_000])
def test_error_of_an_unreadable_response_names_the_request(body: bytes) -> None:
    response = ClientResponse(body, 0, "GET /v1/x")
    with pytest.raises(DaemonUnreachable, match="the response to GET /v1/x does not come from a"):
        response.decode(Namespace)
    with pytest.raises(DaemonUnreachable, match="the response to GET /v1/x does not come from a"):
        check_document(body, "GET /v1/x")


def test_index_beyond_64_bits_is_ignored(fake: FakeDaemon) -> None:
    fake.tell("/v1/x", Told(b"{}", index=10**20))
    with ApiClient(HttpConnection(address=fake.address)) as client:
        assert client.read("/v1/x").index == 0
