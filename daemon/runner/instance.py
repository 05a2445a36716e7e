"""What a task is a part of, and what is known of it from before."""

import msgspec

from storage.records.allocation import Allocation
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import Task
from storage.records.workload import Workload


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """What a task is a part of: the allocation, as the scheduler wants it, and its definition."""

    allocation: Allocation
    job: Job
    group: TaskGroup

    @property
    def tasks(self) -> list[Task]:
        """Return the tasks of the group."""
        return self.group.tasks or []


def workload_of(instance: Instance, task: str) -> Workload:
    """Return a task as policies and tokens name it."""
    return Workload(
        iss="",
        sub="",
        aud=[],
        iat=0,
        nbf=0,
        jti="",
        nomad_namespace=instance.allocation.namespace,
        nomad_job_id=instance.job.parent_id or instance.job.id,
        nomad_allocation_id=instance.allocation.id,
        nomad_group=instance.group.name,
        nomad_task=task,
    )


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a task from before: an earlier daemon's time, or the making of its directory."""

    handle: bytes = b""  # what its driver keeps of the present attempt
    restarts: tuple[int, ...] = ()  # when its policy had it restarted, nanoseconds
    delay: int = 0  # nanoseconds that are left of a wait for the next attempt
    trouble: str = ""  # why it cannot be run at all
