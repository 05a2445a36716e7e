"""Lookup of allocations with their task groups.

A job definition can be several megabytes long, so a long definition is decoded in a thread.
"""

from functools import partial

from storage.errors import NotFound
from storage.queries import allocations, jobs
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation
from storage.records.group import TaskGroup
from storage.store import Store


def load_allocation(db: ReadSnapshot, alloc_id: str) -> Allocation:
    """Return an allocation. Raises `NotFound`."""
    allocation = allocations.find(db, alloc_id)
    if allocation is None:
        raise NotFound(f'Unknown allocation "{alloc_id}"')
    return allocation


async def find_allocation(store: Store, alloc_id: str) -> Allocation:
    """Return an allocation. Raises `NotFound`."""
    return await store.read_any(partial(load_allocation, alloc_id=alloc_id))


async def resolve_allocation(store: Store, alloc_id: str) -> tuple[Allocation, TaskGroup | None]:
    """Return an allocation and its task group. Raises `NotFound`."""

    def read(db: ReadSnapshot) -> tuple[Allocation, TaskGroup | None]:
        allocation = load_allocation(db, alloc_id)
        key = (allocation.namespace, allocation.job_id, allocation.job_version)
        job = jobs.version(db, *key)
        return allocation, job.group(allocation.task_group) if job else None

    return await store.read_any(read)
