"""Bodies of requests: a long one is read only for permitted callers, and memory is bounded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.acl.check import (
    ANYONE,
    KNOWN,
    MANAGEMENT,
    RequiredCapability,
    on_namespace,
    on_object,
    on_scope,
    on_variable,
)
from daemon.api.vault_routes import ENDPOINTS
from daemon.config.settings import Settings
from daemon.ui.routes import PAGES
from daemon.web import asgi_app
from daemon.web.asgi_app import BodyBudget, BodyGate
from daemon.web.connections import ConnectionListener
from daemon.web.listeners import listen
from daemon.web.reply import HandlerReply
from daemon.web.request import SHORT_BODY, Request, WriteRoute
from daemon.web.server import MAX_BODY, open_web
from storage.errors import Unavailable
from storage.queries import policies
from storage.records.acl import Policy, Token
from storage.store import Store
from tests.parts.api.requests import parts_of
from tests.samples import NOW

LENGTH = 1024 * 1024  # bytes of a long body
PIECE = 16 * 1024
FORM = "application/x-www-form-urlencoded"
NEEDS: dict[str, RequiredCapability] = {
    "anyone": ANYONE,
    "known": KNOWN,
    "namespace": on_namespace("submit-job"),
    "object": on_object("submit-job"),
    "variable": on_variable("write"),
    "scope": on_scope("operator", "write"),
    "management": MANAGEMENT,
}
WRITER = """
namespace "default" { policy = "write" variables { path "*" { capabilities = ["write"] } } }
operator { policy = "write" }
"""


class Opened:
    """A daemon with a few routes that requires tokens."""

    def __init__(self, port: int, master: str, writer: str) -> None:
        self.port, self.master, self.writer = port, master, writer
        self.entered, self.leave = trio.Event(), trio.Event()

    @asynccontextmanager
    async def begun(
        self, path: str, length: int, headers: str = "", sent: int = 0, token: str = ""
    ) -> AsyncIterator[trio.SocketStream]:
        """Send the head of a request, and the first bytes of its body."""
        if token:
            headers += f"X-Nomad-Token: {token}\r\n"
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            announced = "Transfer-Encoding: chunked" if length < 0 else f"Content-Length: {length}"
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}{announced}\r\n\r\n"
            await stream.send_all(head.encode())
            for _ in range(sent // PIECE):
                piece = b" " * PIECE
                await stream.send_all(b"%x\r\n%b\r\n" % (PIECE, piece) if length < 0 else piece)
            if length < 0 and sent == LENGTH:
                await stream.send_all(b"0\r\n\r\n")
            yield stream


async def answer(stream: trio.SocketStream) -> str:
    """Return the first response of a connection."""
    data = b""
    with trio.fail_after(10):
        while b"\r\n\r\n" not in data:
            piece = await stream.receive_some()
            assert piece, "the connection ended without a response"
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(body) < length:
            body += await stream.receive_some()
    return f"{head.decode()}\r\n\r\n{body.decode()}"


def status(text: str) -> int:
    return int(text.split()[1])


@asynccontextmanager
async def opening(store: Store, tmp_path: Path) -> AsyncIterator[Opened]:
    """Open a daemon with a few routes that requires tokens."""
    parts = parts_of(store, Settings(data_dir=tmp_path))
    rules = Policy(name="writer", rules=WRITER)
    await store.write(lambda tx: policies.put(tx, rules))
    secrets = [
        (await parts.tokens.issue(Token(accessor="", policies=(name,), created_at=NOW))).secret
        for name in ("root", "writer")
    ]

    async def echo(request: Request) -> HandlerReply:
        return HandlerReply(body={"Length": len(request.body)})

    with listen("127.0.0.1", 0) as listener:
        found = Opened(listener.getsockname()[1], *secrets)

        async def hang(request: Request) -> HandlerReply:
            found.entered.set()
            await found.leave.wait()
            return await echo(request)

        routes = [WriteRoute("POST", f"/v1/{name}", echo, needs) for name, needs in NEEDS.items()]
        routes.append(WriteRoute("POST", "/v1/hang", hang, MANAGEMENT))
        async with open_web(parts, routes, ENDPOINTS, [ConnectionListener(listener)], PAGES):
            yield found
            found.leave.set()


@pytest.fixture
async def opened(store: Store, tmp_path: Path) -> AsyncIterator[Opened]:
    async with opening(store, tmp_path) as found:
        yield found


@pytest.fixture
def no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_app, "_LINGER", 0)


# --- permission


@pytest.mark.usefixtures("no_linger")
@pytest.mark.parametrize("length", [LENGTH, -1], ids=["announced", "chunked"])
@pytest.mark.parametrize("token", ["", "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"])
@pytest.mark.parametrize("route", sorted(NEEDS))
async def test_long_body_without_a_valid_token_is_rejected_unread(
    opened: Opened, route: str, token: str, length: int
) -> None:
    async with opened.begun(f"/v1/{route}", length, sent=2 * SHORT_BODY, token=token) as stream:
        assert status(await answer(stream)) == (413 if route == "anyone" else 403)


@pytest.mark.usefixtures("no_linger")
@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/v1/sys/policies/acl/x", "", (403, '{"errors":["permission denied"]}')),
        ("/v1/auth/token/create", "X-Vault-Token: nobody\r\n", (403, '{"errors":')),
        ("/v1/nothing", "", (404, "")),
        (
            "/ui/sign-in",
            f"Origin: http://localhost\r\nContent-Type: {FORM}\r\n",
            (403, "this page"),
        ),
        ("/ui/run", f"Origin: http://localhost\r\nContent-Type: {FORM}\r\n", (403, "this page")),
    ],
)
async def test_other_route_tables_reject_long_bodies_without_a_token(
    opened: Opened, path: str, headers: str, expected: tuple[int, str]
) -> None:
    async with opened.begun(path, LENGTH, headers, sent=2 * SHORT_BODY) as stream:
        text = await answer(stream)
        assert status(text) == expected[0]
        assert text.partition("\r\n\r\n")[2].startswith(expected[1])


@pytest.mark.parametrize("length", [LENGTH, -1], ids=["announced", "chunked"])
@pytest.mark.parametrize("route", sorted(NEEDS.keys() - {"anyone"}))
async def test_a_long_body_of_a_caller_with_permission_is_read(
    opened: Opened, route: str, length: int
) -> None:
    token = opened.master if route == "management" else opened.writer
    async with opened.begun(f"/v1/{route}", length, sent=LENGTH, token=token) as stream:
        assert (await answer(stream)).endswith(f'{{"Length":{LENGTH}}}')


async def test_the_connection_stays_open_after_a_rejected_body_that_was_sent(
    opened: Opened,
) -> None:
    async with opened.begun("/v1/namespace", LENGTH, sent=LENGTH) as stream:
        assert status(await answer(stream)) == 403
        head = f"POST /v1/known HTTP/1.1\r\nHost: localhost\r\nX-Nomad-Token: {opened.master}\r\n"
        await stream.send_all(f"{head}Content-Length: 0\r\n\r\n".encode())
        assert (await answer(stream)).endswith('{"Length":0}')


async def test_short_body_without_a_token_is_read_for_open_routes(opened: Opened) -> None:
    async with opened.begun("/v1/anyone", SHORT_BODY, sent=SHORT_BODY) as stream:
        assert (await answer(stream)).endswith(f'{{"Length":{SHORT_BODY}}}')


# --- memory


@pytest.mark.parametrize("length", [LENGTH, -1], ids=["announced", "chunked"])
async def test_bodies_beyond_the_budget_are_rejected_until_others_are_answered(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(asgi_app, "body_memory", lambda host: 3 * LENGTH)
    async with opening(store, tmp_path) as opened:
        token = opened.master
        async with opened.begun("/v1/hang", LENGTH, sent=LENGTH, token=token) as first:
            await opened.entered.wait()
            async with opened.begun("/v1/known", length, sent=LENGTH, token=token) as second:
                text = await answer(second)
            assert status(text) == 503
            assert "\r\nretry-after: 5\r\n" in text
            assert "try again later" in text.partition("\r\n\r\n")[2]
            opened.leave.set()
            assert status(await answer(first)) == 200
        async with opened.begun("/v1/known", length, sent=LENGTH, token=token) as third:
            assert status(await answer(third)) == 200


def test_one_client_can_use_half_of_the_budget() -> None:
    budget = BodyBudget(100)
    budget.take("a", 50)
    with pytest.raises(Unavailable, match=r"requests of a is full \(50 bytes\)"):
        budget.take("a", 1)
    budget.take("b", 40)
    with pytest.raises(Unavailable, match=r"unanswered requests is full \(100 bytes\)"):
        budget.take("c", 11)
    budget.give_back("a", 50)
    budget.take("c", 50)
    assert budget.used == 90


class Pieces:
    """A body that arrives in pieces."""

    def __init__(self, count: int) -> None:
        self.left = count

    async def receive(self) -> object:
        await trio.lowlevel.checkpoint()
        self.left -= 1
        return {"type": "http.request", "body": bytes(PIECE), "more_body": self.left > 0}


async def test_chunks_beyond_a_short_body_wait_for_the_budget() -> None:
    budget, pieces, passed = BodyBudget(8 * MAX_BODY), Pieces(10), []
    gate = BodyGate(pieces.receive, budget, MAX_BODY)

    async def read() -> None:
        for _ in range(10):
            event = await gate.receive()
            passed.append(len(event["body"]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert sum(passed) == SHORT_BODY
        assert budget.used == 0
        gate.open("a", 0)
    assert sum(passed) == budget.used == 10 * PIECE
    gate.close()
    assert budget.used == 0


async def test_a_discarded_body_uses_no_memory() -> None:
    budget, pieces = BodyBudget(8 * MAX_BODY), Pieces(10)
    gate = BodyGate(pieces.receive, budget, MAX_BODY)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.discard)
        passed = [len((await gate.receive())["body"]) for _ in range(10)]
    assert sum(passed) == SHORT_BODY
    assert budget.used == 0


async def test_body_that_does_not_fit_ends_once() -> None:
    pieces = Pieces(10)

    async def receive() -> object:
        return await pieces.receive() if pieces.left else {"type": "http.disconnect"}

    gate = BodyGate(receive, BodyBudget(SHORT_BODY), MAX_BODY)
    gate.open("a", 0)
    events: list[object] = []
    while (event := await gate.receive())["type"] == "http.request":
        events.append(event.get("more_body"))
    assert events == [True] * (len(events) - 1) + [False]
    with pytest.raises(Unavailable):
        gate.check()
    with trio.fail_after(0):
        await gate.discard()
