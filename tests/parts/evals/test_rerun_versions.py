"""Steps that run again with another version: a new run takes over the other results."""

from typing import Any

import msgspec
import pytest

from daemon.jobs.register import RegistrationContext
from daemon.jobs.steer_run import RunActOutcome, RunActRequest, act_on_run
from daemon.jobs.version_history import RerunVersions
from storage.errors import Invalid, Malformed, NotFound
from storage.queries import invariants, runs
from storage.records.base import HOUR
from storage.records.flow import RunActType
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import RestartPolicy
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_workflows import at_work, begun, end, run_of, states, workflow
from tests.parts.evals.test_workflows import step as any_step
from tests.samples import task

FAIL = RestartPolicy(attempts=0, interval=HOUR, delay=0, mode="fail")


def step(name: str, needs: str = "", **fields: Any) -> TaskGroup:
    """Return a step that a registration accepts."""
    main = task(config={"command": "true"}, restart_policy=FAIL)
    one = any_step(name, needs, restart_policy=FAIL, **fields)
    return msgspec.structs.replace(one, tasks=[main])


AROUND = RegistrationContext(region="global", node_pools={"default"})
FIRST = workflow(step("a"), step("b", "a"), step("c", "b"))


async def again(cluster: Cluster, version: int | None = 0, **fields: Any) -> RunActOutcome:
    done = await act_on_run(
        *(cluster.store, "default", "etl", RunActType.RERUN),
        RunActRequest(version=version, **fields),
        caller="ann",
        now=cluster.clock.now(),
        eval_id=next(cluster.ids),
        may_approve=False,
        versions=RerunVersions(AROUND, cluster.clock.now()),
    )
    await cluster.work()
    assert cluster.store.read(lambda db: list(invariants.find_violations(db))) == []
    return done


async def failed_in_b(cluster: Cluster, job: Job = FIRST) -> None:
    """Register a version, and let its step b fail."""
    await begun(cluster, job)
    await end(cluster, "a", rows="12")
    await cluster.work()
    await end(cluster, "b", code=1)
    await cluster.work()
    assert run_of(cluster).status == "failed"


async def test_new_run_preserves_successful_steps_with_their_outputs(cluster: Cluster) -> None:
    await failed_in_b(cluster)
    previewed = await again(cluster, failed=True, preview=True)
    assert previewed.done is not None
    assert (previewed.done.steps, previewed.done.version) == (["b", "c"], 1)
    assert run_of(cluster).number == 1
    done = (await again(cluster, failed=True, note="mended")).done
    assert done is not None
    assert (done.number, done.steps, done.version) == (2, ["b", "c"], 1)
    run = run_of(cluster)
    assert (run.number, run.version, run.status) == (2, 1, "running")
    assert states(cluster) == {"a": "succeeded", "b": "open", "c": "waiting"}
    assert [(one.attempt, one.name) for one in run.steps] == [(1, "a"), (2, "b"), (2, "c")]
    assert [(act.act, act.who, act.note) for act in run.acts] == [("rerun", "ann", "mended")]
    found = cluster.store.read(lambda db: list(runs.outputs(db, run)))
    assert [(one.step, one.outputs) for one in found] == [("a", {"rows": "12"})]
    assert at_work(cluster) == ["b"]
    for name in "bc":
        await end(cluster, name)
        await cluster.work()
    assert run_of(cluster).status == "succeeded"
    assert run_of(cluster, 1).status == "failed"


async def test_steps_follow_the_graph_of_the_chosen_version(cluster: Cluster) -> None:
    other = workflow(step("a"), step("b", "a"), step("x", "a"), step("c", "x"))
    await begun(cluster, other)
    await end(cluster, "a")
    await cluster.work()
    await end(cluster, "x", code=1)
    await end(cluster, "b", code=1)
    await cluster.work()
    await failed_in_b(cluster, msgspec.structs.replace(FIRST, priority=60))
    done = (await again(cluster, 0, steps=["b"])).done
    assert done is not None
    assert done.steps == ["b", "x", "c"]  # x is new, and c comes after it
    assert states(cluster) == {"a": "succeeded", "b": "open", "x": "open", "c": "waiting"}


async def test_list_is_computed_again_in_a_new_run(cluster: Cluster) -> None:
    many = workflow(step("a"), step("b", "a", count=3))
    await begun(cluster, many)
    await end(cluster, "a")
    await cluster.work()
    for code in (0, 0, 1):
        await end(cluster, "b", code=code)
    await cluster.work()
    await again(cluster, failed=True)
    assert at_work(cluster) == ["b"] * 3  # elements belong to their version


async def test_inapplicable_request_is_refused(cluster: Cluster) -> None:
    await begun(cluster, FIRST)
    assert (await again(cluster, every=True)).refusal == (
        "run 1 is running; another version needs a run that has ended"
    )
    for name in "abc":
        await end(cluster, name)
        await cluster.work()
    with pytest.raises(NotFound, match="version 7 not found"):
        await again(cluster, 7, every=True)
    with pytest.raises(Malformed, match="has no step 'z'"):
        await again(cluster, 0, steps=["z"])
    assert (await again(cluster, failed=True)).refusal == ("run 1 has no failed step")
    with pytest.raises(Malformed, match="Version is valid only for a re-run"):
        await act_on_run(
            *(cluster.store, "default", "etl", RunActType.CANCEL, RunActRequest(version=0)),
            caller="ann",
            now=1,
            eval_id="e",
            may_approve=False,
        )
    assert run_of(cluster).number == 1


async def test_version_that_has_become_invalid_is_refused(cluster: Cluster) -> None:
    pool = workflow(step("a"), step("b", "a"), node_pool="gone")
    await begun(cluster, pool)
    await begun(cluster, workflow(step("a"), step("b", "a")))
    for name in "ab":
        await end(cluster, name)
        await cluster.work()
    with pytest.raises(Invalid, match="nonexistent node pool"):
        await again(cluster, 0, every=True)
