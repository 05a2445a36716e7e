"""Node pools: permitted names, jobs that use a pool, and reasons that prevent a deletion."""

import msgspec
import pytest

from daemon.jobs.node_pools import apply, remove
from storage.errors import Invalid, NotFound, Refused
from storage.queries import jobs, node_pools, nodes
from storage.records.node_pool import NodePool
from storage.store import Store
from tests.samples import job
from tests.unit.scheduler.world import node


def names(store: Store) -> list[str]:
    return sorted(store.read(node_pools.names))


async def test_changed_pool_keeps_its_create_index(store: Store) -> None:
    created = await apply(store, NodePool(name="dev"))
    changed = await apply(store, NodePool(name="dev", description="ours", meta={"a": "b"}))
    found = next(
        node_pool for node_pool in store.read(node_pools.list_all) if node_pool.name == "dev"
    )
    assert (found.create_index, found.modify_index) == (created, changed)
    assert (found.description, found.meta) == ("ours", {"a": "b"})


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (NodePool(), "must match regex"),
        (NodePool(name="a/b"), "must match regex"),
        (NodePool(name="a" * 129), "must match regex"),
        (NodePool(name="a", description="x" * 257), "description longer than 256"),
        (NodePool(name="a", scheduler_configuration={"x": 1}), "SchedulerConfiguration"),
        (NodePool(name="default"), 'modifying node pool "default" is not allowed'),
    ],
)
async def test_invalid_pool_is_refused(store: Store, pool: NodePool, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        await apply(store, pool)
    assert names(store) == ["all", "default"]


async def test_empty_pool_is_deleted(store: Store) -> None:
    await apply(store, NodePool(name="dev"))
    await remove(store, "dev", "global")
    assert names(store) == ["all", "default"]
    with pytest.raises(NotFound):
        await remove(store, "dev", "global")


async def test_pool_with_nodes_or_jobs_is_not_deleted(store: Store) -> None:
    for name in ("of-node", "of-job"):
        await apply(store, NodePool(name=name))
    held = msgspec.structs.replace(node(), node_pool="of-node")
    await store.write(lambda tx: nodes.put(tx, held, "NodeRegistration"))
    await store.write(lambda tx: jobs.append_version(tx, job("web", node_pool="of-job")))
    with pytest.raises(Refused, match="has nodes"):
        await remove(store, "of-node", "global")
    with pytest.raises(Refused, match="non-terminal jobs"):
        await remove(store, "of-job", "global")
    with pytest.raises(Refused, match="not allowed"):
        await remove(store, "all", "global")
    assert names(store) == ["all", "default", "of-job", "of-node"]
