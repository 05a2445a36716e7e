"""Validation of task groups: policies, networks, volumes, services and tasks."""

from collections.abc import Iterator

from daemon.jobspec.rules import policies, services
from daemon.jobspec.rules.constraints import affinities, constraint, each, spreads
from daemon.jobspec.rules.network import networks
from daemon.jobspec.rules.resources import disk
from daemon.jobspec.rules.task import task
from daemon.jobspec.rules.volumes import volume
from daemon.text.go_format import wrap_error
from storage.records.group import TaskGroup
from storage.records.job import Job, JobType

_ENDING = frozenset({JobType.BATCH, JobType.SYSBATCH})
_UPDATED = frozenset({JobType.SERVICE, JobType.SYSTEM})
_EVERYWHERE = frozenset({JobType.SYSTEM, JobType.SYSBATCH})


def group(group: TaskGroup, job: Job) -> Iterator[str]:
    """Yield the errors of a group of a job."""
    yield from _names(group)
    if group.disconnect is not None:
        yield from policies.disconnect(group.disconnect, job.type)
    yield from _max_run(group, job.type)
    yield from each("Constraint", group.constraints, constraint)
    yield from affinities(group.affinities, job.type)
    yield from policies.restart(group.restart_policy)
    yield from spreads(group.spreads, job.type)
    yield from _reschedule(group, job.type)
    yield from disk(group.ephemeral_disk)
    yield from _update(group, job.type)
    yield from _migrate(group, job.type)
    yield from _tasks_together(group)
    for name, request in sorted((group.volumes or {}).items()):
        subject = f"Task group volume validation for {name} failed"
        yield from wrap_error(subject, volume(request, group, job.type))
    yield from wrap_error("Task group network validation failed", networks(group))
    yield from wrap_error("Task group service validation failed", services.of_group(group))
    yield from wrap_error(
        "Task group service check validation failed", services.script_checks(group)
    )
    yield from wrap_error("Task group scaling policy validation failed", _scaling(group, job))
    for each_task in group.tasks or ():
        subject = f"Task {each_task.name} validation failed"
        yield from wrap_error(subject, task(each_task, group, job.type))


def _names(group: TaskGroup) -> Iterator[str]:
    if not group.name:
        yield "Missing task group name"
    elif "\0" in group.name:
        yield "Task group name contains null character"
    if group.count < 0:
        yield "Task group count can't be negative"
    if not group.tasks:
        yield "Missing tasks for task group"


def _max_run(group: TaskGroup, job_type: str) -> Iterator[str]:
    if group.max_run_duration is None:
        return
    if group.max_run_duration <= 0:
        yield "MaxRunDuration must be greater than zero"
    if job_type not in _ENDING:
        yield f'Job type "{job_type}" does not allow max_run_duration'


def _reschedule(group: TaskGroup, job_type: str) -> Iterator[str]:
    if group.reschedule_policy is None:
        return
    if job_type in _EVERYWHERE:
        yield "System or sysbatch jobs should not have a reschedule policy"
    else:
        yield from policies.reschedule(group.reschedule_policy)


def _update(group: TaskGroup, job_type: str) -> Iterator[str]:
    if group.update is None:
        return
    if job_type not in _UPDATED:
        yield f'Job type "{job_type}" does not allow update block'
    yield from policies.update(group.update)


def _migrate(group: TaskGroup, job_type: str) -> Iterator[str]:
    if group.migrate is None:
        return
    if job_type == JobType.SERVICE:
        yield from policies.migrate(group.migrate)
    else:
        yield f'Job type "{job_type}" does not allow migrate block'


def _tasks_together(group: TaskGroup) -> Iterator[str]:
    """Yield errors for duplicate task names and for a second leader."""
    first: dict[str, int] = {}
    tasks = group.tasks or []
    for number, each_task in enumerate(tasks, 1):
        if not each_task.name:
            yield f"Task {number} missing name"
        elif each_task.name in first:
            yield f"Task {number} redefines '{each_task.name}' from task {first[each_task.name]}"
        first.setdefault(each_task.name, number)
    if sum(each_task.leader for each_task in tasks) > 1:
        yield "Only one task may be marked as leader"


def _scaling(group: TaskGroup, job: Job) -> Iterator[str]:
    if group.scaling is None:
        return
    prefix, policy = "Scaling policy invalid: ", group.scaling
    if policy.type != "horizontal":
        yield f'{prefix}scaling policy type "{policy.type}" is not valid'
    else:
        missing = [name for name, value in (policy.target or {}).items() if not value]
        for name in missing:
            yield f"{prefix}missing target {name.lower()}"
    if policy.max < 0:
        yield f"{prefix}maximum count must be specified and non-negative"
    elif policy.max < policy.min:
        yield f"{prefix}maximum count must not be less than minimum count"
    if policy.min < 0:
        yield f"{prefix}minimum count must be specified and non-negative"
    if policy.max < group.count:
        yield f"{prefix}task group count must not be greater than maximum count in scaling policy"
    if group.count < policy.min:
        yield f"{prefix}task group count must not be less than minimum count in scaling policy"
