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


def group(one: TaskGroup, job: Job) -> Iterator[str]:
    """Yield the errors of a group of a job."""
    yield from _names(one)
    if one.disconnect is not None:
        yield from policies.disconnect(one.disconnect, job.type)
    yield from _max_run(one, job.type)
    yield from each("Constraint", one.constraints, constraint)
    yield from affinities(one.affinities, job.type)
    yield from policies.restart(one.restart_policy)
    yield from spreads(one.spreads, job.type)
    yield from _reschedule(one, job.type)
    yield from disk(one.ephemeral_disk)
    yield from _update(one, job.type)
    yield from _migrate(one, job.type)
    yield from _tasks_together(one)
    for name, wanted in sorted((one.volumes or {}).items()):
        subject = f"Task group volume validation for {name} failed"
        yield from wrap_error(subject, volume(wanted, one, job.type))
    yield from wrap_error("Task group network validation failed", networks(one))
    yield from wrap_error("Task group service validation failed", services.of_group(one))
    yield from wrap_error("Task group service check validation failed", services.script_checks(one))
    yield from wrap_error("Task group scaling policy validation failed", _scaling(one, job))
    for each_task in one.tasks or ():
        subject = f"Task {each_task.name} validation failed"
        yield from wrap_error(subject, task(each_task, one, job.type))


def _names(one: TaskGroup) -> Iterator[str]:
    if not one.name:
        yield "Missing task group name"
    elif "\0" in one.name:
        yield "Task group name contains null character"
    if one.count < 0:
        yield "Task group count can't be negative"
    if not one.tasks:
        yield "Missing tasks for task group"


def _max_run(one: TaskGroup, job_type: str) -> Iterator[str]:
    if one.max_run_duration is None:
        return
    if one.max_run_duration <= 0:
        yield "MaxRunDuration must be greater than zero"
    if job_type not in _ENDING:
        yield f'Job type "{job_type}" does not allow max_run_duration'


def _reschedule(one: TaskGroup, job_type: str) -> Iterator[str]:
    if one.reschedule_policy is None:
        return
    if job_type in _EVERYWHERE:
        yield "System or sysbatch jobs should not have a reschedule policy"
    else:
        yield from policies.reschedule(one.reschedule_policy)


def _update(one: TaskGroup, job_type: str) -> Iterator[str]:
    if one.update is None:
        return
    if job_type not in _UPDATED:
        yield f'Job type "{job_type}" does not allow update block'
    yield from policies.update(one.update)


def _migrate(one: TaskGroup, job_type: str) -> Iterator[str]:
    if one.migrate is None:
        return
    if job_type == JobType.SERVICE:
        yield from policies.migrate(one.migrate)
    else:
        yield f'Job type "{job_type}" does not allow migrate block'


def _tasks_together(one: TaskGroup) -> Iterator[str]:
    """Yield errors for duplicate task names and for a second leader."""
    first: dict[str, int] = {}
    tasks = one.tasks or []
    for number, each_task in enumerate(tasks, 1):
        if not each_task.name:
            yield f"Task {number} missing name"
        elif each_task.name in first:
            yield f"Task {number} redefines '{each_task.name}' from task {first[each_task.name]}"
        first.setdefault(each_task.name, number)
    if sum(each_task.leader for each_task in tasks) > 1:
        yield "Only one task may be marked as leader"


def _scaling(one: TaskGroup, job: Job) -> Iterator[str]:
    if one.scaling is None:
        return
    prefix, policy = "Scaling policy invalid: ", one.scaling
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
    if policy.max < one.count:
        yield f"{prefix}task group count must not be greater than maximum count in scaling policy"
    if one.count < policy.min:
        yield f"{prefix}task group count must not be less than minimum count in scaling policy"
