"""The cost of a page of a list does not depend on the size of the store, for every route.

The measure is the number of steps of SQLite's virtual machine; a row takes a few dozen.
"""

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio

from bench import other_objects
from bench.expensive_requests import WIDE
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.identity.lazy_methods import LazyMethods
from daemon.web.dispatcher import Dispatcher
from daemon.web.reply import WireResponse
from daemon.web.request import ReadRoute
from daemon.web.request_head import RequestHead
from storage import read_pool
from storage.records.acl import Token
from storage.store import FILE_NAME, open_store
from tests.parts.api import full_store
from tests.parts.api.requests import parts_of
from tests.parts.api.test_stall import KNOWN
from tests.parts.ui.conftest import Runner
from tests.samples import NOW

NUMBER = 3000
STEP = 100  # instructions between two calls of the progress handler
MOST = 15_000  # instructions for a page of 20: some hundred rows
PAGE = 20
MOST_STATES = 500 * PAGE  # instructions for the states of the jobs of a page
COUNTED = 15  # instructions for a row that is only counted
# Listings that cover all objects, or that have no pages in Nomad's and Vault's APIs.
WHOLE = {
    "/v1/evaluations/count": "counts",
    "/v1/agent/settings": "has one for each setting",
    "/v1/allocation/{alloc_id}/services": "is of one allocation",
    "/v1/job/{job_id}/state": "counts the allocations of a job, in a thread",
    "/v1/job/{job_id}/runs": "counts the allocations of a job, in a thread",
    "/v1/jobs/statuses": "shows all allocations of its jobs",
    "/v1/job/{job_id}/summary": "counts the children, by an index",
    "/v1/job/{job_id}/definition": "writes one job, in a thread",
    "/v1/job/{job_id}/explain": "explains all allocations of a job, in a thread",
    "/v1/job/{job_id}/scale": "counts the allocations of a job",
    "/v1/evaluation/{eval_id}/allocations": "is of one plan",
    "/v1/deployment/allocations/{deployment_id}": "is of one deployment",
    "/v1/node/pool/{name}/jobs": "looks into definitions, in a thread",
    "/v1/openapi": "is one document",
    "/v1/openapi.json": "is one document",
}
ROWS = sorted({route.path for route in ROUTES if isinstance(route, ReadRoute)} - WHOLE.keys())


class Counted:
    """How many instructions SQLite has executed on the connections for reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        connect = read_pool.connect

        def counting(path: Path, *, read_only: bool) -> sqlite3.Connection:
            connection = connect(path, read_only=read_only)
            connection.set_progress_handler(self._looked, STEP)
            return connection

        monkeypatch.setattr(read_pool, "connect", counting)
        # The path for short reads would bypass this handler.
        monkeypatch.setattr(read_pool.SnapshotReader, "read_short", read_pool.SnapshotReader.read)

    def _looked(self) -> int:
        self.steps += STEP
        return 0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    async def make() -> None:
        async with open_store(path, cluster_id="c", now=NOW) as store:
            await full_store.fill(store, NUMBER, NUMBER)
            await store.write(lambda tx: other_objects.add(tx, NUMBER, full_store.ALLOC, NOW))

    path = tmp_path_factory.mktemp("pages")
    trio.run(make)
    return path


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
async def asking(directory: Path, counted: Counted) -> AsyncIterator[tuple[Dispatcher, str]]:
    async with dispatching(directory) as asking:
        yield asking


@asynccontextmanager
async def dispatching(directory: Path) -> AsyncIterator[tuple[Dispatcher, str]]:
    async with open_store(directory, cluster_id="c", now=NOW) as store:
        parts = parts_of(store)
        tasks, door, ids = cast("Any", Runner()), LazyMethods(parts.fences), map(str, count())
        parts = msgspec.structs.replace(parts, tasks=tasks, door=door, ids=ids)
        token = Token(accessor="", policies=("root",), created_at=NOW)
        secret = (await parts.tokens.issue(token)).secret
        yield Dispatcher(parts, ROUTES, ENDPOINTS, trio.Event()), secret


async def ask(asking: tuple[Dispatcher, str], path: str, query: str, body: bytes) -> WireResponse:
    answering, secret = asking
    headers = {"host": "localhost", "x-request-id": "1", "x-nomad-token": secret}
    method = "POST" if body else "GET"
    head = RequestHead(method=method, target=path.encode(), query=query, headers=headers)

    async def whole() -> bytes:
        return body

    answer = await answering.answer(head, whole)
    if answer.stream is None:
        return answer
    assert "list=true" in query
    body = b"".join([piece async for piece in answer.stream])
    return msgspec.structs.replace(answer, body=body, stream=None)


@pytest.mark.parametrize("path", ROWS)
@pytest.mark.parametrize("more", ["", "&reverse=true", "&prefix=00000"])
async def test_cost_of_a_page_depends_on_its_size(
    asking: tuple[Dispatcher, str], counted: Counted, path: str, more: str
) -> None:
    parts = path.replace("{", "}").split("}")
    names = {**KNOWN, "job_id": WIDE}
    parts[1::2] = [names.get(name, "default") for name in parts[1::2]]
    everywhere = "" if len(parts) > 1 else "&namespace=*"
    query = f"per_page={PAGE}{everywhere}{more}"
    body = b'{"Prefix":"0","Text":"dispatch","Context":"evals"}' if "/search" in path else b""
    await ask(asking, "".join(parts), query, body)  # so that the caller is cached
    counted.steps = 0
    answer = await ask(asking, "".join(parts), query, body)
    assert counted.steps <= MOST
    if answer.status == 200 and answer.body.startswith(b"["):
        assert len(msgspec.json.decode(answer.body)) <= PAGE


@pytest.mark.parametrize(
    "more",
    ["", "&reverse=true", "&type=batch&status=dead", "&sort=name", "&sort=name&reverse=true"],
)
async def test_cost_of_recently_changed_child_statuses_depends_on_the_page(
    asking: tuple[Dispatcher, str], counted: Counted, more: str
) -> None:
    query = f"per_page={PAGE}&namespace=*&include_children=true&contains=dispatch{more}"
    first = await ask(asking, "/v1/jobs/statuses", query, b"")
    counted.steps = 0
    token = first.headers["X-Service-NextToken"]
    second = await ask(asking, "/v1/jobs/statuses", f"{query}&next_token={token}", b"")
    assert counted.steps <= MOST
    found = [item["ID"] for page in (first, second) for item in msgspec.json.decode(page.body)]
    assert len({*found}) == 2 * PAGE


@pytest.fixture(scope="module")
def failed_children(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which all children and some jobs without a parent exceeded their time limit."""
    path = tmp_path_factory.mktemp("failed")
    shutil.copy(directory / FILE_NAME, path)

    async def fail() -> None:
        async with open_store(path, cluster_id="c", now=NOW) as store:
            for number in range(2 * PAGE):
                await store.write(partial(full_store.add_ended, job_id=f"alone-{number:03}"))
            await store.write(full_store.exceed_time, is_long=True)

    trio.run(fail)
    return path


@pytest.mark.parametrize("children", ["", "&include_children=true"])
@pytest.mark.parametrize("kind", ["", "&type=batch"])
@pytest.mark.parametrize("sort", ["", "&reverse=true", "&sort=name", "&sort=name&reverse=true"])
async def test_cost_of_failed_job_statuses_depends_on_the_page(
    failed_children: Path, counted: Counted, children: str, kind: str, sort: str
) -> None:
    query = f"per_page={PAGE}&namespace=*&state=failed{children}{kind}{sort}"
    async with dispatching(failed_children) as asking:
        first = await ask(asking, "/v1/jobs/statuses", query, b"")
        counted.steps = 0
        token = first.headers["X-Service-NextToken"]
        second = await ask(asking, "/v1/jobs/statuses", f"{query}&next_token={token}", b"")
    assert counted.steps <= MOST + MOST_STATES
    found = [item["ID"] for page in (first, second) for item in msgspec.json.decode(page.body)]
    assert len({*found}) == 2 * PAGE


async def test_cost_of_metrics_does_not_depend_on_the_history(
    asking: tuple[Dispatcher, str], counted: Counted
) -> None:
    await ask(asking, "/v1/metrics", "", b"")  # so that the states of jobs are cached
    counted.steps = 0
    answer = await ask(asking, "/v1/metrics", "", b"")
    assert counted.steps <= MOST
    gauges = {gauge["Name"]: gauge["Value"] for gauge in msgspec.json.decode(answer.body)["Gauges"]}
    assert gauges["nomad.client.allocations.terminal"] >= NUMBER
    assert gauges["nomad.nomad.job_status.dead"] >= NUMBER


async def test_evaluations_are_counted_without_reading_documents(
    asking: tuple[Dispatcher, str], counted: Counted
) -> None:
    counted.steps = 0
    answer = await ask(asking, "/v1/evaluations/count", "namespace=*", b"")
    assert counted.steps <= 2 * NUMBER * COUNTED  # rows of the children, and of one large job
    assert msgspec.json.decode(answer.body)["Count"] > 2 * NUMBER - 10


# Lists of the Vault API without pages: they have few keys, or Vault has no pages either.
FEW = {
    "/v1/sys/plugins/catalog/auth": "has one for each kind of method",
    "/v1/sys/version-history": "has one",
    "/v1/auth/{mount}/role": "Vault returns all roles, whatever is asked (recorded: role-lifecycle)",
}
LISTS = sorted({endpoint.path for endpoint in ENDPOINTS if endpoint.list} - FEW.keys())


async def keys(asking: tuple[Dispatcher, str], path: str, query: str) -> list[str]:
    """Return the keys of a list of the Vault API."""
    path = path.replace("{mount}", "many").replace("{prefix}", "auth/many/login")
    answer = await ask(asking, path, f"list=true{query}", b"")
    found = msgspec.json.decode(answer.body)
    assert (answer.status, found.get("warnings")) in ((200, None), (404, None))
    return list(found["data"]["keys"]) if answer.status == 200 else []


@pytest.mark.parametrize("path", LISTS)
async def test_cost_of_a_page_of_keys_depends_on_its_size(
    asking: tuple[Dispatcher, str], counted: Counted, path: str
) -> None:
    every = await keys(asking, path, "")
    assert len(every) >= NUMBER // other_objects.FEW
    assert every == sorted(every)
    walked: list[str] = []
    while page := await keys(
        asking, path, f"&limit={len(every) // 3}&after={''.join(walked[-1:])}"
    ):
        walked += page
    assert walked == every
    counted.steps = 0
    assert await keys(asking, path, f"&limit={PAGE}&after={every[9]}") == every[10 : 10 + PAGE]
    assert counted.steps <= MOST


@pytest.mark.parametrize("limit", ["0", "-1", "x", "99999999999", "9" * 5000, "\u0663"])
async def test_invalid_limit_is_refused(asking: tuple[Dispatcher, str], limit: str) -> None:
    path, query = "/v1/auth/token/accessors", f"list=true&limit={limit}"
    answer = await ask(asking, path, query, b"")
    assert (answer.status, b"limit" in answer.body) == (400, True)


def test_omitted_lists_are_in_the_table() -> None:
    assert WHOLE.keys() <= {route.path for route in ROUTES if isinstance(route, ReadRoute)}
