"""The versions of a job with a long history: only some are in memory; the response is the same."""

from typing import Any

import msgspec
import pytest
import trio

from daemon.api import job_versions
from daemon.api.routes import ROUTES
from daemon.web.dispatcher import Dispatcher
from daemon.web.request_head import RequestHead
from storage.store import Store
from tests.parts.api.requests import parts_of
from tests.parts.evals.cluster import Cluster
from tests.samples import job

NUMBER = 7


@pytest.fixture
async def asking(store: Store) -> Dispatcher:
    cluster = Cluster(store)
    for number in range(NUMBER):
        await cluster.register(job("web", meta={"n": str(number)}))
    return Dispatcher(parts_of(store, asks=False), ROUTES, (), trio.Event())


async def ask(dispatcher: Dispatcher, query: str) -> tuple[bool, Any]:
    """Return whether the response came in parts, and its body or error text."""

    async def body() -> bytes:
        return b""

    head = RequestHead(
        method="GET", target=b"/v1/job/web/versions", query=query, headers={"host": "localhost"}
    )
    answer = await dispatcher.answer(head, body)
    whole = answer.body
    if answer.stream is not None:
        whole = b"".join([piece async for piece in answer.stream])
    text = whole.decode()
    return answer.stream is not None, msgspec.json.decode(text) if text[:1] == "{" else text


@pytest.mark.parametrize(
    "query",
    [
        "",
        "diffs=true",
        "diffs=true&diff_version=0",
        "diffs=true&filter=Meta.n+!=+3",
        "diffs=true&filter=Meta.n+==+none",
        "diffs=true&next_token=3",
        "diffs=true&next_token=0",
    ],
)
async def test_long_history_sent_in_parts_is_unchanged(
    asking: Dispatcher, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    in_parts, whole = await ask(asking, query)
    assert not in_parts
    monkeypatch.setattr(job_versions, "STEP_BYTES", 1)
    monkeypatch.setattr(job_versions, "STEP_ROWS", 3)
    in_parts, found = await ask(asking, query)
    assert in_parts == ("next_token=0" not in query)
    assert {**found, "Diffs": found["Diffs"] or None} == whole


async def test_page_ends_before_its_versions_exceed_the_memory_limit(
    asking: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = await ask(asking, "")
    monkeypatch.setattr(job_versions, "_MOST_PAGE", 1)
    walked, token = list[Any](), ""
    for _ in range(NUMBER):
        _, page = await ask(asking, f"per_page=100&next_token={token}")
        walked += page["Versions"]
        token = page["NextToken"]
    assert (walked, token) == (whole["Versions"], "")


async def test_an_unknown_version_to_compare_with_is_refused_before_the_first_part(
    asking: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_versions, "STEP_BYTES", 1)
    assert await ask(asking, "diffs=true&diff_version=99") == (False, "version 99 not found")
