"""Runs of workflows over a real store: opened and skipped steps, and ends of runs."""

from collections.abc import Collection
from functools import partial
from typing import Any

import msgspec
import pytest

from daemon.evals import applier, explain, failures, job_states, run_history, run_views
from daemon.evals.cluster_state import load_cluster_state
from daemon.evals.job_states import line
from daemon.flow import lists, outputs
from daemon.flow.graph import stored_graph
from daemon.jobs.evaluate import new_evaluation
from daemon.jobs.steer_run import RunActOutcome, RunActRequest, act_on_run
from daemon.runner.core.status_report import AllocStatus, store_snapshots
from daemon.scheduler.reschedule import NOT_RETRIED
from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState, Plan
from storage import request_context
from storage.errors import Denied, Malformed, NotFound
from storage.loop_share import LongRead
from storage.queries import (
    allocations,
    evaluations,
    events,
    invariants,
    job_listings,
    job_status,
    jobs,
    notifications,
    runs,
)
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.allocation import OVERTIME, Allocation, DesiredStatus, TaskEvent, TaskState
from storage.records.base import HOUR, SECOND
from storage.records.evaluation import EvalStatus, Evaluation, Trigger
from storage.records.flow import FlowRunView, RunActType
from storage.records.group import ReschedulePolicy, TaskGroup
from storage.records.job import Job, Parameterized
from storage.records.times import rfc3339
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job, task

KEYS = (
    "redo",
    *("when", "if", "parallel", "failures_allowed", "on_failure"),
    *("for_each", "matrix"),
    *("not_before", "not_after", "time_zone"),
    *("gate", "gate_number", "gate_by", "gate_not_self", "gate_within", "gate_else"),
)
CANCEL = RunActType.CANCEL
NEVER = ReschedulePolicy(attempts=0, unlimited=False)


def step(name: str, needs: str = "", **fields: Any) -> TaskGroup:
    keys = {f"steward_{key}": fields.pop(key) for key in KEYS if key in fields}
    meta = {"steward_needs": needs, **keys} if needs else keys or None
    return group(name, task(), **{"meta": meta, "reschedule_policy": NEVER, **fields})


def workflow(*groups: TaskGroup, **fields: Any) -> Job:
    return job("etl", *groups, type="batch", **fields)


CHAIN = workflow(step("a"), step("b", "a"), step("c", "b"))


async def end(cluster: Cluster, name: str, *, code: int = 0, **outputs: str) -> None:
    """Report the end of the oldest allocation of a step that has not ended."""
    (one, *_) = [
        alloc
        for alloc in cluster.allocations("etl")
        if alloc.task_group == name and not alloc.client_terminal
    ]
    await report(cluster, one, code=code, **outputs)


async def report(
    cluster: Cluster, *allocs: Allocation, code: int = 0, ended_for: str = "", **outputs: str
) -> None:
    """Report the ends of allocations in one write."""
    now = cluster.clock.now()
    state = TaskState(state="dead", failed=bool(code), finished_at=rfc3339(now))
    event = TaskEvent(type="Terminated", time=now, exit_code=code)
    statuses = [
        AllocStatus(
            alloc_id=alloc.id,
            states={"main": state},
            events={"main": [event]},
            handles={},
            deployment_id="",
            healthy=None,
            healthy_at=0,
            ended_for=ended_for,
            services=None,
            evaluation_id=next(cluster.ids),
            now=now,
            outputs={"main": outputs},
        )
        for alloc in allocs
    ]
    await cluster.store.write(partial(store_snapshots, snapshots=statuses))


def at_work(cluster: Cluster) -> list[str]:
    return sorted(
        alloc.task_group
        for alloc in cluster.allocations("etl")
        if not alloc.client_terminal and alloc.desired_status == DesiredStatus.RUN
    )


def run_of(cluster: Cluster, number: int | None = None) -> FlowRunView:
    found = cluster.store.read(lambda db: run_views.view(db, "default", "etl", number))
    assert found is not None
    return found


def states(cluster: Cluster) -> dict[str, str]:
    return {step.name: step.state for step in run_of(cluster).steps}


async def begun(cluster: Cluster, job: Job) -> None:
    await cluster.register(job)
    await cluster.work()


async def test_each_step_of_a_chain_starts_after_its_predecessor(
    cluster: Cluster,
) -> None:
    await begun(cluster, CHAIN)
    seen = [at_work(cluster)]
    for name in "abc":
        await end(cluster, name)
        assert cluster.job("etl").status == "running"
        await cluster.work()
        seen.append(at_work(cluster))
    assert seen == [["a"], ["b"], ["c"], []]
    assert (run_of(cluster).status, cluster.job("etl").status) == ("succeeded", "dead")
    state = cluster.store.read(lambda db: line(db, "default", "etl", cluster.clock.now()))
    assert state is not None
    assert state.state == "complete"


async def test_step_with_two_predecessors_starts_after_both(cluster: Cluster) -> None:
    await begun(
        cluster, workflow(step("a"), step("b", "a"), step("c", "a", count=2), step("d", "b, c"))
    )
    await end(cluster, "a")
    await cluster.work()
    assert at_work(cluster) == ["b", "c", "c"]
    for name in "cbc":
        assert states(cluster)["d"] == "waiting"
        await end(cluster, name)
        await cluster.work()
    assert at_work(cluster) == ["d"]


async def test_two_ends_in_one_decision_start_the_joining_step(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b"), step("c", "a, b")))
    await end(cluster, "a")
    await end(cluster, "b")
    await cluster.work()
    assert at_work(cluster) == ["c"]


async def test_ends_in_one_write_share_an_evaluation(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=2), step("b"), step("c", "a, b")))
    await report(cluster, *cluster.allocations("etl"))
    pending = cluster.evaluations(EvalStatus.PENDING, "etl")
    assert [one.triggered_by for one in pending] == [Trigger.RUN_STEP]
    await cluster.work()
    assert at_work(cluster) == ["c"]


async def test_evaluation_has_the_counts_of_changed_steps(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    await end(cluster, "a")
    (eval_id,) = await cluster.work()
    done = cluster.evaluation(eval_id)
    assert done.plan_annotations is not None
    assert list(done.plan_annotations.desired_tg_updates) == ["b"]
    assert done.queued_allocations == {"b": 0}


async def test_damaged_reason_does_not_hide_its_step(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    run = cluster.store.read(lambda db: runs.newest(db, "default", "etl"))
    assert run is not None

    def work(tx: Transaction) -> None:
        tx.execute("UPDATE run_steps SET reason = CAST(x'ff' AS TEXT) WHERE step = 'b'", {})

    await cluster.store.write(work)
    found = cluster.store.read(lambda db: runs.steps(db, run))
    assert [(one.name, one.reason) for one in found] == [("a", ""), ("b", "\udcff"), ("c", "")]


async def test_failure_skips_steps_that_need_success_and_starts_its_handler(
    cluster: Cluster,
) -> None:
    handler = step("page", "*", **{"when": "failure", "if": "needs.a.exit_code == 7"})
    await begun(cluster, workflow(*(CHAIN.task_groups or ()), handler))
    await end(cluster, "a", code=7)
    assert cluster.job("etl").status == "running"
    await cluster.work()
    assert states(cluster) == {"a": "failed", "b": "skipped", "c": "skipped", "page": "open"}
    await end(cluster, "page")
    await cluster.work()
    run = run_of(cluster)
    assert (run.status, run.reason) == ("failed", "step a failed")
    state = cluster.store.read(lambda db: line(db, "default", "etl", cluster.clock.now()))
    assert state is not None
    assert (state.state, state.reason.partition(":")[0]) == ("failed", "step a failed")


async def test_rescheduled_failure_does_not_end_its_step(cluster: Cluster) -> None:
    policy = ReschedulePolicy(
        attempts=1, interval=3600 * SECOND, delay=30 * SECOND, delay_function="constant"
    )
    await begun(cluster, workflow(step("a", reschedule_policy=policy), step("b", "a")))
    await end(cluster, "a", code=1)
    await cluster.work()
    assert (states(cluster), cluster.job("etl").status) == (
        {"a": "open", "b": "waiting"},
        "running",
    )
    cluster.wait(31)
    await cluster.work()
    assert at_work(cluster) == ["a"]
    await end(cluster, "a", code=1)
    await cluster.work()
    assert states(cluster) == {"a": "failed", "b": "skipped"}


async def test_new_version_starts_after_the_tasks_of_the_old_run(
    cluster: Cluster,
) -> None:
    await begun(cluster, CHAIN)
    await begun(cluster, msgspec.structs.replace(CHAIN, priority=60))
    (old,) = cluster.allocations("etl")
    assert old.desired_status == DesiredStatus.STOP
    first = run_of(cluster)
    assert (first.number, first.status, first.reason) == (1, "stopping", "superseded by version 1")
    assert cluster.job("etl").status == "running"
    await report(cluster, old)
    await cluster.work()
    assert run_of(cluster, 1).status == "canceled"
    assert (run_of(cluster).number, at_work(cluster)) == (2, ["a"])


async def test_a_long_definition_is_decoded_once_for_each_version(cluster: Cluster) -> None:
    def read(version: int) -> Job:
        found = cluster.store.read(lambda db: jobs.version(db, "default", "etl", version))
        assert found is not None
        return found

    long = {"text": "x" * 20_000}
    await cluster.register(workflow(step("a"), step("b", "a"), meta=long))
    first, again = read(0), read(0)
    assert first.task_groups is again.task_groups
    assert stored_graph(first) is stored_graph(again)
    await cluster.register(workflow(step("a"), step("c", "a"), meta=long))
    assert [one.name for one in stored_graph(read(1)).steps] == ["a", "c"]
    assert [one.name for one in stored_graph(read(0)).steps] == ["a", "b"]
    assert (read(0), read(1).version) == (first, 1)


async def test_the_same_version_does_not_run_again(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", count=0)))
    await end(cluster, "a")
    await cluster.work()

    def evaluate(tx: Transaction) -> None:
        stored = jobs.current(tx, "default", "etl")
        assert stored is not None
        one = new_evaluation(stored, next(cluster.ids), Trigger.JOB_REGISTER)
        evaluations.put(tx, one, cluster.clock.now())

    before = run_of(cluster)
    await cluster.store.write(evaluate)
    await cluster.work()
    assert (run_of(cluster), before.status) == (before, "succeeded")
    assert len(cluster.allocations("etl")) == 1


async def test_a_stopped_job_cancels_its_run(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    await begun(cluster, msgspec.structs.replace(cluster.job("etl"), stop=True))
    assert run_of(cluster).status == "stopping"
    (one,) = cluster.allocations("etl")
    await report(cluster, one)
    await cluster.work()
    run = run_of(cluster)
    assert (run.status, run.reason) == ("canceled", "the job was stopped")
    assert {step.state for step in run.steps} == {"canceled"}
    assert cluster.job("etl").status == "dead"


async def test_stop_cancels_the_run_before_the_next_decision(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    await cluster.register(msgspec.structs.replace(cluster.job("etl"), stop=True))
    assert (run_of(cluster).status, run_of(cluster).reason) == ("stopping", "the job was stopped")
    await begun(cluster, msgspec.structs.replace(CHAIN, priority=60))
    await end(cluster, "a")
    await cluster.work()
    assert (run_of(cluster, 1).status, run_of(cluster, 1).reason) == (
        "canceled",
        "the job was stopped",
    )
    assert run_of(cluster).version == 2


async def test_each_step_shows_its_unfinished_needs(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a"), step("c", "a, b")))
    found = cluster.store.read(lambda db: explain.explain_job(db, "default", "etl"))
    assert found is not None
    told = [
        (reason.task_group, reason.message) for reason in found.reasons if reason.cause == "step"
    ]
    assert told == [("b", "it waits for a"), ("c", "it waits for a, b")]
    await end(cluster, "a", code=3)
    await cluster.work()
    found = cluster.store.read(lambda db: explain.explain_job(db, "default", "etl"))
    assert found is not None
    assert [reason.message for reason in found.reasons] == [
        "it failed, exit code 3",
        "it was skipped: step a was not successful",
        "it was skipped: step a was not successful",
    ]


async def test_old_runs_are_deleted(cluster: Cluster) -> None:
    one = workflow(step("a"), step("b", "a"), meta={"steward_runs_kept": "2"})
    for priority in range(50, 54):
        await begun(cluster, msgspec.structs.replace(one, priority=priority))
        for name in "ab":
            await end(cluster, name)
            await cluster.work()
    found = cluster.store.read(lambda db: runs.of_job(db, "default", "etl", 10))
    assert [(run.number, run.status) for run in found] == [
        (4, "succeeded"),
        (3, "succeeded"),
    ]


async def test_purge_deletes_the_runs(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    await cluster.store.write(lambda tx: jobs.purge(tx, cluster.job("etl")))
    assert cluster.store.read(lambda db: runs.newest(db, "default", "etl")) is None
    await cluster.work()


async def test_run_of_a_job_that_is_no_longer_a_workflow_ends(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    await begun(cluster, workflow(group("a"), group("b")))
    assert run_of(cluster).reason == "version 1 is not a workflow"


async def test_array_does_not_exceed_its_parallel_limit(cluster: Cluster) -> None:
    array = step("a", count=5, parallel="2", failures_allowed="1")
    await begun(cluster, workflow(array, step("b", "a")))
    seen = []
    for code in (0, 3, 0, 0, 0):
        seen.append(len(at_work(cluster)))
        await end(cluster, "a", code=code)
        await cluster.work()
    assert (seen, at_work(cluster)) == ([2, 2, 2, 2, 1], ["b"])
    assert sorted(alloc.index for alloc in cluster.allocations("etl")) == [0, 0, 1, 2, 3, 4]
    (first, _) = run_of(cluster).steps
    assert (first.good, first.failed, first.outcome) == (4, 1, "good")


async def test_array_with_stop_on_failure_starts_no_element_after_a_failure(
    cluster: Cluster,
) -> None:
    array = step("a", count=5, parallel="2", on_failure="stop")
    await begun(cluster, workflow(array))
    await end(cluster, "a", code=1)
    await cluster.work()
    assert len(at_work(cluster)) == 1
    await end(cluster, "a")
    await cluster.work()
    run = run_of(cluster)
    assert (run.status, len(cluster.allocations("etl"))) == ("failed", 2)


async def test_decision_does_not_load_elements_of_ended_steps(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    for name in "ab":
        await end(cluster, name)
        await cluster.work()
    run = cluster.store.read(lambda db: runs.newest(db, "default", "etl"))
    assert run is not None
    loaded = cluster.store.read(lambda db: allocations.for_run(db, run))
    assert [alloc.task_group for alloc in loaded] == ["c"]


# --- actions of users ---


async def act(
    cluster: Cluster,
    what: RunActType,
    *steps: str,
    who: str = "ann",
    may_approve: bool = True,
    labels: frozenset[str] | None = None,
    knows_people: bool = True,
    **fields: Any,
) -> RunActOutcome:
    return await act_on_run(
        cluster.store,
        "default",
        "etl",
        what,
        RunActRequest(steps=[*steps], **fields),
        caller=who,
        now=cluster.clock.now(),
        eval_id=next(cluster.ids),
        may_approve=may_approve,
        labels=labels,
        knows_people=knows_people,
    )


async def test_a_canceled_run_stops_its_tasks_and_cleans_up(cluster: Cluster) -> None:
    clean = step("clean", "*", when="always")
    await begun(cluster, workflow(*(CHAIN.task_groups or ()), clean))
    assert (await act(cluster, CANCEL)).done is not None
    await cluster.work()
    (one,) = cluster.allocations("etl")
    assert one.desired_status == DesiredStatus.STOP
    assert states(cluster) == {"a": "open", "b": "canceled", "c": "canceled", "clean": "waiting"}
    await report(cluster, one)
    await cluster.work()
    assert at_work(cluster) == ["clean"]
    assert (await act(cluster, CANCEL)).refusal == "run 1 is stopping already"
    await end(cluster, "clean")
    await cluster.work()
    run = run_of(cluster)
    assert (run.status, run.reason) == ("canceled", "canceled by ann")
    assert [(act.act, act.who) for act in run.acts] == [("cancel", "ann")]
    state = cluster.store.read(lambda db: line(db, "default", "etl", cluster.clock.now()))
    assert state is not None
    assert (state.state, state.reason) == ("stopped", "the run was canceled by ann")
    assert (await act(cluster, CANCEL)).refusal == "run 1 has ended: canceled"


async def test_run_is_canceled_immediately(cluster: Cluster) -> None:
    clean = step("clean", "*", when="always")
    await begun(cluster, workflow(step("a"), clean))
    await act(cluster, CANCEL, now=True)
    await cluster.work()
    (one,) = cluster.allocations("etl")
    await report(cluster, one)
    await cluster.work()
    assert (run_of(cluster).status, states(cluster)) == (
        "canceled",
        {"a": "canceled", "clean": "canceled"},
    )


async def test_step_that_has_not_started_is_skipped(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    assert "only a step that waits" in (await act(cluster, RunActType.SKIP, "a")).refusal
    await act(cluster, RunActType.SKIP, "b")
    await end(cluster, "a")
    await cluster.work()
    # Nothing that c needs has run.
    assert states(cluster) == {"a": "succeeded", "b": "skipped", "c": "skipped"}
    assert run_of(cluster).status == "succeeded"


async def test_run_continues_after_an_accepted_failure(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    await end(cluster, "a", code=1)
    await cluster.work()
    assert run_of(cluster).status == "failed"
    assert (await act(cluster, RunActType.ACCEPT, "a", note="by hand")).done is not None
    assert cluster.job("etl").status == "running"
    await cluster.work()
    assert (at_work(cluster), run_of(cluster).attempt) == (["b"], 2)
    for name in "bc":
        await end(cluster, name)
        await cluster.work()
    assert run_of(cluster).status == "succeeded"


async def test_failed_elements_and_later_steps_run_again(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=3), step("b", "a"), step("x")))
    for name, code in (("x", 0), ("a", 0), ("a", 4), ("a", 0)):
        await end(cluster, name, code=code)
        await cluster.work()
    assert run_of(cluster).status == "failed"
    preview = (await act(cluster, RunActType.RERUN, failed=True, preview=True)).done
    assert preview is not None
    assert preview.steps == ["a", "b"]
    assert run_of(cluster).status == "failed"
    assert (await act(cluster, RunActType.RERUN, failed=True)).done is not None
    await cluster.work()
    assert at_work(cluster) == ["a"]
    await end(cluster, "a")
    await cluster.work()
    assert at_work(cluster) == ["b"]
    await end(cluster, "b")
    await cluster.work()
    run = run_of(cluster)
    assert [(step.name, step.attempt, step.good) for step in run.steps] == [
        ("a", 2, 3),
        ("b", 2, 1),
        ("x", 1, 1),
    ]
    assert (run.status, run.attempt) == ("succeeded", 2)


async def test_a_named_step_runs_again_with_all_its_elements(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=2), step("b", "a")))
    for name in "aab":
        await end(cluster, name)
        await cluster.work()
    await act(cluster, RunActType.RERUN, "a")
    await cluster.work()
    assert at_work(cluster) == ["a", "a"]
    refused = (await act(cluster, RunActType.RERUN, "b")).refusal
    assert refused == "step b is waiting; only an ended step runs again"


async def test_step_that_runs_again_has_no_opening_of_its_earlier_attempt(
    cluster: Cluster,
) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", when="failure")))
    for name in "ab":
        await end(cluster, name, code=1 if name == "a" else 0)
        await cluster.work()
    assert all(one.opened for one in run_of(cluster).steps)
    await act(cluster, RunActType.RERUN, "a")
    (_, waiting) = run_of(cluster).steps
    assert (waiting.state, waiting.opened) == ("waiting", 0)
    await cluster.work()
    await end(cluster, "a")
    await cluster.work()
    (a, b) = run_of(cluster).steps
    assert (a.opened > 0, b.state, b.opened) == (True, "skipped", 0)


async def test_step_rejected_in_a_later_attempt_has_no_opening(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", gate="Begin?")))
    await act(cluster, RunActType.APPROVE, "a")
    await cluster.work()
    await end(cluster, "a", code=1)
    await cluster.work()
    (first,) = run_of(cluster).steps
    assert (first.state, first.opened > 0) == ("failed", True)
    await act(cluster, RunActType.RERUN, "a")
    await cluster.work()
    await act(cluster, RunActType.REJECT, "a")
    await cluster.work()
    (second,) = run_of(cluster).steps
    assert (second.state, second.attempt, second.opened) == ("canceled", 2, 0)
    found = cluster.store.read(lambda db: events.after(db, 0, 1000))
    ends = [one for one in found if one.type == "StepEnded"]
    assert ['"Opened":0,' in str(one.payload) for one in ends] == [False, True]


async def test_refused_act_names_the_state_of_an_ended_step(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a"), step("c", gate="now?")))
    await end(cluster, "a")
    await cluster.work()
    refused = (await act(cluster, RunActType.SKIP, "a")).refusal
    assert refused == "step a has succeeded; only a step that waits can be skipped"
    refused = (await act(cluster, RunActType.ACCEPT, "a")).refusal
    assert refused == "step a has succeeded; only a failure can be accepted"
    await act(cluster, CANCEL, now=True)
    for alloc in cluster.allocations("etl"):
        if not alloc.client_terminal:
            await report(cluster, alloc)
    await cluster.work()
    refused = (await act(cluster, RunActType.APPROVE, "c")).refusal
    assert refused == "run 1 was canceled"


async def test_a_gate_waits_for_different_people(cluster: Cluster) -> None:
    gated = step("b", "a", gate="Publish?", gate_number="2")
    await begun(cluster, workflow(step("a"), gated))
    early = (await act(cluster, RunActType.APPROVE, "b")).refusal
    assert early == "step b is not held at its gate: it is waiting"
    await end(cluster, "a")
    await cluster.work()
    assert run_of(cluster).steps[1].reason == "gate: Publish?"
    assert cluster.job("etl").status == "running"
    for who, refusal in (
        ("ann", ""),
        ("ann", "ann has approved step b already"),
        ("bob", ""),
    ):
        assert at_work(cluster) == []
        assert (await act(cluster, RunActType.APPROVE, "b", who=who)).refusal == refusal
        await cluster.work()
    assert at_work(cluster) == ["b"]
    assert [act.who for act in run_of(cluster).acts] == ["ann", "bob"]


@pytest.mark.parametrize(("late", "state"), [("reject", "canceled"), ("approve", "open")])
async def test_gate_is_decided_at_its_deadline(cluster: Cluster, late: str, state: str) -> None:
    gated = step("b", gate="Publish?", gate_within="1h", gate_else=late)
    other = step("c", gate="And this?", gate_within="2h")
    await begun(cluster, workflow(step("a"), gated, other))
    await end(cluster, "a")
    await cluster.work()
    assert run_of(cluster).steps[1].until == cluster.clock.now() + HOUR
    cluster.clock.time += HOUR - SECOND
    await cluster.work()
    assert states(cluster)["b"] == "held"
    cluster.clock.time += SECOND
    await cluster.work()
    assert states(cluster) == {"a": "succeeded", "b": state, "c": "held"}
    cluster.clock.time += HOUR
    await cluster.work()
    assert run_of(cluster).steps[2].reason == "gate: not approved within 2h0m0s"


async def test_step_starts_at_its_time(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", not_before="+2h", not_after="+3h")))
    await end(cluster, "a")
    await cluster.work()
    (_, held) = run_of(cluster).steps
    assert (held.state, held.until) == ("held", cluster.clock.now() + 2 * HOUR)
    found = cluster.store.read(lambda db: explain.explain_job(db, "default", "etl"))
    assert found
    assert [one.message for one in found.reasons] == [f"it is held: {held.reason}"]
    cluster.clock.time += 2 * HOUR
    await cluster.work()
    assert at_work(cluster) == ["b"]
    await end(cluster, "b")
    await cluster.work()
    assert cluster.job("etl").status == "dead"  # no evaluation waits for `not_before` again


async def test_step_that_exceeds_its_deadline_behind_a_gate_fails_the_run(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", gate="Go?", not_after="+1h")))
    cluster.clock.time += 2 * HOUR
    assert (await act(cluster, RunActType.APPROVE, "a")).done
    await cluster.work()
    assert run_of(cluster).reason.startswith("step a missed its time: it had to begin before 20")
    assert cluster.job("etl").status == "dead"


@pytest.mark.parametrize("last", ["+1h", "2026-11-22T00:00:00Z", "00:00"])
async def test_expired_step_starts_in_a_rerun(cluster: Cluster, last: str) -> None:
    await begun(cluster, workflow(step("a", gate="Go?", not_after=last)))
    cluster.clock.time += 30 * HOUR
    assert (await act(cluster, RunActType.APPROVE, "a")).done
    await cluster.work()
    assert states(cluster) == {"a": "skipped"}
    assert (await act(cluster, RunActType.RERUN, failed=True)).done
    await cluster.work()
    assert (await act(cluster, RunActType.APPROVE, "a")).done
    await cluster.work()
    assert states(cluster) == {"a": "open"}


async def test_run_and_its_cleanup_time_out(cluster: Cluster) -> None:
    meta = {"steward_run_timeout": "1h", "steward_run_cleanup": "5m"}
    tidy = step("c", "a", when="failure")
    await begun(cluster, workflow(step("a"), step("b", "a"), tidy, meta=meta))
    assert run_of(cluster).deadline == cluster.clock.now() + HOUR
    cluster.clock.time += HOUR
    await cluster.work()
    assert run_of(cluster).status == "stopping"
    await end(cluster, "a", code=137)
    await cluster.work()
    assert states(cluster) == {"a": "canceled", "b": "canceled", "c": "open"}
    assert at_work(cluster) == ["c"]
    cluster.clock.time += 300 * SECOND
    await cluster.work()
    assert at_work(cluster) == []
    await end(cluster, "c", code=137)
    await cluster.work()
    assert run_of(cluster).status == "failed"
    assert run_of(cluster).reason == "timeout: the run took longer than 1h0m0s"
    assert cluster.job("etl").status == "dead"


async def test_rerun_gets_a_new_timeout(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), meta={"steward_run_timeout": "1h"}))
    await end(cluster, "a", code=1)
    await cluster.work()
    assert (run_of(cluster).status, cluster.job("etl").status) == ("failed", "dead")
    cluster.clock.time += 2 * HOUR
    assert (await act(cluster, RunActType.RERUN, "a")).done
    await cluster.work()
    assert run_of(cluster).deadline == cluster.clock.now() + HOUR
    assert states(cluster) == {"a": "open"}


async def test_gate_names_its_approvers(cluster: Cluster) -> None:
    gate = {"gate": "Publish?", "gate_by": "role:release, policy:ops", "gate_not_self": "true"}
    with request_context.person_scope("ann"):
        await begun(cluster, workflow(step("a", **gate)))
    with pytest.raises(Denied, match="the gate of step a is for role:release, policy:ops"):
        await act(cluster, RunActType.APPROVE, "a", who="bob", labels=frozenset({"role:dev"}))
    release = frozenset({"role:release"})
    for what in (RunActType.APPROVE, RunActType.REJECT, RunActType.SKIP):
        with pytest.raises(Denied, match="the gate of step a is not for ann, who began the run"):
            await act(cluster, what, "a", who="ann", labels=release)
    assert (await act(cluster, RunActType.APPROVE, "a", who="bob", labels=release)).done
    await cluster.work()
    assert at_work(cluster) == ["a"]


async def test_gate_for_other_people_needs_the_creator_of_the_run(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", gate="Publish?", gate_not_self="true")))
    for what in (RunActType.APPROVE, RunActType.REJECT, RunActType.SKIP):
        with pytest.raises(Denied, match=r"step a is not for .* and this person is unknown"):
            await act(cluster, what, "a", who="bob")
    done = await act(cluster, RunActType.APPROVE, "a", who="anonymous", knows_people=False)
    assert done.done


async def test_creator_of_a_timer_cannot_approve_its_runs(cluster: Cluster) -> None:
    gated = workflow(step("a", gate="Publish?", gate_not_self="true"))
    with request_context.person_scope("ann"):
        await cluster.register(msgspec.structs.replace(gated, id="nightly", stop=True))
    await begun(cluster, msgspec.structs.replace(gated, parent_id="nightly"))
    with pytest.raises(Denied, match="step a is not for ann, who began the run"):
        await act(cluster, RunActType.APPROVE, "a", who="ann")
    assert (await act(cluster, RunActType.APPROVE, "a", who="bob")).done


async def test_gate_for_other_people_excludes_callers_of_a_rerun(cluster: Cluster) -> None:
    with request_context.person_scope("ann"):
        await begun(
            cluster, workflow(step("a"), step("b", "a", gate="Publish?", gate_not_self="true"))
        )
    await end(cluster, "a", code=1)
    await cluster.work()
    assert (await act(cluster, RunActType.RERUN, who="eve", failed=True)).done
    await cluster.work()
    await end(cluster, "a")
    await cluster.work()
    assert states(cluster)["b"] == "held"
    with pytest.raises(Denied, match="step b is not for eve, who ran steps of it again"):
        await act(cluster, RunActType.APPROVE, "b", who="eve")
    assert (await act(cluster, RunActType.APPROVE, "b", who="bob")).done


async def test_deadline_of_each_gate_creates_one_evaluation(cluster: Cluster) -> None:
    names = "bcdefg"
    gated = [
        step(name, "a" if name in "bcd" else "z", gate="So?", gate_within=f"{hours}h")
        for hours, name in enumerate(names, 1)
    ]
    await begun(cluster, workflow(step("a"), step("z"), *gated))
    done = []
    for name in "az":
        await end(cluster, name)
        done += await cluster.work()
    assert [states(cluster)[name] for name in names] == ["held"] * len(names)
    late: list[str] = []
    for _ in names:
        cluster.clock.time += HOUR
        late += await cluster.work()
    assert [states(cluster)[name] for name in names] == ["canceled"] * len(names)
    assert len(late) == len(names)


async def test_step_at_its_gate_sends_one_notification(cluster: Cluster) -> None:
    meta = {"steward_notify_to": "night"}
    await begun(cluster, workflow(step("a"), step("b", "a", gate="Publish?"), meta=meta))
    await end(cluster, "a")
    await cluster.work()
    again = new_evaluation(cluster.job("etl"), next(cluster.ids), Trigger.RUN_STEP)
    await cluster.store.write(lambda tx: evaluations.put(tx, again, cluster.clock.now()))
    await cluster.work()
    found = cluster.store.read(lambda db: list(notifications.of_job(db, "default", "etl")))
    assert [(notification.event, notification.reason) for notification in found] == [
        ("approval", "step b, gate: Publish?")
    ]


async def test_a_failure_that_the_job_does_not_retry_is_final(cluster: Cluster) -> None:
    often = ReschedulePolicy(unlimited=True, delay=SECOND)
    await begun(cluster, workflow(step("a", reschedule_policy=often), step("b", "a")))
    (one,) = cluster.allocations("etl")
    await report(cluster, one, code=9, ended_for=NOT_RETRIED)
    await cluster.work()
    assert states(cluster) == {"a": "failed", "b": "skipped"}


async def test_repeated_action_gets_the_same_response(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    await end(cluster, "a", code=1)
    await cluster.work()
    first = await act(cluster, RunActType.RERUN, failed=True, idempotency_token="t")
    await cluster.work()
    assert await act(cluster, RunActType.RERUN, failed=True, idempotency_token="t") == first
    assert [act.act for act in run_of(cluster).acts] == ["rerun"]
    assert run_of(cluster).attempt == 2
    other = await act(cluster, CANCEL, idempotency_token="t")
    assert other.refusal == (
        "IdempotencyToken was used for another request: rerun of the run; send a new one"
    )
    with pytest.raises(Malformed, match="IdempotencyToken has 201 characters; the maximum is 200"):
        await act(cluster, CANCEL, idempotency_token="x" * 201)


@pytest.mark.parametrize(
    ("who", "steps", "failed", "every"),
    [
        ("bob", [], True, False),
        ("ann", ["a"], False, False),
        ("ann", [], False, True),
    ],
)
async def test_request_token_of_another_action_is_refused(
    cluster: Cluster, who: str, steps: list[str], failed: bool, every: bool
) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    await end(cluster, "a", code=1)
    await cluster.work()
    token = {"idempotency_token": "t"}
    assert (await act(cluster, RunActType.RERUN, failed=True, **token)).done
    other = await act(
        cluster, RunActType.RERUN, *steps, who=who, failed=failed, every=every, **token
    )
    assert other.done is None
    assert other.refusal.startswith("IdempotencyToken was used for another request: rerun")


async def test_preempted_allocation_does_not_change_the_outputs_of_its_replacement(
    cluster: Cluster,
) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    (one,) = cluster.allocations("etl")
    evicted = msgspec.structs.replace(one, desired_status=DesiredStatus.EVICT)
    await cluster.store.write(lambda tx: allocations.set_desired(tx, evicted, cluster.clock.now()))
    newer = msgspec.structs.replace(one, id=next(cluster.ids))

    def replace(tx: Transaction) -> None:
        allocations.add(tx, newer, cluster.clock.now())

    await cluster.store.write(replace)
    await report(cluster, newer, rows="2")
    await report(cluster, one, code=1)

    def written(db: ReadSnapshot) -> list[tuple[str, dict[str, str]]]:
        run = runs.newest(db, "default", "etl")
        assert run is not None
        return [(each.alloc_id, each.outputs) for each in runs.outputs(db, run)]

    assert cluster.store.read(written) == [(newer.id, {"rows": "2"})]


async def test_rejected_step_is_unsuccessful(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", gate="Begin?"), step("b", "a")))
    assert cluster.job("etl").status == "pending"
    await act(cluster, RunActType.REJECT, "a")
    await cluster.work()
    assert states(cluster) == {"a": "canceled", "b": "skipped"}
    assert run_of(cluster).reason == "step a was canceled: rejected by ann"


async def test_actions_on_replaced_runs_are_refused(cluster: Cluster) -> None:
    with pytest.raises(NotFound, match="job not found"):
        await act(cluster, CANCEL)
    await begun(cluster, CHAIN)
    with pytest.raises(Malformed, match="has no step 'z'; it has a, b, c"):
        await act(cluster, RunActType.SKIP, "z")
    with pytest.raises(Malformed, match="exactly one of Steps, Failed and Every"):
        await act(cluster, RunActType.RERUN)
    with pytest.raises(NotFound, match="run 7 not found"):
        await act(cluster, CANCEL, number=7)
    await begun(cluster, msgspec.structs.replace(cluster.job("etl"), stop=True))
    assert (await act(cluster, CANCEL)).refusal.startswith("the job is stopped")


@pytest.mark.parametrize("what", [*RunActType])
async def test_steps_of_an_action_must_exist_and_be_distinct(
    cluster: Cluster, what: RunActType
) -> None:
    await begun(cluster, workflow(step("a", gate="Begin?"), step("b", "a")))
    with pytest.raises(Malformed, match="Steps must be empty" if what == CANCEL else "no step 'z'"):
        await act(cluster, what, "z")
    many = ["a"] * 3000
    with pytest.raises(
        Malformed, match=r"Steps (must be empty|must name exactly one step|names 'a' twice)"
    ):
        await act(cluster, what, *many)
    assert run_of(cluster).acts == []


@pytest.mark.parametrize("what", [RunActType.SKIP, RunActType.ACCEPT])
async def test_only_an_approver_approves_the_gate_of_a_step(
    cluster: Cluster, what: RunActType
) -> None:
    await begun(cluster, workflow(step("a", gate="Begin?"), step("b", "a"), step("c", "*")))
    if what == RunActType.ACCEPT:
        await act(cluster, RunActType.REJECT, "a")
    before = run_of(cluster).steps
    with pytest.raises(Denied, match="step a has a gate: this operation needs approve-run"):
        await act(cluster, what, "a", may_approve=False)
    assert run_of(cluster).steps == before
    assert (await act(cluster, what, "a")).done is not None


@pytest.mark.parametrize(
    ("what", "after"),
    [
        (RunActType.APPROVE, ("stopping", "open")),
        (RunActType.REJECT, ("canceled", "canceled")),
        (RunActType.SKIP, ("canceled", "skipped")),
    ],
)
async def test_gate_of_a_cleanup_is_decided_in_a_canceled_run(
    cluster: Cluster, what: RunActType, after: tuple[str, str]
) -> None:
    clean = step("clean", "*", when="always", gate="Delete?")
    await begun(cluster, workflow(step("a"), step("b", "a"), clean))
    await act(cluster, CANCEL)
    await cluster.work()
    assert (await act(cluster, RunActType.SKIP, "b")).refusal == "run 1 is stopping"
    (one,) = cluster.allocations("etl")
    await report(cluster, one)
    await cluster.work()
    assert states(cluster)["clean"] == "held"
    assert (await act(cluster, what, "clean")).refusal == ""
    await cluster.work()
    assert (run_of(cluster).status, states(cluster)["clean"]) == after


async def test_step_at_its_gate_waits_for_a_rerun_of_its_predecessors(cluster: Cluster) -> None:
    gated = step("b", "a", gate="Publish?", gate_number="2")
    await begun(cluster, workflow(step("a"), gated))
    await end(cluster, "a")
    await cluster.work()
    await act(cluster, RunActType.APPROVE, "b")
    done = (await act(cluster, RunActType.RERUN, "a")).done
    assert done is not None
    assert done.steps == ["a", "b"]
    await cluster.work()
    assert states(cluster) == {"a": "open", "b": "waiting"}
    await end(cluster, "a")
    await cluster.work()
    await act(cluster, RunActType.APPROVE, "b", who="bob")
    await cluster.work()
    assert states(cluster)["b"] == "held"
    await act(cluster, RunActType.APPROVE, "b")
    await cluster.work()
    assert at_work(cluster) == ["b"]


async def test_failed_step_after_a_canceled_step_runs_again_with_all_elements(
    cluster: Cluster,
) -> None:
    await begun(
        cluster,
        workflow(step("a", gate="Begin?"), step("b", "a", when="always", count=2)),
    )
    await act(cluster, RunActType.REJECT, "a")
    await cluster.work()
    for code in (0, 1):
        await end(cluster, "b", code=code)
    await cluster.work()
    assert states(cluster) == {"a": "canceled", "b": "failed"}
    await act(cluster, RunActType.RERUN, failed=True)
    await cluster.work()
    await act(cluster, RunActType.APPROVE, "a")
    await cluster.work()
    await end(cluster, "a")
    await cluster.work()
    assert at_work(cluster) == ["b", "b"]


async def test_canceled_step_keeps_its_successful_elements(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=3, parallel="1"), step("b", "a")))
    await end(cluster, "a")
    await cluster.work()
    await act(cluster, CANCEL, now=True)
    await cluster.work()
    (one,) = [alloc for alloc in cluster.allocations("etl") if not alloc.client_terminal]
    await report(cluster, one, code=1)
    await cluster.work()
    assert run_of(cluster).status == "canceled"
    await act(cluster, RunActType.RERUN, failed=True)
    await cluster.work()
    for _ in range(2):
        assert at_work(cluster) == ["a"]
        await end(cluster, "a")
        await cluster.work()
    assert at_work(cluster) == ["b"]
    assert run_of(cluster).steps[0].good == 3


# --- changes between a decision and its write ---


def decided(cluster: Cluster, evaluation: Evaluation) -> tuple[ClusterState, Plan]:
    state = cluster.store.read(lambda db: load_cluster_state(db, evaluation))
    return state, schedule(state, evaluation, now=cluster.clock.now(), ids=cluster.ids)


async def is_stored(
    cluster: Cluster, evaluation: Evaluation, state: ClusterState, plan: Plan
) -> bool:
    return await applier.apply(cluster.store, evaluation, state, plan, now=cluster.clock.now())


async def test_new_run_detects_the_last_end_of_the_previous_run(cluster: Cluster) -> None:
    await begun(cluster, workflow(group("x", count=2)))
    made = await cluster.register(CHAIN)
    state, plan = decided(cluster, made)
    for alloc in cluster.allocations("etl"):
        await report(cluster, alloc)
    assert not await is_stored(cluster, made, state, plan)
    await cluster.work()
    assert at_work(cluster) == ["a"]


async def test_new_run_is_stored_while_previous_tasks_are_ending(cluster: Cluster) -> None:
    await begun(cluster, workflow(group("x", count=2)))
    made = await cluster.register(CHAIN)
    state, plan = decided(cluster, made)
    first, second = cluster.allocations("etl")
    await report(cluster, first)
    assert await is_stored(cluster, made, state, plan)
    assert states(cluster)["a"] == "held"
    await report(cluster, second)
    await cluster.work()
    assert at_work(cluster) == ["a"]


async def test_plan_without_changes_is_not_stored_after_a_cancellation(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    evaluation = new_evaluation(cluster.job("etl"), next(cluster.ids), Trigger.NODE_UPDATE)
    state, plan = decided(cluster, evaluation)
    await act(cluster, CANCEL)
    assert not await is_stored(cluster, evaluation, state, plan)


async def stop(cluster: Cluster, alloc: Allocation) -> None:
    stopped = msgspec.structs.replace(alloc, desired_status=DesiredStatus.STOP)
    now = cluster.clock.now()
    await cluster.store.write(lambda tx: allocations.set_desired(tx, stopped, now))


async def evaluate(cluster: Cluster) -> None:
    evaluation = new_evaluation(cluster.job("etl"), next(cluster.ids), Trigger.NODE_UPDATE)
    await cluster.store.write(lambda tx: evaluations.put(tx, evaluation, cluster.clock.now()))
    await cluster.work()


async def test_a_step_ends_with_the_last_task_that_was_stopped(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    (old,) = cluster.allocations("etl")
    await stop(cluster, old)
    await evaluate(cluster)
    (new,) = [alloc for alloc in cluster.allocations("etl") if alloc.id != old.id]
    await report(cluster, new)
    await cluster.work()
    assert states(cluster) == {"a": "open", "b": "waiting"}
    await report(cluster, old)
    await cluster.work()
    assert at_work(cluster) == ["b"]


async def test_tasks_of_a_later_version_do_not_extend_a_run(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    (old,) = cluster.allocations("etl")
    await begun(cluster, workflow(group("x")))
    assert run_of(cluster).status == "stopping"
    await report(cluster, old)
    await cluster.work()
    assert at_work(cluster) == ["x"]
    assert run_of(cluster).status == "canceled"


# --- outputs ---


def written(cluster: Cluster) -> dict[tuple[str, int], dict[str, str]]:
    def work(db: ReadSnapshot) -> dict[tuple[str, int], dict[str, str]]:
        run = runs.newest(db, "default", "etl")
        assert run is not None
        return {(output.step, output.element): output.outputs for output in runs.outputs(db, run)}

    return cluster.store.read(work)


@pytest.mark.parametrize(("rows", "state"), [("3", "open"), ("0", "skipped"), ("x", "failed")])
async def test_condition_uses_the_outputs_of_the_previous_step(
    cluster: Cluster, rows: str, state: str
) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", **{"if": "needs.a.outputs.rows > 0"})))
    await end(cluster, "a", rows=rows)
    await cluster.work()
    assert states(cluster)["b"] == state


async def test_a_condition_over_too_many_outputs_fails_the_step(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "MAX_VALUES", 3)
    keys = {"if": "needs.a.outputs.x is not empty"}
    await begun(cluster, workflow(step("a", count=2), step("b", "a", **keys), step("c", "a")))
    await end(cluster, "a", x="1", y="2")
    await end(cluster, "a")
    await cluster.work()
    assert states(cluster) == {"a": "succeeded", "b": "failed", "c": "open"}
    assert (
        "its condition cannot be evaluated: the steps that it needs have more than 3 output values"
        in (run_of(cluster).steps[1].reason)
    )


async def test_outputs_are_not_read_on_the_event_loop(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", **{"if": "needs.a.outputs.x == 1"})))
    await end(cluster, "a", x="1")
    due = cluster.next()
    assert due is not None
    with pytest.raises(LongRead):
        cluster.store.read_short(lambda db: load_cluster_state(db, due))
    assert cluster.store.read(lambda db: load_cluster_state(db, due)).outputs == {"a": {"x": "1"}}


async def test_rerun_steps_lose_their_outputs_except_those_of_successful_elements(
    cluster: Cluster,
) -> None:
    await begun(cluster, workflow(step("a", count=2), step("b", "a", when="always")))
    await end(cluster, "a", x="1")
    await end(cluster, "a", code=1, x="2")
    await cluster.work()
    await end(cluster, "b", y="3")
    await cluster.work()
    assert len(written(cluster)) == 3
    (good,) = [
        alloc.index
        for alloc in cluster.allocations("etl")
        if alloc.task_group == "a" and alloc.client_status == "complete"
    ]
    await act(cluster, RunActType.RERUN, failed=True)
    assert written(cluster) == {("a", good): {"x": "1"}}
    await cluster.work()
    assert at_work(cluster) == ["a"]
    await end(cluster, "a")
    await cluster.work()
    await end(cluster, "b")
    await cluster.work()
    assert written(cluster) == {("a", good): {"x": "1"}}
    assert cluster.store.read(lambda db: [*invariants.find_violations(db)]) == []


# --- lists ---


async def test_a_list_from_an_output_sets_the_number_of_elements(cluster: Cluster) -> None:
    fan = step("b", "a", for_each="${output.a.shards}", parallel="2", failures_allowed="40%")
    await begun(cluster, workflow(step("a"), fan, step("c", "b")))
    assert run_of(cluster).steps[1].total == 0
    await end(cluster, "a", shards='["x", "y", "z"]')
    await cluster.work()
    assert at_work(cluster) == ["b", "b"]
    state = cluster.store.read(lambda db: line(db, "default", "etl", cluster.clock.now()))
    assert state is not None
    await end(cluster, "b")
    await end(cluster, "b", code=1)
    await cluster.work()
    assert at_work(cluster) == ["b"]
    await end(cluster, "b")
    await cluster.work()
    step_b = run_of(cluster).steps[1]
    assert (step_b.state, step_b.total, step_b.good, step_b.failed) == ("succeeded", 3, 2, 1)
    indexes = {alloc.index for alloc in cluster.allocations("etl") if alloc.task_group == "b"}
    assert indexes == {0, 1, 2}
    assert at_work(cluster) == ["c"]


@pytest.mark.parametrize(
    ("outputs", "state", "reason"),
    [
        ({"x": "[]"}, "skipped", "it has no elements"),
        ({"x": "y"}, "failed", "its list cannot be used: 'y' is not JSON"),
        ({}, "failed", "its list cannot be used: a has not written the output x"),
    ],
)
async def test_step_without_its_list_does_not_start(
    cluster: Cluster, outputs: dict[str, str], state: str, reason: str
) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", for_each="${output.a.x}")))
    await end(cluster, "a", **outputs)
    await cluster.work()
    assert (run_of(cluster).steps[1].state, run_of(cluster).steps[1].reason) == (state, reason)


async def test_lists_from_outputs_do_not_exceed_the_allocations_of_a_job(cluster: Cluster) -> None:
    cluster.max_count = 7
    keys = {"for_each": "${output.a.x}"}
    await begun(cluster, workflow(step("a"), step("b", "a", **keys), step("c", "a", **keys)))
    await end(cluster, "a", x="[1, 2, 3, 4]")
    await cluster.work()
    assert at_work(cluster) == ["b"] * 4
    found = run_of(cluster).steps[2]
    assert (found.state, found.reason) == (
        "failed",
        "its list cannot be used: with its 4 items, the job has 9 elements; job_max_count is 7",
    )


async def test_elements_of_a_run_are_limited_when_its_lists_are_known(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "MAX_RUN_ELEMENTS", 9)
    await begun(
        cluster,
        workflow(step("a"), step("b", "a", for_each="${output.a.x}"), step("c", "b[i]")),
    )
    await end(cluster, "a", x="[1, 2, 3, 4]")
    await cluster.work()
    await end(cluster, "b")
    await cluster.work()
    assert states(cluster)["c"] == "open"
    again = workflow(
        step("a"),
        step("b", "a", for_each="${output.a.x}"),
        step("c", "b[i]"),
        step("d", "b[i]"),
    )
    await cluster.register(again)
    for alloc in cluster.allocations("etl"):
        if not alloc.client_terminal:
            await report(cluster, alloc)
    await cluster.work()
    await end(cluster, "a", x="[1, 2, 3, 4]")
    await cluster.work()
    await end(cluster, "b")
    await cluster.work()
    found = run_of(cluster).steps[3]
    assert (found.state, found.reason) == (
        "failed",
        "its list cannot be used: with its 4 elements, the run has 13; the maximum is 9",
    )


async def test_only_the_failed_elements_of_a_list_run_again(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", matrix='{"x": [1, 2], "y": [3]}')))
    await end(cluster, "a")
    await end(cluster, "a", code=1)
    await cluster.work()
    assert run_of(cluster).status == "failed"
    await act(cluster, RunActType.RERUN, failed=True)
    await cluster.work()
    assert at_work(cluster) == ["a"]
    await end(cluster, "a")
    await cluster.work()
    assert (run_of(cluster).status, run_of(cluster).steps[0].good) == ("succeeded", 2)
    assert cluster.store.read(lambda db: [*invariants.find_violations(db)]) == []


async def test_completed_elements_of_a_long_list_are_counted(cluster: Cluster) -> None:
    items = msgspec.json.encode(list(range(70))).decode()
    await begun(cluster, workflow(step("a"), step("b", "a", for_each="${output.a.x}")))
    await end(cluster, "a", x=items)
    await cluster.work()
    for _ in range(70):
        await end(cluster, "b")
    await cluster.work()
    assert (run_of(cluster).status, run_of(cluster).steps[1].good) == ("succeeded", 70)


async def test_step_with_redo_runs_before_a_failed_step_which_restarts_completely(
    cluster: Cluster,
) -> None:
    set_up = step("up", redo="true")
    await begun(cluster, workflow(set_up, step("use", "up", count=2)))
    await end(cluster, "up")
    await cluster.work()
    await end(cluster, "use")
    await end(cluster, "use", code=1)
    await cluster.work()
    assert run_of(cluster).status == "failed"
    done = (await act(cluster, RunActType.RERUN, failed=True)).done
    assert done is not None
    assert done.steps == ["up", "use"]
    await cluster.work()
    assert at_work(cluster) == ["up"]
    await end(cluster, "up")
    await cluster.work()
    assert at_work(cluster) == ["use", "use"]
    assert [step.attempt for step in run_of(cluster).steps] == [2, 2]


# --- needs by element ---


def indexes(cluster: Cluster, name: str) -> list[int]:
    return sorted(
        alloc.index
        for alloc in cluster.allocations("etl")
        if alloc.task_group == name and alloc.desired_status == DesiredStatus.RUN
    )


async def end_element(cluster: Cluster, name: str, index: int, *, code: int = 0) -> None:
    (alloc,) = (
        one
        for one in cluster.allocations("etl")
        if (one.task_group, one.index) == (name, index) and not one.client_terminal
    )
    await report(cluster, alloc, code=code)
    await cluster.work()


async def test_each_element_starts_after_its_counterpart(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=3), step("b", "a[i]"), step("c", "b")))
    assert states(cluster) == {"a": "open", "b": "waiting", "c": "waiting"}
    await end_element(cluster, "a", 2)
    assert indexes(cluster, "b") == [2]
    found = cluster.store.read(lambda db: explain.explain_job(db, "default", "etl"))
    assert found
    assert "2 elements wait for a[i]" in [one.message for one in found.reasons]
    await end_element(cluster, "b", 2)
    await end_element(cluster, "a", 0)
    assert indexes(cluster, "b") == [0, 2]
    await end_element(cluster, "a", 1, code=3)
    assert indexes(cluster, "b") == [0, 2]
    assert states(cluster) == {"a": "failed", "b": "open", "c": "waiting"}
    await end_element(cluster, "b", 0)
    run = run_of(cluster)
    assert [(one.state, one.good) for one in run.steps] == [
        ("failed", 2),
        ("skipped", 2),
        ("skipped", 0),
    ]
    assert run.reason == "step a failed"
    assert cluster.store.read(lambda db: list(invariants.find_violations(db))) == []


async def test_counterparts_run_again_after_a_rerun(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=2), step("b", "a[i]")))
    await end_element(cluster, "a", 0)
    await end_element(cluster, "b", 0)
    await end_element(cluster, "a", 1, code=3)
    assert (await act(cluster, RunActType.RERUN, failed=True)).done
    await cluster.work()
    assert at_work(cluster) == ["a", "b"]  # the first element of b also runs again
    await end_element(cluster, "a", 1)
    await end_element(cluster, "b", 0)
    await end_element(cluster, "b", 1)
    assert run_of(cluster).status == "succeeded"


async def test_counterpart_failure_starts_its_handler(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=2), step("b", "a[i]", when="failure")))
    await end_element(cluster, "a", 1, code=3)
    assert indexes(cluster, "b") == [1]
    await end_element(cluster, "b", 1)
    await end_element(cluster, "a", 0)
    assert states(cluster) == {"a": "failed", "b": "succeeded"}
    assert run_of(cluster).steps[1].reason == "1 of 2 elements were skipped"


async def test_elements_with_counterparts_share_limits(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=3), step("b", "a[i]", parallel="1")))
    for index in (2, 1):
        await end_element(cluster, "a", index)
    assert indexes(cluster, "b") == [2]
    await end_element(cluster, "b", 2)
    assert indexes(cluster, "b") == [1, 2]


# ---- limits of active elements ---------------------------------------------------------------------


def told(cluster: Cluster) -> list[tuple[str, str, int]]:
    """Return the explanation of the job: groups, messages and numbers of missing elements."""
    found = cluster.store.read(lambda db: explain.explain_job(db, "default", "etl"))
    assert found is not None
    return [(one.task_group, one.message, one.missing) for one in found.reasons]


def limited(most: int, *groups: TaskGroup, **meta: str) -> Job:
    return workflow(*groups, meta={"steward_run_parallel": str(most), **meta})


async def test_elements_of_a_limited_run_start_in_the_order_of_the_job(cluster: Cluster) -> None:
    groups = (step("c", "a"), step("a"), step("b", count=3), step("d", "c"))
    await begun(cluster, limited(2, *groups))
    seen = [at_work(cluster)]
    for name in "abcbbd":
        await end(cluster, name)
        await cluster.work()
        seen.append(at_work(cluster))
    # As soon as step a has ended, c starts before the remaining elements of b.
    assert seen == [["a", "b"], ["b", "c"], ["b", "c"], ["b", "b"], ["b", "d"], ["d"], []]
    assert run_of(cluster).status == "succeeded"
    assert cluster.store.read(lambda db: list(invariants.find_violations(db))) == []


async def test_elements_without_a_place_are_explained(cluster: Cluster) -> None:
    groups = (step("a", count=9, parallel="2"), step("b", count=5), step("c"), step("d", "c"))
    await begun(cluster, limited(4, *groups))
    own = "7 elements wait until fewer than 2 of its elements are active"
    until = "until fewer than 4 allocations of the run are active"
    await cluster.run_all("etl")
    assert [(one.state, one.reason) for one in run_of(cluster).steps] == [
        ("running", f"parallel: {own}"),
        ("running", f"parallel: 3 elements wait {until}"),
        ("held", f"parallel: it waits {until}"),
        ("waiting", ""),
    ]
    assert told(cluster) == [
        ("a", own, 7),
        ("b", f"3 elements wait {until}", 3),
        ("c", f"it is held: parallel: it waits {until}", 1),
        ("d", "it waits for c", 1),
    ]
    for _ in range(5):
        await end(cluster, "b")
        await cluster.work()
    await cluster.run_all("etl")
    assert [(one.state, one.reason) for one in run_of(cluster).steps] == [
        ("running", f"parallel: {own}"),
        ("succeeded", ""),
        ("running", ""),
        ("waiting", ""),
    ]


async def test_element_that_waits_for_its_next_attempt_has_a_place(cluster: Cluster) -> None:
    policy = ReschedulePolicy(
        attempts=1, interval=3600 * SECOND, delay=30 * SECOND, delay_function="constant"
    )
    await begun(cluster, limited(1, step("a", reschedule_policy=policy), step("b")))
    await end(cluster, "a", code=1)
    await cluster.work()
    assert (at_work(cluster), states(cluster)) == ([], {"a": "open", "b": "held"})
    reasons = [one.reason for one in run_of(cluster).steps]
    retried = "it waits for capacity, or for its next attempt"
    assert reasons == [retried, "parallel: it waits until no allocation of the run is active"]
    cluster.wait(31)
    await cluster.work()
    assert at_work(cluster) == ["a"]
    await end(cluster, "a", code=1)
    await cluster.work()
    assert at_work(cluster) == ["b"]


async def test_cleanup_of_a_limited_run_starts_after_the_canceled_tasks(cluster: Cluster) -> None:
    clean = step("clean", "a", when="always")
    await begun(cluster, limited(1, step("a", count=3), step("b"), clean))
    assert (await act(cluster, CANCEL)).done
    await cluster.work()
    assert states(cluster) == {"a": "open", "b": "canceled", "clean": "waiting"}
    (one,) = cluster.allocations("etl")
    await report(cluster, one)
    await cluster.work()
    assert at_work(cluster) == ["clean"]
    await end(cluster, "clean")
    await cluster.work()
    assert run_of(cluster).status == "canceled"


async def test_step_without_a_place_is_skipped_by_a_person(cluster: Cluster) -> None:
    await begun(cluster, limited(1, step("a"), step("b"), step("c", "b", when="always")))
    assert (await act(cluster, RunActType.SKIP, "b")).done
    await cluster.work()
    assert states(cluster) == {"a": "open", "b": "skipped", "c": "held"}


async def test_handler_without_a_place_is_skipped_after_its_failure_was_accepted(
    cluster: Cluster,
) -> None:
    handler = step("handler", "b", when="failure")
    await begun(cluster, limited(2, step("b"), step("a", count=9), handler, step("c", "handler")))
    await end(cluster, "b", code=1)
    await cluster.work()
    assert states(cluster)["handler"] == "held"
    assert (await act(cluster, RunActType.ACCEPT, "b")).done
    await cluster.work()
    assert (states(cluster)["handler"], states(cluster)["c"]) == ("skipped", "skipped")


async def test_steps_of_a_limited_run_run_again(cluster: Cluster) -> None:
    await begun(cluster, limited(1, step("a", count=2), step("b", "a"), step("x")))
    for name, code in (("a", 3), ("a", 0), ("x", 0)):
        await end(cluster, name, code=code)
        await cluster.work()
    assert states(cluster) == {"a": "failed", "b": "skipped", "x": "succeeded"}
    assert (await act(cluster, RunActType.RERUN, "a", "x")).done
    await cluster.work()
    assert (indexes(cluster, "a"), states(cluster)["x"]) == ([0, 1], "held")
    assert at_work(cluster) == ["a"]  # the other element is complete
    for name in ("a", "b", "x"):
        await end(cluster, name)
        await cluster.work()
    assert run_of(cluster).status == "succeeded"


async def test_limited_run_starts_paired_elements_in_the_order_of_the_job(cluster: Cluster) -> None:
    await begun(cluster, limited(2, step("b", "a[i]"), step("a", count=4)))
    assert indexes(cluster, "a") == [0, 1]
    await end_element(cluster, "a", 1)
    assert (indexes(cluster, "b"), at_work(cluster)) == ([1], ["a", "b"])
    await end_element(cluster, "b", 1)
    assert (indexes(cluster, "b"), at_work(cluster)) == ([1], ["a", "a"])


# ---- runs that a bad step stops --------------------------------------------------------------------


def stopping(*groups: TaskGroup, **meta: str) -> Job:
    return workflow(*groups, meta={"steward_run_on_failure": "stop", **meta})


def stopped_alloc(cluster: Cluster) -> Allocation:
    """Return the only allocation whose tasks are ending."""
    (one,) = [
        alloc
        for alloc in cluster.allocations("etl")
        if alloc.desired_status == DesiredStatus.STOP and not alloc.client_terminal
    ]
    return one


BRANCHES = (
    step("a"),
    step("b"),
    step("c", "b"),
    step("handler", "a", when="failure"),
    step("clean", "b", when="always"),
)


async def fail_first(cluster: Cluster, job: Job) -> None:
    """Register the job, let its step a fail, and let the stopped task of step b end."""
    await begun(cluster, job)
    await end(cluster, "a", code=7)
    await cluster.work()
    await report(cluster, stopped_alloc(cluster), code=137)
    await cluster.work()


async def test_bad_step_stops_its_run_and_the_cleanup_steps_run(cluster: Cluster) -> None:
    await begun(cluster, stopping(*BRANCHES))
    assert at_work(cluster) == ["a", "b"]
    await end(cluster, "a", code=7)
    await cluster.work()
    assert at_work(cluster) == ["handler"]
    assert (run_of(cluster).status, run_of(cluster).deadline) == (
        "stopping",
        cluster.clock.now() + 600 * SECOND,
    )
    assert cluster.job("etl").status == "running"
    await report(cluster, stopped_alloc(cluster), code=137)
    await cluster.work()
    assert at_work(cluster) == ["clean", "handler"]
    assert ("c", "it was canceled: step a failed", 0) in told(cluster)
    for name in ("clean", "handler"):
        await end(cluster, name)
        await cluster.work()
    run = run_of(cluster)
    assert (run.status, run.reason) == ("failed", "step a failed")
    assert states(cluster) == {
        **dict.fromkeys("bc", "canceled"),
        "a": "failed",
        "handler": "succeeded",
        "clean": "succeeded",
    }
    assert (cluster.job("etl").status, state_of(cluster)[0]) == ("dead", "failed")
    assert cluster.store.read(lambda db: list(invariants.find_violations(db))) == []


async def test_run_goes_on_after_a_bad_step_by_default(cluster: Cluster) -> None:
    await begun(cluster, stopping(*BRANCHES, steward_run_on_failure="go-on"))
    await end(cluster, "a", code=7)
    await cluster.work()
    assert (run_of(cluster).status, at_work(cluster)) == ("running", ["b", "handler"])


async def test_retried_failure_does_not_stop_its_run(cluster: Cluster) -> None:
    policy = ReschedulePolicy(
        attempts=1, interval=3600 * SECOND, delay=30 * SECOND, delay_function="constant"
    )
    await begun(cluster, stopping(step("a", reschedule_policy=policy), step("b")))
    await end(cluster, "a", code=1)
    await cluster.work()
    assert (run_of(cluster).status, at_work(cluster)) == ("running", ["b"])
    cluster.wait(31)
    await cluster.work()
    await end(cluster, "a", code=1)
    await cluster.work()
    assert (run_of(cluster).status, at_work(cluster)) == ("stopping", [])


async def test_stopped_steps_run_after_the_failure_was_accepted(cluster: Cluster) -> None:
    await fail_first(cluster, stopping(*BRANCHES))
    for name in ("handler", "clean"):
        await end(cluster, name)
        await cluster.work()
    accepted = (await act(cluster, RunActType.ACCEPT, "a")).done
    assert accepted is not None
    assert sorted(accepted.steps) == ["a", "b", "c"]
    assert run_of(cluster).status == "running"
    await cluster.work()
    assert at_work(cluster) == ["b"]
    for name in "bc":
        await end(cluster, name)
        await cluster.work()
    run = run_of(cluster)
    assert (run.status, run.reason, run.attempt) == ("succeeded", "", 2)


async def test_accepted_cleanup_failure_continues_no_stopped_step(cluster: Cluster) -> None:
    await fail_first(cluster, stopping(*BRANCHES))
    cluster.wait(1)
    for name, code in (("handler", 0), ("clean", 1)):
        await end(cluster, name, code=code)
        await cluster.work()
    assert (await act(cluster, RunActType.ACCEPT, "clean")).done
    await cluster.work()
    assert states(cluster)["b"] == "canceled"
    assert (run_of(cluster).status, run_of(cluster).reason) == ("failed", "step a failed")


async def test_stopped_run_runs_again_from_its_failed_and_stopped_steps(cluster: Cluster) -> None:
    await fail_first(cluster, stopping(*BRANCHES))
    for name in ("handler", "clean"):
        await end(cluster, name)
        await cluster.work()
    again = (await act(cluster, RunActType.RERUN, failed=True)).done
    assert again is not None
    assert again.steps == ["a", "b", "c", "handler", "clean"]
    await cluster.work()
    assert at_work(cluster) == ["a", "b"]
    for name in ("a", "b", "c", "clean"):
        await end(cluster, name)
        await cluster.work()
    assert run_of(cluster).status == "succeeded"
    assert states(cluster)["handler"] == "skipped"


async def test_named_step_of_a_stopped_run_runs_again(cluster: Cluster) -> None:
    await fail_first(cluster, stopping(step("a"), step("b"), step("c", "b")))
    assert (await act(cluster, RunActType.RERUN, "a")).done
    await cluster.work()
    # Steps that were bad before do not stop the run again.
    assert (run_of(cluster).status, at_work(cluster)) == ("running", ["a"])
    await end(cluster, "a")
    await cluster.work()
    run = run_of(cluster)
    assert (run.status, run.reason) == ("failed", "steps b, c were canceled: b: step a failed")


async def test_rejected_step_stops_its_run(cluster: Cluster) -> None:
    clean = step("clean", "b", when="always")
    await begun(cluster, stopping(step("a", gate="Go?"), step("b"), clean))
    assert (await act(cluster, RunActType.REJECT, "a")).done
    await cluster.work()
    await report(cluster, stopped_alloc(cluster))
    await cluster.work()
    assert at_work(cluster) == ["clean"]
    await end(cluster, "clean")
    await cluster.work()
    run = run_of(cluster)
    assert (run.status, run.reason) == ("failed", "step a was canceled: rejected by ann")
    assert (await act(cluster, RunActType.ACCEPT, "a")).done
    await cluster.work()
    assert at_work(cluster) == ["b"]


async def test_stopped_run_is_canceled_without_its_cleanup(cluster: Cluster) -> None:
    await begun(cluster, stopping(*BRANCHES))
    await end(cluster, "a", code=7)
    await cluster.work()
    assert (await act(cluster, CANCEL)).refusal == "run 1 is stopping already"
    assert (await act(cluster, CANCEL, now=True)).done
    await cluster.work()
    assert at_work(cluster) == []
    for alloc in cluster.allocations("etl"):
        if not alloc.client_terminal:
            await report(cluster, alloc, code=137)
    await cluster.work()
    run = run_of(cluster)
    assert (run.status, run.reason) == ("failed", "step a failed")


async def test_cleanup_of_a_stopped_run_times_out(cluster: Cluster) -> None:
    await fail_first(cluster, stopping(*BRANCHES, steward_run_cleanup="5m"))
    cluster.clock.time += 300 * SECOND
    await cluster.work()
    assert at_work(cluster) == []
    for alloc in cluster.allocations("etl"):
        if not alloc.client_terminal:
            await report(cluster, alloc, code=137)
    await cluster.work()
    assert (run_of(cluster).status, run_of(cluster).reason) == ("failed", "step a failed")
    assert cluster.job("etl").status == "dead"


async def test_canceled_run_ends_as_canceled_despite_a_bad_step(cluster: Cluster) -> None:
    await begun(cluster, stopping(*BRANCHES))
    assert (await act(cluster, CANCEL)).done
    await end(cluster, "a", code=7)
    await cluster.work()
    await report(cluster, stopped_alloc(cluster))
    await cluster.work()
    await end(cluster, "clean")
    await cluster.work()
    run = run_of(cluster)
    assert (run.status, run.reason) == ("canceled", "canceled by ann")


async def test_stopped_run_keeps_its_limit_of_active_elements(cluster: Cluster) -> None:
    await begun(cluster, stopping(*BRANCHES, steward_run_parallel="2"))
    await end(cluster, "a", code=7)
    await cluster.work()
    # The task of step b is still ending.
    assert at_work(cluster) == ["handler"]
    await report(cluster, stopped_alloc(cluster))
    await cluster.work()
    assert at_work(cluster) == ["clean", "handler"]


# ---- the state of the job --------------------------------------------------------------------------


def state_of(cluster: Cluster, job_id: str = "etl") -> tuple[str, str]:
    found = cluster.store.read(lambda db: line(db, "default", job_id, cluster.clock.now()))
    assert found is not None
    return found.state, found.reason


PARENT = job("web", group(), type="batch", parameterized_job=Parameterized())


async def child(cluster: Cluster, *groups: TaskGroup) -> None:
    """Run a child of `web` up to its first tasks; its ID is the same as in the other tests."""
    await cluster.register(PARENT)
    fields = {"parent_id": "web", "parameterized_job": Parameterized(), "dispatched": True}
    await begun(cluster, msgspec.structs.replace(workflow(*groups), **fields))


def of_parent(cluster: Cluster, result: str) -> list[str]:
    """Return the IDs of the runs of `web` with a result."""
    wanted = run_history.RunFilter(result=result)
    return [
        run.id
        for run in cluster.store.read(
            lambda db: run_history.selected(
                db, cluster.job(), cluster.clock.now(), 9, run_filter=wanted
            )
        )
    ]


async def test_a_run_that_allows_a_failure_is_a_success_of_the_job_and_its_parent(
    cluster: Cluster,
) -> None:
    await child(cluster, step("a", count=2, failures_allowed="1"), step("b", "a"))
    await end(cluster, "a", code=3)
    await end(cluster, "a")
    await cluster.work()
    await end(cluster, "b")
    await cluster.work()
    assert run_of(cluster).status == "succeeded"
    assert state_of(cluster) == ("complete", "")
    assert state_of(cluster, "web") == ("scheduled", "the last run succeeded")
    assert (of_parent(cluster, "complete"), of_parent(cluster, "failed")) == (["etl"], [])
    strip = cluster.store.read(lambda db: job_states.strip(db, "default", "web"))
    assert strip == ["complete"]


async def test_an_accepted_failure_is_a_success_of_the_job(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    await end(cluster, "a", code=3)
    await cluster.work()
    assert state_of(cluster) == ("failed", 'step a failed: task "main" exited with code 3')
    await act(cluster, RunActType.ACCEPT, "a")
    await cluster.work()
    await end(cluster, "b")
    await cluster.work()
    assert (run_of(cluster).status, state_of(cluster)) == ("succeeded", ("complete", ""))


async def test_a_run_that_fails_without_a_failed_task_is_a_failure_everywhere(
    cluster: Cluster,
) -> None:
    await child(cluster, step("a"), step("b", "a", for_each="${output.a.s}"))
    await end(cluster, "a")
    await cluster.work()
    assert run_of(cluster).status == "failed"
    assert state_of(cluster)[0] == "failed"
    assert state_of(cluster, "web")[0] == "failing"
    assert (of_parent(cluster, "complete"), of_parent(cluster, "failed")) == ([], ["etl"])
    strip = cluster.store.read(lambda db: job_states.strip(db, "default", "web"))
    assert strip == ["failed"]
    page = PageRequest(namespace="*")
    found = cluster.store.read(
        lambda db: [
            [*job_listings.by_change(db, page, failed=True, children=True)],
            [*job_listings.by_name(db, page, failed=True, children=True)],
        ]
    )
    assert [[row.id for row in rows] for rows in found] == [["etl"], ["etl"]]


async def test_held_run_names_its_gate(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", gate="Publish?"), step("b", not_before="+2h")))
    assert state_of(cluster) == ("pending", "step a is held: gate: Publish?")


async def test_new_version_does_not_inherit_the_result_of_the_previous_run(
    cluster: Cluster,
) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", count=2)))
    await end(cluster, "a", code=3)
    await cluster.work()
    await cluster.register(workflow(step("a"), step("b", "a")))
    assert state_of(cluster)[0] == "pending"


@pytest.mark.parametrize("code", [0, 3])
async def test_notifications_reflect_the_run(cluster: Cluster, code: int) -> None:
    """The run allows a failure, or fails without a failed task."""
    where = {"steward_notify_webhook": "https://example.org/hook"}
    second = step("b", "a") if code else step("b", "a", for_each="${output.a.s}")
    first = step("a", count=2 if code else 1, failures_allowed="1")
    await begun(cluster, workflow(first, second, meta=where))
    await end(cluster, "a")
    if code:
        await end(cluster, "a", code=code)
    await cluster.work()
    assert run_of(cluster).status == ("running" if code else "failed")
    if code:
        await end(cluster, "b")
        await cluster.work()
    row = cluster.store.read(lambda db: job_status.load_summary(db, "default", "etl"))
    assert row is not None
    assert row["outcome"] == ("good" if code else "failed")


SIZES = (3, 70)  # all allocations of the smaller job are read, and only counts of the larger one


async def end_elements(cluster: Cluster, name: str, failing: Collection[int]) -> None:
    """Let all unfinished elements of a step end in one decision; those in `failing` fail."""
    ones = [one for one in cluster.allocations("etl") if one.task_group == name]
    alive = [one for one in ones if not one.client_terminal]
    bad = [one for one in alive if one.index in failing]
    await report(cluster, *(one for one in alive if one.index not in failing))
    await report(cluster, *bad, code=1)
    await cluster.work()


@pytest.mark.parametrize("size", SIZES)
async def test_only_successful_elements_of_an_ended_step_have_counterparts(
    cluster: Cluster, size: int
) -> None:
    await begun(
        cluster,
        workflow(
            step("a", count=size, failures_allowed="1"),
            step("b", "a[i]", gate="now?"),
            step("c", "a[i]", when="failure", gate="now?"),
        ),
    )
    await end_elements(cluster, "a", {1})
    assert states(cluster) == {"a": "succeeded", "b": "held", "c": "held"}
    for name in "bc":
        assert (await act(cluster, RunActType.APPROVE, name)).done
    await cluster.work()
    assert indexes(cluster, "b") == [index for index in range(size) if index != 1]
    assert indexes(cluster, "c") == [1]
    await end_elements(cluster, "b", ())
    await end_elements(cluster, "c", ())
    assert {one.name: one.reason for one in run_of(cluster).steps} == {
        "a": f"1 of {size} elements failed, which is allowed",
        "b": f"1 of {size} elements were skipped",
        "c": f"{size - 1} of {size} elements were skipped",
    }
    assert run_of(cluster).status == "succeeded"


@pytest.mark.parametrize("size", SIZES)
async def test_handlers_of_the_elements_of_a_failed_step_start_one_by_one(
    cluster: Cluster, size: int
) -> None:
    await begun(
        cluster,
        workflow(
            step("a", count=size, failures_allowed="3"),
            step("b", "a[i]", when="failure", parallel="1"),
            step("c", "b[i]"),
        ),
    )
    await end_elements(cluster, "a", {0, 1, 2})
    for index in (0, 1, 2):
        assert indexes(cluster, "b") == [*range(index + 1)]
        await end_element(cluster, "b", index)
    await end_elements(cluster, "c", ())
    assert indexes(cluster, "c") == [0, 1, 2]
    assert run_of(cluster).status == "succeeded"


@pytest.mark.parametrize("size", SIZES)
async def test_accepted_step_is_successful_with_all_elements(cluster: Cluster, size: int) -> None:
    await begun(cluster, workflow(step("a", count=size, gate="now?"), step("b", "a[i]")))
    assert (await act(cluster, RunActType.REJECT, "a")).done
    await cluster.work()
    assert (await act(cluster, RunActType.ACCEPT, "a")).done
    await cluster.work()
    assert indexes(cluster, "b") == [*range(size)]


# --- failures ---


@pytest.mark.parametrize("size", [1, *SIZES])
async def test_element_beyond_its_time_limit_is_a_failure(cluster: Cluster, size: int) -> None:
    late = step("a", count=size, max_run_duration=SECOND)
    handler = step("c", "a[i]", when="failure", gate="now?")
    await begun(cluster, workflow(late, step("b", "a"), handler))
    first, *others = cluster.allocations("etl")
    await report(cluster, *others)
    await report(cluster, first, ended_for=OVERTIME)
    await cluster.work()
    assert cluster.allocations("etl")[0].client_status == "complete"
    assert states(cluster) == {"a": "failed", "b": "skipped", "c": "held"}
    (a, *_) = run_of(cluster).steps
    words = f"1 of {size} elements failed" if size > 1 else "it failed"
    assert (a.good, a.failed, a.reason) == (size - 1, 1, f"{words}: Max Run Duration Exceeded")
    assert (await act(cluster, RunActType.APPROVE, "c")).done
    await cluster.work()
    assert indexes(cluster, "c") == [first.index]
    await end_element(cluster, "c", first.index)
    run = run_of(cluster)
    known = "" if size == 1 else f"{words}: "
    assert (run.status, run.reason) == (
        "failed",
        f"step a failed: {known}Max Run Duration Exceeded",
    )
    assert (await act(cluster, RunActType.RERUN, failed=True)).done
    await cluster.work()
    assert at_work(cluster) == ["a"]
    assert cluster.store.read(lambda db: list(invariants.find_violations(db))) == []


async def test_exit_code_is_that_of_the_first_failed_task(cluster: Cluster) -> None:
    await begun(
        cluster,
        workflow(step("a"), step("b", "a", **{"if": "needs.a.exit_code == 75", "when": "failure"})),
    )
    (one,) = cluster.allocations("etl")
    now = cluster.clock.now()
    events = {
        name: TaskEvent(type="Terminated", time=now + late, exit_code=code)
        for name, late, code in (("after", 2, 3), ("main", 1, 75))
    }
    failed = {
        name: TaskState(state="dead", failed=True, finished_at=rfc3339(event.time))
        for name, event in events.items()
    }
    status = AllocStatus(
        alloc_id=one.id,
        states=failed,
        events={name: [event] for name, event in events.items()},
        handles={},
        deployment_id="",
        healthy=None,
        healthy_at=0,
        ended_for="",
        services=None,
        evaluation_id=next(cluster.ids),
        now=now,
        outputs={},
    )
    await cluster.store.write(partial(store_snapshots, snapshots=[status]))
    await cluster.work()
    assert run_of(cluster).steps[0].exit_code == 75
    assert states(cluster)["b"] == "open"
    error = cluster.store.read(lambda db: failures.newest_error(db, "default", "etl"))
    assert error is not None
    assert (error.task, error.exit_code) == ("main", 75)


@pytest.mark.parametrize(
    ("keys", "output", "reason"),
    [
        (
            {"for_each": "${output.a.x}"},
            "oops",
            "step b failed: its list cannot be used: 'oops' is not JSON",
        ),
        (
            {"if": "needs.a.outputs.x > 1"},
            "oops",
            "step b failed: its condition",
        ),
        (
            {"gate": "now?", "gate_within": "1h"},
            "1",
            "step b was canceled: gate: not approved within 1h0m0s",
        ),
    ],
)
async def test_run_has_the_reason_of_a_step_that_failed_without_a_task(
    cluster: Cluster, keys: dict[str, str], output: str, reason: str
) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", **keys)))
    await end(cluster, "a", x=output)
    await cluster.work()
    cluster.wait(3601)
    await cluster.work()
    run = run_of(cluster)
    assert (run.status, run.reason[: len(reason)]) == ("failed", reason)


async def test_several_failed_steps_are_reported_with_the_first_known_reason(
    cluster: Cluster,
) -> None:
    await begun(cluster, workflow(step("a"), step("b", gate="now?")))
    await end(cluster, "a", code=1)
    await cluster.work()
    assert (await act(cluster, RunActType.REJECT, "b")).done
    await cluster.work()
    assert run_of(cluster).reason == "steps a, b were not successful: b: rejected by ann"


async def test_step_between_two_decisions_has_no_waiting_reason(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=2), step("b", "a")))
    await end(cluster, "a")
    await end(cluster, "a")
    assert [one.reason for one in run_of(cluster).steps] == ["", ""]


async def test_running_step_of_a_stopping_run_has_ending_tasks(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=2), step("b", "a")))
    assert (await act(cluster, CANCEL)).done
    assert run_of(cluster).steps[0].reason == ""
    await cluster.work()
    assert run_of(cluster).steps[0].reason == "its tasks are ending"


async def test_step_without_a_placement_waits_for_capacity(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=500), step("b", "a")))
    alive = [one for one in cluster.allocations("etl") if not one.client_terminal]
    assert len(alive) < 500
    await begun(cluster, job("big", step("x", count=500), step("y", "x"), type="batch"))
    found = cluster.store.read(lambda db: run_views.view(db, "default", "big"))
    assert found is not None
    assert found.steps[0].reason == "it waits for capacity, or for its next attempt"


async def fail_output(cluster: Cluster, name: str, message: str) -> None:
    """Report the end of the oldest active element of a step as failed despite its exit code 0."""
    (one, *_) = [
        alloc
        for alloc in cluster.allocations("etl")
        if alloc.task_group == name and not alloc.client_terminal
    ]
    now = cluster.clock.now()
    event = TaskEvent(type="Output Failure", time=now, display_message=message)
    status = AllocStatus(
        alloc_id=one.id,
        states={"main": TaskState(state="dead", failed=True, finished_at=rfc3339(now))},
        events={"main": [event]},
        handles={},
        deployment_id="",
        healthy=None,
        healthy_at=0,
        ended_for="",
        services=None,
        evaluation_id=next(cluster.ids),
        now=now,
        outputs={},
    )
    await cluster.store.write(partial(store_snapshots, snapshots=[status]))
    await cluster.work()


def reason_of(cluster: Cluster) -> str:
    now = cluster.clock.now()
    state = cluster.store.read(lambda db: job_states.state_of(db, "default", "etl", now))
    assert state is not None
    return state.reason


def last_error(cluster: Cluster) -> str:
    error = cluster.store.read(lambda db: failures.newest_error(db, "default", "etl"))
    return error.task_group if error is not None else ""


async def test_each_step_that_failed_without_an_exit_code_has_its_cause(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", count=2, when="always"), step("c")))
    await fail_output(cluster, "a", "no output x")
    await fail_output(cluster, "b", "no output y")
    await end(cluster, "b")
    await end(cluster, "c", code=3)
    await cluster.work()
    assert [one.reason for one in run_of(cluster).steps] == [
        'it failed: task "main": no output x',
        '1 of 2 elements failed: task "main": no output y',
        "it failed, exit code 3",
    ]


async def test_long_cause_of_a_step_is_cut(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    await fail_output(cluster, "a", "x" * 5000)
    assert len(run_of(cluster).steps[0].reason) < 400


async def test_allowed_failure_is_not_the_cause_of_a_failed_run(cluster: Cluster) -> None:
    allowed = step("a", failures_allowed="1")
    await begun(cluster, workflow(allowed, step("b", "a"), step("c", "b", gate="now?")))
    await end(cluster, "a", code=9)
    await cluster.work()
    await end(cluster, "b")
    await cluster.work()
    assert (await act(cluster, RunActType.REJECT, "c")).done
    await cluster.work()
    assert reason_of(cluster) == "step c was canceled: rejected by ann"
    assert last_error(cluster) == ""


async def test_newer_allowed_failure_does_not_hide_the_cause(cluster: Cluster) -> None:
    handler = step("c", "b", when="failure", failures_allowed="1")
    await begun(cluster, workflow(step("a"), step("b", "a"), handler))
    await end(cluster, "a")
    await cluster.work()
    await fail_output(cluster, "b", "no output x")
    cluster.wait(1)
    await end(cluster, "c", code=7)
    await cluster.work()
    assert reason_of(cluster) == 'step b failed: task "main": no output x'
    assert last_error(cluster) == "b"


async def test_error_of_one_of_several_failed_steps_names_its_step(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", when="failure"), step("c", gate="?")))
    await end(cluster, "a", code=9)
    await cluster.work()
    cluster.wait(1)
    await end(cluster, "b", code=4)
    await cluster.work()
    assert (await act(cluster, RunActType.REJECT, "c")).done
    await cluster.work()
    assert reason_of(cluster) == (
        "steps a, b, c were not successful: c: rejected by ann; "
        'step b: task "main" exited with code 4'
    )


async def test_error_of_an_earlier_version_is_not_the_cause(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    await end(cluster, "a", code=9)
    await cluster.work()
    assert reason_of(cluster) == 'step a failed: task "main" exited with code 9'
    await begun(cluster, workflow(step("a"), step("b", "a", for_each="${output.a.x}")))
    await end(cluster, "a")
    await cluster.work()
    assert (
        reason_of(cluster)
        == "step b failed: its list cannot be used: a has not written the output x"
    )
    assert last_error(cluster) == ""


@pytest.mark.parametrize(("listed", "result"), [("oops", "failed"), ("[]", "complete")])
async def test_child_that_failed_without_a_task_has_no_exit_code(
    cluster: Cluster, listed: str, result: str
) -> None:
    child = workflow(step("a"), step("b", "a", for_each="${output.a.x}"), parent_id="nightly")
    await begun(cluster, child)
    await end(cluster, "a", x=listed)
    await cluster.work()
    now = cluster.clock.now()
    (run,) = cluster.store.read(
        lambda db: list(job_states.runs(db, "default", "nightly", now, most=5))
    )
    assert (run.result, run.exit_code) == (result, None if result == "failed" else 0)


# --- outputs that users set ---


ACCEPT = RunActType.ACCEPT
PLAN = step("a", meta={"steward_outputs": "rows"})


async def test_outputs_of_an_accepted_step_reach_later_steps_and_conditions(
    cluster: Cluster,
) -> None:
    few = step("c", "a", **{"if": "needs.a.outputs.rows < 5"})
    many = step("b", "a", **{"if": "needs.a.outputs.rows == 12"})
    await begun(cluster, workflow(PLAN, many, few))
    await end(cluster, "a", code=1, rows="1", path="/x")
    await cluster.work()
    assert (await act(cluster, ACCEPT, "a", outputs={"rows": "12"})).done is not None
    assert written(cluster) == {("a", 0): {"path": "/x", "rows": "12"}}
    await cluster.work()
    assert states(cluster) == {"a": "succeeded", "b": "open", "c": "skipped"}
    assert cluster.store.read(lambda db: list(invariants.find_violations(db))) == []


async def test_rerun_deletes_the_outputs_of_an_accepted_step(cluster: Cluster) -> None:
    """The step was canceled before it began, so no allocation has these outputs."""
    await begun(cluster, workflow(step("a", gate="Begin?"), step("b", "a")))
    await act(cluster, RunActType.REJECT, "a")
    await cluster.work()
    assert (await act(cluster, ACCEPT, "a", outputs={"rows": "12", "empty": ""})).done
    assert written(cluster) == {("a", 0): {"rows": "12", "empty": ""}}
    assert cluster.store.read(lambda db: list(invariants.find_violations(db))) == []
    await cluster.work()
    assert at_work(cluster) == ["b"]
    await end(cluster, "b")
    await cluster.work()
    assert (await act(cluster, RunActType.RERUN, "a")).done
    assert written(cluster) == {}
    assert cluster.store.read(lambda db: list(invariants.find_violations(db))) == []


async def test_outputs_by_hand_belong_to_the_named_element(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", count=2), step("b", "a")))
    first, second = cluster.allocations("etl")
    await report(cluster, first, rows="1")
    await report(cluster, second, code=1)
    await cluster.work()
    with pytest.raises(Malformed, match="step a has 2 elements: Element must be the index"):
        await act(cluster, ACCEPT, "a", outputs={"rows": "2"})
    with pytest.raises(Malformed, match="step a has no element 2; its last element is 1"):
        await act(cluster, ACCEPT, "a", outputs={"rows": "2"}, element=2)
    assert states(cluster)["a"] == "failed"
    assert (await act(cluster, ACCEPT, "a", outputs={"rows": "2"}, element=second.index)).done
    assert written(cluster)[("a", first.index)] == {"rows": "1"}
    assert written(cluster)[("a", second.index)] == {"rows": "2"}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"path": "x"}, "Outputs must also contain rows, as steward_outputs of step a requires"),
        ({"rows": "1", "no-name": ""}, "contains the invalid name 'no-name'"),
        ({"rows": "1", "x" * 200: ""}, "contains the invalid name"),
        ({"rows": "1\0"}, "the output rows contains a null character"),
        ({"rows": "x" * 70_000}, "a exceeds the maximum of 65536 bytes for an allocation"),
        ({f"n{number}": "" for number in range(129)}, "129 names; the maximum is 128"),
    ],
)
async def test_invalid_outputs_by_hand_are_refused(
    cluster: Cluster, given: dict[str, str], error: str
) -> None:
    await begun(cluster, workflow(PLAN, step("b", "a")))
    await end(cluster, "a", code=1)
    await cluster.work()
    before = run_of(cluster)
    with pytest.raises(Malformed, match=error):
        await act(cluster, ACCEPT, "a", outputs=given)
    assert (run_of(cluster), written(cluster)) == (before, {})


@pytest.mark.parametrize(("name", "scope"), [("MAX_STEP", "a step"), ("MAX_RUN", "a run")])
async def test_outputs_by_hand_count_with_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, name: str, scope: str
) -> None:
    await begun(cluster, workflow(step("z"), step("a", count=2), step("b", "a")))
    await end(cluster, "z", rows="x" * 50)
    first, second = (one for one in cluster.allocations("etl") if one.task_group == "a")
    await report(cluster, first, rows="x" * 50)
    await report(cluster, second, code=1)
    await cluster.work()
    fields: dict[str, Any] = {"outputs": {"rows": "x" * 50}, "element": second.index}
    monkeypatch.setattr(outputs, name, 120)
    with pytest.raises(Malformed, match=f"maximum of 120 bytes for {scope}"):
        await act(cluster, ACCEPT, "a", **fields)
    monkeypatch.setattr(outputs, name, 1200)
    assert (await act(cluster, ACCEPT, "a", **fields)).done


async def test_only_the_acceptance_of_one_step_has_outputs(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    given = {"outputs": {"rows": "1"}}
    with pytest.raises(Malformed, match="Outputs is valid only for accept: omit it"):
        await act(cluster, CANCEL, **given)
    with pytest.raises(Malformed, match="Outputs belong to one step"):
        await act(cluster, ACCEPT, "a", "b", **given)
    with pytest.raises(Malformed, match="Element is valid only with Outputs"):
        await act(cluster, ACCEPT, "a", element=0)
    refused = (await act(cluster, ACCEPT, "a", **given)).refusal
    assert refused == "step a is open; only a failure can be accepted"


async def test_idempotency_token_covers_the_outputs(cluster: Cluster) -> None:
    await begun(cluster, CHAIN)
    await end(cluster, "a", code=1)
    await cluster.work()
    fields: dict[str, Any] = {"idempotency_token": "t", "outputs": {"rows": "1"}}
    first = await act(cluster, ACCEPT, "a", **fields)
    assert await act(cluster, ACCEPT, "a", **fields) == first
    other = await act(cluster, ACCEPT, "a", **{**fields, "outputs": {"rows": "2"}})
    assert other.refusal.startswith("IdempotencyToken was used for another request: accept of a")
