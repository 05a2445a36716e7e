"""Allocations in a cluster pool: waiting ones start when the pool is back.

Allocations on lost nodes are lost.
"""

import msgspec

from daemon.evals.explain import explain_job
from daemon.evals.node_actions import evaluate_down
from storage.queries import nodes
from storage.records.allocation import ClientStatus
from storage.records.evaluation import EvalStatus
from storage.records.node import NodeStatus
from storage.store import Store
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job, task
from tests.unit.scheduler.world import cluster, small


async def joined(store: Store, **fields: object) -> Cluster:
    """Return a full host and a cluster with these properties."""
    world = Cluster(store)
    await world.join(small("here", cpu=20, memory=20), cluster(**fields))
    return world


def there(job_id: str = "there", count: int = 1):
    return job(job_id, group("web", task(), count=count), type="batch", node_pool="hpc")


async def test_allocations_wait_for_an_unreachable_cluster_and_start_after_its_return(
    store: Store,
) -> None:
    world = await joined(store, status=NodeStatus.DISCONNECTED)
    await world.register(there())
    await world.work()
    assert world.allocations("there") == []
    await world.join(cluster())
    await world.work()
    assert [alloc.node_id for alloc in world.allocations("there")] == [cluster().id]


async def test_job_blocked_on_this_host_is_not_tried_in_a_cluster(store: Store) -> None:
    world = await joined(store)
    await world.register(
        job("here", group("web", task(), count=2), type="batch", node_pool="default")
    )
    await world.register(there())
    await world.work()
    (waits,) = world.evaluations(EvalStatus.BLOCKED, "here")
    (other,) = world.allocations("there")
    await world.report(other, ClientStatus.COMPLETE)
    await world.work()
    assert world.evaluations(EvalStatus.BLOCKED, "here") == [waits]


async def test_allocation_in_a_removed_pool_is_lost(store: Store) -> None:
    world = await joined(store)
    await world.register(there())
    await world.work()
    await world.run_all("there")
    gone = msgspec.structs.replace(cluster(), status=NodeStatus.DOWN)
    await store.write(lambda tx: nodes.put(tx, gone, "NodeEvent"))
    await evaluate_down(store, world.ids, now=world.clock.now())
    await world.work()
    (lost,) = world.allocations("there")
    assert lost.client_status == "lost"
    await evaluate_down(store, world.ids, now=world.clock.now())
    assert world.evaluations(EvalStatus.PENDING, "there") == []


async def test_blocked_start_in_a_cluster_is_explained(store: Store) -> None:
    said = "the cluster does not answer: it hangs"
    away = {"status": NodeStatus.DISCONNECTED, "status_description": said}
    world = await joined(store)
    await world.register(there())
    await world.work()
    await world.join(cluster(**away))
    (reason,) = explained(world)
    assert reason == f'there.web[0] is placed and starting (node "hpc": {said})'


async def test_missing_placement_in_a_cluster_is_explained(store: Store) -> None:
    said = "the cluster does not answer: it hangs"
    world = await joined(store, status=NodeStatus.DISCONNECTED, status_description=said)
    await world.register(there())
    await world.work()
    (reason,) = explained(world)
    assert reason.endswith(f'because node "hpc" is disconnected ({said})')


def explained(world: Cluster) -> list[str]:
    found = world.store.read(lambda db: explain_job(db, "default", "there"))
    return [reason.message for reason in found.reasons] if found else []
