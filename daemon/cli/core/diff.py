"""Differences between job versions as lines, each with its kind of change. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from storage.records.diff import (
    DiffType,
    FieldDiff,
    JobDiff,
    ObjectDiff,
    TaskDiff,
    TaskGroupDiff,
)

_MARKS = {DiffType.ADDED: "+", DiffType.DELETED: "-", DiffType.EDITED: "~", DiffType.NONE: " "}
_STEP = 2  # spaces per level of nesting


class DiffOutputLine(NamedTuple):
    """A line of a difference and its kind of change."""

    fate: DiffType
    words: str


def diff_lines(diff: JobDiff, *, verbose: bool) -> Iterator[DiffOutputLine]:
    """Yield the changes of a job, and the effect on its groups.

    With `verbose`, unchanged fields are included.
    """
    yield _line(diff.type, 0, f'job "{diff.id}"')
    yield from _content(diff, 1, verbose=verbose)
    for group in diff.task_groups or ():
        if verbose or group.updates or group.type != DiffType.NONE:
            yield from _group(group, verbose=verbose)


def _group(group: TaskGroupDiff, *, verbose: bool) -> Iterator[DiffOutputLine]:
    yield _line(group.type, 0, f'group "{group.name}"{_bracketed(_counts(group.updates))}')
    yield from _content(group, 1, verbose=verbose)
    for task in group.tasks or ():
        if verbose or task.type != DiffType.NONE:
            yield _line(task.type, 1, f'task "{task.name}"{_bracketed(task.annotations)}')
            yield from _content(task, 2, verbose=verbose)


def _counts(updates: Mapping[str, int] | None) -> list[str]:
    return [f"{number} {kind}" for kind, number in sorted((updates or {}).items())]


def _bracketed(words: Sequence[str] | None) -> str:
    return f" ({', '.join(words)})" if words else ""


def _content(
    job_diff: JobDiff | TaskGroupDiff | TaskDiff | ObjectDiff, depth: int, *, verbose: bool
) -> Iterator[DiffOutputLine]:
    for field in job_diff.fields or ():
        if verbose or field.type != DiffType.NONE:
            yield _line(field.type, depth, f"{_field(field)}{_bracketed(field.annotations)}")
    for block in job_diff.objects or ():
        if verbose or block.type != DiffType.NONE:
            yield _line(block.type, depth, block.name)
            yield from _content(block, depth + 1, verbose=verbose)


def _field(field: FieldDiff) -> str:
    match field.type:
        case DiffType.EDITED:
            return f'{field.name}: "{field.old}" => "{field.new}"'
        case DiffType.DELETED:
            return f'{field.name}: "{field.old}"'
        case _:
            return f'{field.name}: "{field.new}"'


def _line(diff_type: DiffType, depth: int, words: str) -> DiffOutputLine:
    return DiffOutputLine(diff_type, f"{' ' * _STEP * depth}{_MARKS[diff_type]} {words}")
