"""A system clock that is set days forwards or back removes no active or young objects."""

import pytest

from daemon.evals.gc import RetentionLimits, collect_once
from storage.check import check
from storage.queries import index_times, jobs
from storage.records.allocation import ClientStatus
from storage.records.base import HOUR
from storage.store import Store
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job

DAY = 24 * HOUR


@pytest.mark.parametrize("leaps", [(30, -60, 30), (-400, 400, 1), (80, -80, -400)])
async def test_running_and_recently_ended_allocations_stay(
    store: Store, leaps: tuple[int, ...]
) -> None:
    cluster = Cluster(store)
    await cluster.join()
    await cluster.register(job("web", group("web", count=2)))
    await cluster.work()
    await cluster.run_all(healthy=True)
    for number, days in enumerate(leaps):
        cluster.clock.time += days * DAY
        now = cluster.clock.now()
        await store.write(lambda tx, now=now: index_times.record_time(tx, now))
        await collect_once(store, now, RetentionLimits())
        await cluster.register(job(f"batch-{number}", group("web"), type="batch"))
        await cluster.work()
        (one,) = cluster.allocations(f"batch-{number}")
        await cluster.report(one, ClientStatus.COMPLETE)
        await cluster.work()
        running = [alloc for alloc in cluster.allocations("web") if not alloc.client_terminal]
        assert len(running) == 2
    for number in range(len(leaps)):
        assert store.read(lambda db, n=number: jobs.current(db, "default", f"batch-{n}"))
    assert cluster.next() is None
    assert check(store.path.parent) == []
