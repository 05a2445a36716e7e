"""A caller that keeps the daemon busy yields to other callers; CPU time counts."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest
import trio
import trio.testing
from wsproto.events import TextMessage

from daemon.acl.check import KNOWN
from daemon.config.settings import Settings
from daemon.web import fairness
from daemon.web.connections import ConnectionListener
from daemon.web.fairness import ALLOWED, OTHERS, Fairness
from daemon.web.listeners import listen
from daemon.web.reply import HandlerReply, ListPart
from daemon.web.request import ReadRoute, Request, WebSocketRoute, WriteRoute
from daemon.web.server import open_web
from daemon.web.websocket import WebSocketChannel
from storage.account import RequestCost, charged, charged_to, counted, present
from storage.errors import TooOften
from storage.read_pool import ReadSnapshot
from storage.records.acl import Token
from storage.store import Store
from storage.writer import Transaction
from tests.listeners import open_listeners
from tests.parts.api.requests import parts_of
from tests.parts.web.test_admission import connect, effective_user
from tests.parts.web.test_listeners import IS_ROOT, NOBODY, ask, home
from tests.samples import NOW
from tests.websocket_client import talk as talk_to

__all__ = ["home"]
WORK = 0.03  # seconds


def burn() -> None:
    until = time.thread_time() + WORK
    while time.thread_time() < until:
        pass


# ---- the CPU time of a request -------------------------------------------------------------------


async def test_waiting_time_of_a_request_is_not_counted_as_work(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def work() -> str:
        burn()
        await trio.sleep(100)
        burn()
        return "done"

    account = RequestCost()
    assert await counted(account, work()) == "done"
    assert 2 * WORK <= account.spent / 1e9 < 4 * WORK


async def test_errors_and_cancellation_reach_the_worker() -> None:
    seen = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            seen.append("cancelled")
            raise

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("no")

    with trio.move_on_after(0):
        await counted(RequestCost(), work())
    with pytest.raises(ValueError, match="no"):
        await counted(RequestCost(), fail())
    assert seen == ["cancelled"]


@pytest.mark.parametrize("where", ["long read", "write", "long write"])
async def test_work_of_other_tasks_for_a_request_is_attributed_to_it(
    store: Store, where: str
) -> None:
    def work(db: ReadSnapshot) -> None:
        burn()

    def write(tx: Transaction) -> None:
        burn()

    account = RequestCost()
    with charged_to(account):
        if where == "long read":
            await store.read_long(work)
        else:
            await store.write(write, is_long=where == "long write")
    assert present() is None
    assert account.spent / 1e9 >= WORK


# ---- clients -------------------------------------------------------------------------------------------


async def test_client_ahead_of_its_share_waits_for_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fair = Fairness(50)
    fair.spend("busy", ALLOWED + 2)
    fair.check("busy")  # there is no other client
    fair.check("other")
    with pytest.raises(TooOften, match="client_cpu_percent") as error:
        fair.check("busy")
    assert error.value.retry_after == 4  # at half of a CPU
    fair.check("other")
    await trio.sleep(2)
    fair.check("other")
    with pytest.raises(TooOften):
        fair.check("busy")
    await trio.sleep(2.1)
    fair.check("busy")
    fair.spend("busy", ALLOWED + 100)
    with pytest.raises(TooOften) as error:
        fair.check("busy")
    assert error.value.retry_after == 60
    await trio.sleep(OTHERS)
    fair.check("busy")  # the other client is idle


async def test_without_a_share_no_client_is_limited() -> None:
    fair = Fairness(0)
    fair.spend("busy", 1000)
    fair.check("other")
    fair.check("busy")


async def test_number_of_known_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "_MOST", 10)
    fair = Fairness(50)
    for number in range(100):
        fair.check(f"client {number}")
    assert len(fair._clients) == 10


# ---- a daemon --------------------------------------------------------------------------------------------


def heavy(request: Request, db: ReadSnapshot) -> HandlerReply:
    burn()
    return HandlerReply(body={})


def light(request: Request, db: ReadSnapshot) -> HandlerReply:
    return HandlerReply(body={})


def parts(request: Request, db: ReadSnapshot) -> HandlerReply:
    def last(_: ReadSnapshot) -> ListPart:
        burn()
        return ListPart([b"2"])

    return HandlerReply(part=ListPart([b"1"], last))


async def change(request: Request) -> HandlerReply:
    await request.parts.store.write(lambda _: burn())
    return HandlerReply(body={})


ROUTES = (
    ReadRoute("/heavy", heavy, KNOWN),
    ReadRoute("/thread", heavy, KNOWN, long=True),
    ReadRoute("/parts", parts, KNOWN),
    ReadRoute("/light", light, KNOWN),
    WriteRoute("POST", "/change", change, KNOWN),
)


@asynccontextmanager
async def serving(store: Store, **settings: object) -> AsyncIterator[int]:
    config = Settings(port=0, **settings)
    with open_listeners(config) as listeners:
        given = parts_of(store, config, asks=False)
        given = msgspec.structs.replace(given, ids=map(str, count()))
        async with open_web(given, ROUTES, (), listeners.places):
            yield listeners.port


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "ALLOWED", WORK / 2)


async def as_nobody(port: int, path: str, **headers: str) -> str:
    with effective_user(NOBODY):
        stream = await connect(port)
    return await ask(stream, path, **headers)


@pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("path", ["/heavy", "/thread", "/parts"])
@pytest.mark.usefixtures("soon")
async def test_client_that_exceeds_its_share_is_limited(
    store: Store, home: Path, path: str, *, lean: bool
) -> None:
    settings = MappingProxyType({"client_cpu_percent": 1, "lean_door": lean, "data_dir": home})
    async with serving(store, **settings) as port:
        alone = [await as_nobody(port, path) for _ in range(2)]
        other = await ask(await connect(port), "/light")
        refused = await as_nobody(port, "/light")
        again = await ask(await connect(port), "/light")
        operator = [
            await ask(await trio.open_unix_socket(home / "steward.sock"), path) for _ in range(3)
        ]
    assert [item[:12] for item in (*alone, other, again)] == ["HTTP/1.1 200"] * 4
    assert refused.startswith("HTTP/1.1 429 ")
    assert "retry-after: " in refused.lower()
    assert "user 65534 has used more than its share" in refused
    assert [item[:12] for item in operator] == ["HTTP/1.1 200"] * 3


@pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
async def test_many_cheap_requests_delay_no_other_client(store: Store, home: Path) -> None:
    async with serving(store, data_dir=home) as port:
        await ask(await connect(port), "/light")
        answers = [await as_nobody(port, "/light") for _ in range(200)]
    assert {answer[:12] for answer in answers} == {"HTTP/1.1 200"}


async def test_websocket_messages_are_attributed_to_their_client(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: dict[str, float] = {}

    def spend(self: Fairness, client: str, seconds: float) -> None:
        spent[client] = spent.get(client, 0) + seconds

    async def talk(request: Request, socket: WebSocketChannel) -> None:
        async def hear() -> None:
            await socket.receive()
            burn()

        burn()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(charged, hear())

    parts = parts_of(store, Settings(data_dir=tmp_path))
    token = await parts.tokens.issue(Token(accessor="", policies=("root",), created_at=NOW))
    monkeypatch.setattr(Fairness, "spend", spend)
    monkeypatch.setattr(Fairness, "check", lambda self, client: None)
    with listen("127.0.0.1", 0) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        routes = [WebSocketRoute("/talk", talk, KNOWN)]
        headers = [(b"X-Nomad-Token", token.secret.encode())]
        async with (
            open_web(parts, routes, (), [ConnectionListener(listener)]),
            talk_to(address, "/talk", headers=headers) as socket,
        ):
            await socket.accepted()
            await socket.send(TextMessage(data="x"))
            assert await socket.next() is None
    assert spent.keys() == {f"token {token.token.accessor}"}
    assert spent.popitem()[1] >= 2 * WORK
