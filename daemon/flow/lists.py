"""References to outputs, and the lists that define the elements of steps.

A step has one element for each item of a list (`steward_for_each`), or for each combination of the
items of several lists (`steward_matrix`). The list is computed when the step begins, and is not
stored. It depends only on the job, or on an output of an earlier step. That output does not change
while the step can run.
"""

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from daemon.jobspec.steward_meta.step_keys import FOR_EACH, MATRIX, NEEDS, list_length
from daemon.jobspec.steward_meta.step_values import MAX_ELEMENTS, read_nested
from storage.errors import Invalid
from storage.records.codec import encode
from storage.records.flow import RunStep
from storage.records.group import TaskGroup
from storage.records.job import Job

REFERENCE = re.compile(
    r"\$\{output\.([A-Za-z0-9_-]+)(?:\[([0-9]{1,5})\])?\.([A-Za-z_][A-Za-z0-9_]*)\}"
)
MAX_RUN_ELEMENTS = 100_000  # elements of all steps of a run
MAX_ITEM = 64 * 1024  # bytes: an environment variable has at most 128 KiB
_SHOWN = 40  # characters
_ANY = msgspec.json.Decoder(object)


class Reference(msgspec.Struct, frozen=True):
    """A reference to an output of a step, or of one of its elements."""

    step: str
    name: str
    element: int | None = None

    def __str__(self) -> str:
        index = "" if self.element is None else f"[{self.element}]"
        return f"{self.step}{index}.{self.name}"


EACH = "[i]"  # suffix of a need: an element awaits only the element with the same index


def element_needs(group: TaskGroup) -> tuple[str, ...]:
    """Return the groups that a group needs element by element."""
    if EACH not in (group.meta or {}).get(NEEDS.name, ""):
        return ()
    return tuple(need.removesuffix(EACH) for need in NEEDS.of(group.meta) if need.endswith(EACH))


def owners(groups: Iterable[TaskGroup]) -> dict[str, TaskGroup]:
    """Return for each group the group that defines its elements, possibly the group itself."""
    by_name = {task_group.name: task_group for task_group in groups}
    result = dict[str, TaskGroup]()
    for group in by_name.values():
        path = [group]
        while path[-1].name not in result and (nearer := _nearer(path[-1], by_name)) is not None:
            if len(path) > len(by_name):  # a cycle, which registration refuses
                break
            path.append(nearer)
        own = result.get(path[-1].name, path[-1])
        result |= {task_group.name: own for task_group in path}
    return result


def _nearer(group: TaskGroup, by_name: Mapping[str, TaskGroup]) -> TaskGroup | None:
    """Return the group from which a group takes its elements, or None.

    The result is None if the group has its own count or list, or needs no group element by element.
    """
    needs = element_needs(group)
    return by_name.get(needs[0]) if needs and group.count == 1 and not has_list(group) else None


def resolved(groups: Sequence[TaskGroup]) -> list[TaskGroup]:
    """Return the groups, and copy counts and lists to the groups that take them from others."""
    if not any(map(element_needs, groups)):
        return [*groups]
    own = owners(groups)
    return [_with_elements(group, own[group.name]) for group in groups]


def _with_elements(group: TaskGroup, owner: TaskGroup) -> TaskGroup:
    if owner is group:
        return group
    meta = owner.meta or {}
    keys = {key.name: meta[key.name] for key in (FOR_EACH, MATRIX) if key.name in meta}
    return msgspec.structs.replace(group, count=owner.count, meta={**(group.meta or {}), **keys})


def resolved_group(job: Job, name: str) -> TaskGroup | None:
    """Return a group of a job, with the count or list that it takes from another group."""
    return resolved_groups(job).get(name)


def resolved_groups(job: Job) -> Mapping[str, TaskGroup]:
    """Return the groups of a job by name, with counts and lists from other groups resolved."""
    return _RESOLVED.of(job)


class _LastResolved:
    """A cache of the groups that were resolved last.

    Each start of a step reads the groups, and a job may have thousands of groups. Repeated reads of
    a long definition from the store return the same group objects.
    """

    def __init__(self) -> None:
        self._last: tuple[list[TaskGroup] | None, Mapping[str, TaskGroup]] = (None, {})

    def of(self, job: Job) -> Mapping[str, TaskGroup]:
        """Return the resolved groups of a job by name."""
        groups, by_name = self._last
        if groups is None or groups is not job.task_groups:
            by_name = {group.name: group for group in resolved(job.task_groups or [])}
            self._last = (job.task_groups, by_name)
        return by_name


_RESOLVED = _LastResolved()


def is_array(group: TaskGroup) -> bool:
    """Return whether the outputs of a step are lists."""
    return group.count != 1 or has_list(group)


def reference_in(text: str) -> Reference | None:
    """Return the reference in a text that consists only of a reference; None for any other text."""
    match = REFERENCE.fullmatch(text.strip())
    if match is None:
        return None
    step, element, name = match.groups()
    return Reference(step, name, int(element) if element else None)


class Faulty(Exception):
    """An output is not a valid list; the message is the reason."""


class Item(msgspec.Struct, frozen=True):
    """An item of a list: its key, and its value as decoded JSON."""

    key: str
    value: object

    @property
    def text(self) -> str:
        """Return the value as a string, or as JSON."""
        return _text(self.value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def has_list(group: TaskGroup) -> bool:
    """Return whether the elements of a step come from a list."""
    meta = group.meta or {}
    return FOR_EACH.name in meta or MATRIX.name in meta


def source(group: TaskGroup) -> Reference | None:
    """Return the reference to the output that is a step's list; None if no output is its list."""
    return reference_in(FOR_EACH.of(group.meta))


def count(group: TaskGroup) -> int:
    """Return the number of elements of a step; 0 if its list is an output, or is not valid."""
    number = list_length(group.meta)
    return group.count if number is None else number


def item(group: TaskGroup, index: int, text: str = "") -> Item:
    """Return the item of an element; `text` is the output that `source` names.

    Raises `Faulty` if the output is not a list, or has no such item.
    """
    matrix = MATRIX.of(group.meta)
    if matrix:
        entries: Collection[object] = ()
        total = math.prod(map(len, matrix.values()))
    else:
        entries = _decoded(text if source(group) is not None else FOR_EACH.of(group.meta))
        total = len(entries)
    if not 0 <= index < total:
        raise Faulty(f"it has {total} items, and none for element {index}")
    if matrix:
        return _checked(_combination(matrix, index))
    return _checked(next(itertools.islice(_items(entries), index, None)))


def items(group: TaskGroup, indexes: Iterable[int], text: str = "") -> Iterator[Item]:
    """Yield the items of several elements, like `item`, but decode the list only once."""
    if MATRIX.of(group.meta):
        yield from (item(group, index) for index in indexes)
        return
    entries = list(_items(_decoded(text if source(group) is not None else FOR_EACH.of(group.meta))))
    for index in indexes:
        if not 0 <= index < len(entries):
            raise Faulty(f"it has {len(entries)} items, and none for element {index}")
        yield _checked(entries[index])


def _combination(matrix: Mapping[str, Sequence[object]], index: int) -> Item:
    """Return the combination at a position; the last list changes fastest."""
    chosen: dict[str, object] = {}
    for name in reversed(tuple(matrix)):
        index, position = divmod(index, len(matrix[name]))
        chosen[name] = matrix[name][position]
    combination = {name: chosen[name] for name in matrix}
    return Item(",".join(map(_text, combination.values())), combination)


def check(group: TaskGroup) -> None:
    """Check the items of a list in the job. Raises `Faulty`."""
    if matrix := MATRIX.of(group.meta):
        longest = {name: max(values, key=_size) for name, values in matrix.items()}
        if _size(longest) > MAX_ITEM:
            raise Faulty(f"its longest combination has more than {MAX_ITEM} bytes")
    elif source(group) is None and (text := FOR_EACH.of(group.meta)):
        length(text)  # a list with a wrong form has its own error


def _size(value: object) -> int:
    return len(encode(value))


def length(text: str) -> int:
    """Return the number of list items in an output. Raises `Faulty` if it is not a list."""
    decoded = _decoded(text)
    for entry in _items(decoded):
        _checked(entry)
    return len(decoded)


def _decoded(text: str) -> Collection[object]:
    """Decode a JSON list or object. Raises `Faulty`."""
    try:
        decoded = read_nested(_ANY, text)
    except msgspec.DecodeError:
        raise Faulty(f"{text[:_SHOWN]!r} is not JSON") from None
    except Invalid as error:
        raise Faulty(f"it {error}") from None
    if not isinstance(decoded, list | dict):
        raise Faulty(f"{text[:_SHOWN]!r} is neither a list nor an object")
    if len(decoded) > MAX_ELEMENTS:
        raise Faulty(f"it has {len(decoded)} items; the maximum is {MAX_ELEMENTS}")
    return decoded


def _items(decoded: Collection[object]) -> Iterator[Item]:
    if isinstance(decoded, dict):
        yield from (Item(str(key), value) for key, value in decoded.items())
    else:
        yield from (Item(str(index), value) for index, value in enumerate(decoded))


def _checked(list_item: Item) -> Item:
    """Return an item that is not too long. Raises `Faulty`."""
    if len(list_item.text.encode()) > MAX_ITEM or len(list_item.key.encode()) > MAX_ITEM:
        raise Faulty(f"item {list_item.key[:_SHOWN]!r} has more than {MAX_ITEM} bytes")
    return list_item


def values(list_item: Item, index: int) -> dict[str, str]:
    """Return the values for references to an element's item, such as `each.key`."""
    result = {"each.key": list_item.key, "each.value": list_item.text, "each.index": str(index)}
    if isinstance(list_item.value, dict):
        result |= {f"each.value.{name}": _text(value) for name, value in list_item.value.items()}
    return result


def environment(list_item: Item) -> dict[str, str]:
    """Return the environment variables that describe an element's item."""
    return {"STEWARD_EACH_KEY": list_item.key, "STEWARD_EACH_VALUE": list_item.text}


def has_lists(job: Job) -> bool:
    """Return whether there is a group whose number of elements may differ from its own count."""
    return _LISTS.are_in(job)


class _LastLists:
    """A cache of the last result of `has_lists`; it compares the identity of the list of groups."""

    def __init__(self) -> None:
        self._last: tuple[object, bool] = (None, False)

    def are_in(self, job: Job) -> bool:
        """Return whether a job has lists."""
        groups, found = self._last
        if groups is not None and groups is job.task_groups:
            return found
        found = any(
            FOR_EACH.name in meta or MATRIX.name in meta or EACH in meta.get(NEEDS.name, "")
            for group in job.task_groups or ()
            if (meta := group.meta)
        )
        self._last = (job.task_groups, found)
        return found


_LISTS = _LastLists()


def with_totals(job: Job, steps: Iterable[RunStep]) -> Job:
    """Return a copy of the job in which the count of each group is its number of elements."""
    groups = job.task_groups or []
    if not has_lists(job):
        return job
    totals: Mapping[str, int] = {step.name: step.total for step in steps}
    sized = [
        msgspec.structs.replace(
            group, count=totals.get(group.name, 0) if has_list(own) else own.count
        )
        for group, own in zip(groups, resolved(groups), strict=True)
    ]
    return msgspec.structs.replace(job, task_groups=sized)
