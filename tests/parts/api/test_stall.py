"""No read request blocks the event loop for long, regardless of the length of the history.

The time is the loop thread's CPU time for the longest step of a task, so that other load does not
count. `bench/stall.py` measures elapsed time on a larger store.
"""

import socket
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio

from bench import expensive_requests, other_objects
from bench.expensive_requests import Asked
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.identity.lazy_methods import LazyMethods
from daemon.identity.methods import open_methods
from daemon.ui.routes import PAGES
from daemon.web.dispatcher import Dispatcher
from daemon.web.parameters import QueryParameters
from daemon.web.reply import WireResponse
from daemon.web.request_head import RequestHead
from daemon.web.ui_session import COOKIE
from storage import garbage
from storage.queries import identity, mounts
from storage.records.acl import Token
from storage.records.identity import MethodConfig
from storage.store import Store, open_store
from tests.parts.api import full_store
from tests.parts.api.requests import SEAL, parts_of
from tests.parts.ui.conftest import Runner
from tests.samples import NOW
from tests.step_timing import Longest, check_steps, garbage_as_in_daemon

NUMBER = 20_000
MOST = 5_000_000  # nanoseconds
TRIES = 6  # repeated, because a garbage collection or a first import can disturb a try
PIECES = 3  # pieces of a list that are read; the other pieces are similar
FORM = "application/x-www-form-urlencoded"
PATIENCE = 0.5  # seconds for which an endless response is read
OUTSIDE = {
    "GET /v1/operator/keyring/keys": "needs a signing key",
    "GET /v1/operator/snapshot": "copies the whole store, in a thread",
    "GET /v1/allocation/{alloc_id}/kept/file": "sends a file in pieces, which a thread reads",
    "GET /v1/client/gc": "only wakes the runner",
    "GET /v1/client/allocation/{alloc_id}/gc": "only wakes the runner",
}
READS = [
    expensive_request
    for expensive_request in (*expensive_requests.reads(), *expensive_requests.streams())
    if expensive_request.row not in OUTSIDE
]


# A login method whose cloud refuses every connection: all steps before its answer are measured.
CLOUD = MethodConfig(
    tenant_id="00000000-0000-4000-8000-000000000000",
    resource="api://many",
    client_id="00000000-0000-4000-8000-000000000001",
    max_retries=0,
)
SERVICES = ("directory", "resource_manager", "graph", "metadata")


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port that is in use, without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


class Asking:
    """A caller with full access, and the server that answers."""

    def __init__(self, dispatcher: Dispatcher, secret: str) -> None:
        self._answering, self._secret = dispatcher, secret
        session, _ = dispatcher.pages._sessions.begin(secret, NOW)
        self._session, self._proof = session.name, session.proof
        self.answer = WireResponse(0, {})

    async def longest(
        self, request: Asked, then: Callable[[], Awaitable[object]] | None = None
    ) -> int:
        """Return the time of the longest step of a request, or of its effects."""
        path, query = request.target(KNOWN)
        headers = {
            "host": "localhost",
            "content-type": FORM if path.startswith("/ui/") else "application/json",
            "sec-fetch-site": "same-origin",
            "x-request-id": "1",
            "x-nomad-token": self._secret,
            "cookie": f"{COOKIE}={self._session}",
        }
        head = RequestHead(
            method=request.method, target=path.encode(), query=query, headers=headers
        )

        async def whole() -> bytes:
            if not path.startswith("/ui/") or request.method == "GET":
                return request.content
            return b"proof=%b&%b" % (self._proof.encode(), request.content)

        measure = Longest()
        await trio.lowlevel.checkpoint()
        trio.lowlevel.add_instrument(measure)
        try:
            await trio.lowlevel.checkpoint()
            self.answer = await self._answering.answer(head, whole)
            await _read(self.answer)
            if then is not None:
                await then()
        finally:
            await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(measure)
        return measure.longest


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("full")
    full_store.copy_filled(full_store.base_of(tmp_path_factory), path, NUMBER)
    return path


@pytest.fixture(autouse=True)
def searched_seldom() -> Iterator[None]:
    """Collect garbage as rarely as a running daemon."""
    with garbage_as_in_daemon():
        yield


class _Noted(dict[str, str]):
    """Query parameters that record the names that handlers read."""

    def __init__(self, values: Mapping[str, str], names: set[str]) -> None:
        super().__init__(values)
        self._names = names

    def __contains__(self, name: object) -> bool:
        self._names.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._names.add(name)
        return super().get(name, default)


@pytest.fixture
def names_read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that gets the names of all query parameters that are read."""
    names: set[str] = set()
    begin = QueryParameters.__init__

    def noting(self: QueryParameters, text: str, **others: str) -> None:
        begin(self, text, **others)
        self._values = _Noted(self._values, names)

    monkeypatch.setattr(QueryParameters, "__init__", noting)
    return names


@pytest.fixture
async def store(directory: Path) -> AsyncIterator[Store]:
    async with open_store(directory, cluster_id="c", now=NOW) as store:
        yield store


@pytest.fixture
async def asking(store: Store, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Asking]:
    parts = parts_of(store)
    tasks, door, ids = cast("Any", Runner()), LazyMethods(parts.fences), map(str, count())
    parts = msgspec.structs.replace(parts, tasks=tasks, door=door, ids=ids)
    dispatcher = Dispatcher(parts, ROUTES, ENDPOINTS, trio.Event(), PAGES)
    token = Token(accessor="", policies=("root",), created_at=NOW)
    secret = (await parts.tokens.issue(token)).secret
    # An earlier request may have removed the mount.
    if store.read(lambda db: mounts.has_accessor(db, other_objects.MOUNT)):
        await store.write(lambda tx: identity.put_config(tx, other_objects.MOUNT, CLOUD))
    with closed_port() as port:
        urls = {f"cloud_{name}_url": f"http://127.0.0.1:{port}" for name in SERVICES}
        config = msgspec.structs.replace(parts.config, **urls)
        async with (
            open_methods(
                store, parts.clock, SEAL, parts.tokens, parts.issuer, ids, config
            ) as known,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(garbage.run_collector)
            with door.open(known):
                yield Asking(dispatcher, secret)
            nursery.cancel_scope.cancel()
    assert "request failed" not in caplog.text


KNOWN = {
    "job_id": full_store.PARENT,
    "alloc_id": full_store.ALLOC,
    "eval_id": full_store.EVAL,
    "deployment_id": full_store.DEPLOYMENT,
    "node_id": full_store.NODE,
    "accessor": other_objects.identifier("t", 1),
    "entity": other_objects.identifier("e", 1),
    "alias": other_objects.identifier("a", 1),
    "group": other_objects.identifier("g", 1),
    "role_id": other_objects.identifier("r", 1),
    "name": "many-1",
    "mount": "many",
    "path": "many",
    "prefix": "auth/many/login",
    "policy": "many-1",
    "role": "many-1",
}


async def _read(answer: WireResponse) -> None:
    if answer.stream is None:
        return
    assert isinstance(answer.stream, AsyncGenerator)
    with trio.move_on_after(PATIENCE):
        async with aclosing(answer.stream) as stream:
            for _ in range(PIECES):
                await anext(stream, None)


@pytest.mark.parametrize("row", sorted({expensive_request.row for expensive_request in READS}))
async def test_no_read_blocks_the_event_loop(
    asking: Asking, names_read: set[str], row: str
) -> None:
    every = [expensive_request for expensive_request in READS if expensive_request.row == row]
    done: list[tuple[Asked, frozenset[str]]] = []
    for expensive_request in every:
        if any(_is_equal(expensive_request, other, names) for other, names in done):
            continue
        names_read.clear()
        await check_steps(
            partial(asking.longest, expensive_request), MOST, TRIES, expensive_request
        )
        done.append((expensive_request, frozenset(names_read)))


def _is_equal(request: Asked, other: Asked, names: Iterable[str]) -> bool:
    """Return whether two requests differ only in parameters that no handler reads."""
    return (
        (request.path, request.body, bool(request.query))
        == (other.path, other.body, bool(other.query))
    ) and all(request.query.get(name) == other.query.get(name) for name in names)


def test_each_read_route_is_tested() -> None:
    assert {expensive_request.row for expensive_request in READS} | OUTSIDE.keys() == set(
        expensive_requests.rows()
    )
