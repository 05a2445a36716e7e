"""The allocation of a task, and the state that an earlier daemon left."""

import msgspec

from storage.records.allocation import Allocation
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import Task
from storage.records.workload import Workload


class TaskInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation, with its job and its task group."""

    allocation: Allocation
    job: Job
    group: TaskGroup

    @property
    def tasks(self) -> list[Task]:
        """Return the tasks of the group."""
        return self.group.tasks or []


def workload(instance: TaskInstance, task: str) -> Workload:
    """Return the workload identity of a task, as used in policies and tokens."""
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


class RestoredState(msgspec.Struct, frozen=True, kw_only=True):
    """The initial state of a task runner. An earlier daemon stored all of it except `trouble`."""

    handle: bytes = b""  # the driver's handle of the current attempt
    restarts: tuple[int, ...] = ()  # times of the restarts by policy, nanoseconds
    delay: int = 0  # remaining wait for the next attempt, nanoseconds
    trouble: str = ""  # why the task cannot run at all
