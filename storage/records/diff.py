"""The differences between two jobs, for plans and version lists."""

from collections.abc import Mapping
from enum import StrEnum

from storage.records.base import Record


class DiffType(StrEnum):
    """The type of a difference."""

    NONE = "None"
    ADDED = "Added"
    DELETED = "Deleted"
    EDITED = "Edited"


class FieldDiff(Record, frozen=True, kw_only=True):
    """A value before and after, as text; empty means absent."""

    type: DiffType
    name: str
    old: str
    new: str
    annotations: list[str] | None = None


class ObjectDiff(Record, frozen=True, kw_only=True):
    """A block or list with all its values, changed or not."""

    type: DiffType
    name: str
    fields: list[FieldDiff] | None = None
    objects: list["ObjectDiff"] | None = None


class TaskDiff(Record, frozen=True, kw_only=True):
    """The differences of one task."""

    type: DiffType
    name: str
    fields: list[FieldDiff] | None = None
    objects: list[ObjectDiff] | None = None
    annotations: list[str] | None = None


class TaskGroupDiff(Record, frozen=True, kw_only=True):
    """The differences of one group; `updates` counts allocations by the plan's action for them."""

    type: DiffType
    name: str
    fields: list[FieldDiff] | None = None
    objects: list[ObjectDiff] | None = None
    tasks: list[TaskDiff] | None = None
    updates: Mapping[str, int] | None = None


class JobDiff(Record, frozen=True, kw_only=True):
    """The differences of a job: changed fields and blocks, and all groups of either version."""

    type: DiffType
    id: str
    fields: list[FieldDiff] | None = None
    objects: list[ObjectDiff] | None = None
    task_groups: list[TaskGroupDiff] | None = None
