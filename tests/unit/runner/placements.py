"""Allocations as the scheduler places them."""

from typing import Any

from storage.records.allocation import (
    AllocatedCPU,
    AllocatedMemory,
    AllocatedResources,
    AllocatedShared,
    AllocatedTask,
    Allocation,
    ClientState,
    DesiredState,
    DesiredStatus,
    Placement,
)
from storage.records.evaluation import PlacementMetric
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import Resources


def placed(job: Job, node_id: str, alloc_id: str, index: int = 0, **fields: Any) -> Allocation:
    """Return an allocation of a job's last group."""
    *_, group = job.task_groups or ()
    given = {
        "id": alloc_id,
        "namespace": job.namespace,
        "job_id": job.id,
        "job_version": job.version,
        "job_type": job.type,
        "task_group": group.name,
        "name": f"{job.id}.{group.name}[{index}]",
        "node_id": node_id,
        "eval_id": "e1",
        "deployment_id": "",
        "desired_status": DesiredStatus.RUN,
        "client_status": "pending",
        "placement": Placement(
            resources=held(group), metrics=PlacementMetric(), node_name="node-1"
        ),
        "desired": DesiredState(),
        "client": ClientState(),
        "health": None,
        "create_index": 0,
        "modify_index": 0,
        "alloc_modify_index": 0,
        "create_time": 0,
        "modify_time": 0,
        **fields,
    }
    return Allocation(**given)


def held(group: TaskGroup) -> AllocatedResources:
    """Return the resources of the tasks of a group."""
    return AllocatedResources(
        tasks={task.name: _held(task.resources) for task in group.tasks or ()},
        task_lifecycles={task.name: task.lifecycle for task in group.tasks or ()},
        shared=AllocatedShared(disk_mb=group.ephemeral_disk.size_mb),
    )


def _held(resources: Resources) -> AllocatedTask:
    return AllocatedTask(
        cpu=AllocatedCPU(cpu_shares=resources.cpu),
        memory=AllocatedMemory(
            memory_mb=resources.memory_mb, memory_max_mb=resources.memory_max_mb
        ),
    )
