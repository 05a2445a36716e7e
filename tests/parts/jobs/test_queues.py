"""Queues of runs: the order in which runs get slots, and the effect of their policies."""

import re
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.evals.explain import explain_job
from daemon.jobs.dispatch import (
    DispatchOutcome,
    DispatchRequestData,
    dispatch_errors,
    dispatch_job,
)
from daemon.jobs.queues import has_work, queue_errors, queue_warnings, serve
from daemon.jobs.steer_run import RunActRequest, act_on_run
from daemon.process.parts import open_queues
from daemon.text.go_format import quote
from storage.errors import Invalid, TooOften
from storage.queries import concurrency, invariants, jobs, runs
from storage.queries.pages import PageRequest
from storage.records.concurrency import QueueEntry
from storage.records.flow import SLOTS_FREE, RunActType
from storage.records.group import ReschedulePolicy
from storage.records.job import Job, Parameterized
from storage.schema import schema_text
from storage.store import Store
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_workflows import report
from tests.samples import group, job, task
from tests.time_limits import HAPPENS_WITHIN

NEVER = ReschedulePolicy(attempts=0, unlimited=False)
KEY = ("default", "db")


def queued(job_id: str, **fields: Any) -> Job:
    keys = {
        f"steward_run_concurrency_{key}": str(fields.pop(key))
        for key in ("slots", "beyond")
        if key in fields
    }
    meta = {"steward_run_concurrency": "db", **keys, **fields.pop("meta", {})}
    made = group("a", task(), reschedule_policy=NEVER)
    return job(job_id, made, type="batch", meta=meta, **fields)


class Queues:
    """A cluster with a queue; `settle` does the work of the loop and of the worker."""

    def __init__(self, store: Store) -> None:
        self.cluster = Cluster(store)
        self.store = store

    async def register(self, *made: Job) -> None:
        for item in made:
            await self.cluster.register(item)
            await self.cluster.work()
            await self.settle()

    async def settle(self) -> None:
        while self.store.read(partial(has_work, key=KEY)):
            now = self.cluster.clock.now()
            await self.store.write(partial(serve, key=KEY, now=now, ids=self.cluster.ids))
            await self.cluster.work()
        await self.cluster.work()

    async def end(self, job_id: str, *, code: int = 0) -> None:
        for alloc in self.cluster.allocations(job_id):
            if not alloc.client_terminal:
                await report(self.cluster, alloc, code=code)
        await self.cluster.work()
        await self.settle()

    async def limit(self, slots: int) -> None:
        await self.store.write(lambda tx: concurrency.set_limit(tx, KEY, slots, ""))
        await self.settle()

    def at_work(self, *names: str) -> list[str]:
        return [
            name
            for name in names
            if any(not alloc.client_terminal for alloc in self.cluster.allocations(name))
        ]

    def status(self, job_id: str) -> tuple[str, str]:
        found = self.store.read(lambda db: runs.newest(db, "default", job_id))
        assert found is not None
        return found.status.value, found.reason

    def waiters(self) -> list[str]:
        return [entry.job_id for entry in self.entries(concurrency.waiters, 99)]

    def holders(self) -> list[str]:
        return [one.job_id for one in self.entries(concurrency.holders, 99)]

    def entries(self, query: Any, *values: object) -> list[QueueEntry]:
        queue_entries: list[QueueEntry] = self.store.read(lambda db: query(db, KEY, *values))
        return queue_entries

    def broken(self) -> list[str]:
        return self.store.read(lambda db: list(invariants.find_violations(db)))


@pytest.fixture
async def made(store: Store) -> Queues:
    found = Queues(store)
    await found.cluster.join()
    return found


async def test_runs_get_the_only_slot_in_order_of_arrival(made: Queues) -> None:
    await made.register(queued("a"), queued("b"), queued("c"))
    seen = [made.at_work("a", "b", "c")]
    for name in "abc":
        await made.end(name)
        seen.append(made.at_work("a", "b", "c"))
    assert seen == [["a"], ["b"], ["c"], []]
    assert (made.holders(), made.waiters(), made.broken()) == ([], [], [])


async def test_queued_job_is_pending_with_a_reason(made: Queues) -> None:
    await made.register(queued("a"), queued("b"))
    assert made.cluster.job("b").status == "pending"
    told = made.store.read(lambda db: explain_job(db, "default", "b"))
    assert told is not None
    assert [reason.message for reason in told.reasons] == [
        'the run waits for the queue "db": 1 of 1 slot in use, 0 runs wait before it',
        'it is held: slot: it waits for the queue "db"',
    ]


async def test_explanation_counts_slots_beyond_a_lowered_limit(made: Queues) -> None:
    await made.limit(2)
    await made.register(queued("a"), queued("b"), queued("c"))
    await made.limit(1)
    told = made.store.read(lambda db: explain_job(db, "default", "c"))
    assert told is not None
    assert told.reasons[0].message == (
        'the run waits for the queue "db": 2 slots in use, 1 more than its limit of 1, '
        "0 runs wait before it"
    )


async def test_run_with_too_many_slots_uses_all_of_the_queue(made: Queues) -> None:
    await made.limit(2)
    await made.register(queued("a", slots="3"), queued("b"))
    told = made.store.read(lambda db: explain_job(db, "default", "b"))
    assert told is not None
    assert told.reasons[0].message == (
        'the run waits for the queue "db": 2 of 2 slots in use, 0 runs wait before it'
    )


async def test_a_higher_priority_waits_in_front(made: Queues) -> None:
    await made.register(queued("a"), queued("b", priority=10), queued("c", priority=90))
    assert made.waiters() == ["c", "b"]
    await made.end("a")
    assert made.holders() == ["c"]


async def test_the_first_in_the_queue_is_not_overtaken(made: Queues) -> None:
    await made.limit(2)
    await made.register(queued("a"), queued("large", slots=2), queued("c"))
    assert (made.holders(), made.waiters()) == (["a"], ["large", "c"])
    await made.end("a")
    assert (made.holders(), made.waiters()) == (["large"], ["c"])


async def test_run_that_requests_more_than_all_slots_gets_all(made: Queues) -> None:
    await made.register(queued("a", slots=7), queued("b"))
    assert (made.holders(), made.waiters()) == (["a"], ["b"])


async def test_raised_limit_starts_runs_and_a_lowered_one_stops_none(made: Queues) -> None:
    await made.register(queued("a"), queued("b"), queued("c"))
    await made.limit(2)
    assert made.holders() == ["a", "b"]
    await made.limit(1)
    assert made.at_work("a", "b", "c") == ["a", "b"]
    await made.end("a")
    assert made.holders() == ["b"]


async def test_run_with_skip_is_canceled_without_a_slot(made: Queues) -> None:
    await made.register(queued("a"), queued("b", beyond="skip"))
    await made.settle()
    assert made.status("b") == ("canceled", 'no slot of the queue "db" was free')
    assert made.cluster.allocations("b") == []
    assert made.waiters() == []


@pytest.mark.parametrize("beyond", ["skip", "newest", "cancel-oldest"])
async def test_no_run_is_canceled_while_slots_are_free(made: Queues, beyond: str) -> None:
    await made.limit(100)
    names = [f"p/dispatch-{number}" for number in range(60)]
    for name in names:  # all runs arrive before the loop reads the queue
        await made.cluster.register(queued(name, parent_id="p", beyond=beyond))
        await made.cluster.work()
    await made.settle()
    assert made.holders() == names
    assert {made.status(name) for name in names} == {("running", "")}


async def test_only_changed_queues_with_waiting_runs_are_processed(made: Queues) -> None:
    def changed() -> list[concurrency.Key]:
        return made.store.read(lambda db: concurrency.changed(db, 99))

    async def enter(job_id: str, name: str) -> None:
        one = queued(job_id, meta={"steward_run_concurrency": name})
        await made.cluster.register(one)
        await made.cluster.work()

    async def serve_all() -> None:
        for key in changed():
            now = made.cluster.clock.now()
            await made.store.write(partial(serve, key=key, now=now, ids=made.cluster.ids))
        await made.cluster.work()

    for number in range(5):
        for name in ("first", "second"):
            await enter(f"{name}-{number}", f"q{number}")
    await serve_all()
    assert changed() == []
    await made.cluster.register(job("plain", group("a", task()), type="batch"))
    await made.store.write(lambda tx: jobs.purge(tx, made.cluster.job("plain")))
    assert changed() == []
    await made.store.write(lambda tx: jobs.purge(tx, made.cluster.job("first-2")))
    assert changed() == [("default", "q2")]
    await serve_all()
    for alloc in made.cluster.allocations("second-2"):
        await report(made.cluster, alloc)
    await made.cluster.work()
    assert changed() == []  # no run waits in this queue
    assert made.at_work("second-2", "second-3") == []
    await made.store.write(lambda tx: concurrency.set_limit(tx, ("default", "q3"), 2, ""))
    await serve_all()
    assert made.at_work("second-3", "second-4") == ["second-3"]


async def test_a_purge_of_a_job_without_queues_wakes_no_queue(made: Queues) -> None:
    await made.cluster.register(job("plain", group("a", task()), type="batch"))
    with made.store.watch(SLOTS_FREE) as change:
        await made.store.write(lambda tx: jobs.purge(tx, made.cluster.job("plain")))
        assert not change.has_changed


def test_query_of_a_queue_does_not_scan_others(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "s")) as connection:
        connection.executescript(schema_text())
        for sql in (
            concurrency._IN_USE,
            concurrency._WAITERS,
            concurrency._HOLDERS,
            concurrency._NEWEST,
            concurrency._OF_FAMILY,
            concurrency._BEFORE,
            runs._QUEUE_CHANGED,
        ):
            values = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
            steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
            searches = [step for step in steps if "queue_entries" in step or " o " in step]
            assert searches, steps
            assert all("name=?" in step.replace("namespace=?", "") for step in searches), steps


async def test_newest_run_of_a_family_replaces_waiting_ones(made: Queues) -> None:
    first, second = (
        queued(f"p/dispatch-{number}", parent_id="p", beyond="newest") for number in (1, 2)
    )
    await made.register(queued("a"), queued("other", beyond="newest"), first, second)
    assert made.waiters() == ["other", "p/dispatch-2"]
    reason = 'run 1 of p/dispatch-2 replaced it in the queue "db"'
    assert made.status("p/dispatch-1") == ("canceled", reason)


async def test_oldest_run_of_a_family_is_canceled_and_replaced(made: Queues) -> None:
    first, second = (
        queued(f"p/dispatch-{number}", parent_id="p", beyond="cancel-oldest") for number in (1, 2)
    )
    await made.register(first, second)
    await made.end("p/dispatch-1")
    assert made.status("p/dispatch-1")[0] == "canceled"
    assert made.holders() == ["p/dispatch-2"]
    assert made.broken() == []


async def test_canceled_or_purged_run_frees_its_slot(made: Queues) -> None:
    await made.register(queued("a"), queued("b"), queued("c"))
    await made.store.write(lambda tx: jobs.purge(tx, made.cluster.job("a")))
    await made.settle()
    assert made.holders() == ["b"]
    await act(made, "b", RunActType.CANCEL)
    await made.end("b")
    assert made.holders() == ["c"]


async def act(queues: Queues, job_id: str, kind: RunActType, **fields: Any) -> None:
    await act_on_run(
        queues.store,
        "default",
        job_id,
        kind,
        RunActRequest(**fields),
        caller="me",
        now=queues.cluster.clock.now(),
        eval_id=next(queues.cluster.ids),
        may_approve=True,
    )
    await queues.cluster.work()


async def test_rerun_waits_in_the_queue_again(made: Queues) -> None:
    await made.register(queued("a"), queued("b"))
    await made.end("a", code=1)
    await act(made, "a", RunActType.RERUN, failed=True)
    await made.settle()
    assert (made.holders(), made.waiters()) == (["b"], ["a"])
    await made.end("b")
    assert made.at_work("a", "b") == ["a"]


async def test_the_name_of_a_queue_can_contain_meta(made: Queues) -> None:
    meta = {"steward_run_concurrency": "db-${NOMAD_META_env}", "env": "prod"}
    await made.register(queued("a", meta=meta))
    lines = made.store.read(lambda db: [*concurrency.page(db, PageRequest(namespace="*"))])
    assert [(one.name, one.slots, one.waiting, one.exists) for one in lines] == [
        ("db-prod", 1, 1, False)
    ]


async def test_a_plan_warns_of_queues_without_a_limit_and_of_too_many_slots(
    made: Queues,
) -> None:
    def told() -> list[str]:
        one = queued("a", slots=3)
        return made.store.read(lambda db: list(queue_warnings(db, one)))

    few = 'a run of the job asks for 3 slots of the queue "db", and takes its only slot'
    assert told() == [
        'the queue "db" has 1 slot; set another number with: steward queues set -slots N db',
        few,
    ]
    await made.limit(3)
    assert told() == []


async def test_the_number_of_queues_with_runs_is_limited(
    made: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.jobs.queues.MOST_QUEUES", 2)

    def named(job_id: str, name: str, **fields: Any) -> Job:
        return queued(job_id, meta={"steward_run_concurrency": name}, **fields)

    def errors(name: str) -> list[str]:
        return made.store.read(lambda db: list(queue_errors(db, named("x", name))))

    for job_id, name in (("a", "q1"), ("b", "q1"), ("c", "q2")):
        assert errors(name) == []
        await made.cluster.register(named(job_id, name))
        await made.cluster.work()
    assert errors("q2") == []
    text = (
        'steward_run_concurrency names the queue "q3", but 2 queues of namespace "default" have runs, '
        "which is the maximum: name one of them, or wait until runs end"
    )
    assert errors("q3") == [text]
    parent = named("p", "${NOMAD_META_to}", parameterized_job=Parameterized(meta_required=["to"]))
    await made.store.write(lambda tx: jobs.append_version(tx, parent))

    async def dispatch(to: str) -> DispatchOutcome:
        return await dispatch_job(
            made.store,
            "default",
            "p",
            DispatchRequestData(payload=b"", meta={"to": to}),
            now=made.cluster.clock.now(),
            ids=made.cluster.ids,
            suffix=to,
        )

    assert (await dispatch("q2")).job_id.endswith("q2")
    with pytest.raises(TooOften, match='names the queue "q3"'):
        await dispatch("q3")


@pytest.mark.parametrize("to", ["", "a b", "ä", "x" * 129])
async def test_dispatch_that_results_in_no_queue_name_is_refused(made: Queues, to: str) -> None:
    parent = job(
        "p",
        group("g", task()),
        type="batch",
        meta={"steward_run_concurrency": "${NOMAD_META_to}"},
        parameterized_job=Parameterized(meta_optional=["to"]),
    )
    await made.store.write(lambda tx: jobs.append_version(tx, parent))
    request = DispatchRequestData(payload=b"", meta={"to": to})
    (error,) = (error for field, error in dispatch_errors(parent, request) if field == "Meta")
    assert str(error) == (
        f'steward_run_concurrency is "${{NOMAD_META_to}}", which results in {quote(to[:80])}; '
        "a queue has a name of 1 to 128 letters, digits, -, _ and ."
    )
    with pytest.raises(Invalid, match="which results in"):
        await dispatch_job(
            made.store, "default", "p", request, now=1, ids=made.cluster.ids, suffix="1"
        )


def with_cleanup(job_id: str) -> Job:
    cleanup = group("c", task(), meta={"steward_needs": "*", "steward_when": "always"})
    one = queued(job_id)
    return msgspec.structs.replace(one, task_groups=[*(one.task_groups or ()), cleanup])


async def test_canceled_run_that_never_had_a_slot_has_nothing_to_clean_up(made: Queues) -> None:
    await made.register(queued("a"), with_cleanup("b"))
    await act(made, "b", RunActType.CANCEL)
    await made.settle()
    assert made.status("b") == ("canceled", "canceled by me")
    assert (made.waiters(), made.at_work("b"), made.broken()) == ([], [], [])


async def test_canceled_run_with_a_slot_cleans_up(made: Queues) -> None:
    await made.register(with_cleanup("a"))
    await act(made, "a", RunActType.CANCEL)
    await made.settle()
    assert made.status("a")[0] == "stopping"
    await made.end("a")
    await made.settle()
    assert [alloc.task_group for alloc in made.cluster.allocations("a")][-1:] == ["c"]


async def test_queue_loop_assigns_slots_automatically(made: Queues) -> None:
    cluster = made.cluster
    with trio.fail_after(HAPPENS_WITHIN):
        async with open_queues(made.store, cluster.clock, cluster.ids, cluster.fences):
            await cluster.register(queued("a"))
            await cluster.work()
            while made.holders() != ["a"]:
                with made.store.watch("queues/") as change:
                    if made.holders() != ["a"]:
                        await change.wait()
    await cluster.work()
    assert made.at_work("a") == ["a"]
