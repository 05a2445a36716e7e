"""Annotations that a plan adds to a diff: affected allocations and forced replacements."""

from collections.abc import Iterable, Mapping

import msgspec

from storage.records.diff import DiffType, FieldDiff, JobDiff, ObjectDiff, TaskDiff, TaskGroupDiff
from storage.records.evaluation import DesiredUpdates

CREATE = "forces create"
DESTROY = "forces destroy"
IN_PLACE = "forces in-place update"
REPLACE = "forces create/destroy update"

# Changes that do not replace running tasks.
_GENTLE_FIELDS = frozenset({"KillTimeout"})
_GENTLE_OBJECTS = frozenset({"Service", "Constraint", "Affinity", "LogConfig"})


def annotate(diff: JobDiff, updates: Mapping[str, DesiredUpdates]) -> JobDiff:
    """Return a diff annotated with the scheduler's actions for each group."""
    if diff.task_groups is None:
        return diff
    groups = [_group(group, updates.get(group.name)) for group in diff.task_groups]
    return msgspec.structs.replace(diff, task_groups=groups)


def _group(group: TaskGroupDiff, planned: DesiredUpdates | None) -> TaskGroupDiff:
    return msgspec.structs.replace(
        group,
        updates=_updates(planned) if planned else None,
        fields=group.fields and [_field(field) for field in group.fields],
        tasks=group.tasks and [_task(task, group.type) for task in group.tasks],
    )


def _updates(planned: DesiredUpdates) -> dict[str, int]:
    counts = {
        "ignore": planned.ignore,
        "create": planned.place,
        "migrate": planned.migrate,
        "destroy": planned.stop,
        "canary": planned.canary,
        "in-place update": planned.in_place_update,
        "create/destroy update": planned.destructive_update,
    }
    return {name: number for name, number in counts.items() if number}


def _field(field: FieldDiff) -> FieldDiff:
    if field.name != "Count":
        return field
    old, new = int(field.old or 0), int(field.new or 0)
    if old == new:
        return field
    return msgspec.structs.replace(field, annotations=[CREATE if old < new else DESTROY])


def _task(task: TaskDiff, group_type: DiffType) -> TaskDiff:
    if task.type == DiffType.NONE:
        return task
    return msgspec.structs.replace(task, annotations=[_forced(task, group_type)])


def _forced(task: TaskDiff, group_type: DiffType) -> str:
    if group_type == DiffType.ADDED:
        return CREATE
    if group_type == DiffType.DELETED:
        return DESTROY
    gentle = {field.name for field in task.fields or ()} <= _GENTLE_FIELDS
    return IN_PLACE if gentle and _all_gentle(task.objects or ()) else REPLACE


def _all_gentle(objects: Iterable[ObjectDiff]) -> bool:
    return all(
        object_.name in _GENTLE_OBJECTS and not _switches_logs(object_) for object_ in objects
    )


def _switches_logs(object_diff: ObjectDiff) -> bool:
    changed = [field.name for field in object_diff.fields or () if field.type != DiffType.NONE]
    return object_diff.name == "LogConfig" and "Disabled" in changed
