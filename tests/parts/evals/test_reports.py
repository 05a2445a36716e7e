"""Reports of allocations, and the evaluations that they create."""

from functools import partial

import pytest

from daemon.runner.core.status_report import AllocStatus, store_snapshots
from storage.queries import allocations, evaluations
from storage.records.allocation import Allocation, TaskEvent, TaskPhase, TaskState
from storage.records.evaluation import Trigger
from storage.records.group import ReschedulePolicy
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_workflows import report
from tests.samples import group, job


async def test_repeated_report_of_an_end_creates_one_evaluation(cluster: Cluster) -> None:
    policy = ReschedulePolicy(unlimited=True)
    await cluster.register(job("web", group(reschedule_policy=policy)))
    await cluster.work()
    await cluster.run_all()
    (one,) = cluster.allocations()
    await report(cluster, one, code=1)
    await report(cluster, one, code=1)
    created = cluster.store.read(lambda db: evaluations.unfinished(db, "default", "web"))
    assert [evaluation.triggered_by for evaluation in created].count(Trigger.ALLOC_FAILURE) == 1


async def report_phases(cluster: Cluster, alloc: Allocation, phases: list[TaskPhase]) -> None:
    """Report the phases of a task in one write, each with an event and the driver's handle."""
    now = cluster.clock.now()
    statuses = [
        AllocStatus(
            alloc_id=alloc.id,
            states={"main": TaskState(state=phase)},
            events={"main": [TaskEvent(type=phase, time=now)]},
            handles={"main": b"shim"},
            deployment_id="",
            healthy=None,
            healthy_at=0,
            ended_for="",
            services=[],
            evaluation_id=next(cluster.ids),
            now=now,
        )
        for phase in phases
    ]
    await cluster.store.write(partial(store_snapshots, snapshots=statuses))


@pytest.mark.parametrize(
    ("writes", "handles"),
    [
        ([[TaskPhase.RUNNING]], {"main": b"shim"}),
        ([[TaskPhase.DEAD]], {}),
        ([[TaskPhase.RUNNING], [TaskPhase.DEAD]], {"main": b"shim"}),
        ([[TaskPhase.RUNNING, TaskPhase.DEAD]], {"main": b"shim"}),
    ],
    ids=["running", "dead", "dead later", "dead in the same write"],
)
async def test_reports_store_all_events_and_the_handles_of_live_tasks(
    cluster: Cluster, writes: list[list[TaskPhase]], handles: dict[str, bytes]
) -> None:
    await cluster.register(job("web", group(), type="batch"))
    await cluster.work()
    (one,) = cluster.allocations()
    for phases in writes:
        await report_phases(cluster, one, phases)
    stored = cluster.store.read(lambda db: allocations.newest_events(db, one.id, "main"))
    assert [event.type for event in stored] == [phase for phases in writes for phase in phases]
    assert cluster.store.read(lambda db: allocations.handles(db, one.id)) == handles
