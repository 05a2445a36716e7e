"""Manual node operations: evaluate, make ineligible, drain."""

from collections.abc import Mapping

import pytest
import trio
import trio.testing

from daemon.evals.node_actions import (
    NodeChangeResult,
    change_meta,
    drain_node,
    evaluate_node,
    purge_node,
    set_eligibility,
    watch_drains,
)
from daemon.jobs.stop import stop_allocation
from storage.errors import Refused
from storage.queries import events, nodes
from storage.records.allocation import ClientStatus
from storage.records.base import HOUR
from storage.records.evaluation import Trigger
from storage.records.job import Job
from storage.records.node import DrainSpec, Node
from storage.store import Store
from tests.parts.evals.cluster import Cluster
from tests.parts.runner.alloc_stage import JumpingClock
from tests.samples import NOW, group, job


def the_node(store: Store) -> Node:
    (found,) = store.read(nodes.list_all)
    return found


async def closed(cluster: Cluster, wanted: str = "ineligible") -> NodeChangeResult:
    node = the_node(cluster.store)
    return await set_eligibility(cluster.store, node.id, wanted, cluster.ids, now=NOW)


async def drained(
    cluster: Cluster,
    spec: DrainSpec | None,
    *,
    mark_eligible: bool = False,
    meta: Mapping[str, str] | None = None,
) -> NodeChangeResult:
    return await drain_node(
        cluster.store,
        the_node(cluster.store).id,
        spec,
        cluster.ids,
        mark_eligible=mark_eligible,
        meta=dict(meta) if meta else None,
        accessor="someone",
        now=NOW,
    )


async def run(cluster: Cluster, wanted: Job) -> None:
    await cluster.register(wanted)
    await cluster.work()


async def test_evaluation_of_a_node_evaluates_its_jobs(cluster: Cluster) -> None:
    await run(cluster, job("web"))
    await cluster.register(job("idle", group("web", count=0)))
    done = await evaluate_node(cluster.store, the_node(cluster.store).id, cluster.ids, now=NOW)
    (made,) = done.eval_ids
    evaluation = cluster.evaluation(made)
    assert (evaluation.job_id, evaluation.triggered_by) == ("web", Trigger.NODE_UPDATE)
    assert evaluation.node_id == done.node.id


async def test_ineligible_node_gets_no_allocations(cluster: Cluster) -> None:
    await closed(cluster)
    await run(cluster, job("web"))
    assert cluster.allocations() == []
    await closed(cluster, "eligible")
    await cluster.work()
    assert len(cluster.allocations()) == 1


async def test_repeated_ineligibility_changes_nothing(cluster: Cluster) -> None:
    first = await closed(cluster)
    assert (await closed(cluster)).node == first.node


async def test_eligibility_has_only_two_values(cluster: Cluster) -> None:
    with pytest.raises(Refused, match='invalid scheduling eligibility "maybe"'):
        await closed(cluster, "maybe")


async def test_unknown_node_is_refused(cluster: Cluster) -> None:
    with pytest.raises(Refused, match="node not found"):
        await evaluate_node(cluster.store, "nobody", cluster.ids, now=NOW)


async def test_drained_node_stops_every_allocation(cluster: Cluster) -> None:
    await run(cluster, job("web"))
    done = await drained(cluster, DrainSpec(deadline=HOUR), meta={"why": "upgrade"})
    await cluster.work()
    (one,) = cluster.allocations()
    assert one.desired_status == "stop"
    assert (done.node.drain, done.node.scheduling_eligibility) == (True, "ineligible")
    last = done.node.last_drain
    assert last is not None
    assert (last.status, last.accessor_id, last.meta) == ("draining", "someone", {"why": "upgrade"})


def wanted(cluster: Cluster, *job_ids: str) -> list[str]:
    return [alloc.desired_status for job_id in job_ids for alloc in cluster.allocations(job_id)]


async def three_kinds(cluster: Cluster) -> None:
    """Let a service, a batch job and a system job run."""
    for kind in ("service", "batch", "system"):
        await run(cluster, job(kind, type=kind))
        await cluster.run_all(kind)


async def goes_on(cluster: Cluster) -> None:
    """Let the drain take its next step, and the scheduler act on it."""
    with cluster.store.watch("nodes/", "allocations/") as change:
        async with trio.open_nursery() as watching:
            watching.start_soon(watch_drains, cluster.store, cluster.clock, cluster.ids)
            await change.wait()
            watching.cancel_scope.cancel()
    await cluster.work()


async def rests(cluster: Cluster) -> None:
    """Check that the drain does nothing now."""
    before = cluster.store.read(lambda db: db.last_index())
    async with trio.open_nursery() as watching:
        watching.start_soon(watch_drains, cluster.store, cluster.clock, cluster.ids)
        await trio.testing.wait_all_tasks_blocked()
        watching.cancel_scope.cancel()
    await cluster.store.write(lambda tx: None)  # all earlier writes are now stored
    assert cluster.store.read(lambda db: db.last_index()) == before


async def test_batch_allocations_run_until_the_drain_deadline(cluster: Cluster) -> None:
    await three_kinds(cluster)
    await drained(cluster, DrainSpec(deadline=HOUR))
    await cluster.work()
    assert wanted(cluster, "service", "batch", "system") == ["stop", "run", "run"]
    cluster.wait(3599)
    await rests(cluster)
    cluster.wait(1)
    await goes_on(cluster)
    assert wanted(cluster, "service", "batch", "system") == ["stop", "stop", "stop"]


async def test_system_jobs_are_drained_last(cluster: Cluster) -> None:
    await three_kinds(cluster)
    await drained(cluster, DrainSpec())
    await cluster.work()
    await cluster.run_all("service")
    await rests(cluster)
    (batch,) = cluster.allocations("batch")
    await cluster.report(batch, ClientStatus.COMPLETE)
    await goes_on(cluster)
    assert wanted(cluster, "batch", "system") == ["run", "stop"]
    await cluster.run_all("system")
    await goes_on(cluster)
    assert not the_node(cluster.store).drain


async def test_drain_can_be_forced(cluster: Cluster) -> None:
    await three_kinds(cluster)
    await drained(cluster, DrainSpec(deadline=-1))
    await cluster.work()
    assert wanted(cluster, "service", "batch", "system") == ["stop", "stop", "stop"]


async def test_deadline_wakes_the_drainer(
    cluster: Cluster, autojump_clock: trio.testing.MockClock
) -> None:
    await three_kinds(cluster)
    await drained(cluster, DrainSpec(deadline=HOUR))
    began = trio.current_time()
    with cluster.store.watch("allocations/") as change:
        async with trio.open_nursery() as watching:
            watching.start_soon(watch_drains, cluster.store, JumpingClock(), cluster.ids)
            await change.wait()
            watching.cancel_scope.cancel()
    assert trio.current_time() >= began + 3600
    await cluster.work()
    assert wanted(cluster, "batch", "system") == ["stop", "stop"]


async def test_drain_can_ignore_system_jobs(cluster: Cluster) -> None:
    await run(cluster, job("agent", type="system"))
    await drained(cluster, DrainSpec(ignore_system_jobs=True))
    await cluster.work()
    assert [alloc.desired_status for alloc in cluster.allocations("agent")] == ["run"]


async def test_a_drain_is_complete_when_the_node_is_empty(cluster: Cluster) -> None:
    await run(cluster, job("web"))
    await drained(cluster, DrainSpec())
    await cluster.work()
    async with trio.open_nursery() as watching:
        watching.start_soon(watch_drains, cluster.store, cluster.clock, cluster.ids)
        await trio.testing.wait_all_tasks_blocked()
        assert the_node(cluster.store).drain
        with cluster.store.watch("nodes/") as change:
            await cluster.run_all()
            await change.wait()
        watching.cancel_scope.cancel()
    node = the_node(cluster.store)
    assert node.last_drain is not None
    assert (node.drain, node.drain_strategy, node.last_drain.status) == (False, None, "complete")
    assert node.scheduling_eligibility == "ineligible"


async def test_drain_can_be_canceled(cluster: Cluster) -> None:
    await drained(cluster, DrainSpec())
    done = await drained(cluster, None, mark_eligible=True)
    assert done.node.ready
    assert done.node.last_drain is not None
    assert done.node.last_drain.status == "canceled"


async def test_draining_node_cannot_be_made_eligible(cluster: Cluster) -> None:
    await drained(cluster, DrainSpec())
    with pytest.raises(Refused, match="draining"):
        await closed(cluster, "eligible")


async def meta_changed(cluster: Cluster, most: int = 10, **wanted: str | None) -> NodeChangeResult:
    node, static = the_node(cluster.store), {"zone": "a"}
    done, _ = await change_meta(
        cluster.store, node.id, wanted, static, cluster.ids, most=most, now=NOW
    )
    return done


def changes(cluster: Cluster) -> nodes.MetaChanges:
    node = the_node(cluster.store)
    return cluster.store.read(lambda db: nodes.meta_changes(db, node.id))


async def test_dynamic_metadata_override_the_configuration(cluster: Cluster) -> None:
    await meta_changed(cluster, rack="r7", zone="b")
    assert the_node(cluster.store).meta == {"rack": "r7", "zone": "b"}
    await meta_changed(cluster, rack=None, zone=None)
    assert the_node(cluster.store).meta == {}
    assert changes(cluster) == {"zone": None}  # the entry that hides the configured value stays
    await meta_changed(cluster, zone="a")
    assert the_node(cluster.store).meta == {"zone": "a"}


async def test_changed_metadata_trigger_evaluations_and_a_new_node_class(
    cluster: Cluster,
) -> None:
    await run(cluster, job("web"))
    before = the_node(cluster.store).computed_class
    assert len((await meta_changed(cluster, rack="r7")).eval_ids) == 1
    assert the_node(cluster.store).computed_class != before
    assert (await meta_changed(cluster, rack="r7")).eval_ids == []


async def test_dynamic_metadata_are_limited(cluster: Cluster) -> None:
    with pytest.raises(Refused, match="at most 1 metadata changes"):
        await meta_changed(cluster, most=1, a="1", b="2")
    assert changes(cluster) == {}


@pytest.mark.parametrize("kind", ["service", "batch", "system", "sysbatch"])
async def test_allocation_stopped_by_request_is_replaced_with_the_same_name(
    cluster: Cluster, kind: str
) -> None:
    await run(cluster, job("web", type=kind))
    await cluster.run_all()
    (before,) = cluster.wanted()
    await stop_allocation(
        cluster.store,
        before.id,
        no_shutdown_delay=False,
        reschedule=False,
        now=NOW,
        eval_id=next(cluster.ids),
    )
    await cluster.work()
    (after,) = cluster.wanted()
    assert (after.name, after.node_id) == (before.name, before.node_id)
    assert after.desired.previous_allocation == before.id
    await cluster.report(before, ClientStatus.COMPLETE)
    await cluster.work()
    assert [alloc.id for alloc in cluster.wanted()] == [after.id]


async def test_purged_node_registers_again_and_its_allocations_continue(cluster: Cluster) -> None:
    await run(cluster, job("web"))
    await cluster.run_all()
    before = (await drained(cluster, DrainSpec(deadline=HOUR))).node
    done = await purge_node(cluster.store, before.id, cluster.ids, now=NOW)
    assert the_node(cluster.store) == done.node
    assert (done.node.drain, done.node.scheduling_eligibility) == (False, "eligible")
    assert (done.node.last_drain, done.node.create_index) == (None, done.index)
    assert [event.message for event in done.node.events or ()] == ["Node registered"]
    (made,) = done.eval_ids
    assert cluster.evaluation(made).triggered_by == Trigger.NODE_UPDATE
    told = cluster.store.read(lambda db: events.after(db, 0, 1000))
    kinds = [event.type for event in told if event.index == done.index and event.topic == "Node"]
    assert kinds == ["NodeDeregistration", "NodeRegistration"]


async def test_ineligible_node_is_eligible_after_a_purge(cluster: Cluster) -> None:
    await closed(cluster)
    await run(cluster, job("web"))
    assert cluster.allocations() == []
    await purge_node(cluster.store, the_node(cluster.store).id, cluster.ids, now=NOW)
    await cluster.work()
    assert len(cluster.allocations()) == 1


async def test_only_the_own_node_is_purged(cluster: Cluster) -> None:
    with pytest.raises(Refused, match="node not found"):
        await purge_node(cluster.store, "nobody", cluster.ids, now=NOW)
