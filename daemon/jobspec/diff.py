"""Differences between two versions of a job, for plans and version lists.

The diff compares complete jobs, so the syntax of a job file does not matter. The diff of an
unchanged job has the type `None`. A diff shows changed fields, and changed blocks with all their
values. It always shows groups and tasks (fixtures: plan, plan-batch-system,
versions-revert-stable).
"""

from functools import partial

import msgspec

from daemon.jobspec.diffs import blocks
from daemon.jobspec.diffs.flat import Flat, free_values, own_values
from daemon.jobspec.diffs.primitives import (
    BeforeAfter,
    Objects,
    block,
    by_key,
    changed_texts,
    changes,
    values,
)
from daemon.jobspec.diffs.services import services
from storage.records.codec import HEAD_FIELDS
from storage.records.diff import DiffType, JobDiff, TaskDiff, TaskGroupDiff
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import Task

# The author of a registration is not part of the definition.
_NOT_OF_JOB = frozenset({*HEAD_FIELDS, "ID", "NomadTokenID"})


def diff_jobs(old: Job | None, new: Job) -> JobDiff:
    """Return the changes from `old` to `new`; without `old`, everything is added."""
    both = BeforeAfter(old, new)
    field_changes = changes(both.of(partial(own_values, hidden=_NOT_OF_JOB)))
    objects = _objects_of_job(both)
    group_pairs = by_key(both.of(lambda job: job.task_groups), lambda group: group.name)
    groups = sorted(map(_group, group_pairs), key=lambda group: group.name)
    is_edited = field_changes or objects or any(group.type != DiffType.NONE for group in groups)
    kind = DiffType.EDITED if is_edited else DiffType.NONE
    return JobDiff(
        type=kind if old else DiffType.ADDED,
        id=new.id,
        fields=field_changes or None,
        objects=objects or None,
        task_groups=groups or None,
    )


def _objects_of_job(both: BeforeAfter[Job]) -> Objects:
    return [
        *changed_texts("Datacenters", both.of(lambda job: job.datacenters)),
        *blocks.constraints(both.of(lambda job: job.constraints)),
        *blocks.affinities(both.of(lambda job: job.affinities)),
        *blocks.spreads(both.of(lambda job: job.spreads)),
        *blocks.periodic(both.of(lambda job: job.periodic)),
        *blocks.parameterized(both.of(lambda job: job.parameterized_job)),
        *blocks.ui(both.of(lambda job: job.ui)),
    ]


# --- groups ---


def _group(both: BeforeAfter[TaskGroup]) -> TaskGroupDiff:
    task_pairs = by_key(both.of(lambda group: group.tasks), lambda task: task.name)
    flat = _values_of_changed_group if both.old and both.new else _values_of_group
    group = TaskGroupDiff(
        type=both.change_type,
        name=_name(both),
        tasks=sorted(map(_task, task_pairs), key=lambda task: task.name) or None,
    )
    if group.type == DiffType.NONE:
        return group
    return msgspec.structs.replace(
        group,
        fields=changes(both.of(flat)) or None,
        objects=_objects_of_group(both) or None,
    )


def _name(both: BeforeAfter[TaskGroup] | BeforeAfter[Task]) -> str:
    group_or_task = both.new or both.old
    return group_or_task.name if group_or_task else ""


def _values_of_group(group: TaskGroup) -> Flat:
    return own_values(group, hidden=("Name",))


def _values_of_changed_group(group: TaskGroup) -> Flat:
    delay = group.shutdown_delay
    return _values_of_group(group) | {"ShutdownDelay": "" if delay is None else str(delay)}


def _objects_of_group(both: BeforeAfter[TaskGroup]) -> Objects:
    update = partial(own_values, hidden=("Stagger",))  # a group does not use this field
    return [
        *blocks.constraints(both.of(lambda group: group.constraints)),
        *blocks.affinities(both.of(lambda group: group.affinities)),
        *blocks.spreads(both.of(lambda group: group.spreads)),
        *values("RestartPolicy", both.of(lambda group: group.restart_policy)),
        *values("Migrate", both.of(lambda group: group.migrate)),
        *values("ReschedulePolicy", both.of(lambda group: group.reschedule_policy)),
        *values("EphemeralDisk", both.of(lambda group: group.ephemeral_disk)),
        *values("Consul", both.of(lambda group: group.consul)),
        *values("Update", both.of(lambda group: group.update), flat=update),
        *blocks.disconnect(both.of(lambda group: group.disconnect)),
        *blocks.networks(both.of(lambda group: group.networks)),
        *blocks.scaling(both.of(lambda group: group.scaling)),
        *services(both.of(lambda group: group.services)),
        *blocks.volumes(both.of(lambda group: group.volumes)),
    ]


# --- tasks ---


def _task(both: BeforeAfter[Task]) -> TaskDiff:
    if both.same:
        return TaskDiff(type=DiffType.NONE, name=_name(both))
    return TaskDiff(
        type=both.change_type,
        name=_name(both),
        fields=changes(both.of(partial(own_values, hidden=("Name",)))) or None,
        objects=_objects_of_task(both) or None,
    )


def _objects_of_task(both: BeforeAfter[Task]) -> Objects:
    schedule = both.of(lambda task: task.schedule).of(lambda schedule: schedule.cron)
    return [
        *blocks.constraints(both.of(lambda task: task.constraints)),
        *blocks.affinities(both.of(lambda task: task.affinities)),
        *blocks.config(both.of(lambda task: task.config)),
        *blocks.resources(both.of(lambda task: task.resources)),
        *values("LogConfig", both.of(lambda task: task.log_config)),
        *values("DispatchPayload", both.of(lambda task: task.dispatch_payload)),
        *blocks.artifacts(both.of(lambda task: task.artifacts)),
        *services(both.of(lambda task: task.services)),
        *block("Vault", both.of(lambda task: task.secrets_config)),
        *blocks.secrets(both.of(lambda task: task.secrets)),
        *values("Consul", both.of(lambda task: task.consul)),
        *blocks.templates(both.of(lambda task: task.templates)),
        *blocks.identity(both.of(lambda task: task.identity)),
        *blocks.identities(both.of(lambda task: task.identities)),
        *blocks.actions(both.of(lambda task: task.actions)),
        *blocks.volume_mounts(both.of(lambda task: task.volume_mounts)),
        *values("Schedule", schedule, flat=free_values),
    ]
