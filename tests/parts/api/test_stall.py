"""No request holds the event loop for long, however long the history is.

The time is CPU time of the loop's thread, for the longest step of one task, so that what else runs on
the machine does not count. `bench/stall.py` measures the wall over a larger store.
"""

import gc
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio

from bench import asked, others
from bench.asked import Asked
from daemon.api.endpoints import ENDPOINTS
from daemon.api.routes import ROUTES
from daemon.identity.door import Door
from daemon.main import _GARBAGE
from daemon.ui.routes import PAGES
from daemon.web.answering import Answering
from daemon.web.head import Head
from daemon.web.reply import Finished
from daemon.web.visits import COOKIE
from storage.records.acl import Token
from storage.store import Store, open_store
from tests.parts.api import full
from tests.parts.api.asking import parts_of
from tests.parts.ui.conftest import Runner
from tests.samples import NOW

NUMBER = 20_000
MOST = 5_000_000  # nanoseconds
TRIES = 3  # garbage that is collected meanwhile is not the handler's
PIECES = 3  # of a list: the others are like them
PATIENCE = 0.5  # seconds for which an answer without an end is read
OUTSIDE = {
    "GET /v1/operator/keyring/keys": "needs a signing key",
    "GET /v1/auth/{mount}/rotation": "needs the cloud",
    "GET /v1/operator/snapshot": "copies the whole store, in a thread",
    "GET /v1/client/gc": "only wakes the runner",
    "GET /v1/client/allocation/{alloc_id}/gc": "only wakes the runner",
}
READS = [one for one in (*asked.reads(), *asked.streams()) if one.row not in OUTSIDE]


class Longest(trio.abc.Instrument):
    """The longest step of any task, in CPU time of the thread."""

    def __init__(self) -> None:
        self.longest, self._begun = 0, time.thread_time_ns()

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._begun = time.thread_time_ns()

    def after_task_step(self, _task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time_ns() - self._begun)


class Asking:
    """Somebody who may do everything, and what answers."""

    def __init__(self, answering: Answering, secret: str) -> None:
        self._answering, self._secret = answering, secret
        self._session = answering.pages._sessions.begin(secret, NOW).name

    async def longest(self, one: Asked) -> int:
        """Return how long the longest step takes that answers a request."""
        path, query = one.target(KNOWN)
        headers = {
            "host": "localhost",
            "sec-fetch-site": "same-origin",
            "x-request-id": "1",
            "x-nomad-token": self._secret,
            "cookie": f"{COOKIE}={self._session}",
        }
        head = Head(method=one.method, target=path.encode(), query=query, headers=headers)
        body = b"" if one.body is None else msgspec.json.encode(one.body)

        async def whole() -> bytes:
            return body

        measure = Longest()
        await trio.lowlevel.checkpoint()
        trio.lowlevel.add_instrument(measure)
        try:
            await trio.lowlevel.checkpoint()
            await _read(await self._answering.answer(head, whole))
        finally:
            await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(measure)
        return measure.longest


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    async def make() -> None:
        async with open_store(path, cluster_id="c", now=NOW) as store:
            await full.fill(store, NUMBER, NUMBER)
            await store.write(lambda tx: others.add(tx, NUMBER, full.ALLOC, NOW))

    path = tmp_path_factory.mktemp("full")
    trio.run(make)
    return path


@pytest.fixture(autouse=True)
def searched_seldom() -> Iterator[None]:
    """Have garbage looked for as a daemon that is ready has it."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture
async def store(directory: Path) -> AsyncIterator[Store]:
    async with open_store(directory, cluster_id="c", now=NOW) as store:
        yield store


@pytest.fixture
async def asking(store: Store, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Asking]:
    parts = parts_of(store)
    tasks = cast("Any", Runner())
    parts = msgspec.structs.replace(parts, tasks=tasks, door=Door(), ids=map(str, count()))
    answering = Answering(parts, ROUTES, ENDPOINTS, trio.Event(), PAGES)
    token = Token(accessor="", policies=("root",), created_at=NOW)
    yield Asking(answering, (await parts.tokens.issue(token)).secret)
    assert "request failed" not in caplog.text


KNOWN = {
    "job_id": full.PARENT,
    "alloc_id": full.ALLOC,
    "eval_id": full.EVAL,
    "deployment_id": full.DEPLOYMENT,
    "node_id": full.NODE,
    "accessor": others.identifier("t", 1),
    "entity": others.identifier("e", 1),
    "alias": others.identifier("a", 1),
    "group": others.identifier("g", 1),
    "role_id": others.identifier("r", 1),
    "name": "many-1",
    "mount": "many",
    "path": "many",
    "prefix": "auth/many/login",
    "policy": "many-1",
    "role": "many-1",
}


async def _read(answer: Finished) -> None:
    if answer.stream is None:
        return
    assert isinstance(answer.stream, AsyncGenerator)
    with trio.move_on_after(PATIENCE):
        async with aclosing(answer.stream) as stream:
            for _ in range(PIECES):
                await anext(stream, None)


@pytest.mark.parametrize("row", sorted({one.row for one in READS}))
async def test_no_read_holds_the_loop_for_long(asking: Asking, row: str) -> None:
    every = [one for one in READS if one.row == row]
    await asking.longest(msgspec.structs.replace(every[0], query={"per_page": 1}))  # imports
    for one in every:
        taken: list[int] = []
        while not taken or (taken[-1] > MOST and len(taken) < TRIES):
            taken.append(await asking.longest(one))
        assert min(taken) <= MOST, (one, taken)


def test_each_route_that_shows_something_is_asked() -> None:
    assert {one.row for one in READS} | OUTSIDE.keys() == set(asked.rows())
