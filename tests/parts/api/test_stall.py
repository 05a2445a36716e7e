"""No read holds the event loop for long, however long the history is.

The time is CPU time of the loop's thread, for the longest step of one task, so that what else runs on
the machine does not count. `bench/stall.py` measures the wall over a larger store.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
import trio

from daemon.api.routes import ROUTES
from daemon.web.blocking import _read
from daemon.web.kept import Kept
from daemon.web.parameters import Query
from daemon.web.request import Read, Request
from storage.errors import StewardError
from storage.store import Store, open_store
from tests.parts.api import full
from tests.parts.api.asking import Tasks, caller, request
from tests.samples import NOW

NUMBER = 20_000
MOST = 5_000_000  # nanoseconds
TRIES = 3  # garbage that is collected meanwhile is not the handler's
PIECES = 3  # of a list: the others are like them

READS = [
    route
    for route in ROUTES
    if isinstance(route, Read) and route.path != "/v1/operator/keyring/keys"  # needs a signing key
]
WITHOUT_QUERY = {"/v1/node/{node_id}/allocations"}  # always all of them
# What makes a listing look at as much as it can.
QUERIES: list[dict[str, object]] = [
    {},
    {"per_page": 20, "namespace": "*"},
    {"per_page": 20, "reverse": "true", "prefix": "00"},
    {"filter": 'Name == "nobody" and Name != "x"', "namespace": "*"},
    {"filter": 'ID matches "nobody$"', "per_page": 20, "namespace": "*"},  # row by row
    {"all": "true", "include_children": "true", "task_states": "true", "diffs": "true"},
]
BODIES = {
    "/v1/search": {"Prefix": "0", "Context": "all"},
    "/v1/search/fuzzy": {"Text": "dispatch", "Context": "all"},
}


class Longest(trio.abc.Instrument):
    """The longest step of any task, in CPU time of the thread."""

    def __init__(self) -> None:
        self.longest, self._begun = 0, time.thread_time_ns()

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._begun = time.thread_time_ns()

    def after_task_step(self, _task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time_ns() - self._begun)


class Idle(Tasks):
    """A runner that runs nothing."""

    def checks(self, _alloc_id: str) -> list[object]:
        return []


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    async def make() -> str:
        async with open_store(path, cluster_id="c", now=NOW) as store:
            return await full.fill(store, NUMBER, NUMBER)

    path = tmp_path_factory.mktemp("full")
    (path / "node").write_text(trio.run(make))
    return path


@pytest.fixture
async def store(directory: Path) -> AsyncIterator[Store]:
    async with open_store(directory, cluster_id="c", now=NOW) as store:
        yield store


def asking(store: Store, route: Read, query: dict[str, object], node_id: str) -> Request:
    named: dict[str, Any] = {
        "job_id": full.PARENT,
        "alloc_id": full.ALLOC,
        "eval_id": full.EVAL,
        "deployment_id": full.DEPLOYMENT,
        "node_id": node_id,
    }
    parts = route.path.replace("{", "}").split("}")[1::2]
    words = urlencode({name: str(value) for name, value in query.items()})
    body = BODIES.get(route.path)
    asked = request(store, route.needs, caller(), body=body)
    return msgspec.structs.replace(
        asked,
        query=Query(words),
        parameters={name: named.get(name, "default") for name in parts},
        parts=msgspec.structs.replace(asked.parts, tasks=Idle()),
    )


async def longest(route: Read, asked: Request) -> int:
    """Return how long the longest step takes that answers a request."""
    measure = Longest()
    await trio.lowlevel.checkpoint()
    trio.lowlevel.add_instrument(measure)
    try:
        await trio.lowlevel.checkpoint()
        made = await _read(route, asked, Kept())
        if made.stream is not None:
            assert isinstance(made.stream, AsyncGenerator)
            async with aclosing(made.stream) as stream:
                for _ in range(PIECES):
                    await anext(stream, None)
    except StewardError:
        pass
    finally:
        await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(measure)
    return measure.longest


@pytest.mark.parametrize("route", READS, ids=[route.path for route in READS])
async def test_no_read_holds_the_loop_for_long(store: Store, directory: Path, route: Read) -> None:
    node_id = (directory / "node").read_text()
    await longest(route, asking(store, route, {"per_page": 1}, node_id))  # imports its module
    for query in QUERIES[:1] if route.path in WITHOUT_QUERY else QUERIES:
        asked = asking(store, route, query, node_id)
        taken: list[int] = []
        while not taken or (taken[-1] > MOST and len(taken) < TRIES):
            taken.append(await longest(route, asked))
        assert min(taken) <= MOST, (query, taken)
