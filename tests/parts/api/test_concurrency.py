"""The API of queues: the namespaces of limits, their number, and errors of clients."""

from functools import partial
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from daemon.api import concurrency as api
from daemon.api.routes import READ, READ_ALL, SUBMIT_HERE
from daemon.jobs.namespaces import apply, remove
from storage.errors import Malformed, Refused
from storage.queries import concurrency, jobs, runs
from storage.queries.pages import PageRequest
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
    return store.read(lambda db: [*concurrency.page(db, PageRequest(namespace="*"))])


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
        'namespace "default" already has limits for 2 queues, the maximum: '
        'delete one before you set a limit for queue "c"'
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
    assert (
        str(caught.value)
        == 'namespace = "*" does not identify a queue: give the namespace of the queue'
    )


async def test_queue_limits_are_deleted_with_their_namespace(store: Store) -> None:
    await apply(store, Namespace(name="ops"))
    await put(store, "db", "ops")
    await put(store, "db")
    await remove(store, "ops", "global")
    assert [line.namespace for line in lines(store)] == ["default"]


async def test_namespace_with_queued_runs_is_not_deleted(store: Store) -> None:
    await apply(store, Namespace(name="ops"))
    await store.write(enter)
    with pytest.raises(Refused, match=r'namespace "ops" has queues with runs in regions'):
        await remove(store, "ops", "global")


def enter(tx: Transaction) -> None:
    one: Any = jobs.append_version(tx, job("flow", namespace="ops"))
    begun = FlowRun(namespace="ops", job_id="flow", number=1, version=one.version)
    runs.put(tx, begun, None)
    concurrency.enter(tx, RunQueue(name="db", slots=1, beyond=Beyond.QUEUE), one, begun, NOW)


# --- lists ---


@pytest.fixture
async def many(store: Store) -> Store:
    """A store with limits and runs in three namespaces; some queues have both."""
    for namespace in ("a", "b"):
        await apply(store, Namespace(name=namespace))
    for namespace in ("a", "b", "default"):
        for name in ("db", "db.1", "disk", "x"):
            await put(store, name, namespace)
    for name in ("db", "db.2", "é"):
        await store.write(partial(_enter, name=name))
    return store


def _enter(tx: Transaction, *, name: str) -> None:
    one = jobs.append_version(tx, job(f"j-{name}", type="batch"))
    run = FlowRun(
        namespace="default",
        job_id=one.id,
        number=1,
        version=0,
        trigger="job-register",
        began=NOW,
        create_index=tx.index,
        modify_index=tx.index,
    )
    runs.put(tx, run, None)
    concurrency.enter(tx, RunQueue(name=name, slots=1, beyond=Beyond.QUEUE), one, run, NOW)


def asked(store: Store, rules: str = WRITER, **query: object) -> tuple[list[str], str]:
    """Return the keys on a page, and the token of the next page."""
    words = urlencode({"namespace": "*", **query})
    made = store.read(
        lambda db: api.index(request(store, READ_ALL, caller(rules), query=words), db)
    )
    assert isinstance(made.body, bytes)
    found = msgspec.json.decode(made.body, type=list[QueueLine])
    return [f"{one.namespace}/{one.name}" for one in found], made.next_token


EVERY = [
    *(f"{namespace}/{name}" for namespace in "ab" for name in ("db", "db.1", "disk", "x")),
    *(f"default/{name}" for name in ("db", "db.1", "db.2", "disk", "x", "é")),
]


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("prefix", ["", "d", "db", "db.2", "none"])
@pytest.mark.parametrize("namespace", ["*", "a", "default", "none"])
@pytest.mark.parametrize("per_page", [1, 3, 50])
async def test_pages_of_queues_are_equal_to_the_whole_list(
    many: Store, per_page: int, namespace: str, prefix: str, reverse: str
) -> None:
    query: dict[str, object] = {"namespace": namespace, "prefix": prefix, "reverse": reverse}
    desired = [
        one
        for one in EVERY
        if namespace in ("*", one.partition("/")[0]) and one.partition("/")[2].startswith(prefix)
    ]
    found, token = asked(many, **query, per_page=per_page)
    while token:
        page, token = asked(many, **query, per_page=per_page, next_token=token)
        assert 1 <= len(page) <= per_page
        found += page
    assert found == (desired if reverse == "false" else desired[::-1])
    assert asked(many, **query) == (found, "")


async def test_queues_are_filtered_by_the_permissions_of_the_caller(many: Store) -> None:
    assert asked(many, filter="Waiting != 0")[0] == ["default/db", "default/db.2", "default/é"]
    assert asked(many, 'namespace "b" { policy = "read" }', per_page=9) == (EVERY[4:8], "")


async def test_queue_shows_its_first_slot_holders(
    many: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ("default", "db")
    (entry,) = many.read(lambda db: concurrency.waiters(db, key, 9))
    await many.write(lambda tx: concurrency.grant(tx, entry, NOW))
    for most, number in ((1, 1), (0, 0)):
        monkeypatch.setattr(api, "_MOST", most)
        shown = many.read(lambda db: api.read(request(many, READ, caller(WRITER), name="db"), db))
        view = msgspec.to_builtins(shown.body)
        assert (len(view["Holders"]), view["InUse"]) == (number, 1)
