"""A full disk stops no background work of the daemon: the work waits and resumes."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from daemon.evals.deployment_watcher import watch_deployments
from daemon.evals.gc import RetentionLimits, collect_garbage
from daemon.evals.node_actions import drain_node, watch_drains
from storage.errors import StorageFull
from storage.queries import nodes
from storage.records.node import DrainSpec
from storage.store import Store, tolerate_disk_full
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job
from tests.unit.scheduler.world import ROLLING


@pytest.fixture
async def cluster(store: Store) -> Cluster:
    made = Cluster(store)
    await made.join()
    return made


async def goes_on(
    store: Store, loop: Callable[[], Awaitable[None]], patch: pytest.MonkeyPatch
) -> None:
    """Run a loop until its third write is stored; the first two fail because the disk is full."""
    kept, attempts, write = trio.Event(), iter(range(2)), store.write

    async def full_at_first(work: Any) -> Any:
        if next(attempts, None) is not None:
            raise StorageFull("no room")
        result = await write(work)
        kept.set()
        return result

    patch.setattr(store, "write", full_at_first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop)
        await kept.wait()
        nursery.cancel_scope.cancel()


async def test_cleanup_continues_on_a_full_disk(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    loop = partial(collect_garbage, cluster.store, cluster.clock, RetentionLimits())
    await goes_on(cluster.store, loop, monkeypatch)


async def test_deployment_continues_on_a_full_disk(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    await cluster.register(job("web", group("web", update=ROLLING)))
    await cluster.work()
    await cluster.run_all(healthy=True)
    loop = partial(watch_deployments, cluster.store, cluster.clock, cluster.ids, cluster.fences)
    await goes_on(cluster.store, loop, monkeypatch)
    assert cluster.deployment().task_groups["web"].healthy_allocs == 1


async def test_drain_ends_on_a_full_disk(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    (node,) = cluster.store.read(nodes.list_all)
    await drain_node(
        cluster.store,
        node.id,
        DrainSpec(),
        cluster.ids,
        mark_eligible=False,
        meta=None,
        accessor="",
        now=cluster.clock.now(),
    )
    loop = partial(watch_drains, cluster.store, cluster.clock, cluster.ids)
    await goes_on(cluster.store, loop, monkeypatch)
    (node,) = cluster.store.read(nodes.list_all)
    assert not node.drain


async def test_one_disk_full_error_among_several_is_sufficient(
    caplog: pytest.LogCaptureFixture, autojump_clock: object
) -> None:
    async with tolerate_disk_full("launches wait"):
        raise ExceptionGroup("several", [StorageFull("no room"), StorageFull("no room")])
    assert caplog.messages == ["launches wait: no room"]


async def test_other_errors_are_not_suppressed() -> None:
    with pytest.raises(ValueError, match="else"):
        async with tolerate_disk_full("launches wait"):
            raise ValueError("something else")
