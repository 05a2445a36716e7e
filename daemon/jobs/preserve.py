"""Keep values of the current version in an update: group counts and task resources."""

from msgspec.structs import replace

from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import Task


def preserve(job: Job, before: Job | None, *, counts: bool, resources: bool) -> Job:
    """Return the job with counts or resources taken from `before`, its current version.

    Only groups and tasks that both versions have are changed (source: Nomad's recorded responses
    `preserve-counts`, `preserve-resources`).
    """
    if before is None or not (counts or resources):
        return job
    present = {group.name: group for group in before.task_groups or ()}
    groups = [
        _group(group, present[group.name], counts=counts, resources=resources)
        if group.name in present
        else group
        for group in job.task_groups or ()
    ]
    return replace(job, task_groups=groups)


def _group(group: TaskGroup, before: TaskGroup, *, counts: bool, resources: bool) -> TaskGroup:
    group_with_count = replace(group, count=before.count) if counts else group
    return (
        replace(group_with_count, tasks=_tasks(group_with_count, before))
        if resources
        else group_with_count
    )


def _tasks(group: TaskGroup, before: TaskGroup) -> list[Task] | None:
    present = {task.name: task for task in before.tasks or ()}
    return group.tasks and [
        replace(task, resources=present[task.name].resources) if task.name in present else task
        for task in group.tasks
    ]
