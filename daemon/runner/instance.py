"""What a task is a part of: the allocation, as the scheduler wants it, and its definition."""

import msgspec

from storage.records.allocation import Allocation
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import Task


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """What a task is a part of: the allocation, as the scheduler wants it, and its definition."""

    allocation: Allocation
    job: Job
    group: TaskGroup

    @property
    def tasks(self) -> list[Task]:
        """Return the tasks of the group."""
        return self.group.tasks or []
