"""Cached answers: used only while they are valid, and limited in number and size."""

from collections.abc import Callable

import msgspec
import pytest

from daemon.acl.check import ANYONE
from daemon.web import reply
from daemon.web import response_cache as module
from daemon.web.blocking import _read
from daemon.web.parameters import QueryParameters
from daemon.web.reply import HandlerReply
from daemon.web.request import ReadRoute, Request
from daemon.web.response_cache import ResponseCache
from storage.read_pool import ReadSnapshot
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api.requests import parts_of


class Counting:
    """A handler that counts its calls."""

    def __init__(self, size: int = 10) -> None:
        self.asked, self.size = 0, size

    def __call__(self, request: Request, db: ReadSnapshot) -> HandlerReply:
        self.asked += 1
        return reply.read_reply(b"x" * self.size, db.table_index("things"))


def ask(query: str = "", header: str = "", **parameters: str) -> Request:
    fields = dict.fromkeys(Request.__struct_fields__)
    asked = {"query": QueryParameters(query, namespace=header), "parameters": parameters}
    return Request(**{**fields, **asked})


@pytest.fixture
def handler() -> Counting:
    return Counting()


def route(handler: Callable[[Request, ReadSnapshot], HandlerReply], *tables: str) -> ReadRoute:
    return ReadRoute("/things", handler, ANYONE, tables=tables)


async def touch(store: Store, table: str) -> None:
    def work(tx: Transaction) -> None:
        tx.execute("UPDATE store SET created_at = created_at + 1", {})
        tx.touch(table)

    await store.write(work)


def read(store: Store, response_cache: ResponseCache, of: ReadRoute, *queries: str) -> None:
    for query in queries:
        store.read(lambda db, query=query: response_cache.reply(of, ask(query), db))


@pytest.mark.parametrize(
    ("queries", "made"),
    [
        (("", "", ""), 1),
        (("prefix=a", "prefix=b", "prefix=a"), 2),
        (("index=1&wait=1s", "", "pretty&stale=true"), 1),  # the response does not depend on these
        (("namespace=a", "namespace=b"), 2),
        (("namespace=*", "namespace=*"), 2),  # depends on the caller
    ],
)
async def test_a_response_is_reused_for_an_equal_request(
    store: Store, handler: Counting, queries: tuple[str, ...], made: int
) -> None:
    read(store, ResponseCache(), route(handler, "things"), *queries)
    assert handler.asked == made


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ask("namespace=", "b"), ask("namespace=&namespace=b")),  # both mean namespace b
        (ask(name="a/b"), ask(name="a%2Fb")),
    ],
)
async def test_cached_response_depends_on_the_parsed_request(
    store: Store, handler: Counting, first: Request, second: Request
) -> None:
    kept, of = ResponseCache(), route(handler, "things")
    for asked in (first, second, first, second):
        store.read(lambda db, asked=asked: kept.reply(of, asked, db))
    assert handler.asked == 2


@pytest.mark.parametrize(("table", "made"), [("things", 2), ("others", 1)])
async def test_a_response_is_computed_again_after_a_change_of_its_tables(
    store: Store, handler: Counting, table: str, made: int
) -> None:
    kept, of = ResponseCache(), route(handler, "things")
    read(store, kept, of, "")
    await touch(store, table)
    read(store, kept, of, "")
    assert handler.asked == made


async def test_response_is_cached_until_the_next_write(store: Store, handler: Counting) -> None:
    kept, of = ResponseCache(), route(handler, "things")
    moment = store.change_number
    assert kept.at(moment, of, ask()) is None
    made = store.read(lambda db: kept.reply(of, ask(), db, moment))
    assert kept.at(store.change_number, of, ask()) is made
    assert kept.at(store.change_number, of, ask("prefix=a")) is None
    assert kept.at(store.change_number, route(handler), ask()) is None
    await touch(store, "others")
    assert kept.at(store.change_number, of, ask()) is None
    again = store.change_number
    assert store.read(lambda db: kept.reply(of, ask(), db, again)) is made
    assert kept.at(store.change_number, of, ask()) is made


async def test_response_read_during_a_change_is_not_cached(store: Store, handler: Counting) -> None:
    kept, of = ResponseCache(), route(handler, "things")
    store.read(lambda db: kept.reply(of, ask(), db, None))
    assert kept.at(None, of, ask()) is None


async def test_response_without_tables_is_never_cached(store: Store, handler: Counting) -> None:
    read(store, ResponseCache(), route(handler), "", "")
    assert handler.asked == 2


async def test_number_of_cached_responses_is_limited(
    store: Store, handler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    kept, of = ResponseCache(), route(handler, "things")
    read(store, kept, of, "prefix=a", "prefix=b", "prefix=a", "prefix=c")  # evicts b
    read(store, kept, of, "prefix=a", "prefix=c")
    assert handler.asked == 3
    read(store, kept, of, "prefix=b")
    assert handler.asked == 4


@pytest.mark.parametrize(("size", "asked"), [(40, 4), (99, 6), (100, 6)])
async def test_size_of_cached_responses_is_limited(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: int, asked: int
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    handler = Counting(size)
    kept, of = ResponseCache(), route(handler, "things")
    read(store, kept, of, "prefix=a", "prefix=b", "prefix=c", "prefix=a", "prefix=c", "prefix=b")
    assert handler.asked >= asked
    assert kept._bytes <= 100


async def test_response_created_by_a_thread_is_cached(store: Store) -> None:
    asked: list[bool] = []

    def long(request: Request, db: ReadSnapshot) -> HandlerReply:
        asked.append(db.is_short)
        for _ in range(1_000):
            db.one("SELECT 1")
        return reply.read_reply(b"[]", db.table_index("things"))

    kept, of = ResponseCache(), route(long, "things")
    await _read(of, here(store), kept)
    await _read(of, here(store), kept)
    assert asked == [True, False]
    await touch(store, "things")
    await _read(of, here(store), kept)
    assert asked == [True, False] * 2


def here(store: Store) -> Request:
    return msgspec.structs.replace(ask(), parts=parts_of(store))
