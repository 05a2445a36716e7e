"""Queues of steps: elements get slots in order, free them at their end, and never share them."""

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from daemon.evals import run_views
from daemon.evals.dry_run import dry_run
from daemon.evals.explain import explain_job
from daemon.jobs.evaluate import new_evaluation
from daemon.jobs.queues import has_work, queue_errors, queue_warnings, serve
from daemon.jobs.steer_run import RunActRequest, act_on_run
from storage.queries import concurrency, evaluations, invariants, jobs, step_slots
from storage.records.allocation import Allocation
from storage.records.base import HOUR, SECOND
from storage.records.concurrency import QueueEntry
from storage.records.evaluation import Trigger
from storage.records.flow import FlowRunView, RunActType
from storage.records.group import ReschedulePolicy, TaskGroup
from storage.records.job import Job
from storage.records.node import NodeStatus
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_workflows import report
from tests.parts.jobs.test_queues import queued
from tests.samples import group, job, task
from tests.unit.scheduler.world import node

NEVER = ReschedulePolicy(attempts=0, unlimited=False)


def step(name: str = "a", queues: str = "db", **fields: Any) -> TaskGroup:
    meta = {"steward_concurrency": queues, **fields.pop("meta", {})}
    return group(name, task(), **{"meta": meta, "reschedule_policy": NEVER, **fields})


def flow(job_id: str, *groups: TaskGroup, **fields: Any) -> Job:
    return job(job_id, *(groups or (step(),)), type="batch", **fields)


class Queues:
    """A cluster with queues; `settle` does the work of the loop and of the worker."""

    def __init__(self, store: Store) -> None:
        self.cluster = Cluster(store)
        self.store = store

    async def register(self, *made: Job) -> None:
        for one in made:
            await self.cluster.register(one)
            await self.cluster.work()
            await self.settle()

    async def settle(self) -> None:
        await self.cluster.work()
        while keys := self.store.read(lambda db: concurrency.changed(db, 99)):
            for key in keys:
                now = self.cluster.clock.now()
                await self.store.write(partial(serve, key=key, now=now, ids=self.cluster.ids))
            await self.cluster.work()

    async def end(self, job_id: str, *, code: int = 0, most: int = 99) -> None:
        for one in self.active(job_id)[:most]:
            await report(self.cluster, one, code=code)
        await self.settle()

    async def limit(self, slots: int, name: str = "db") -> None:
        key = ("default", name)
        await self.store.write(lambda tx: concurrency.set_limit(tx, key, slots, ""))
        await self.settle()

    async def act(self, job_id: str, act: RunActType, **fields: Any) -> str:
        done = await act_on_run(
            *(self.store, "default", job_id, act, RunActRequest(**fields)),
            caller="ann",
            now=self.cluster.clock.now(),
            eval_id=next(self.cluster.ids),
            may_approve=True,
        )
        await self.settle()
        return done.refusal

    def active(self, job_id: str) -> list[Allocation]:
        return [one for one in self.cluster.allocations(job_id) if not one.client_terminal]

    def at_work(self, *names: str) -> dict[str, int]:
        return {name: len(self.active(name)) for name in names}

    def run(self, job_id: str) -> FlowRunView:
        found = self.store.read(lambda db: run_views.view(db, "default", job_id))
        assert found is not None
        return found

    def waiters(self, name: str = "db") -> list[tuple[str, str, int]]:
        return self._shown(lambda db: step_slots.waiters(db, ("default", name), 99))

    def holders(self, name: str = "db") -> list[tuple[str, str, int]]:
        return self._shown(lambda db: step_slots.holders(db, ("default", name), 99))

    def _shown(self, query: Any) -> list[tuple[str, str, int]]:
        queue_entries: list[QueueEntry] = self.store.read(query)
        return [(one.job_id, one.step, one.slots) for one in queue_entries]

    def broken(self) -> list[str]:
        return self.store.read(lambda db: list(invariants.find_violations(db)))


@pytest.fixture
async def made(store: Store) -> Queues:
    found = Queues(store)
    await found.cluster.join()
    return found


async def test_steps_get_the_only_slot_in_order_of_arrival(made: Queues) -> None:
    await made.register(flow("x"), flow("y"), flow("z"))
    seen = [made.at_work("x", "y", "z")]
    for name in "xyz":
        assert made.broken() == []
        await made.end(name)
        seen.append(made.at_work("x", "y", "z"))
    assert [[name for name in one if one[name]] for one in seen] == [["x"], ["y"], ["z"], []]
    assert (made.holders(), made.waiters()) == ([], [])
    assert {made.run(name).status for name in "xyz"} == {"succeeded"}


async def test_step_enters_its_queue_after_its_needs_have_ended(made: Queues) -> None:
    first = group("first", task(), reschedule_policy=NEVER)
    later = step("later", meta={"steward_needs": "first"})
    await made.register(flow("x", first, later), flow("y"))
    assert (made.holders(), made.waiters()) == ([("y", "a", 1)], [])
    await made.end("x")
    assert made.waiters() == [("x", "later", 1)]
    await made.end("y")
    assert made.holders() == [("x", "later", 1)]


async def test_position_in_the_queue_is_reported(made: Queues) -> None:
    await made.register(flow("x"), flow("y"), flow("z"))
    (shown,) = made.run("z").steps
    assert (shown.state, shown.reason) == (
        "held",
        'slot: it waits for the queue "db", 1 step waits before it',
    )
    assert [(one.name, one.held, one.waiting, one.before) for one in shown.queues] == [
        ("db", 0, 1, 1)
    ]
    told = made.store.read(lambda db: explain_job(db, "default", "z"))
    assert told is not None
    assert [one.message for one in told.reasons] == [
        'it waits for slots ("db" has 1 of 1 slot in use, 1 step waits before it)'
    ]
    assert made.cluster.job("z").status == "pending"


async def test_explanation_counts_slots_of_steps_beyond_a_lowered_limit(made: Queues) -> None:
    await made.limit(3)
    await made.register(flow("x", step(count=3)), flow("y"))
    await made.limit(1)
    told = made.store.read(lambda db: explain_job(db, "default", "y"))
    assert told is not None
    assert [one.message for one in told.reasons] == [
        'it waits for slots ("db" has 3 slots in use, 2 more than its limit of 1, '
        "0 steps wait before it)"
    ]


async def test_the_elements_of_an_array_hold_slots_one_by_one(made: Queues) -> None:
    await made.limit(2)
    await made.register(flow("x", step(count=5)))
    seen = []
    while made.run("x").status == "running":
        seen.append((made.at_work("x")["x"], made.waiters()))
        assert made.broken() == []
        await made.end("x", most=1)
    wait = [("x", "a", 3)], [("x", "a", 2)], [("x", "a", 1)], [], []
    assert seen == [(2, wait[0]), (2, wait[1]), (2, wait[2]), (2, []), (1, [])]
    assert made.holders() == []


async def test_higher_priority_gets_the_slot_of_the_next_ended_element(
    made: Queues,
) -> None:
    await made.register(flow("array", step(count=3)), flow("late"), flow("urgent", priority=90))
    assert made.waiters() == [("urgent", "a", 1), ("array", "a", 2), ("late", "a", 1)]
    await made.end("array")
    assert made.at_work("array", "late", "urgent") == {"array": 0, "late": 0, "urgent": 1}
    await made.end("urgent")
    assert made.at_work("array", "late") == {"array": 1, "late": 0}
    await made.end("array")
    await made.end("array")
    assert made.at_work("array", "late") == {"array": 0, "late": 1}


async def test_slots_of_all_queues_are_acquired_together(made: Queues) -> None:
    await made.register(
        flow("x"), flow("both", step(queues="db, gpu")), flow("y", step(queues="gpu"))
    )
    assert made.at_work("x", "both", "y") == {"x": 1, "both": 0, "y": 0}  # y is behind both
    assert made.holders("gpu") == []
    await made.end("x")
    assert (made.holders(), made.holders("gpu")) == ([("both", "a", 1)], [("both", "a", 1)])
    await made.end("both")
    assert made.at_work("x", "both", "y") == {"x": 0, "both": 0, "y": 1}
    assert made.broken() == []


async def test_queues_without_common_steps_are_independent(made: Queues) -> None:
    await made.register(flow("x"), flow("y"), flow("other", step(queues="gpu")))
    assert made.at_work("x", "y", "other") == {"x": 1, "y": 0, "other": 1}


async def test_a_request_for_several_slots_is_not_overtaken(made: Queues) -> None:
    await made.limit(2)
    large = step(meta={"steward_concurrency_slots": "2"})
    await made.register(flow("x"), flow("large", large), flow("y"))
    assert made.at_work("x", "large", "y") == {"x": 1, "large": 0, "y": 0}
    await made.end("x")
    assert made.holders() == [("large", "a", 2)]


async def test_element_that_requests_more_than_all_slots_gets_all(made: Queues) -> None:
    large = step(meta={"steward_concurrency_slots": "7"}, count=2)
    await made.register(flow("large", large), flow("y"))
    assert made.at_work("large", "y") == {"large": 1, "y": 0}
    await made.end("large")
    assert made.at_work("large", "y") == {"large": 1, "y": 0}
    await made.end("large")
    assert made.at_work("large", "y") == {"large": 0, "y": 1}


async def test_lowered_limit_stops_no_element_and_delays_the_next(made: Queues) -> None:
    await made.limit(3)
    await made.register(flow("x", step(count=5)))
    await made.limit(1)
    assert made.at_work("x") == {"x": 3}
    await made.end("x", most=1)
    assert made.at_work("x") == {"x": 2}
    await made.end("x", most=2)
    assert made.at_work("x") == {"x": 1}
    await made.limit(9)
    assert made.at_work("x") == {"x": 2}
    assert made.broken() == []


async def test_limited_run_requests_slots_only_for_elements_with_a_place(made: Queues) -> None:
    await made.limit(4)
    limit = {"steward_run_parallel": "3"}
    await made.register(flow("x", step(count=2), step("b", count=3), meta=limit))
    assert (made.at_work("x"), made.holders()) == ({"x": 3}, [("x", "a", 2), ("x", "b", 1)])
    assert made.waiters() == []
    for _ in range(3):
        await made.end("x", most=1)
    assert (made.at_work("x"), made.holders()) == ({"x": 2}, [("x", "b", 2)])
    await made.end("x")
    assert (made.run("x").status, made.holders(), made.broken()) == ("succeeded", [], [])


async def test_retried_element_of_a_limited_run_gets_its_slot(made: Queues) -> None:
    policy = ReschedulePolicy(
        attempts=1, interval=HOUR, delay=30 * SECOND, delay_function="constant"
    )
    steps = (step(reschedule_policy=policy), step("b"))
    await made.register(flow("x", *steps, meta={"steward_run_parallel": "1"}))
    await made.end("x", code=1)
    # The element that waits for its next attempt counts as active in the run, but holds no slot.
    assert (made.at_work("x"), made.holders(), made.waiters()) == ({"x": 0}, [], [])
    made.cluster.wait(31)
    await made.settle()
    assert made.holders() == [("x", "a", 1)]
    await made.end("x")
    assert made.holders() == [("x", "b", 1)]
    await made.end("x")
    assert (made.run("x").status, made.broken()) == ("succeeded", [])


async def test_step_without_a_place_leaves_its_queue(made: Queues) -> None:
    first = group("a", task(), count=2, meta={"steward_needs": "c"})
    steps = (first, step("b", "gpu"), step("c", "other"))
    await made.register(flow("y", step(queues="gpu")))
    await made.register(flow("x", *steps, meta={"steward_run_parallel": "2"}))
    assert (made.waiters("gpu"), made.holders("other")) == ([("x", "b", 1)], [("x", "c", 1)])
    await made.end("x")  # now the run's limit is used by two elements of a
    assert [one.task_group for one in made.active("x")] == ["a", "a"]
    reason = "parallel: it waits until fewer than 2 allocations of the run are active"
    waiting = made.run("x").steps[1]
    assert (waiting.state, waiting.reason, made.waiters("gpu")) == ("held", reason, [])
    await made.end("x", most=1)
    assert made.waiters("gpu") == [("x", "b", 1)]
    await made.end("y")
    assert made.holders("gpu") == [("x", "b", 1)]
    await made.end("x")
    assert (made.run("x").status, made.holders("gpu"), made.broken()) == ("succeeded", [], [])


async def test_steward_parallel_limits_the_slots_of_an_array(made: Queues) -> None:
    await made.limit(9)
    await made.register(flow("x", step(count=6, meta={"steward_parallel": "2"})))
    assert (made.at_work("x"), made.holders(), made.waiters()) == ({"x": 2}, [("x", "a", 2)], [])
    await made.end("x", most=1)
    assert made.holders() == [("x", "a", 2)]


async def test_step_that_waits_for_its_next_attempt_releases_its_slot(made: Queues) -> None:
    policy = ReschedulePolicy(
        attempts=1, interval=3600 * SECOND, delay=30 * SECOND, delay_function="constant"
    )
    await made.register(flow("x", step(reschedule_policy=policy)), flow("y"))
    await made.end("x", code=1)
    assert made.at_work("x", "y") == {"x": 0, "y": 1}
    made.cluster.wait(31)
    await made.settle()
    assert (made.at_work("x"), made.waiters()) == ({"x": 0}, [("x", "a", 1)])
    assert made.run("x").steps[0].reason == 'slot: it waits for the queue "db"'
    await made.end("y")
    assert made.at_work("x") == {"x": 1}
    await made.end("x")
    assert (made.run("x").status, made.holders(), made.broken()) == ("succeeded", [], [])


@pytest.mark.parametrize("act", [RunActType.CANCEL, RunActType.SKIP])
async def test_action_that_ends_a_queued_step_removes_its_entry(
    made: Queues, act: RunActType
) -> None:
    await made.register(flow("x"), flow("y"), flow("z"))
    steps = ["a"] if act == RunActType.SKIP else []
    assert await made.act("y", act, steps=steps) == ""
    assert made.waiters() == [("z", "a", 1)]
    assert made.broken() == []


async def test_a_canceled_step_keeps_its_slots_until_its_tasks_have_ended(made: Queues) -> None:
    await made.limit(2)
    await made.register(flow("x", step(count=5)), flow("y", step(count=3)))
    await made.act("x", RunActType.CANCEL)
    assert (made.at_work("x", "y"), made.holders()) == ({"x": 2, "y": 0}, [("x", "a", 2)])
    await made.end("x", most=1)
    assert made.at_work("x", "y") == {"x": 1, "y": 1}
    await made.end("x")
    assert made.at_work("x", "y") == {"x": 0, "y": 2}
    assert (made.run("x").status, made.broken()) == ("canceled", [])


async def test_rerun_step_waits_in_the_queue_again(made: Queues) -> None:
    await made.register(flow("x"))
    await made.end("x", code=1)
    await made.register(flow("y"))
    await made.act("x", RunActType.RERUN, failed=True)
    assert made.waiters() == [("x", "a", 1)]
    await made.end("y")
    assert made.at_work("x") == {"x": 1}


async def test_a_new_version_waits_for_its_own_slot(made: Queues) -> None:
    await made.register(flow("x"), flow("y"))
    await made.register(flow("x", meta={"n": "2"}))
    assert made.at_work("x", "y") == {"x": 1, "y": 0}  # the old task is still ending
    await made.end("x")
    assert made.at_work("x", "y") == {"x": 0, "y": 1}
    await made.end("y")
    assert made.at_work("x") == {"x": 1}
    assert made.broken() == []


async def test_a_purge_frees_slots(made: Queues) -> None:
    await made.register(flow("x"), flow("y"))
    await made.store.write(lambda tx: jobs.purge(tx, made.cluster.job("x")))
    await made.settle()
    assert made.at_work("y") == {"y": 1}


async def test_lost_element_keeps_its_slot_until_capacity_is_free(made: Queues) -> None:
    await made.register(flow("x"), flow("y"))
    for status in (NodeStatus.DOWN, NodeStatus.READY):
        await made.cluster.join(msgspec.structs.replace(node(), status=status))
        await made.store.write(lambda tx: _evaluate(tx, made.cluster))
        await made.settle()
        assert (made.holders(), made.at_work("y")) == ([("x", "a", 1)], {"y": 0})
        assert made.broken() == []
    assert made.at_work("x") == {"x": 1}
    await made.end("x")
    assert made.at_work("y") == {"y": 1}


def _evaluate(tx: Transaction, cluster: Cluster) -> None:
    one = new_evaluation(cluster.job("x"), next(cluster.ids), Trigger.NODE_UPDATE)
    evaluations.put(tx, one, cluster.clock.now())


async def test_plan_shows_queues_and_places_ready_steps(made: Queues) -> None:
    await made.limit(2)
    one = flow("x", step(count=3, queues="db, gpu"))
    ids: Iterator[str] = made.cluster.ids
    planned = made.store.read(lambda db: dry_run(db, one, now=1, ids=ids))
    assert planned.annotations.desired_tg_updates["a"].place == 1
    assert made.store.read(lambda db: list(queue_warnings(db, one))) == [
        'the queue "gpu" has 1 slot; set another number with: steward queues set -slots N gpu'
    ]


async def test_queue_is_used_by_runs_or_steps(made: Queues) -> None:
    await made.register(flow("x"), queued("r", meta={"steward_run_concurrency": "runs"}))
    wrong = [flow("y", step(queues="runs")), queued("z")]
    found = [made.store.read(lambda db, one=one: list(queue_errors(db, one))) for one in wrong]
    assert found == [
        [
            'steward_concurrency names the queue "runs", which runs of job "r" use; a queue is for '
            "runs or for steps: name another one"
        ],
        [
            'steward_run_concurrency names the queue "db", which steps of job "x" use; a queue is '
            "for runs or for steps: name another one"
        ],
    ]
    await made.register(flow("x", step(queues="other")))
    assert made.store.read(lambda db: list(queue_errors(db, queued("z")))) != []  # x is ending


async def test_step_queues_of_a_namespace_are_limited(
    made: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.jobs.queues.MOST_QUEUES", 2)
    await made.register(flow("x", step(queues="db, gpu")))
    errors = made.store.read(lambda db: list(queue_errors(db, flow("y", step(queues="other")))))
    assert errors == [
        'steward_concurrency names the queue "other", but jobs of namespace "default" name 2 queues, '
        "which is the maximum: name one of them, or purge jobs"
    ]
    assert made.store.read(lambda db: list(queue_errors(db, flow("y", step(queues="gpu"))))) == []


@pytest.mark.parametrize("seed", range(12))
async def test_random_steps_never_exceed_their_queues_and_all_end(made: Queues, seed: int) -> None:
    chance = random.Random(seed)
    limits = {"p": chance.randint(1, 3), "q": chance.randint(1, 3)}
    for name, slots in limits.items():
        await made.limit(slots, name)
    names = [f"j{number}" for number in range(6)]
    for name in names:
        queues = chance.choice(["p", "q", "p, q"])
        one = step(
            queues=queues,
            count=chance.randint(1, 4),
            meta={"steward_concurrency_slots": str(chance.randint(1, 2))},
        )
        await made.register(flow(name, one, priority=chance.choice([10, 50, 90])))
    for _ in range(60):
        in_use = {name: _in_use(made, name) for name in limits}
        assert made.broken() == []
        # An element that requests more slots than the queue has gets all of them.
        assert all(in_use[name] <= max(limits[name], 2) for name in limits)
        busy = [one for name in names for one in made.active(name)]
        if not busy:
            break
        await report(made.cluster, chance.choice(busy), code=chance.choice([0, 0, 1]))
        await made.settle()
    assert {made.run(name).status for name in names} <= {"succeeded", "failed"}
    assert [made.holders(name) for name in limits] == [[], []]
    assert not any(
        made.store.read(lambda db, name=name: has_work(db, ("default", name))) for name in limits
    )


def _in_use(queues: Queues, name: str) -> int:
    return queues.store.read(lambda db: concurrency.in_use(db, ("default", name)))


async def test_one_write_grants_many_steps_of_a_run_with_one_evaluation(store: Store) -> None:
    queues = Queues(store)
    await queues.cluster.join()
    await queues.limit(20)
    await queues.cluster.register(flow("j", *(step(f"s{number}") for number in range(30))))
    await queues.cluster.work()
    await store.write(partial(serve, key=("default", "db"), now=1, ids=queues.cluster.ids))
    assert len(queues.holders()) == 20
    assert len(store.read(lambda db: evaluations.unfinished(db, "default", "j"))) == 1
    before = {one.name: one.queues[0].before for one in queues.run("j").steps}
    assert [before[f"s{number}"] for number in (0, 19, 20, 29)] == [0, 0, 0, 9]


async def test_element_with_all_slots_uses_no_more_than_exist(store: Store) -> None:
    made = Queues(store)
    await made.cluster.join()
    await made.limit(1)
    await made.register(flow("j", step(count=2, meta={"steward_concurrency_slots": "2"})))
    line = store.read(lambda db: concurrency.line(db, ("default", "db")))
    assert line is not None
    assert (line.slots, line.in_use, len(made.active("j"))) == (1, 1, 1)
