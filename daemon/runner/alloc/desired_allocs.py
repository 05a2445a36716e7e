"""Load the allocations that should run on nodes, with the state that an earlier daemon left."""

from collections.abc import Collection, Mapping

import msgspec

from daemon.runner.core import task_events
from daemon.runner.core.task_instance import RestoredState
from storage.queries import allocations, jobs
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation, DesiredStatus, TaskPhase, TaskState
from storage.records.job import Job

_REMEMBERED = 200  # latest events of a task, from which its restarts are counted


class DesiredAllocation(msgspec.Struct, frozen=True):
    """An allocation and its job, as stored."""

    allocation: Allocation
    job: Job
    pasts: Mapping[str, RestoredState]

    @property
    def is_to_run(self) -> bool:
        """Return whether the allocation should start or continue."""
        return self.allocation.desired_status == DesiredStatus.RUN


def load_desired(
    db: ReadSnapshot, node_ids: Collection[str], after: int, known: Collection[str], now: int
) -> list[DesiredAllocation]:
    """Return the scheduler's changes on nodes after an index.

    If the index is below 0, return all allocations that should run. Allocations in `known` have a
    runner, so their earlier state is not loaded.
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
            every.append(
                DesiredAllocation(one, job, {} if one.id in known else _pasts(db, one, now))
            )
    return every


def _pasts(db: ReadSnapshot, allocation: Allocation, now: int) -> dict[str, RestoredState]:
    """Return the state that an earlier daemon left for the tasks of an allocation."""
    states = allocation.client.task_states
    if not states:
        return {}
    handles = allocations.handles(db, allocation.id)
    return {
        task: _past(db, allocation.id, task, handles.get(task, b""), state, now)
        for task, state in states.items()
    }


def _past(
    db: ReadSnapshot, alloc_id: str, task: str, handle: bytes, state: TaskState, now: int
) -> RestoredState:
    if not state.restarts:
        return RestoredState(handle=handle)
    happened = allocations.newest_events(db, alloc_id, task, _REMEMBERED)
    restarts = [event for event in happened if event.type == task_events.RESTARTING]
    delay = 0
    if state.state == TaskPhase.PENDING and restarts:
        delay = restarts[-1].time + restarts[-1].start_delay - now
    return RestoredState(
        handle=handle,
        restarts=tuple(event.time for event in restarts if event.restart_reason),
        delay=max(0, delay),
    )
