"""The route of bulk dispatch: it checks the caller and the scheduler again for each batch."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from daemon.acl.check import Caller, on_namespace
from daemon.api import bulk_dispatch
from daemon.api.bulk_dispatch import dispatch_bulk
from daemon.evals.scheduler_config import configure
from daemon.web import stream_auth
from storage import request_context
from storage.errors import Malformed, StorageFull
from storage.queries import job_status, jobs
from storage.records.job import Parameterized
from storage.records.operator_api import SchedulerConfig
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api.requests import caller, request
from tests.samples import job

NEEDS = on_namespace("dispatch-job")
SENDER = 'namespace "default" { capabilities = ["dispatch-job"] }'
READER = 'namespace "default" { policy = "read" }'


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_dispatch, "BATCH", 2)


def _register(tx: Transaction) -> None:
    made = job("web", type="batch", parameterized_job=Parameterized())
    jobs.append_version(tx, made)
    job_status.refresh_summary(tx, made.namespace, made.id)


async def begin(store: Store, number: int, query: str = "") -> AsyncGenerator[bytes, None]:
    await store.write(_register)
    asked = request(store, NEEDS, caller(SENDER), query=query, job_id="web")
    asked = msgspec.structs.replace(asked, body=b"{}\n" * number)
    reply = await dispatch_bulk(asked)
    assert reply.content_type == "application/x-ndjson"
    assert isinstance(reply.stream, AsyncGenerator)
    return reply.stream


def parsed(piece: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in piece.splitlines()]


async def test_each_batch_is_answered_after_its_write(store: Store) -> None:
    stream = await begin(store, 3, "first_line=5")
    (one, two), (three,) = [parsed(piece) async for piece in stream]
    assert [one["Line"], two["Line"], three["Line"]] == [5, 6, 7]
    assert one["Index"] == two["Index"] < three["Index"]
    assert all(
        store.read(lambda db, name=each["DispatchedJobID"]: jobs.current(db, "default", name))
        for each in (one, two, three)
    )


async def test_token_revoked_during_a_dispatch_dispatches_no_further_line(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await begin(store, 4)
    first = parsed(await anext(stream))
    monkeypatch.setattr(stream_auth, "RECHECK", -1.0)
    second = parsed(await anext(stream))  # the caller's token is not in the store
    await stream.aclose()
    assert all("EvalID" in item for item in first)
    assert [item["Error"] for item in second] == ["Permission denied"] * 2


async def test_dispatch_ends_when_its_capability_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await begin(store, 4)
    first = parsed(await anext(stream))
    monkeypatch.setattr(stream_auth, "RECHECK", -1.0)

    async def now(_: stream_auth.StreamSubscriber) -> Caller:
        return caller(READER)

    monkeypatch.setattr(stream_auth.StreamSubscriber, "_now", now)
    second = parsed(await anext(stream))
    await stream.aclose()
    assert all("EvalID" in item for item in first)
    assert [(item["Line"], item["Error"]) for item in second] == [
        (3, "Permission denied"),
        (4, "Permission denied"),
    ]


async def test_scheduler_that_rejects_jobs_rejects_all_remaining_lines(store: Store) -> None:
    stream = await begin(store, 3)
    await anext(stream)
    await configure(store, SchedulerConfig(reject_job_registration=True), expected=None)
    (refused,) = parsed(await anext(stream))
    await stream.aclose()
    assert "disabled by the scheduler configuration" in refused["Error"]


async def test_a_batch_that_cannot_be_stored_is_an_error_of_its_lines(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await begin(store, 3)

    async def full(*_: object, **__: object) -> None:
        raise StorageFull("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "write", full)
        first = parsed(await anext(stream))
    (last,) = parsed(await anext(stream))
    await stream.aclose()
    assert [(item["Line"], item["Error"]) for item in first] == [
        (1, "the disk is full"),
        (2, "the disk is full"),
    ]
    assert last["DispatchedJobID"]


@pytest.mark.parametrize("text", ["0", "-1", "x", "1" * 16])
async def test_the_number_of_the_first_line_is_checked(store: Store, text: str) -> None:
    with pytest.raises(Malformed, match="give the number of the first line"):
        await begin(store, 1, f"first_line={text}")


async def test_the_caller_of_a_child_is_its_creator(store: Store) -> None:
    with request_context.person_scope("ann"):
        stream = await begin(store, 3)
    told = [item async for piece in stream for item in parsed(piece)]
    names = [item["DispatchedJobID"] for item in told]
    people = [
        store.read(lambda db, item=name: jobs.author_of(db, "default", item, 0)) for name in names
    ]
    assert people == ["ann"] * 3
