"""Lookup of allocations with their task groups."""

from storage.errors import NotFound
from storage.queries import allocations, jobs
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation
from storage.records.group import TaskGroup


def resolve_allocation(db: ReadSnapshot, alloc_id: str) -> tuple[Allocation, TaskGroup | None]:
    """Return an allocation and its task group. Raises `NotFound`."""
    allocation = allocations.find(db, alloc_id)
    if allocation is None:
        raise NotFound(f'Unknown allocation "{alloc_id}"')
    key = (allocation.namespace, allocation.job_id, allocation.job_version)
    job = jobs.version(db, *key)
    return allocation, job.group(allocation.task_group) if job else None
