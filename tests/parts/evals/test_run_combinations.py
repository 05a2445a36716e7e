"""New versions, stops after failures, runs of one step and limits of a run, in combination."""

import pytest

from storage.queries import kept_files, notifications, payload_files
from storage.records.flow import FlowStatus, Outcome, RunActType, StepState
from storage.records.job import Job
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_freezes import freeze
from tests.parts.evals.test_one_step import explained
from tests.parts.evals.test_run_updates import entries, serve, step, updated, warnings
from tests.parts.evals.test_workflows import (
    act,
    at_work,
    begun,
    end,
    report,
    run_of,
    states,
    stopping,
    workflow,
    written,
)
from tests.parts.evals.test_workflows import step as any_step


async def complete(cluster: Cluster) -> None:
    """End all tasks successfully until none is active."""
    while at_work(cluster):
        await end(cluster, at_work(cluster)[0])
        await cluster.work()


async def end_stopped(cluster: Cluster) -> None:
    """End the tasks that the scheduler stops."""
    for alloc in cluster.allocations("etl"):
        if alloc.desired_status == "stop" and not alloc.client_terminal:
            await report(cluster, alloc, code=137)
    await cluster.work()


async def replace(cluster: Cluster, job: Job) -> None:
    """Register a version a second later, and report that the stopped tasks have ended."""
    cluster.wait(1)
    await cluster.register(job)
    await cluster.work()
    await end_stopped(cluster)


async def test_new_version_takes_over_nothing_from_a_run_of_one_step(cluster: Cluster) -> None:
    def job(script: str) -> Job:
        return updated("keep", step("a"), step("b", "a", script=script), step("x"))

    await begun(cluster, job("true"))
    await complete(cluster)
    assert (await act(cluster, RunActType.STEP, "b")).done
    await cluster.work()
    (warning,) = [text for text in warnings(cluster, job("false")) if "is canceled" in text]
    assert "begins with its first steps" in warning
    await replace(cluster, job("false"))
    await complete(cluster)
    run = run_of(cluster)
    assert run.status == FlowStatus.SUCCEEDED
    assert states(cluster) == dict.fromkeys(("a", "b", "x"), StepState.SUCCEEDED)


async def test_approvals_of_the_replaced_run_do_not_count(cluster: Cluster) -> None:
    def job(script: str, number: str) -> Job:
        return workflow(step("a", script=script, gate="Go?", gate_number=number))

    await begun(cluster, job("true", "2"))
    assert (await act(cluster, RunActType.APPROVE, "a")).done
    await cluster.work()
    await replace(cluster, job("false", "1"))
    assert states(cluster) == {"a": StepState.HELD}


@pytest.mark.parametrize("meta", [{}, {"steward_run_concurrency": "db"}], ids=["", "queue"])
@pytest.mark.parametrize("update", ["keep", "replace"])
async def test_freeze_holds_the_run_of_a_new_version(
    cluster: Cluster, update: str, meta: dict[str, str]
) -> None:
    def job(script: str) -> Job:
        return updated(update, step("a"), step("b", "a", script=script), **meta)

    await begun(cluster, job("true"))
    await serve(cluster)
    await end(cluster, "a")
    await cluster.work()
    await freeze(cluster, strength="begin", until="+2h")
    await replace(cluster, job("false"))
    await serve(cluster)
    assert at_work(cluster) == []
    assert [state for _, state in entries(cluster)] == (["waiting"] if meta else [])


async def test_kept_file_of_a_taken_over_step_is_found(cluster: Cluster) -> None:
    def job(script: str) -> Job:
        return updated("keep", step("a"), step("b", "a", script=script))

    def put(tx: Transaction) -> None:
        digest = "d" * 64
        payload_files.put(tx, "default", digest, 3, is_complete=True, now=cluster.clock.now())
        kept_files.replace(tx, cluster.allocations("etl")[0].id, "main", {"out": digest})

    def digest(version: int) -> str:
        names = {"group": "a", "element": 0, "path": "out"}
        return cluster.store.read(
            lambda db: kept_files.digest_in_run(db, "default", "etl", version, **names)
        )

    await begun(cluster, job("true"))
    await cluster.store.write(put)
    await end(cluster, "a")
    await cluster.work()
    await replace(cluster, job("false"))
    assert digest(1) == "d" * 64
    await complete(cluster)
    assert (await act(cluster, RunActType.STEP, "b")).done
    await cluster.work()
    assert digest(2) == "d" * 64


async def test_repetition_of_one_element_keeps_the_outputs_of_the_others(cluster: Cluster) -> None:
    await begun(cluster, workflow(any_step("b", count=3), any_step("c", "b")))
    for alloc in cluster.allocations("etl"):
        await report(cluster, alloc, n=str(alloc.index))
    await cluster.work()
    await complete(cluster)
    assert (await act(cluster, RunActType.STEP, "b", element=1)).done
    await cluster.work()
    await end(cluster, "b", n="new")
    await cluster.work()
    before = written(cluster)
    assert (await act(cluster, RunActType.RERUN, "b")).done
    await cluster.work()
    await end(cluster, "b", n="new")
    await cluster.work()
    assert written(cluster) == before


async def test_accept_after_a_second_failure_continues_the_stopped_steps(cluster: Cluster) -> None:
    await begun(cluster, stopping(any_step("a"), any_step("b"), any_step("c", "b")))
    await end(cluster, "a", code=1)
    await cluster.work()
    await end_stopped(cluster)
    cluster.wait(1)
    assert (await act(cluster, RunActType.RERUN, "a")).done
    await cluster.work()
    cluster.wait(1)
    await end(cluster, "a", code=1)
    await cluster.work()
    assert (await act(cluster, RunActType.ACCEPT, "a")).done
    await cluster.work()
    assert at_work(cluster) == ["b"]
    await complete(cluster)
    assert run_of(cluster).status == FlowStatus.SUCCEEDED


async def test_source_of_one_step_is_no_copy_of_a_failed_run(cluster: Cluster) -> None:
    def job(**meta: str) -> Job:
        steps = (any_step("a"), any_step("b", "a", when="always"), any_step("c", "a"))
        return workflow(*steps, meta=meta)

    await begun(cluster, job())
    await complete(cluster)
    await cluster.register(job(x="2"))
    await cluster.work()
    await end(cluster, "a", code=1)
    await cluster.work()
    await complete(cluster)
    assert (await act(cluster, RunActType.STEP, "b")).done
    await cluster.work()
    await complete(cluster)
    done = (await act(cluster, RunActType.STEP, "c")).done
    assert done is not None
    assert done.outputs_of == 1


@pytest.mark.parametrize("is_late", [False, True])
async def test_failure_is_told_before_the_next_version(cluster: Cluster, *, is_late: bool) -> None:
    def job(script: str) -> Job:
        steps = (step("a"), step("clean", "a", when="always"), step("x", script=script))
        stop = {"steward_run_on_failure": "stop", "steward_run_cleanup": "5m"}
        return updated("finish", *steps, **stop, steward_notify_to="ops")

    await begun(cluster, job("true"))
    await cluster.register(job("false"))
    await cluster.work()
    await end(cluster, "a", code=1)
    await cluster.work()
    await end_stopped(cluster)
    if is_late:
        cluster.wait(301)
        await cluster.work()
    await end(cluster, "clean", code=137 if is_late else 0)
    await cluster.work()
    told = cluster.store.read(lambda db: list(notifications.of_job(db, "default", "etl")))
    assert [notification.event for notification in told] == ["failure"]


@pytest.mark.parametrize("of_run", [False, True])
async def test_limit_counts_only_the_chosen_element(cluster: Cluster, *, of_run: bool) -> None:
    limit = {} if of_run else {"parallel": "2"}
    meta = {"steward_run_parallel": "2"} if of_run else {}
    await begun(cluster, workflow(any_step("b", count=5, **limit), meta=meta))
    await complete(cluster)
    assert (await act(cluster, RunActType.STEP, "b", element=3)).done
    await cluster.work()
    assert at_work(cluster) == ["b"]
    assert not any("wait until" in message for message in explained(cluster))


async def test_whole_run_is_not_explained_as_one_step(cluster: Cluster) -> None:
    await begun(cluster, workflow(any_step("a"), any_step("b", "a")))
    await complete(cluster)
    assert (await act(cluster, RunActType.STEP, "b")).done
    await cluster.work()
    await complete(cluster)
    assert run_of(cluster).steps[0].outcome == Outcome.NEUTRAL
    assert (await act(cluster, RunActType.RERUN, every=True)).done
    await cluster.work()
    assert not any("only step" in message for message in explained(cluster))
