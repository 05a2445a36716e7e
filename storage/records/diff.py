"""What two jobs differ in, as plan and the list of versions show it."""

from collections.abc import Mapping
from enum import StrEnum

from storage.records.base import Record


class DiffType(StrEnum):
    """What became of something."""

    NONE = "None"
    ADDED = "Added"
    DELETED = "Deleted"
    EDITED = "Edited"


class FieldDiff(Record, frozen=True, kw_only=True):
    """A value as text, before and after; what is empty is not there."""

    type: DiffType
    name: str
    old: str
    new: str
    annotations: list[str] | None = None


class ObjectDiff(Record, frozen=True, kw_only=True):
    """A block or a list, with all its values, changed or not."""

    type: DiffType
    name: str
    fields: list[FieldDiff] | None = None
    objects: list["ObjectDiff"] | None = None


class TaskDiff(Record, frozen=True, kw_only=True):
    """A task."""

    type: DiffType
    name: str
    fields: list[FieldDiff] | None = None
    objects: list[ObjectDiff] | None = None
    annotations: list[str] | None = None


class TaskGroupDiff(Record, frozen=True, kw_only=True):
    """A task group; `updates` says how many of its allocations a plan treats in which way."""

    type: DiffType
    name: str
    fields: list[FieldDiff] | None = None
    objects: list[ObjectDiff] | None = None
    tasks: list[TaskDiff] | None = None
    updates: Mapping[str, int] | None = None


class JobDiff(Record, frozen=True, kw_only=True):
    """A whole job: changed fields and blocks, and every group that it has or had."""

    type: DiffType
    id: str
    fields: list[FieldDiff] | None = None
    objects: list[ObjectDiff] | None = None
    task_groups: list[TaskGroupDiff] | None = None
