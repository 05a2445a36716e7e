"""Metrics that count rows of the store."""

import threading
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio

from daemon.api.cluster import metrics as metrics_api
from daemon.api.cluster.gauges import gauges
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.app.context import AppContext
from daemon.identity.lazy_methods import LazyMethods
from daemon.runner.core import task_events as runner_events
from daemon.runner.core.driver import ExitResult
from daemon.text.job_state import State
from daemon.web.dispatcher import Dispatcher
from daemon.web.request_head import RequestHead
from storage.queries import allocations, freezes, metrics
from storage.records.acl import Token
from storage.records.allocation import ClientStatus
from storage.records.base import SECOND
from storage.records.freeze import Freeze
from storage.records.job import Parameterized
from storage.records.task import Resources
from storage.store import Store, open_store
from tests.parts.api.requests import parts_of
from tests.parts.evals.cluster import Cluster
from tests.parts.storage.test_damage import pages_of, spoil
from tests.parts.ui.conftest import Runner
from tests.samples import NOW, group, job, task
from tests.unit.scheduler.world import node


def answering(store: Store, **fields: Any) -> AppContext:
    """Return the parts of a daemon that has no login methods."""
    parts = parts_of(store)
    return msgspec.structs.replace(parts, door=LazyMethods(parts.fences), **fields)


async def test_memory_kills_are_counted_for_each_task(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.join(node())
    await cluster.register(job("web"))
    await cluster.work()
    (one,) = cluster.allocations()
    ends = [
        runner_events.terminated(0, ExitResult(code=137, signal=9, oom_killed=True)),
        runner_events.terminated(1, ExitResult(code=1)),
        runner_events.terminated(2, ExitResult(code=137, oom_killed=True)),
    ]
    happened = {"main": ends, "side": ends[:1]}
    await cluster.store.write(lambda tx: allocations.add_events(tx, one.id, happened))
    counted = cluster.store.read(
        lambda db: [
            metrics.killed_for_memory(db, one.id, task) for task in ("main", "side", "none")
        ]
    )
    assert counted == [2, 1, 0]


async def test_jobs_are_counted_by_state(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.join(node())
    for name in ("web", "api"):
        await cluster.register(job(name))
    await cluster.register(
        job("large", group("g", task("t", resources=Resources(memory_mb=10**7))))
    )
    parent = job("nightly", type="batch", parameterized_job=Parameterized())
    await cluster.register(parent)
    await cluster.register(job("nightly/dispatch-1", type="batch", parent_id="nightly"))
    await cluster.work()
    tasks = cast("Any", Runner())
    parts = answering(store, tasks=tasks)
    found = {
        gauge.labels["state"]: gauge.value
        for gauge in await gauges(parts)
        if gauge.name == "steward.job_state" and gauge.labels["namespace"] == "default"
    }
    assert found.keys() == set(State)
    counted = {word: number for word, number in found.items() if number}
    assert counted == {"pending": 2, "blocked": 1, "scheduled": 1}


@pytest.mark.parametrize("table", ["allocations", "freezes", "jobs", "nodes"])
async def test_metrics_report_a_corrupt_page_and_all_other_values(
    tmp_path: Path, table: str
) -> None:
    async with open_store(tmp_path, cluster_id="c", now=NOW) as store:
        cluster = Cluster(store)
        await cluster.join(node())
        await cluster.register(job("web"))
        await cluster.work()
        freeze = Freeze(id="f", namespace="default", begin=NOW)
        await store.write(lambda tx: freezes.add(tx, freeze))
    spoil(tmp_path, pages_of(tmp_path, table)[0])
    async with open_store(tmp_path, cluster_id="c", now=NOW) as store:
        parts = answering(store, tasks=cast("Any", Runner()))
        found = {gauge.name: gauge.value for gauge in await gauges(parts)}
    assert found["steward.store.damaged"] == 1
    assert found["nomad.runtime.num_goroutines"] > 0
    assert found["nomad.client.host.memory.total"] > 0


async def test_job_states_for_metrics_use_a_limited_share_of_cpu_time(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.register(job("web"))

    class Moving:
        time = NOW

        def now(self) -> int:
            return self.time

    clock = Moving()
    tasks = cast("Any", Runner())
    parts = answering(store, clock=clock, tasks=tasks)

    async def pending() -> float:
        (found,) = [
            gauge.value
            for gauge in await gauges(parts)
            if gauge.name == "steward.job_state" and gauge.labels["state"] == State.PENDING
        ]
        return found

    assert await pending() == 1
    await cluster.register(job("api"))
    assert await pending() == 1  # no time has passed, so the count is cached
    clock.time += 60 * SECOND
    assert await pending() == 2
    await cluster.register(job("db"))
    clock.time = NOW  # a cached count expires even if the clock is set back
    assert await pending() == 3


async def test_many_metric_values_written_in_a_thread_are_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = answering(store, tasks=cast("Any", Runner()))
    root = Token(accessor="", policies=("root",), created_at=NOW)
    secret = (await parts.tokens.issue(root)).secret
    dispatcher = Dispatcher(parts, ROUTES, ENDPOINTS, trio.Event())

    async def no_body() -> bytes:
        return b""

    async def ask(query: str) -> bytes:
        headers = {"host": "localhost", "x-request-id": "1", "x-nomad-token": secret}
        head = RequestHead(method="GET", target=b"/v1/metrics", query=query, headers=headers)
        return (await dispatcher.answer(head, no_body)).body

    def names(body: bytes) -> list[str]:
        return [gauge["Name"] for gauge in msgspec.json.decode(body)["Gauges"]]

    def families(body: bytes) -> list[bytes]:
        return [line for line in body.splitlines() if line.startswith(b"# TYPE")]

    few = names(await ask("")), families(await ask("format=prometheus"))
    threads = list[int]()
    exposed, summary = metrics_api._exposed, metrics_api._summary
    for name, write in (("_exposed", exposed), ("_summary", summary)):
        monkeypatch.setattr(
            metrics_api,
            name,
            lambda *given, _write=write, **more: (
                threads.append(threading.get_ident()) or _write(*given, **more)
            ),
        )
    monkeypatch.setattr(metrics_api, "_FEW", 0)
    assert (names(await ask("")), families(await ask("format=prometheus"))) == few
    here = threading.get_ident()
    # The timers change on the event loop, so they are written there.
    assert [thread == here for thread in threads] == [False, False, True]


async def test_metric_counts_reflect_every_change_of_allocations_and_jobs(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.join(node())
    await cluster.register(job("web", group("g", count=2)))
    await cluster.work()
    one, _ = cluster.allocations()

    def shown() -> tuple[dict[str, int], dict[str, int]]:
        counted = store.read(lambda db: (metrics.allocations(db), metrics.jobs_by_status(db)))
        return +counted[0][one.node_id], {name: n for name, n in counted[1].items() if n}

    assert shown()[0] == {"pending": 2}
    for status in (ClientStatus.RUNNING, ClientStatus.FAILED):
        after = msgspec.structs.replace(one, client_status=status)
        await store.write(lambda tx, after=after: allocations.set_client(tx, after, NOW))
    assert shown()[0] == {"pending": 1, "failed": 1}
    assert sum(shown()[1].values()) == 1
