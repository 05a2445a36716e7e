"""What metrics count in the store."""

from daemon.runner import events as runner_events
from daemon.runner.drivers.driver import Exit
from storage.queries import allocations, metrics
from storage.store import Store
from tests.parts.evals.cluster import Cluster
from tests.samples import job
from tests.unit.scheduler.world import node


async def test_kills_for_memory_are_counted_of_each_task(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.join(node())
    await cluster.register(job("web"))
    await cluster.work()
    (one,) = cluster.allocations()
    ends = [
        runner_events.terminated(0, Exit(code=137, signal=9, oom_killed=True)),
        runner_events.terminated(1, Exit(code=1)),
        runner_events.terminated(2, Exit(code=137, oom_killed=True)),
    ]
    happened = {"main": ends, "side": ends[:1]}
    await cluster.store.write(lambda tx: allocations.add_events(tx, one.id, happened))
    counted = cluster.store.read(
        lambda db: [
            metrics.killed_for_memory(db, one.id, task) for task in ("main", "side", "none")
        ]
    )
    assert counted == [2, 1, 0]
