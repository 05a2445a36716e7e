"""The wait for the first decision about an evaluation, and its limit."""

import trio
import trio.testing

from daemon.jobs.evaluate import wait_for_evaluation
from tests.parts.evals.cluster import Cluster
from tests.samples import job


async def test_wait_ends_when_the_evaluation_is_processed(cluster: Cluster) -> None:
    made = await cluster.register(job("web"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.work)
        with trio.fail_after(10):
            await wait_for_evaluation(cluster.store, made.id, at_most=9)
    assert cluster.evaluation(made.id).status == "complete"


async def test_wait_without_an_evaluation_ends_immediately(cluster: Cluster) -> None:
    with trio.fail_after(10):
        await wait_for_evaluation(cluster.store, "", at_most=9)


async def test_wait_has_a_time_limit(
    cluster: Cluster, autojump_clock: trio.testing.MockClock
) -> None:
    made = await cluster.register(job("web"))
    began = trio.current_time()
    await wait_for_evaluation(cluster.store, made.id, at_most=0.02)
    assert trio.current_time() == began + 0.02
    assert cluster.evaluation(made.id).status == "pending"
