"""The state for a decision: relevant rows are read, the rest of a batch job is counted."""

from functools import partial

import msgspec

from daemon.evals.cluster_state import load_cluster_state
from daemon.scheduler.state import ClusterState
from storage.queries import allocations
from storage.records.allocation import ClientStatus, DesiredTransition
from storage.records.evaluation import DesiredUpdates
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, evaluation, group, job


async def of_kind(cluster: Cluster, kind: str) -> ClusterState:
    """Scale a job of a kind up and down; return the state for the next decision."""
    for number in (1, 3, 1):
        await cluster.register(job("web", group(count=number), type=kind))
        await cluster.work()
        await cluster.run_all(healthy=True)
    return seen(cluster)


def seen(cluster: Cluster) -> ClusterState:
    found = evaluation(cluster.job(), "next")
    return cluster.store.read(lambda db: load_cluster_state(db, found))


async def test_stopped_batch_allocations_are_only_counted(cluster: Cluster) -> None:
    state = await of_kind(cluster, "batch")
    assert [alloc.id for alloc in state.allocations] == [alloc.id for alloc in cluster.wanted()]
    assert state.ended == {"web": 2}
    assert list(state.versions) == [2]


async def test_stopped_service_allocations_are_not_counted(cluster: Cluster) -> None:
    state = await of_kind(cluster, "service")
    assert [alloc.id for alloc in state.allocations] == [alloc.id for alloc in cluster.wanted()]
    assert state.ended == {}


async def test_stopped_sysbatch_allocation_is_read_for_its_possible_result(
    cluster: Cluster,
) -> None:
    await cluster.register(job("web", type="sysbatch"))
    await cluster.work()
    await cluster.register(job("web", type="sysbatch", stop=True))
    await cluster.work()
    await cluster.run_all()
    assert [alloc.client_status for alloc in seen(cluster).allocations] == [ClientStatus.COMPLETE]


async def test_unfinished_allocations_and_name_holders_are_read(cluster: Cluster) -> None:
    await cluster.register(job("web", group(count=3), type="batch"))
    await cluster.work()
    await cluster.register(job("web", group(count=1), type="batch"))
    await cluster.work()
    _, ending, leaving = cluster.allocations()
    desired_transition = DesiredTransition(migrate_disable_placement=True)
    desired = msgspec.structs.replace(leaving.desired, transition=desired_transition)
    leaving = msgspec.structs.replace(leaving, desired=desired)
    await cluster.store.write(partial(allocations.set_desired, allocation=leaving, now=NOW))
    await cluster.report(leaving, ClientStatus.COMPLETE)
    state = seen(cluster)
    assert {ending.id, leaving.id} < {alloc.id for alloc in state.allocations}
    assert state.ended == {"web": 0}


async def test_ended_batch_allocations_count_as_ignored(cluster: Cluster) -> None:
    await of_kind(cluster, "batch")
    again = await cluster.register(job("web", group(count=1), type="batch"))
    await cluster.work()
    annotations = cluster.evaluation(again.id).plan_annotations
    assert annotations is not None
    assert annotations.desired_tg_updates["web"] == DesiredUpdates(in_place_update=1, ignore=2)


async def test_owners_are_found_for_existing_allocations_only(cluster: Cluster) -> None:
    await cluster.join()
    for name in ("web", "db"):
        await cluster.register(job(name))
        await cluster.work()
    ids = {name: alloc.id for name in ("web", "db") for alloc in cluster.allocations(name)}
    asked = [*ids.values(), "no-such-id"]
    owners = cluster.store.read(partial(allocations.owning_jobs, ids=asked))
    assert owners == {ids["web"]: ("default", "web"), ids["db"]: ("default", "db")}
