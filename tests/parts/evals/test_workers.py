"""The workers of the scheduler: only jobs of types without a worker wait."""

import trio

from daemon.evals.explain import explain_job
from daemon.evals.scheduler_config import ALL, forget_workers, set_workers, workers
from storage.records.evaluation import EvalStatus
from storage.records.times import rfc3339
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job


async def test_only_evaluation_types_with_a_worker_are_taken(cluster: Cluster) -> None:
    await set_workers(cluster.store, 1, ["_core", "batch"])
    left = await cluster.register(job("web"), priority=90)
    taken = await cluster.register(job("night", group("g"), type="batch"))
    later = await cluster.register(
        job("all", type="system"), wait_until=rfc3339(cluster.clock.now())
    )
    assert await cluster.work() == [taken.id]
    assert cluster.evaluation(left.id).status == EvalStatus.PENDING
    await set_workers(cluster.store, 1, ["_core", "service", "system"])
    assert sorted(await cluster.work()) == sorted([left.id, later.id])


async def test_full_batch_of_one_type_delays_no_other_type(cluster: Cluster) -> None:
    await set_workers(cluster.store, 1, ["_core", "batch"])
    for number in range(40):
        await cluster.register(job(f"web-{number}"), priority=90)
    taken = await cluster.register(job("night", group("g"), type="batch"), priority=10)
    assert await cluster.work() == [taken.id]


async def test_blocked_evaluation_waits_for_its_worker(cluster: Cluster) -> None:
    await cluster.join()
    blocked = await cluster.register(job("web", group("g", count=1)), status=EvalStatus.BLOCKED)
    await set_workers(cluster.store, 1, ["_core", "batch"])
    assert await cluster.work() == []
    await set_workers(cluster.store, 1, ALL)
    assert await cluster.work() == [blocked.id]


async def test_evaluations_without_a_worker_wait_until_the_next_start(cluster: Cluster) -> None:
    await set_workers(cluster.store, 0, ALL)
    made = await cluster.register(job("web"))
    assert await cluster.work() == []
    found = cluster.store.read(lambda db: explain_job(db, "default", "web"))
    assert found is not None
    assert "no worker for service jobs" in found.reasons[0].message
    await forget_workers(cluster.store)
    assert cluster.store.read(workers).processes_all
    assert await cluster.work() == [made.id]


async def test_new_worker_wakes_waiting_evaluations(cluster: Cluster) -> None:
    await set_workers(cluster.store, 0, ALL)
    with cluster.store.watch("room") as change:
        await set_workers(cluster.store, 1, ALL)
        with trio.fail_after(5):
            await change.wait()
