"""Filters of allocation lists. They see all fields of an allocation, also those that lists omit."""

from collections.abc import Mapping

import msgspec

from daemon.jobspec.filter import compile_filter
from storage.queries import allocations, jobs
from storage.read_pool import ReadSnapshot
from storage.records import allocation_views
from storage.records.allocation import (
    AllocatedResources,
    Allocation,
    NetworkStatus,
    TaskStateWithEvents,
)
from storage.records.allocation_views import AllocationStub
from storage.records.codec import encode, parse
from storage.records.evaluation import PlacementMetric
from storage.records.job import Job
from storage.records.task import Resources

_JobKey = tuple[str, str, int]  # namespace, ID, version


class FilteredAllocation(AllocationStub, frozen=True, kw_only=True):
    """An allocation as filters see it: the fields of a listing and of a single allocation."""

    job: Job | None
    resources: Resources
    shared_resources: Resources
    task_resources: Mapping[str, Resources]
    allocated_resources: AllocatedResources
    metrics: PlacementMetric
    task_states: Mapping[str, TaskStateWithEvents] | None
    previous_allocation: str = ""
    deployment_id: str = ""
    network_status: NetworkStatus | None = None
    signing_key_id: str = ""
    alloc_modify_index: int


_IN_LISTS = frozenset(field.encode_name for field in msgspec.structs.fields(AllocationStub))


class AllocationFilter:
    """A filter for the allocations of one request. Raises `Malformed`."""

    def __init__(self, text: str) -> None:
        self.matches = compile_filter(text, FilteredAllocation)
        names = self.matches.names
        self._needs_states = "TaskStates" in names
        self._needs_details = not names <= _IN_LISTS
        self._jobs: dict[_JobKey, tuple[Job | None, object]] = {}

    def __call__(self, db: ReadSnapshot, allocation: Allocation) -> bool:
        """Return whether an allocation matches. Only fields that the filter names are read."""
        states = allocations.task_states(db, allocation) if self._needs_states else None
        stub = allocation_views.allocation_list_item(allocation, states)
        document: dict[str, object] = msgspec.to_builtins(stub)
        if self._needs_details:
            job, wire = self._job(db, allocation)
            view = allocation_views.allocation_view(allocation, None, job, b"null")
            details = msgspec.json.decode(encode(view), type=dict[str, object])
            document = details | document | {"Job": wire}
        return self.matches(document)

    def _job(self, db: ReadSnapshot, allocation: Allocation) -> tuple[Job | None, object]:
        """Return the job version of an allocation, as a record and as a document."""
        key = (allocation.namespace, allocation.job_id, allocation.job_version)
        if key not in self._jobs:
            wire = jobs.registered_wire(db, *key)
            self._jobs[key] = jobs.version(db, *key), parse(wire) if wire else None
        return self._jobs[key]
