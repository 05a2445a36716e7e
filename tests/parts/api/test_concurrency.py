"""The API of queues: the namespaces of limits, their number, and errors of clients."""

from typing import Any
from urllib.parse import urlencode

import pytest

from daemon.api import concurrency as api
from daemon.api.routes import READ, SUBMIT_HERE
from daemon.jobs.namespaces import apply, remove
from storage.errors import Malformed, Refused
from storage.queries import concurrency, jobs, runs
from storage.records.concurrency import QueueLine, RunQueue
from storage.records.flow import Beyond, FlowRun
from storage.records.namespace import Namespace
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api.requests import caller, request
from tests.samples import NOW, job

WRITER = 'namespace "*" { capabilities = ["read-job", "submit-job"] }'


async def put(store: Store, name: str, namespace: str = "default", slots: int = 2) -> None:
    query = urlencode({"namespace": namespace})
    body = {"Slots": slots}
    asked = request(store, SUBMIT_HERE, caller(WRITER), body=body, query=query, name=name)
    await api.put(asked)


def lines(store: Store) -> list[QueueLine]:
    return store.read(lambda db: concurrency.lines(db, "*"))


@pytest.mark.parametrize("namespace", ["none", "*"])
async def test_a_limit_needs_a_namespace_that_exists(store: Store, namespace: str) -> None:
    with pytest.raises(Malformed) as caught:
        await put(store, "db", namespace)
    assert str(caught.value) == f'queue "db" is in nonexistent namespace "{namespace}"'
    assert lines(store) == []


async def test_the_number_of_limits_is_limited(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MOST_QUEUES", 2)
    await put(store, "a")
    await put(store, "b")
    with pytest.raises(Malformed) as caught:
        await put(store, "c")
    assert str(caught.value) == (
        'queue "c": the limits of 2 queues are set in namespace "default", which is the most: '
        "delete one of them"
    )
    await put(store, "b", slots=5)
    assert [(line.name, line.slots) for line in lines(store)] == [("a", 2), ("b", 5)]


async def test_a_queue_is_read_in_one_namespace(store: Store) -> None:
    await apply(store, Namespace(name="secret"))
    await put(store, "db", "secret")
    reader = caller('namespace "default" { capabilities = ["read-job"] }')
    asked = request(store, READ, reader, query="namespace=*", name="db")
    with pytest.raises(Malformed) as caught:
        store.read(lambda db: api.read(asked, db))
    assert str(caught.value) == 'namespace is "*", but a queue is in one namespace: name it'


async def test_the_limits_of_queues_go_with_their_namespace(store: Store) -> None:
    await apply(store, Namespace(name="ops"))
    await put(store, "db", "ops")
    await put(store, "db")
    await remove(store, "ops", "global")
    assert [line.namespace for line in lines(store)] == ["default"]


async def test_a_namespace_with_runs_in_queues_stays(store: Store) -> None:
    await apply(store, Namespace(name="ops"))
    await store.write(enter)
    with pytest.raises(Refused, match=r'namespace "ops" has queues with runs in regions'):
        await remove(store, "ops", "global")


def enter(tx: Transaction) -> None:
    one: Any = jobs.append_version(tx, job("flow", namespace="ops"))
    flow_run = FlowRun(namespace="ops", job_id="flow", number=1, version=one.version)
    runs.put(tx, flow_run, None)
    concurrency.enter(tx, RunQueue(name="db", slots=1, beyond=Beyond.QUEUE), one, flow_run, NOW)
