"""Small sample objects for tests. Each function takes the fields that matter to the test."""

from typing import Any

import msgspec

from storage.records.evaluation import EvalStatus, Evaluation, Trigger
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import Resources, Task

NOW = 1_795_225_200_000_000_000  # 2026-11-21T01:40:00Z


def task(name: str = "main", **fields: Any) -> Task:
    given = {
        "driver": "raw_exec",
        "config": {"command": "/bin/true"},
        "resources": Resources(cpu=20, memory_mb=20),
        **fields,
    }
    return Task(name=name, **given)


def group(name: str = "web", *tasks: Task, **fields: Any) -> TaskGroup:
    return TaskGroup(name=name, tasks=list(tasks) or [task()], **fields)


def job(job_id: str = "web", *groups: TaskGroup, **fields: Any) -> Job:
    given = {"name": job_id, "datacenters": ["*"], "submit_time": NOW, **fields}
    return Job(id=job_id, task_groups=list(groups) or [group()], **given)


def evaluation(job: Job, eval_id: str = "e1", **fields: Any) -> Evaluation:
    return msgspec.structs.replace(
        Evaluation(
            id=eval_id,
            namespace=job.namespace,
            priority=job.priority,
            type=job.type,
            triggered_by=Trigger.JOB_REGISTER,
            job_id=job.id,
            status=EvalStatus.PENDING,
            create_index=0,
            modify_index=0,
            create_time=0,
            modify_time=0,
        ),
        **fields,
    )
