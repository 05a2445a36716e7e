"""A new version of a workflow with an active run: `steward_run_update`."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.evals import explain
from daemon.evals.dry_run import DryRunResult, dry_run
from daemon.evals.job_states import line
from daemon.evals.worker import process
from daemon.jobs import queues
from daemon.jobs.evaluate import new_evaluation
from daemon.jobs.register import RegistrationContext, state_warnings
from daemon.jobs.steer_run import RunActOutcome, RunActRequest, act_on_run
from daemon.jobs.stop import stop
from daemon.jobs.version_history import JobRevertRequest, RerunVersions, revert_job
from daemon.jobspec.validate import validate
from storage.queries import allocations, evaluations, invariants, job_status, nodes, runs
from storage.records.allocation import ClientStatus, DesiredStatus
from storage.records.base import HOUR, SECOND
from storage.records.evaluation import EvalStatus, Evaluation, Trigger
from storage.records.flow import RunActType
from storage.records.group import ReschedulePolicy, TaskGroup
from storage.records.job import Job
from storage.records.node import Node, NodeStatus
from storage.records.task import RestartPolicy
from storage.store import open_store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.cluster import ids as make_ids
from tests.parts.evals.test_workflows import (
    at_work,
    begun,
    end,
    report,
    run_of,
    states,
    workflow,
)
from tests.parts.evals.test_workflows import step as any_step
from tests.samples import NOW, task
from tests.unit.scheduler.world import node

FAIL = RestartPolicy(attempts=0, interval=HOUR, delay=0, mode="fail")


def step(name: str, needs: str = "", script: str = "true", **fields: Any) -> TaskGroup:
    """Return a step that a registration accepts."""
    main = task(config={"command": script}, restart_policy=FAIL)
    one = any_step(name, needs, restart_policy=FAIL, **fields)
    return msgspec.structs.replace(one, tasks=[main])


def updated(update: str, *steps: TaskGroup, **meta: str) -> Job:
    """Return a workflow with this value of `steward_run_update`."""
    return workflow(*steps, meta={"steward_run_update": update, **meta})


CHAIN = (step("a"), step("b", "a"), step("c", "b"))
OTHER = (step("a", script="false"), step("x", "a"))


async def ended(cluster: Cluster, name: str, **fields: Any) -> None:
    await end(cluster, name, **fields)
    await cluster.work()
    check(cluster)


async def act(cluster: Cluster, kind: RunActType, *steps: str, **fields: Any) -> RunActOutcome:
    done = await act_on_run(
        *(cluster.store, "default", "etl", kind, RunActRequest(steps=list(steps), **fields)),
        caller="ann",
        now=cluster.clock.now(),
        eval_id=next(cluster.ids),
        may_approve=True,
        versions=RerunVersions(AROUND, cluster.clock.now()),
    )
    await cluster.work()
    check(cluster)
    return done


AROUND = RegistrationContext(region="global", node_pools={"default"})


def check(cluster: Cluster) -> None:
    assert cluster.store.read(lambda db: list(invariants.find_violations(db))) == []


def state_of(cluster: Cluster) -> tuple[str, str]:
    found = cluster.store.read(lambda db: line(db, "default", "etl", cluster.clock.now()))
    assert found is not None
    return found.state, found.reason


def numbers(cluster: Cluster) -> list[tuple[int, int, str]]:
    """Return the number, version and status of each run, oldest first."""
    found = cluster.store.read(lambda db: runs.of_job(db, "default", "etl", 100))
    return [(run.number, run.version, run.status) for run in reversed(found)]


def look(cluster: Cluster, wanted: Job) -> DryRunResult:
    return cluster.store.read(
        lambda db: dry_run(db, wanted, now=cluster.clock.now(), ids=cluster.ids)
    )


def warnings(cluster: Cluster, wanted: Job) -> list[str]:
    return cluster.store.read(lambda db: state_warnings(db, wanted, AROUND))


# --- the key ---


def test_invalid_value_names_the_valid_ones() -> None:
    errors = validate(updated("wait", *CHAIN)).errors
    assert [error for error in errors if "steward_run_update" in error] == [
        'Meta of job: "steward_run_update" is "wait", must be replace or keep or finish'
    ]


def test_key_needs_a_batch_job() -> None:
    service = msgspec.structs.replace(updated("finish", step("a")), type="service")
    assert "steward_run_update needs a job of type batch" in validate(service).errors


async def test_batch_job_with_the_key_is_a_workflow(cluster: Cluster) -> None:
    await begun(cluster, updated("finish", step("a")))
    assert numbers(cluster) == [(1, 0, "running")]


# --- replace ---


@pytest.mark.parametrize("update", ["replace", ""])
async def test_active_run_is_replaced_by_default(cluster: Cluster, update: str) -> None:
    await begun(cluster, updated("finish", *CHAIN))
    later = updated(update, *OTHER) if update else workflow(*OTHER)
    if update:
        assert warnings(cluster, later) == [
            "run 1 of version 0 is canceled, and the new run begins with its first steps"
        ]
    await begun(cluster, later)
    assert numbers(cluster) == [(1, 0, "stopping")]
    await ended(cluster, "a")
    assert numbers(cluster) == [(1, 0, "canceled"), (2, 1, "running")]
    assert run_of(cluster, 1).reason == "superseded by version 1"


# --- finish ---


async def test_active_run_ends_with_its_own_version(cluster: Cluster) -> None:
    await begun(cluster, workflow(*CHAIN))
    await begun(cluster, updated("finish", *OTHER))
    (first,) = cluster.allocations("etl")
    assert first.desired_status == DesiredStatus.RUN
    for name in "abc":
        assert numbers(cluster) == [(1, 0, "running")]
        assert at_work(cluster) == [name]
        await ended(cluster, name)
    assert {alloc.job_version for alloc in cluster.allocations("etl")[:3]} == {0}
    assert numbers(cluster) == [(1, 0, "succeeded"), (2, 1, "running")]
    assert run_of(cluster).trigger == "job-register"
    (second,) = [alloc for alloc in cluster.allocations("etl") if not alloc.client_terminal]
    assert (second.task_group, second.job_version) == ("a", 1)
    await ended(cluster, "a")
    assert at_work(cluster) == ["x"]
    await ended(cluster, "x")
    assert numbers(cluster) == [(1, 0, "succeeded"), (2, 1, "succeeded")]
    assert cluster.job("etl").status == "dead"


async def test_only_the_newest_waiting_version_gets_a_run(cluster: Cluster) -> None:
    await begun(cluster, updated("replace", step("a")))
    for script in ("one", "two"):
        await begun(cluster, updated("finish", step("z", script=script)))
    assert warnings(cluster, updated("finish", step("y"))) == [
        "run 1 of version 0 ends first, and the new version waits for its end; "
        "version 2, which waits for the same end, gets no run"
    ]
    await begun(cluster, updated("finish", step("y")))
    await ended(cluster, "a")
    assert numbers(cluster) == [(1, 0, "succeeded"), (2, 3, "running")]
    assert at_work(cluster) == ["y"]


async def test_waiting_version_is_visible(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", gate="Go on?")))
    await begun(cluster, updated("finish", *OTHER))
    waits = "version 1 waits until run 1 of version 0 has ended"
    (one,) = cluster.allocations("etl")
    await cluster.report(one, ClientStatus.RUNNING)
    assert state_of(cluster) == ("running", waits)
    await ended(cluster, "a")
    assert state_of(cluster) == ("pending", f"step b is held: gate: Go on?; {waits}")
    found = cluster.store.read(lambda db: explain.explain_job(db, "default", "etl"))
    assert found is not None
    assert [reason.message for reason in found.reasons] == [waits, "it is held: gate: Go on?"]
    assert cluster.job("etl").status == "running"


async def test_run_that_is_replaced_is_visible_until_it_has_stopped(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", gate="Go on?")))
    await begun(cluster, updated("replace", *OTHER))
    found = cluster.store.read(lambda db: explain.explain_job(db, "default", "etl"))
    assert found is not None
    stopping = "run 1 of version 0 is still stopping"
    assert [reason.message for reason in found.reasons] == [stopping]
    assert state_of(cluster) == ("pending", stopping)


async def test_plan_shows_that_the_active_run_ends_first(cluster: Cluster) -> None:
    await begun(cluster, workflow(*CHAIN))
    later = updated("finish", *OTHER)
    assert warnings(cluster, later) == [
        "run 1 of version 0 ends first, and the new version waits for its end"
    ]
    outlook = look(cluster, later)
    counts = outlook.annotations.desired_tg_updates
    assert [(one.place, one.stop) for one in counts.values()] == [(0, 0)] * 3
    await begun(cluster, later)
    assert warnings(cluster, later) == [
        "run 1 of version 0 ends first, and the new version waits for its end"
    ]
    await ended(cluster, "a")
    await ended(cluster, "b")
    await ended(cluster, "c")
    assert warnings(cluster, later) == []
    assert look(cluster, later).annotations.desired_tg_updates["a"].ignore


async def test_new_run_begins_after_a_failed_run(cluster: Cluster) -> None:
    hook = {"steward_notify_webhook": "https://example.org/hook"}
    await begun(cluster, workflow(*CHAIN, meta=hook))
    await begun(cluster, updated("finish", *OTHER, **hook))
    await ended(cluster, "a", code=1)
    assert numbers(cluster) == [(1, 0, "failed"), (2, 1, "running")]
    row = cluster.store.read(lambda db: job_status.load_summary(db, "default", "etl"))
    assert row is not None
    assert (row["outcome"], row["failures"]) == ("failed", 1)


async def test_failed_task_is_rescheduled_in_its_own_version(cluster: Cluster) -> None:
    again = ReschedulePolicy(attempts=1, interval=HOUR, delay=SECOND, unlimited=False)
    await begun(cluster, workflow(step("a", reschedule_policy=again), step("b", "a")))
    await begun(cluster, updated("finish", *OTHER))
    await ended(cluster, "a", code=1)
    cluster.wait(10)
    await cluster.work()
    assert numbers(cluster) == [(1, 0, "running")]
    assert [alloc.job_version for alloc in cluster.allocations("etl")] == [0, 0]
    await ended(cluster, "a")
    assert at_work(cluster) == ["b"]


async def test_stopped_allocation_is_replaced_in_its_own_version(cluster: Cluster) -> None:
    await begun(cluster, workflow(*CHAIN))
    await begun(cluster, updated("finish", *OTHER))
    (one,) = cluster.allocations("etl")
    moved = msgspec.structs.replace(
        one.desired, transition=msgspec.structs.replace(one.desired.transition, migrate=True)
    )

    def work(tx: Transaction) -> None:
        allocations.set_desired(tx, msgspec.structs.replace(one, desired=moved), 1)

    await cluster.store.write(work)
    await evaluate(cluster)
    old, new = cluster.allocations("etl")
    assert (old.desired_status, new.job_version) == (DesiredStatus.STOP, 0)
    assert numbers(cluster) == [(1, 0, "running")]


async def test_lost_node_replaces_elements_in_their_own_version(cluster: Cluster) -> None:
    other = node("other")
    await begun(cluster, workflow(*CHAIN))
    await begun(cluster, updated("finish", *OTHER))
    (one,) = cluster.allocations("etl")
    lost = next(item for item in members(cluster) if item.id == one.node_id)
    await cluster.join(msgspec.structs.replace(lost, status=NodeStatus.DOWN), other)
    await evaluate(cluster)
    old, new = cluster.allocations("etl")
    assert (old.client_status, new.job_version, new.node_id) == ("lost", 0, other.id)
    assert numbers(cluster) == [(1, 0, "running")]


def members(cluster: Cluster) -> list[Node]:
    return list(cluster.store.read(nodes.list_all))


async def evaluate(cluster: Cluster) -> None:
    one = new_evaluation(cluster.job("etl"), next(cluster.ids), Trigger.NODE_UPDATE)
    await cluster.store.write(lambda tx: evaluations.put(tx, one, cluster.clock.now()))
    await cluster.work()
    check(cluster)


async def test_gate_of_the_active_run_is_decided(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a", gate="Go on?")))
    await begun(cluster, updated("finish", *OTHER))
    assert (await act(cluster, RunActType.APPROVE, "a")).done is not None
    assert at_work(cluster) == ["a"]
    await ended(cluster, "a")
    assert numbers(cluster) == [(1, 0, "succeeded"), (2, 1, "running")]


async def test_steps_of_the_active_run_run_again_with_its_version(cluster: Cluster) -> None:
    await begun(cluster, updated("replace", step("a"), step("b")))
    await begun(cluster, updated("finish", *OTHER))
    await ended(cluster, "a", code=1)
    assert (await act(cluster, RunActType.RERUN, "a")).done is not None
    assert at_work(cluster) == ["a", "b"]
    refused = await act(cluster, RunActType.RERUN, "a", version=0)
    assert refused.refusal.endswith("another version needs a run that has ended")
    await ended(cluster, "a")
    await ended(cluster, "b")
    refused = await act(cluster, RunActType.RERUN, "a", number=1)
    assert refused.refusal == "run 1 is over: run 2 is the newest"
    assert numbers(cluster) == [(1, 0, "succeeded"), (2, 1, "running")]


async def test_new_run_begins_after_a_canceled_run_and_its_cleanup(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("z", "a", when="always")))
    await begun(cluster, updated("finish", *OTHER))
    assert (await act(cluster, RunActType.CANCEL)).done is not None
    await ended(cluster, "a")
    assert at_work(cluster) == ["z"]
    assert numbers(cluster) == [(1, 0, "stopping")]
    await ended(cluster, "z")
    assert numbers(cluster) == [(1, 0, "canceled"), (2, 1, "running")]


async def test_deadlines_of_the_active_run_are_those_of_its_version(cluster: Cluster) -> None:
    meta = {"steward_run_timeout": "1h", "steward_run_cleanup": "5m"}
    await begun(cluster, workflow(step("a"), step("z", "a", when="always"), meta=meta))
    await begun(cluster, updated("finish", *OTHER))
    cluster.wait(3601)
    await cluster.work()
    await ended(cluster, "a")
    assert at_work(cluster) == ["z"]
    cluster.wait(301)
    await cluster.work()
    assert at_work(cluster) == []
    await ended(cluster, "z")
    assert numbers(cluster) == [(1, 0, "failed"), (2, 1, "running")]


async def test_version_with_another_policy_replaces_the_active_run(cluster: Cluster) -> None:
    await begun(cluster, workflow(*CHAIN))
    await begun(cluster, updated("finish", *OTHER))
    await begun(cluster, updated("replace", *OTHER))
    assert numbers(cluster) == [(1, 0, "stopping")]
    await begun(cluster, updated("finish", step("y")))  # the first run does not get this version
    await ended(cluster, "a")
    assert numbers(cluster) == [(1, 0, "canceled"), (2, 3, "running")]
    assert at_work(cluster) == ["y"]


async def test_reverted_job_waits_like_a_registration(cluster: Cluster) -> None:
    await begun(cluster, updated("finish", *CHAIN))
    await begun(cluster, updated("finish", *OTHER))
    await revert_job(
        cluster.store,
        "default",
        JobRevertRequest(job_id="etl", job_version=0),
        surroundings=AROUND,
        now=cluster.clock.now(),
        eval_id=next(cluster.ids),
    )
    await cluster.work()
    assert numbers(cluster) == [(1, 0, "running")]
    for name in "abc":
        await ended(cluster, name)
    assert numbers(cluster) == [(1, 0, "succeeded"), (2, 2, "running")]


@pytest.mark.parametrize("update", ["finish", "keep"])
@pytest.mark.parametrize("is_decided", [True, False])
async def test_stop_cancels_the_run_before_the_next_version(
    cluster: Cluster, update: str, is_decided: bool
) -> None:
    """The run stops even if the job is started before the scheduler has seen the stop."""
    await begun(cluster, updated(update, *CHAIN))
    await begun(cluster, updated("finish", *CHAIN, note="x"))
    await ended(cluster, "a")
    stopped = cluster.job("etl")
    eval_id = next(cluster.ids)
    await cluster.store.write(lambda tx: stop(tx, stopped, now=1, eval_id=eval_id))
    if is_decided:
        await cluster.work()
        check(cluster)
        assert at_work(cluster) == []
    await begun(cluster, updated(update, *CHAIN, note="x"))
    check(cluster)
    assert at_work(cluster) == []
    await ended(cluster, "b")
    assert numbers(cluster) == [(1, 0, "canceled"), (2, 3, "running")]
    assert run_of(cluster, 1).reason == "the job was stopped"
    assert at_work(cluster) == ["a"]


async def test_purge_deletes_the_active_run_and_the_waiting_version(cluster: Cluster) -> None:
    await begun(cluster, workflow(*CHAIN))
    await begun(cluster, updated("finish", *OTHER))
    known, eval_id = cluster.job("etl"), next(cluster.ids)
    await cluster.store.write(lambda tx: stop(tx, known, purge=True, now=1, eval_id=eval_id))
    await cluster.work()
    check(cluster)
    assert at_work(cluster) == []
    assert numbers(cluster) == []


async def test_slots_stay_with_the_active_run(cluster: Cluster) -> None:
    queue = {"steward_run_concurrency": "db"}
    await begun(cluster, workflow(step("a"), meta=queue))
    await serve(cluster)
    await begun(cluster, updated("finish", *OTHER, **queue))
    assert entries(cluster) == [(1, "holding")]
    await ended(cluster, "a")
    assert entries(cluster) == [(2, "waiting")]
    await serve(cluster)
    assert entries(cluster) == [(2, "holding")]
    assert at_work(cluster) == ["a"]


async def serve(cluster: Cluster) -> None:
    await cluster.store.write(
        lambda tx: queues.serve(tx, ("default", "db"), cluster.clock.now(), cluster.ids)
    )
    await cluster.work()


def entries(cluster: Cluster) -> list[tuple[int, str]]:
    query = "SELECT number, state FROM queue_entries WHERE job_id = :id ORDER BY number"
    rows = cluster.store.read(lambda db: db.all(query, {"id": "etl"}))
    return [(row["number"], row["state"]) for row in rows]


async def test_end_of_the_run_and_the_next_evaluation_are_one_write(cluster: Cluster) -> None:
    await begun(cluster, updated("replace", step("a")))
    await begun(cluster, updated("finish", *OTHER))
    await end(cluster, "a")
    found = cluster.next()
    assert found is not None
    await decide_one(cluster, found)
    assert numbers(cluster) == [(1, 0, "succeeded")]
    (due,) = cluster.evaluations(EvalStatus.PENDING, "etl")
    assert (due.triggered_by, due.job_modify_index) == (
        "job-register",
        cluster.job("etl").job_modify_index,
    )
    assert cluster.job("etl").status == "pending"
    check(cluster)


# --- keep ---


async def test_unchanged_good_steps_are_taken_over_with_their_outputs(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a"), step("c", "b"), step("d")))
    await ended(cluster, "a", rows="12")
    await ended(cluster, "b", path="/x")
    later = updated(
        "keep", step("a"), step("b", "a"), step("c", "b", "false"), step("d"), step("e", "b")
    )
    assert warnings(cluster, later) == [
        "run 1 of version 0 is canceled; the new run takes over the unchanged steps with good "
        "results, and runs all other steps"
    ]
    await begun(cluster, later)
    assert numbers(cluster) == [(1, 0, "stopping")]
    await ended(cluster, "c")
    await ended(cluster, "d")
    assert numbers(cluster) == [(1, 0, "canceled"), (2, 1, "running")]
    assert states(cluster) == {
        "a": "succeeded",
        "b": "succeeded",
        "c": "open",
        "d": "open",
        "e": "open",
    }
    assert {alloc.job_version for alloc in cluster.wanted("etl")} >= {1}
    run = run_of(cluster)
    found = cluster.store.read(lambda db: list(runs.outputs(db, run)))
    assert [(one.step, one.outputs) for one in found] == [
        ("a", {"rows": "12"}),
        ("b", {"path": "/x"}),
    ]
    for name in "cde":
        await ended(cluster, name)
    assert numbers(cluster) == [(1, 0, "canceled"), (2, 1, "succeeded")]
    assert {one.name: one.attempt for one in run_of(cluster).steps} == dict.fromkeys("abcde", 1)


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"a": step("a", script="false")}, "a"),  # the steps after a also run again
        ({"b": step("b", "a", script="false")}, "b"),
        ({"b": step("b", "a", parallel="1")}, "b"),
        ({"b": step("b", "a", count=2)}, "bb"),
        ({"b": step("b")}, "b"),
        ({}, "c"),
    ],
)
async def test_changed_steps_and_later_ones_begin_again(
    cluster: Cluster, change: dict[str, TaskGroup], again: str
) -> None:
    steps = {"a": step("a"), "b": step("b", "a"), "c": step("c", "b")}
    await begun(cluster, workflow(*steps.values()))
    await ended(cluster, "a")
    await ended(cluster, "b")
    await begun(cluster, updated("keep", *{**steps, **change}.values()))
    await ended(cluster, "c")
    assert numbers(cluster)[-1] == (2, 1, "running")
    assert at_work(cluster) == list(again)


async def test_other_meta_of_the_job_changes_all_steps(cluster: Cluster) -> None:
    await begun(cluster, workflow(*CHAIN))
    await ended(cluster, "a")
    await begun(cluster, updated("keep", *CHAIN, day="2"))
    await ended(cluster, "b")
    assert at_work(cluster) == ["a"]
    assert states(cluster) == {"a": "open", "b": "waiting", "c": "waiting"}


async def test_steps_are_taken_over_from_a_run_without_tasks(cluster: Cluster) -> None:
    gated = step("b", "a", gate="Go on?")
    await begun(cluster, workflow(step("a"), gated))
    await ended(cluster, "a")
    await begun(cluster, updated("keep", step("a"), gated, step("c", "a")))
    check(cluster)
    assert numbers(cluster) == [(1, 0, "canceled"), (2, 1, "running")]
    assert states(cluster) == {"a": "succeeded", "b": "held", "c": "open"}


async def test_steps_are_taken_over_several_times(cluster: Cluster) -> None:
    first = (step("a"), step("b", "a"))
    await begun(cluster, workflow(*first, step("c", "b")))
    await ended(cluster, "a", rows="1")
    await begun(cluster, updated("keep", *first, step("c", "b", "one")))
    await ended(cluster, "b")
    await ended(cluster, "b", rows="2")
    await begun(cluster, updated("keep", *first, step("c", "b", "two")))
    await begun(cluster, updated("keep", *first, step("c", "b", "three")))
    await ended(cluster, "c")
    assert numbers(cluster) == [(1, 0, "canceled"), (2, 1, "canceled"), (3, 3, "running")]
    assert states(cluster) == {"a": "succeeded", "b": "succeeded", "c": "open"}
    run = run_of(cluster)
    found = cluster.store.read(lambda db: list(runs.outputs(db, run)))
    assert [one.outputs for one in found] == [{"rows": "1"}, {"rows": "2"}]


async def test_outputs_are_taken_over_from_a_run_that_is_deleted(cluster: Cluster) -> None:
    kept = {"steward_runs_kept": "1"}
    await begun(cluster, workflow(*CHAIN))
    await ended(cluster, "a", rows="1")
    await begun(cluster, updated("keep", *CHAIN, **kept))
    await ended(cluster, "b")
    assert numbers(cluster) == [(2, 1, "running")]
    run = run_of(cluster)
    found = cluster.store.read(lambda db: list(runs.outputs(db, run)))
    assert [one.outputs for one in found] == [{"rows": "1"}]


async def test_condition_and_list_read_outputs_that_were_taken_over(cluster: Cluster) -> None:
    tail = step("c", "b", **{"if": "needs.b.outputs.n == 3"})
    many = step("d", "b", for_each="${output.b.shards}")
    first = (step("a"), step("b", "a"))
    await begun(cluster, workflow(*first, step("h", "b")))
    await ended(cluster, "a")
    await ended(cluster, "b", n="3", shards='["x","y"]')
    await begun(cluster, updated("keep", *first, tail, many))
    await ended(cluster, "h")
    assert at_work(cluster) == ["c", "d", "d"]


async def test_failed_and_skipped_steps_begin_again(cluster: Cluster) -> None:
    steps = (step("a"), step("b", "a"), step("h", "a", when="failure"), step("o"))
    await begun(cluster, workflow(*steps))
    await ended(cluster, "a", code=1)
    assert states(cluster) == {"a": "failed", "b": "skipped", "h": "open", "o": "open"}
    await begun(cluster, updated("keep", *steps))
    await ended(cluster, "h")
    await ended(cluster, "o")
    assert states(cluster) == {"a": "open", "b": "waiting", "h": "waiting", "o": "open"}


async def test_setup_runs_again_with_a_later_step(cluster: Cluster) -> None:
    steps = (step("s", redo="true"), step("b", "s"), step("u"))
    await begun(cluster, workflow(*steps))
    await ended(cluster, "s")
    await ended(cluster, "u")
    await begun(cluster, updated("keep", *steps))
    await ended(cluster, "b")
    assert states(cluster) == {"s": "open", "b": "waiting", "u": "succeeded"}


async def test_run_that_takes_over_all_steps_succeeds(cluster: Cluster) -> None:
    await begun(cluster, updated("keep", step("a"), step("b")))
    await ended(cluster, "a")
    await begun(cluster, updated("keep", step("a")))
    await ended(cluster, "b")
    assert numbers(cluster) == [(1, 0, "canceled"), (2, 1, "succeeded")]
    assert len(cluster.allocations("etl")) == 2


async def test_nothing_is_taken_over_from_a_run_that_a_person_canceled(cluster: Cluster) -> None:
    await begun(cluster, workflow(*CHAIN))
    await ended(cluster, "a")
    assert (await act(cluster, RunActType.CANCEL)).done is not None
    await begun(cluster, updated("keep", *CHAIN))
    await ended(cluster, "b")
    assert numbers(cluster) == [(1, 0, "canceled"), (2, 1, "running")]
    assert states(cluster) == {"a": "open", "b": "waiting", "c": "waiting"}


async def test_nothing_is_taken_over_from_a_run_that_has_ended(cluster: Cluster) -> None:
    await begun(cluster, updated("keep", step("a")))
    await ended(cluster, "a")
    await begun(cluster, updated("keep", step("a"), note="x"))
    assert numbers(cluster) == [(1, 0, "succeeded"), (2, 1, "running")]
    assert states(cluster) == {"a": "open"}


async def test_elements_that_were_taken_over_let_their_counterparts_begin(
    cluster: Cluster,
) -> None:
    first = step("a", count=2)
    await begun(cluster, workflow(first, step("b", "a[i]", count=2)))
    await ended(cluster, "a")
    await ended(cluster, "a")
    assert at_work(cluster) == ["b", "b"]
    await begun(cluster, updated("keep", first, step("b", "a[i]", "false", count=2)))
    await ended(cluster, "b")
    await ended(cluster, "b")
    assert at_work(cluster) == ["b", "b"]
    assert states(cluster)["a"] == "succeeded"


async def test_run_with_a_queue_takes_over_steps_and_waits_for_a_slot(cluster: Cluster) -> None:
    queue = {"steward_run_concurrency": "db"}
    await begun(cluster, workflow(*CHAIN, meta=queue))
    await serve(cluster)
    await ended(cluster, "a")
    await begun(cluster, updated("keep", *CHAIN, **queue))
    await ended(cluster, "b")
    assert states(cluster) == {"a": "succeeded", "b": "held", "c": "waiting"}
    await serve(cluster)
    assert at_work(cluster) == ["b"]


async def test_plan_of_an_update_that_keeps_steps_changes_nothing(cluster: Cluster) -> None:
    await begun(cluster, workflow(*CHAIN))
    await ended(cluster, "a")
    planned = updated("keep", *CHAIN)
    counts = look(cluster, planned).annotations.desired_tg_updates
    assert counts["b"].stop == 1
    assert numbers(cluster) == [(1, 0, "running")]


# --- restarts ---

RESULTS = {
    "finish": ([(1, 0, "succeeded"), (2, 1, "succeeded")], ["a0", "b0", "c0", "a1", "b1", "c1"]),
    "keep": ([(1, 0, "canceled"), (2, 1, "succeeded")], ["a0", "b0", "b1", "c1"]),
}


@pytest.mark.parametrize("update", RESULTS)
async def test_update_survives_restarts_of_the_daemon(tmp_path: Path, update: str) -> None:
    """The store is opened again for each decision and for each end of a task."""
    ids, is_done, turn = make_ids(), False, 0
    while not is_done:
        async with open_store(tmp_path, cluster_id="cluster", now=NOW) as store:
            made = Cluster(store)
            made.ids = ids
            if turn == 0:
                await made.join()
                await made.register(workflow(*CHAIN))
            if turn == 3:  # step b runs
                await made.register(updated(update, *CHAIN))
            is_done = not await one_write(made)
            check(made)
            found = numbers(made)
            placed = [f"{alloc.task_group}{alloc.job_version}" for alloc in made.allocations("etl")]
        turn += 1
    assert (found, placed) == RESULTS[update]


async def one_write(cluster: Cluster) -> bool:
    """Process one evaluation, or end one task; return false if there was nothing to do."""
    if (due := cluster.next()) is not None:
        await decide_one(cluster, due)
        return True
    alive = [alloc for alloc in cluster.allocations("etl") if not alloc.client_terminal]
    if alive:
        await end(cluster, alive[0].task_group)
    return bool(alive)


async def decide_one(cluster: Cluster, evaluation: Evaluation) -> None:
    around = (cluster.clock, cluster.ids, cluster.fences, frozenset[int], 0)
    await process(cluster.store, [evaluation], *around)


# --- random histories ---


@pytest.mark.parametrize("seed", range(12))
async def test_newest_version_always_gets_its_run(cluster: Cluster, seed: int) -> None:
    """Whatever happens, all runs end, and the last version of a job that is not stopped runs."""
    rng, version = random.Random(seed), 0
    await cluster.register(any_version(rng, version))
    for _ in range(60):
        match rng.randrange(12):
            case 0:
                version += 1
                await cluster.register(any_version(rng, version))
            case 1 if rng.random() < 0.3:
                known, eval_id = cluster.job("etl"), next(cluster.ids)
                await cluster.store.write(partial(stop, job=known, now=1, eval_id=eval_id))
            case 2 if numbers(cluster) and rng.random() < 0.3:
                await act_only(cluster, RunActType.CANCEL)
            case 3 | 4 | 5 | 6:
                await end_one(cluster, rng)
            case _:
                if (due := cluster.next()) is not None:
                    await decide_one(cluster, due)
        check(cluster)
        unended = [run for run in numbers(cluster) if run[2] in ("running", "stopping")]
        assert len(unended) <= 1
        assert unended == [run for run in unended if run == numbers(cluster)[-1]]
    await cluster.register(any_version(rng, version + 1))
    while await one_write(cluster):
        check(cluster)
    found = numbers(cluster)
    assert {run[2] for run in found} <= {"succeeded", "failed", "canceled"}
    assert found[-1][1] == cluster.job("etl").version
    assert len({run[1] for run in found}) == len(found)  # no version runs twice
    assert cluster.job("etl").status == "dead"


def any_version(rng: random.Random, number: int) -> Job:
    scripts = [rng.choice(("true", "true", "false")) for _ in range(4)]
    steps = (
        step("a", "", scripts[0]),
        step("b", "a", scripts[1], count=rng.choice((1, 2))),
        step("c", "b", scripts[2], when=rng.choice(("success", "failure", "always"))),
        step("d", "", scripts[3]),
        step("e", "d, c", when="always"),
    )
    update = rng.choice(("finish", "keep", "replace"))
    return workflow(
        *steps[: rng.choice((3, 4, 5))],
        meta={"steward_run_update": update},
        priority=number % 90 + 1,
    )


async def end_one(cluster: Cluster, rng: random.Random) -> None:
    alive = [alloc for alloc in cluster.allocations("etl") if not alloc.client_terminal]
    if alive:
        await report(cluster, rng.choice(alive), code=rng.choice((0, 0, 1)), x="1")


async def act_only(cluster: Cluster, kind: RunActType) -> None:
    await act_on_run(
        *(cluster.store, "default", "etl", kind, RunActRequest()),
        caller="ann",
        now=cluster.clock.now(),
        eval_id=next(cluster.ids),
        may_approve=True,
    )
