"""Load the allocations that should run on nodes, with the state that an earlier daemon left."""

from collections.abc import Collection, Mapping

import msgspec

from daemon.clock import seconds_left
from daemon.runner.core import task_events
from daemon.runner.core.task_instance import RestoredState
from storage.errors import StorageUnreadable
from storage.queries import allocations, jobs
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation, DesiredStatus, TaskPhase, TaskState
from storage.records.base import SECOND
from storage.records.job import Job

_REMEMBERED = 200  # latest events of a task that are used to count its restarts


class DesiredAllocation(msgspec.Struct, frozen=True):
    """An allocation and its job, as stored; `pasts` are the stored states of its tasks by name."""

    allocation: Allocation
    job: Job
    pasts: Mapping[str, RestoredState]

    @property
    def is_to_run(self) -> bool:
        """Return whether the allocation should start or keep running."""
        return self.allocation.desired_status == DesiredStatus.RUN


class UnreadableAllocation(msgspec.Struct, frozen=True):
    """An allocation that cannot be loaded: its row, or that of its job, is damaged."""

    id: str
    error: Exception


def load_desired(
    db: ReadSnapshot,
    node_ids: Collection[str],
    after: int,
    failed: Collection[str],
    running_ids: Collection[str],
    now: int,
) -> tuple[int, list[DesiredAllocation], list[UnreadableAllocation]]:
    """Return the allocations that the scheduler has changed after the index `after`.

    The result has the index of the last change, the loaded allocations, and the unreadable ones. A
    negative `after` selects all allocations that should run. Allocations in `failed` are included
    even if unchanged. Allocations in `running_ids` have a runner, so the stored states of their
    tasks are not loaded.
    """
    changes = [change for node_id in node_ids for change in allocations.changed(db, node_id, after)]
    definitions: dict[tuple[str, str, int], Job | None] = {}
    desired, unreadable = list[DesiredAllocation](), list[UnreadableAllocation]()
    for alloc_id in dict.fromkeys((*failed, *(change.id for change in changes))):
        try:
            if (allocation := allocations.find(db, alloc_id)) is None:
                continue
            key = (allocation.namespace, allocation.job_id, allocation.job_version)
            if key not in definitions:
                definitions[key] = jobs.version(db, *key)
            if (job := definitions[key]) is not None:
                pasts = (
                    {} if allocation.id in running_ids else _restored_states(db, allocation, now)
                )
                desired.append(DesiredAllocation(allocation, job, pasts))
        except StorageUnreadable as error:
            unreadable.append(UnreadableAllocation(alloc_id, error))
    return max((change.modify_index for change in changes), default=after), desired, unreadable


def _restored_states(
    db: ReadSnapshot, allocation: Allocation, now: int
) -> dict[str, RestoredState]:
    """Return the state of each task of an allocation, by name, as an earlier daemon stored it."""
    states = allocation.client.task_states
    if not states:
        return {}
    handles = allocations.handles(db, allocation.id)
    return {
        task: _restored_state(db, allocation.id, task, handles.get(task, b""), state, now)
        for task, state in states.items()
    }


def _restored_state(
    db: ReadSnapshot, alloc_id: str, task: str, handle: bytes, state: TaskState, now: int
) -> RestoredState:
    if not state.restarts:
        return RestoredState(handle=handle)
    happened = allocations.newest_events(db, alloc_id, task, _REMEMBERED)
    restarts = [event for event in happened if event.type == task_events.RESTARTING]
    delay = 0.0
    if state.state == TaskPhase.PENDING and restarts:
        delay = seconds_left(restarts[-1].time, restarts[-1].start_delay, now)
    return RestoredState(
        handle=handle,
        restarts=tuple(event.time for event in restarts if event.restart_reason),
        delay=int(delay * SECOND),
    )
