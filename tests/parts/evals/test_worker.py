"""The worker: the order of evaluations, and errors."""

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from itertools import count
from typing import Any

import pytest
import trio
import trio.testing

from daemon.evals import schedule_with_preemption, worker
from daemon.evals.gc import RetentionLimits
from daemon.evals.scheduler_config import set_workers
from daemon.fences import ATTEMPTS
from storage.queries import evaluations, jobs
from storage.records.allocation import ClientStatus
from storage.records.base import SECOND
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.job import Job, JobType
from storage.records.node import NodeMemory
from storage.records.task import Network, Port, Resources
from storage.records.times import rfc3339
from storage.request_context import request_scope
from storage.writer import Transaction, Writer
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, evaluation, group, job, task
from tests.unit.scheduler.world import node, resources


@asynccontextmanager
async def at_work(cluster: Cluster) -> AsyncIterator[None]:
    async with worker.open_evals(
        cluster.store, cluster.clock, cluster.ids, RetentionLimits(), cluster.fences
    ):
        yield


async def completed(cluster: Cluster, eval_id: str) -> None:
    while True:
        with cluster.store.watch(f"evaluations/{eval_id}") as change:
            if cluster.evaluation(eval_id).status != EvalStatus.PENDING:
                return
            await change.wait()


async def test_evaluations_are_taken_by_priority_and_age(cluster: Cluster) -> None:
    made = [
        (await cluster.register(job(name, priority=priority))).id
        for name, priority in (("a", 50), ("b", 80), ("c", 50), ("d", 20))
    ]
    assert await cluster.work() == [made[1], made[0], made[2], made[3]]


async def test_delayed_evaluation_is_not_taken_early(cluster: Cluster) -> None:
    await cluster.register(job("web"))
    await cluster.work()
    later = evaluation(cluster.job(), "later", wait_until=rfc3339(NOW + 5 * SECOND))
    await cluster.store.write(lambda tx: evaluations.put(tx, later, NOW))
    assert cluster.next() is None
    cluster.wait(5)
    assert await cluster.work() == ["later"]


def large(name: str, megabytes: int, **fields: Any) -> Job:
    wanting = task(resources=Resources(cpu=10, memory_mb=megabytes))
    return job(name, group("web", wanting), **fields)


@pytest.fixture
async def narrow(cluster: Cluster) -> Cluster:
    """Return a cluster whose node has 100 MB."""
    await cluster.join(node(node_resources=resources(memory=NodeMemory(memory_mb=100))))
    return cluster


async def test_blocked_evaluation_is_taken_when_enough_capacity_was_freed(narrow: Cluster) -> None:
    await narrow.register(large("small", 40))
    await narrow.register(large("other", 40))
    await narrow.work()
    await narrow.register(large("web", 60))
    await narrow.work()
    (blocked,) = narrow.evaluations(EvalStatus.BLOCKED)
    assert narrow.next() is None
    (first,) = narrow.allocations("small")
    await narrow.report(first, ClientStatus.COMPLETE)
    assert (await narrow.work())[0] == blocked.id
    assert len(narrow.wanted()) == 1


@pytest.mark.parametrize("cpu", [1, 10**6])
async def test_huge_unplaceable_job_blocks_no_other_job(narrow: Cluster, cpu: int) -> None:
    huge = task(resources=Resources(cpu=cpu, memory_mb=50))
    await narrow.register(job("huge", group("web", huge, count=50_000)))
    await narrow.work()
    tiny = task(resources=Resources(cpu=0, memory_mb=0))
    await narrow.register(job("web", group("web", tiny)))
    await narrow.work()
    assert len(narrow.wanted("web")) == 1


async def test_changed_node_without_capacity_unblocks_no_evaluation(narrow: Cluster) -> None:
    await narrow.register(large("small", 80))
    await narrow.register(large("web", 60))
    await narrow.work()
    await narrow.join(node(node_resources=resources(memory=NodeMemory(memory_mb=120))))
    assert narrow.next() is None
    await narrow.join(node(node_resources=resources(memory=NodeMemory(memory_mb=140))))
    await narrow.work()
    assert len(narrow.wanted()) == 1


async def test_delayed_evaluations_are_due_in_order_of_priority(
    cluster: Cluster,
) -> None:
    due = rfc3339(NOW + 30 * SECOND)
    late = await cluster.register(job("a", priority=40), wait_until=due)
    urgent = await cluster.register(job("b", priority=90), wait_until=due)
    middle = await cluster.register(job("c", priority=60))
    assert [evaluation.id for evaluation in ready(cluster)] == [middle.id]
    cluster.wait(30)
    assert [evaluation.id for evaluation in ready(cluster)] == [urgent.id, middle.id, late.id]


def ready(cluster: Cluster) -> list[Evaluation]:
    return cluster.store.read(lambda db: evaluations.runnable(db, cluster.clock.now(), 16))


async def test_insufficient_capacity_unblocks_no_evaluation(narrow: Cluster) -> None:
    await narrow.register(large("small", 20))
    await narrow.register(large("other", 80))
    await narrow.work()
    await narrow.register(large("web", 60))
    await narrow.work()
    (first,) = narrow.allocations("small")
    await narrow.report(first, ClientStatus.COMPLETE)
    assert await narrow.work() == []


async def test_blocked_evaluation_with_the_highest_priority_gets_free_capacity(
    narrow: Cluster,
) -> None:
    await narrow.register(large("holder", 90))
    await narrow.work()
    await narrow.register(large("low", 60, priority=20))
    await narrow.register(large("high", 60, priority=80))
    await narrow.work()
    (first,) = narrow.allocations("holder")
    await narrow.report(first, ClientStatus.COMPLETE)
    await narrow.work()
    assert (len(narrow.wanted("high")), len(narrow.wanted("low"))) == (1, 0)


async def test_change_of_nodes_unblocks_evaluations_that_capacity_cannot_help(
    cluster: Cluster,
) -> None:
    await cluster.register(job("web", datacenters=["dc2"]))
    await cluster.work()
    assert await cluster.work() == []
    await cluster.join(node("node-2", datacenter="dc2"))
    await cluster.work()
    (placed,) = cluster.wanted()
    assert placed.node_id == "id-of-node-2"


async def test_defect_fails_only_the_evaluation(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(schedule_with_preemption, "schedule", broken)
    made = await cluster.register(job("web"))
    await all_attempts(cluster)
    failed = cluster.evaluation(made.id)
    assert failed.status == EvalStatus.FAILED
    assert failed.status_description == "the scheduler failed: ZeroDivisionError: by nothing"
    assert made.id in caplog.text


async def all_attempts(cluster: Cluster) -> None:
    """Process all evaluations, with the pauses after errors."""
    for _ in range(ATTEMPTS):
        await cluster.work()
        cluster.wait(60)


def broken_for(poisoned: str, real: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return a function like `real` that raises for evaluations of the job `poisoned`.

    The evaluation is the argument at `place`.
    """

    def function(*args: Any, **kwargs: Any) -> Any:
        if args[place].job_id == poisoned:
            raise KeyError("poison")
        return real(*args, **kwargs)

    return function


@pytest.mark.parametrize(
    ("module", "name", "place"),
    [(worker, "load_cluster_state", 1), (worker, "decide", 2), (worker.applier, "apply", 1)],
)
async def test_error_at_any_step_fails_only_its_evaluation(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, place: int
) -> None:
    monkeypatch.setattr(module, name, broken_for("poison", getattr(module, name), place))
    made = await cluster.register(job("poison", priority=90))
    await cluster.register(job("web"))
    await cluster.work()
    assert len(cluster.wanted("web")) == 1
    assert cluster.evaluation(made.id).status == EvalStatus.PENDING
    (fault,) = cluster.fences.faults()
    assert (fault.key, fault.failures, fault.reason) == (made.id, 1, "KeyError: 'poison'")
    await all_attempts(cluster)
    failed = cluster.evaluation(made.id)
    assert failed.status == EvalStatus.FAILED
    assert failed.status_description == "the scheduler failed: KeyError: 'poison'"
    assert cluster.fences.faults() == []


@pytest.mark.parametrize("is_restricted", [False, True], ids=["all-types", "some-types"])
@pytest.mark.parametrize("document", [b'{"ID', b"{\xff}"], ids=["truncated", "not-utf-8"])
@pytest.mark.parametrize("status", ["pending", "blocked"])
async def test_unreadable_row_fails_only_its_evaluation(
    cluster: Cluster,
    status: str,
    document: bytes,
    is_restricted: bool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    autojump_clock.autojump_threshold = 0.2  # the clock stands still while a thread commits
    bad = await cluster.register(job("bad", priority=90))
    with closing(sqlite3.connect(cluster.store.path)) as other, other:
        other.execute(
            "UPDATE evaluations SET document = CAST(? AS TEXT), status = ? WHERE id = ?",
            (document, status, bad.id),
        )
    async with at_work(cluster):
        if is_restricted:
            await set_workers(cluster.store, 1, ["_core", "service"])
        for number in range(ATTEMPTS + 1):
            good = await cluster.register(job(f"web-{number}"))
            await completed(cluster, good.id)
            await trio.testing.wait_all_tasks_blocked(0.05)
            cluster.wait(60)
    found = [(fault.kind, fault.key, fault.is_closed) for fault in cluster.fences.faults()]
    assert found == [("evaluation", bad.id, True)]


async def test_evaluation_with_one_failure_is_processed_at_the_next_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await cluster.register(job("web"))
    with monkeypatch.context() as patched:
        patched.setattr(
            worker, "load_cluster_state", broken_for("web", worker.load_cluster_state, 1)
        )
        await cluster.work()
    assert cluster.next() is None  # the evaluation pauses
    cluster.wait(1)
    assert await cluster.work() == [made.id]
    assert cluster.evaluation(made.id).status == EvalStatus.COMPLETE
    assert cluster.fences.faults() == []


async def test_worker_retries_a_paused_evaluation(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The worker wakes for the paused evaluation without another event."""
    autojump_clock.autojump_threshold = 0.2  # the clock stands still while a thread commits
    made = await cluster.register(job("web"))
    calls, real = count(), worker.load_cluster_state

    def once_broken(*args: Any) -> Any:
        if next(calls) == 0:
            raise KeyError("poison")
        cluster.wait(60)
        return real(*args)

    monkeypatch.setattr(worker, "load_cluster_state", once_broken)
    async with at_work(cluster):
        with trio.fail_after(100):
            while cluster.evaluation(made.id).status == EvalStatus.PENDING:
                await trio.sleep(0.5)
                cluster.wait(1)
    assert cluster.evaluation(made.id).status == EvalStatus.COMPLETE


async def test_a_registration_wakes_the_worker(cluster: Cluster) -> None:
    async with at_work(cluster):
        await trio.testing.wait_all_tasks_blocked()
        made = await cluster.register(job("web"))
        with trio.fail_after(10):
            await completed(cluster, made.id)
    assert len(cluster.wanted()) == 1


async def test_pending_evaluation_is_processed_after_a_start(cluster: Cluster) -> None:
    made = await cluster.register(job("web"))
    async with at_work(cluster):
        with trio.fail_after(10):
            await completed(cluster, made.id)
    assert cluster.evaluation(made.id).status == EvalStatus.COMPLETE


async def test_stale_plan_is_computed_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await cluster.register(job("web"))
    seen = cluster.store.read(lambda db: worker.load_cluster_state(db, made))

    def another(tx: Transaction) -> None:
        jobs.append_version(tx, job("web", group("web", count=2)))

    await cluster.store.write(another)
    with monkeypatch.context() as patched:
        patched.setattr(worker, "load_cluster_state", lambda *_: seen)
        await worker.process(cluster.store, [made], cluster.clock, cluster.ids, cluster.fences)
    assert cluster.evaluation(made.id).status == EvalStatus.PENDING
    await cluster.work()
    assert len(cluster.wanted()) == 2


async def test_evaluations_of_one_job_are_processed_one_by_one(cluster: Cluster) -> None:
    first = await cluster.register(job("web"))
    await cluster.register(job("web", group("web", count=2)))
    other = await cluster.register(job("other"))
    chosen = cluster.store.read(lambda db: worker.next_evaluations(db, now=NOW))
    assert [next_evaluation.id for next_evaluation in chosen] == [first.id, other.id]


async def test_concurrent_plans_share_the_capacity(narrow: Cluster) -> None:
    made = [await narrow.register(large(name, 60)) for name in ("a", "b")]
    await worker.process(narrow.store, made, narrow.clock, narrow.ids, narrow.fences)
    assert (len(narrow.wanted("a")), len(narrow.wanted("b"))) == (1, 0)
    (blocked,) = narrow.evaluations(EvalStatus.BLOCKED, "b")
    assert blocked.previous_eval == made[1].id


async def test_port_of_an_ended_allocation_is_free(cluster: Cluster) -> None:
    network = Network(mode="host", reserved_ports=[Port(label="http", value=8080)])
    for name in ("a", "b"):
        made = job(name, group("web", networks=[network]), type=JobType.BATCH)
        await cluster.register(made)
        await cluster.work()
        (alloc,) = cluster.wanted(name)
        await cluster.report(alloc, ClientStatus.COMPLETE)
        assert cluster.store.read(lambda db: db.all("SELECT * FROM allocation_ports")) == []


async def test_concurrent_plans_use_different_ports(cluster: Cluster) -> None:
    network = Network(mode="host", dynamic_ports=[Port(label="http")])
    made = [
        await cluster.register(job(name, group("web", networks=[network])))
        for name in ("a", "b", "c")
    ]
    await worker.process(cluster.store, made, cluster.clock, cluster.ids, cluster.fences)
    held = [alloc.placement.resources.ports for name in "abc" for alloc in cluster.wanted(name)]
    assert len(held) == len(set.union(*held)) == 3


async def test_dynamic_port_never_has_an_external_listener(cluster: Cluster) -> None:
    free = 20007
    cluster.listening = frozenset(range(20000, 32001)) - {free}
    network = Network(mode="host", dynamic_ports=[Port(label="http")])
    await cluster.register(job("web", group("web", networks=[network])))
    await cluster.work()
    (placed,) = cluster.wanted()
    assert placed.placement.resources.ports == {free}


async def test_stale_plan_delays_no_other_plan(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await cluster.register(job(name)) for name in ("late", "other")]
    store, decide = cluster.store, worker._decide_all
    decisions = store.read(lambda db: decide(db, chosen=made, now=NOW, ids=cluster.ids))
    await store.write(lambda tx: jobs.append_version(tx, job("late", group("web", count=2))))
    with monkeypatch.context() as patched:
        patched.setattr(worker, "_decide_all", lambda *_, **__: decisions)
        await worker.process(store, made, cluster.clock, cluster.ids, cluster.fences)
    assert cluster.evaluation(made[0].id).status == EvalStatus.PENDING
    assert cluster.evaluation(made[1].id).status == EvalStatus.COMPLETE


async def test_effects_of_an_evaluation_have_the_request_id_of_its_cause(narrow: Cluster) -> None:
    wanting = task(resources=Resources(cpu=10, memory_mb=60))
    with request_scope("r-1"):
        made = await narrow.register(job("web", group("web", wanting, count=2)))
    await narrow.work()
    (blocked,) = narrow.evaluations(EvalStatus.BLOCKED)
    assert [alloc.request_id for alloc in narrow.allocations()] == ["r-1"]
    for item in (made.id, blocked.id):
        assert narrow.store.read(partial(evaluations.request_id, eval_id=item)) == "r-1"


# ---- long decisions ---------------------------------------------------------------------


def deciding_threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return the threads in which decisions are made from now on."""
    threads: list[threading.Thread] = []
    decide = worker.decide

    def noting(*arguments: Any, **named: Any) -> Any:
        threads.append(threading.current_thread())
        return decide(*arguments, **named)

    monkeypatch.setattr(worker, "decide", noting)
    return threads


LARGE = [
    job("large", *(group(f"g{number}") for number in range(100))),
    job("large", meta={"a": "x" * 100_000}),
    job("large", group(count=200)),
]


@pytest.mark.parametrize("large", LARGE, ids=["groups", "bytes", "count"])
async def test_a_thread_decides_about_a_large_job(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, large: Job
) -> None:
    threads = deciding_threads(monkeypatch)
    await cluster.register(large)
    await cluster.work()
    assert threads
    assert threading.current_thread() not in threads
    assert cluster.allocations("large")


async def test_the_event_loop_decides_about_a_small_job(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = deciding_threads(monkeypatch)
    await cluster.register(job("web"))
    await cluster.work()
    assert threads == [threading.current_thread()]


async def test_the_event_loop_decides_about_a_long_definition_that_is_kept_decoded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cached definition does not count against the bytes that a read may decode on the loop."""
    long = job("large", meta={"a": "x" * 150_000})
    threads = deciding_threads(monkeypatch)
    await cluster.register(long)
    await cluster.work()
    assert len(threads) == 1
    assert threading.current_thread() not in threads
    threads.clear()
    for number in range(3):
        await evaluate(cluster, long, f"again-{number}")
    assert threads == [threading.current_thread()] * 3


async def evaluate(cluster: Cluster, large: Job, eval_id: str) -> None:
    """Create another evaluation of a job, and process it."""
    again = evaluation(large, eval_id)
    await cluster.store.write(lambda tx: evaluations.put(tx, again, NOW))
    await cluster.work()


async def test_a_thread_decides_about_a_job_that_has_many_allocations(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.register(job("web", group(count=101)))
    await cluster.work()
    assert len(cluster.allocations("web")) == 101
    threads = deciding_threads(monkeypatch)
    await cluster.register(job("web", group(count=1)))
    await cluster.work()
    assert threading.current_thread() not in threads


async def test_slow_decision_fails_with_a_reason(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LONGEST", -1.0)
    slow = await cluster.register(job("web"))
    for _ in range(ATTEMPTS):
        await cluster.work()
        cluster.clock.time += 10 * SECOND
    failed = cluster.evaluation(slow.id)
    assert failed.status == EvalStatus.FAILED
    assert "TookTooLong: the decision took more than -1 s of CPU time" in failed.status_description


async def test_a_burst_of_evaluations_is_decided_in_turns_and_stored_together(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_SHARE", 0.0)  # one evaluation at a time
    commits: list[int] = []
    commit = Writer._commit

    async def counted(writer: Writer, batch: list[Any]) -> None:
        commits.append(len(batch))
        await commit(writer, batch)

    made = [await cluster.register(job(f"job-{number}")) for number in range(10)]
    monkeypatch.setattr(Writer, "_commit", counted)
    turns: list[int] = []
    decide = worker._decide_all

    def noted(*arguments: Any, **fields: Any) -> Any:
        found = decide(*arguments, **fields)
        turns.append(len(found.decisions))
        return found

    monkeypatch.setattr(worker, "_decide_all", noted)
    await worker.process(cluster.store, made, cluster.clock, cluster.ids, cluster.fences)
    assert turns == [1] * 10
    assert sum(commits) == 10
    assert len(commits) <= 2
    assert sum(len(cluster.allocations(f"job-{number}")) for number in range(10)) == 10


def test_evaluation_without_a_plan_has_placed_nothing() -> None:
    made = evaluation(job("web"), "e")
    attributes = worker._attributes(worker.EvaluationResult(evaluation=made))
    assert (attributes["steward.placed"], attributes["steward.is_blocked"]) == (0, False)
