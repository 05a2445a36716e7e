"""Allocations that calls name, with what they are instances of."""

from storage.errors import NotFound
from storage.queries import allocations, jobs
from storage.readers import Snapshot
from storage.records.allocation import Allocation
from storage.records.group import TaskGroup


def find_group(db: Snapshot, alloc_id: str) -> tuple[Allocation, TaskGroup | None]:
    """Return an allocation and the group that it is one of. Raises `NotFound`."""
    allocation = allocations.find(db, alloc_id)
    if allocation is None:
        raise NotFound(f'Unknown allocation "{alloc_id}"')
    key = (allocation.namespace, allocation.job_id, allocation.job_version)
    job = jobs.version(db, *key)
    return allocation, job.group(allocation.task_group) if job else None
