"""What should run on nodes, as the store has it, with what an earlier daemon knew of it."""

from collections.abc import Collection, Mapping

import msgspec

from daemon.runner import events
from daemon.runner.instance import Past
from storage.queries import allocations, jobs
from storage.readers import Snapshot
from storage.records.allocation import Allocation, DesiredStatus, TaskPhase, TaskState
from storage.records.job import Job

_REMEMBERED = 200  # events of a task that say how often it was restarted lately


class Wanted(msgspec.Struct, frozen=True):
    """An allocation as the store has it, with its definition."""

    allocation: Allocation
    job: Job
    pasts: Mapping[str, Past]

    @property
    def is_to_run(self) -> bool:
        """Tell whether it is to go on, or to begin."""
        return self.allocation.desired_status == DesiredStatus.RUN


def wanted(
    db: Snapshot, node_ids: Collection[str], after: int, known: Collection[str], now: int
) -> list[Wanted]:
    """Return what the scheduler has changed on nodes after an index; below 0: all that is to run.

    Of the allocations that are `known` nobody needs what an earlier daemon knew.
    """
    found: list[Allocation] = []
    for node_id in node_ids:
        if after < 0:
            found += allocations.to_run(db, node_id)
        else:
            ids = allocations.changed(db, node_id, after)
            found += [one for alloc_id in ids if (one := allocations.find(db, alloc_id))]
    definitions: dict[tuple[str, str, int], Job | None] = {}
    every = []
    for one in found:
        key = (one.namespace, one.job_id, one.job_version)
        if key not in definitions:
            definitions[key] = jobs.version(db, *key)
        job = definitions[key]
        if job is not None:
            every.append(Wanted(one, job, {} if one.id in known else _pasts(db, one, now)))
    return every


def _pasts(db: Snapshot, allocation: Allocation, now: int) -> dict[str, Past]:
    """Return what an earlier daemon knew of the tasks of an allocation."""
    states = allocation.client.task_states
    if not states:
        return {}
    handles = allocations.handles(db, allocation.id)
    return {
        task: _past(db, allocation.id, task, handles.get(task, b""), state, now)
        for task, state in states.items()
    }


def _past(
    db: Snapshot, alloc_id: str, task: str, handle: bytes, state: TaskState, now: int
) -> Past:
    if not state.restarts:
        return Past(handle=handle)
    happened = allocations.newest_events(db, alloc_id, task, _REMEMBERED)
    restarts = [event for event in happened if event.type == events.RESTARTING]
    delay = 0
    if state.state == TaskPhase.PENDING and restarts:
        delay = restarts[-1].time + restarts[-1].start_delay - now
    return Past(
        handle=handle,
        restarts=tuple(event.time for event in restarts if event.restart_reason),
        delay=max(0, delay),
    )
