"""Runs of one step: a new run in which the other steps are skipped, with copies of their outputs."""

from functools import partial
from typing import Any

import msgspec
import pytest

from daemon.evals import explain
from daemon.evals.job_states import line
from daemon.jobs.steer_run import RunActOutcome, RunActRequest, RunActResponse, act_on_run
from daemon.jobs.version_history import RerunVersions
from daemon.jobspec.budgets import Budgets, OverBudget
from storage.errors import Malformed, NotFound
from storage.queries import invariants, jobs, notifications, runs, triggers
from storage.records.allocation import ClientStatus
from storage.records.flow import RunActType
from storage.records.job import Job, Parameterized
from storage.records.notification import NotifyEvent
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_rerun_versions import AROUND
from tests.parts.evals.test_workflows import (
    act,
    at_work,
    begun,
    end,
    report,
    run_of,
    states,
    step,
    workflow,
    written,
)
from tests.parts.jobs.test_triggers import follower, stored
from tests.samples import job, task

RERUN, ACCEPT = RunActType.RERUN, RunActType.ACCEPT
CHAIN = workflow(step("a"), step("b", "a"), step("c", "b"))


async def alone(cluster: Cluster, name: str, **fields: Any) -> RunActOutcome:
    done = await act(cluster, RunActType.STEP, name, **fields)
    await cluster.work()
    sound(cluster)
    return done


def sound(cluster: Cluster) -> None:
    assert cluster.store.read(lambda db: list(invariants.find_violations(db))) == []


async def ended(cluster: Cluster, name: str, *, code: int = 0, **outputs: str) -> None:
    await end(cluster, name, code=code, **outputs)
    await cluster.work()
    sound(cluster)


async def whole_run(cluster: Cluster, definition: Job = CHAIN, *, bad: str = "") -> None:
    """Run all steps one after the other; each writes the number of the run."""
    await begun(cluster, definition)
    number = str(run_of(cluster).number)
    for one in definition.task_groups or ():
        if one.name in at_work(cluster):
            await ended(cluster, one.name, code=1 if one.name == bad else 0, run=number)


def explained(cluster: Cluster) -> list[str]:
    found = cluster.store.read(lambda db: explain.explain_job(db, "default", "etl"))
    assert found is not None
    return [f"{reason.task_group}: {reason.message}" for reason in found.reasons]


async def test_only_the_chosen_step_runs_with_the_outputs_of_the_others(cluster: Cluster) -> None:
    await whole_run(cluster)
    done = (await alone(cluster, "b", note="mended")).done
    assert done is not None
    assert (done.number, done.version, done.outputs_of, done.steps) == (2, 1, 1, ["b"])
    assert at_work(cluster) == ["b"]
    run = run_of(cluster)
    assert (run.trigger, run.only, run.outputs_of) == ("step-by-hand", "b", 1)
    assert [(one.act, one.steps, one.who, one.note) for one in run.acts] == [
        ("step", ["b"], "ann", "mended")
    ]
    assert {
        one.name: (one.outcome, one.reason) for one in run.steps if one.name != "b"
    } == dict.fromkeys("ac", ("neutral", "only step b runs; the outputs are those of run 1"))
    assert written(cluster) == {("a", 0): {"run": "1"}, ("c", 0): {"run": "1"}}
    assert explained(cluster)[0] == ": only step b belongs to run 2, which a person began"
    (one,) = [alloc for alloc in cluster.allocations("etl") if not alloc.client_terminal]
    await cluster.report(one, ClientStatus.RUNNING)
    state = cluster.store.read(lambda db: line(db, "default", "etl", cluster.clock.now()))
    assert state is not None
    assert (state.state, state.reason) == ("running", "only step b, by hand")
    await ended(cluster, "b", run="2")
    assert states(cluster) == {"a": "skipped", "b": "succeeded", "c": "skipped"}
    assert run_of(cluster).status == "succeeded"
    assert written(cluster)[("b", 0)] == {"run": "2"}
    state = cluster.store.read(lambda db: line(db, "default", "etl", cluster.clock.now()))
    assert state is not None
    assert (state.state, state.reason) == ("complete", "only step b ran, by hand")
    first, second = (
        cluster.store.read(lambda db, number=number: jobs.version(db, "default", "etl", number))
        for number in (0, 1)
    )
    assert first is not None
    assert second is not None
    assert first.task_groups == second.task_groups


async def test_failure_of_the_step_is_the_failure_of_the_run(cluster: Cluster) -> None:
    await whole_run(cluster)
    await alone(cluster, "b")
    await ended(cluster, "b", code=3)
    run = run_of(cluster)
    assert (run.status, run.reason) == ("failed", "step b failed")
    assert states(cluster)["c"] == "skipped"
    # A re-run leaves the other steps out, too.
    assert (await act(cluster, RERUN, failed=True)).done
    await cluster.work()
    sound(cluster)
    assert at_work(cluster) == ["b"]
    await ended(cluster, "b", code=3)
    assert (await act(cluster, ACCEPT, "b", outputs={"run": "x"})).done
    await cluster.work()
    sound(cluster)
    assert states(cluster) == {"a": "skipped", "b": "succeeded", "c": "skipped"}
    assert written(cluster)[("b", 0)] == {"run": "x"}


async def test_chosen_and_all_steps_of_such_a_run_run_again(cluster: Cluster) -> None:
    await whole_run(cluster)
    await alone(cluster, "b")
    await ended(cluster, "b", run="2")
    assert (await act(cluster, RERUN, "c")).done
    await cluster.work()
    sound(cluster)
    assert at_work(cluster) == ["c"]
    await ended(cluster, "c")
    assert (await act(cluster, RERUN, every=True)).done
    await cluster.work()
    sound(cluster)
    for name in "abc":
        assert at_work(cluster) == [name]
        await ended(cluster, name)
    assert states(cluster) == dict.fromkeys("abc", "succeeded")


@pytest.mark.parametrize("keys", [{"when": "failure"}, {"if": 'needs.a.outcome == "good"'}])
async def test_conditions_do_not_stop_the_step(cluster: Cluster, keys: dict[str, str]) -> None:
    await whole_run(cluster, workflow(step("a"), step("b", "a", **keys), step("z", "a")))
    await alone(cluster, "b")
    assert at_work(cluster) == ["b"]


async def test_the_gate_of_the_step_holds(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", gate="Publish?")))
    await ended(cluster, "a", code=1)
    assert (await act(cluster, RunActType.STEP, "b", number=1)).done
    await cluster.work()
    assert (at_work(cluster), states(cluster)["b"]) == ([], "held")
    assert (await act(cluster, RunActType.APPROVE, "b")).done
    await cluster.work()
    sound(cluster)
    assert at_work(cluster) == ["b"]


async def test_one_element_runs_and_keeps_the_outputs_of_the_others(cluster: Cluster) -> None:
    few = step("b", "a", count=3, meta={"steward_needs": "a", "steward_failures_allowed": "1"})
    await begun(cluster, workflow(step("a"), few, step("c", "b")))
    await ended(cluster, "a")
    for alloc in [one for one in cluster.allocations("etl") if one.task_group == "b"]:
        await report(cluster, alloc, n=str(alloc.index))
    await cluster.work()
    await ended(cluster, "c")
    assert (await alone(cluster, "b", element=1)).done
    (one,) = [alloc for alloc in cluster.allocations("etl") if not alloc.client_terminal]
    assert (one.task_group, one.index) == ("b", 1)
    assert explained(cluster)[0] == ": only step b[1] belongs to run 2, which a person began"
    assert written(cluster) == {("b", 0): {"n": "0"}, ("b", 2): {"n": "2"}}
    await ended(cluster, "b", n="new")
    row = run_of(cluster).steps[1]
    assert (row.state, row.good, row.total, row.reason) == (
        "succeeded",
        1,
        3,
        "2 of 3 elements were skipped",
    )
    assert [written(cluster)[("b", index)]["n"] for index in range(3)] == ["0", "new", "2"]
    # The failure of the only element is not allowed.
    assert (await alone(cluster, "b", element=2)).done
    await ended(cluster, "b", code=1)
    assert (run_of(cluster).status, states(cluster)["b"]) == ("failed", "failed")
    with pytest.raises(Malformed, match="step b has no element 3; it has 3"):
        await alone(cluster, "b", element=3)


@pytest.mark.parametrize("element", [None, 1])
async def test_list_of_the_step_comes_from_the_copied_outputs(
    cluster: Cluster, element: int | None
) -> None:
    load = step("b", "a", for_each="${output.a.shards}")
    check = step("c", "b[i]")
    await begun(cluster, workflow(step("a"), load, check))
    await ended(cluster, "a", shards='["x", "y"]')
    for name in "bbcc":
        await ended(cluster, name, n="1")
    for name in "bc":
        assert (await alone(cluster, name, element=element)).done
        indexes = {one.index for one in cluster.allocations("etl") if not one.client_terminal}
        assert indexes == ({0, 1} if element is None else {element})
        for _ in indexes:
            await ended(cluster, name, n="2")
        assert run_of(cluster).status == "succeeded"
        assert {one.total for one in run_of(cluster).steps if one.name != "a"} == {2}


async def test_step_without_the_element_fails(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a", for_each="${output.a.shards}")))
    await ended(cluster, "a", shards='["x"]')
    await ended(cluster, "b")
    assert (await alone(cluster, "b", element=7)).done
    assert (
        run_of(cluster).steps[1].reason
        == "its list cannot be used: it has 1 items, and none with the index 7"
    )
    assert run_of(cluster).status == "failed"


async def test_outputs_are_those_of_the_newest_run_that_has_them(cluster: Cluster) -> None:
    await whole_run(cluster)
    await whole_run(cluster, msgspec.structs.replace(CHAIN, priority=60), bad="a")
    done = (await alone(cluster, "b")).done
    assert done is not None
    assert (done.number, done.outputs_of) == (3, 1)
    await ended(cluster, "b")
    # A run of one step has the outputs, too.
    done = (await alone(cluster, "c")).done
    assert done is not None
    assert done.outputs_of == 3
    await ended(cluster, "c")
    done = (await alone(cluster, "c", number=2)).done
    assert done is not None
    assert (done.outputs_of, written(cluster)) == (2, {("a", 0): {"run": "2"}})


async def test_run_without_the_outputs_that_the_step_names_is_passed_over(
    cluster: Cluster,
) -> None:
    reads = task(env={"ROWS": "${output.a.rows}"})
    b = msgspec.structs.replace(step("b", "a"), tasks=[reads])
    await begun(cluster, workflow(step("a"), b))
    await ended(cluster, "a")
    await ended(cluster, "b")
    refused = (await alone(cluster, "b")).refusal
    assert refused == (
        "no run has the outputs of all steps before b: set Number to choose a run anyway"
    )
    assert run_of(cluster).number == 1
    assert (await alone(cluster, "b", number=1)).done


async def test_step_that_cannot_run_alone_is_refused_with_the_state(cluster: Cluster) -> None:
    with pytest.raises(NotFound, match="job not found"):
        await alone(cluster, "a")
    await cluster.register(CHAIN)
    assert (await act(cluster, RunActType.STEP, "a")).refusal == (
        "the run of version 0 has not begun: a step can run alone only after the run has ended"
    )
    await cluster.work()
    refused = (await alone(cluster, "a")).refusal
    assert refused == "run 1 is running: a step can run alone only after the run has ended"
    await act(cluster, RunActType.CANCEL)
    assert (await act(cluster, RunActType.STEP, "a")).refusal.startswith("run 1 is stopping")
    await cluster.work()
    await ended(cluster, "a")
    with pytest.raises(NotFound, match="run 7 not found"):
        await alone(cluster, "a", number=7)
    with pytest.raises(Malformed, match="version 0 has no step 'z'; it has a, b, c"):
        await alone(cluster, "z")
    with pytest.raises(Malformed, match="Steps must name exactly one step"):
        await act(cluster, RunActType.STEP, "a", "b")
    await begun(cluster, msgspec.structs.replace(cluster.job("etl"), stop=True))
    assert (await act(cluster, RunActType.STEP, "a")).refusal.startswith("the job is stopped")


@pytest.mark.parametrize(
    ("definition", "error"),
    [
        (workflow(step("a"), parameterized_job=Parameterized()), "only children: name a child"),
        (job("etl", step("a"), type="batch"), "is not a workflow, so it has no steps"),
    ],
)
async def test_job_without_steps_of_its_own_is_refused(
    cluster: Cluster, definition: Job, error: str
) -> None:
    await begun(cluster, definition)
    with pytest.raises(Malformed, match=error):
        await alone(cluster, "a")


async def test_repeated_request_begins_one_run(cluster: Cluster) -> None:
    await whole_run(cluster)
    first = await alone(cluster, "b", idempotency_token="t")
    assert isinstance(first.done, RunActResponse)
    assert await alone(cluster, "b", idempotency_token="t") == first
    assert run_of(cluster).number == 2
    other = await alone(cluster, "c", idempotency_token="t")
    assert other.refusal.startswith("IdempotencyToken was used for another request: step of b")


async def test_preview_changes_nothing(cluster: Cluster) -> None:
    await whole_run(cluster)
    done = (await alone(cluster, "b", preview=True)).done
    assert done is not None
    assert (done.number, done.eval_id, run_of(cluster).number) == (2, "", 1)
    assert cluster.job("etl").version == 0


async def test_other_version_needs_a_run_of_all_steps(cluster: Cluster) -> None:
    await whole_run(cluster)
    await alone(cluster, "b")
    await ended(cluster, "b", code=1)
    refused = await act_on_run(
        *(cluster.store, "default", "etl", RERUN),
        RunActRequest(version=0, failed=True),
        caller="ann",
        now=cluster.clock.now(),
        eval_id=next(cluster.ids),
        may_approve=False,
        versions=RerunVersions(AROUND, cluster.clock.now()),
    )
    assert refused.refusal == ("run 2 ran only step b; another version needs a run of all steps")


async def test_old_runs_are_deleted_and_versions_are_limited(cluster: Cluster) -> None:
    await whole_run(cluster, msgspec.structs.replace(CHAIN, meta={"steward_runs_kept": "1"}))
    assert (await alone(cluster, "b")).done
    await ended(cluster, "b")
    assert (await alone(cluster, "b")).done
    kept = cluster.store.read(lambda db: runs.of_job(db, "default", "etl", 10))
    assert [one.number for one in kept] == [3, 2]
    await ended(cluster, "b")
    with pytest.raises(OverBudget, match="versions"):
        await act_on_run(
            *(cluster.store, "default", "etl", RunActType.STEP, RunActRequest(steps=["b"])),
            caller="ann",
            now=cluster.clock.now(),
            eval_id=next(cluster.ids),
            may_approve=False,
            budgets=Budgets(job_max_versions=1),
        )
    assert run_of(cluster).number == 3


async def test_success_of_one_step_is_no_recovery(cluster: Cluster) -> None:
    meta = {"steward_notify_to": "ops"}
    await whole_run(cluster, msgspec.structs.replace(CHAIN, meta=meta), bad="b")

    def told() -> list[NotifyEvent]:
        found = cluster.store.read(lambda db: list(notifications.of_job(db, "default", "etl")))
        return sorted(one.event for one in found)

    assert told() == [NotifyEvent.FAILURE]
    await alone(cluster, "b")
    await ended(cluster, "b")
    assert run_of(cluster).status == "succeeded"
    assert told() == [NotifyEvent.FAILURE]
    await whole_run(cluster, msgspec.structs.replace(CHAIN, meta=meta, priority=60))
    assert told() == [NotifyEvent.FAILURE, NotifyEvent.RECOVERY]


async def test_queue_of_the_step_grants_one_slot_for_one_element(cluster: Cluster) -> None:
    meta = {"steward_needs": "a", "steward_concurrency": "db"}
    await begun(cluster, workflow(step("a"), step("b", "a", count=2, meta=meta)))
    await ended(cluster, "a")
    await act(cluster, RunActType.CANCEL, now=True)
    await cluster.work()
    assert run_of(cluster).status == "canceled"
    assert (await act(cluster, RunActType.STEP, "b", number=1, element=1)).done
    await cluster.work()
    (queue,) = run_of(cluster).steps[1].queues
    assert (queue.held, queue.waiting) == (0, 1)


async def test_end_of_a_run_of_one_step_starts_the_followers(cluster: Cluster) -> None:
    async def arrived() -> list[tuple[int, str]]:
        found = cluster.store.read(lambda db: triggers.undecided(db, 10))
        return [(one.number, one.status) for one in found]

    await whole_run(cluster)
    await cluster.store.write(partial(stored, one=follower("report", "etl")))
    assert await arrived() == []
    await alone(cluster, "b")
    await ended(cluster, "b")
    assert await arrived() == [(2, "succeeded")]


async def test_queue_of_runs_holds_the_run(cluster: Cluster) -> None:
    meta = {"steward_run_concurrency": "db"}
    await begun(cluster, msgspec.structs.replace(CHAIN, meta=meta))
    await act(cluster, RunActType.CANCEL, now=True)
    await cluster.work()
    assert run_of(cluster).status == "canceled"
    assert (await act(cluster, RunActType.STEP, "a")).done
    await cluster.work()
    assert (at_work(cluster), states(cluster)["a"]) == ([], "held")


async def test_mixed_needs_are_decided_without_the_steps_that_were_left_out(
    cluster: Cluster,
) -> None:
    """After a re-run of a and c, c waits for a alone."""
    await whole_run(cluster, workflow(step("a"), step("b"), step("c", "a, b"), step("d", "c[i]")))
    await alone(cluster, "d")
    await ended(cluster, "d")
    assert (await act(cluster, RERUN, "a", "c")).done
    await cluster.work()
    assert at_work(cluster) == ["a"]
    await ended(cluster, "a")
    assert at_work(cluster) == ["c"]
    await ended(cluster, "c")
    assert at_work(cluster) == ["d"]
    await ended(cluster, "d")
    assert states(cluster) == {
        "a": "succeeded",
        "b": "skipped",
        "c": "succeeded",
        "d": "succeeded",
    }
