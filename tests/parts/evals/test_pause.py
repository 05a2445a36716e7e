"""A paused scheduler: evaluations wait, and an operator may remove them."""

import pytest

from daemon.evals.removal import remove_evaluations
from daemon.evals.scheduler_config import configure
from daemon.jobspec.filter import compile_filter
from storage.errors import Malformed, NotFound, Refused
from storage.records.allocation import ClientStatus
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.operator_api import SchedulerConfig
from storage.records.task import Resources
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job, task


async def pause(cluster: Cluster, *, pauses: bool = True) -> None:
    await configure(cluster.store, SchedulerConfig(pause_eval_broker=pauses))


async def test_no_evaluation_is_processed_while_the_scheduler_is_paused(cluster: Cluster) -> None:
    await pause(cluster)
    made = await cluster.register(job("web"))
    assert await cluster.work() == []
    assert cluster.evaluation(made.id).status == EvalStatus.PENDING
    await pause(cluster, pauses=False)
    assert await cluster.work() == [made.id]


async def test_evaluations_are_removed_only_while_the_scheduler_is_paused(
    cluster: Cluster,
) -> None:
    made = await cluster.register(job("web"))
    with pytest.raises(Refused, match="must be paused"):
        await remove_evaluations(cluster.store, [made.id], None)
    await pause(cluster)
    with pytest.raises(NotFound):
        await remove_evaluations(cluster.store, [made.id, "none"], None)
    count, _ = await remove_evaluations(cluster.store, [made.id, made.id], None)
    await pause(cluster, pauses=False)
    assert (count, await cluster.work()) == (1, [])


async def test_scheduler_must_be_paused_even_if_no_evaluation_is_chosen(cluster: Cluster) -> None:
    nothing = compile_filter('Status == "none"', Evaluation)
    for ids, matches in ((["unknown"], None), ((), nothing), ((), None)):
        with pytest.raises(Refused, match="must be paused"):
            await remove_evaluations(cluster.store, ids, matches)
    await pause(cluster)
    assert (await remove_evaluations(cluster.store, (), nothing))[0] == 0


async def test_evaluation_with_running_allocations_is_not_deleted(cluster: Cluster) -> None:
    made = await cluster.register(job("web"))
    await cluster.work()
    await pause(cluster)
    with pytest.raises(Refused, match="still run"):
        await remove_evaluations(cluster.store, [made.id], None)
    waiting = await cluster.register(job("api"))
    every = compile_filter('Status != ""', Evaluation)
    assert (await remove_evaluations(cluster.store, (), every))[0] == 1
    for alloc in cluster.allocations():
        await cluster.report(alloc, ClientStatus.COMPLETE)
    assert (await remove_evaluations(cluster.store, [made.id], None))[0] == 1
    with pytest.raises(NotFound):
        await remove_evaluations(cluster.store, [waiting.id], None)


async def test_request_has_a_limited_number_of_evaluations(cluster: Cluster) -> None:
    with pytest.raises(Malformed, match="EvalIDs has 5001 entries; the maximum is 5000"):
        await remove_evaluations(cluster.store, ["x"] * 5001, None)


@pytest.mark.parametrize(("enabled", "given"), [(False, 0), (True, 256)])
async def test_memory_exceeds_its_reservation_only_with_oversubscription(
    cluster: Cluster, enabled: bool, given: int
) -> None:
    await configure(cluster.store, SchedulerConfig(memory_oversubscription_enabled=enabled))
    asking = task(resources=Resources(cpu=20, memory_mb=64, memory_max_mb=256))
    await cluster.register(job("web", group("web", asking)))
    await cluster.work()
    [placed] = cluster.allocations()
    assert placed.placement.resources.tasks["main"].memory.memory_max_mb == given
