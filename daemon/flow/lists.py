"""References to outputs, and lists of steps: one element for each item (`steward_for_each`) or combination (`steward_matrix`).

The list is computed when the step begins. It depends only on the job, or on an output of an earlier
step that does not change while the step can run, so it is not stored.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from daemon.jobspec.steward_meta import FOR_EACH, MATRIX, MAX_ELEMENTS
from storage.records.codec import encode
from storage.records.flow import RunStep
from storage.records.group import TaskGroup
from storage.records.job import Job

REFERENCE = re.compile(
    r"\$\{output\.([A-Za-z0-9_-]+)(?:\[([0-9]{1,5})\])?\.([A-Za-z_][A-Za-z0-9_]*)\}"
)
MAX_ITEM = 64 * 1024  # bytes: an environment variable has at most 128 KiB
_SHOWN = 40  # characters


class Reference(msgspec.Struct, frozen=True):
    """A reference to an output of a step, or of one of its elements."""

    step: str
    name: str
    element: int | None = None

    def __str__(self) -> str:
        index = "" if self.element is None else f"[{self.element}]"
        return f"{self.step}{index}.{self.name}"


def is_array(group: TaskGroup) -> bool:
    """Return whether the outputs of a step are lists."""
    return group.count != 1 or has_list(group)


def reference_in(text: str) -> Reference | None:
    """Return the reference that is the whole text; None for another text."""
    found = REFERENCE.fullmatch(text.strip())
    if found is None:
        return None
    step, element, name = found.groups()
    return Reference(step, name, int(element) if element else None)


class Faulty(Exception):
    """An output is no list; the message says why."""


class Item(msgspec.Struct, frozen=True):
    """An item of a list: its key, and its value as decoded JSON."""

    key: str
    value: object

    @property
    def text(self) -> str:
        """Return the value as a text, or as JSON."""
        return _text(self.value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def has_list(group: TaskGroup) -> bool:
    """Return whether the elements of a step come from a list."""
    meta = group.meta or {}
    return FOR_EACH.name in meta or MATRIX.name in meta


def source(group: TaskGroup) -> Reference | None:
    """Return the output that is the list of a step; None for a list in the job, or without one."""
    return reference_in(FOR_EACH.of(group.meta))


def items(group: TaskGroup, text: str = "") -> list[Item]:
    """Return the items of a step with a list; `text` is the output that `source` names.

    Raises `Faulty` if that is no list.
    """
    if matrix := MATRIX.of(group.meta):
        names = list(matrix)
        return [
            Item(",".join(map(_text, one)), dict(zip(names, one, strict=True)))
            for one in itertools.product(*matrix.values())
        ]
    written = text if source(group) is not None else FOR_EACH.of(group.meta)
    return list(_parsed(written))


def _parsed(text: str) -> Iterator[Item]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise Faulty(f"{text[:_SHOWN]!r} is not JSON") from None
    if isinstance(found, list):
        pairs: Iterable[tuple[str, object]] = ((str(at), one) for at, one in enumerate(found))
    elif isinstance(found, dict):
        pairs = ((str(key), one) for key, one in found.items())
    else:
        raise Faulty(f"{text[:_SHOWN]!r} is neither a list nor an object")
    if len(found) > MAX_ELEMENTS:
        raise Faulty(f"it has {len(found)} items; {MAX_ELEMENTS} is the most")
    for key, one in pairs:
        item = Item(key, one)
        if len(item.text.encode()) > MAX_ITEM or len(key.encode()) > MAX_ITEM:
            raise Faulty(f"item {key[:_SHOWN]!r} has more than {MAX_ITEM} bytes")
        yield item


def length(text: str) -> int:
    """Return the number of items in an output. Raises `Faulty` if that is no list."""
    return sum(1 for _ in _parsed(text))


def values(item: Item, index: int) -> dict[str, str]:
    """Return the references of an element to its item."""
    found = {"each.key": item.key, "each.value": item.text, "each.index": str(index)}
    if isinstance(item.value, dict):
        found |= {f"each.value.{name}": _text(one) for name, one in item.value.items()}
    return found


def environment(item: Item) -> dict[str, str]:
    """Return the variables of an element for its item."""
    return {"STEWARD_EACH_KEY": item.key, "STEWARD_EACH_VALUE": item.text}


def with_totals(job: Job, steps: Iterable[RunStep]) -> Job:
    """Return a job in which the groups with lists have the numbers of their elements."""
    groups = job.task_groups or []
    if not any(map(has_list, groups)):
        return job
    totals: Mapping[str, int] = {one.name: one.total for one in steps}
    sized = [
        msgspec.structs.replace(one, count=totals.get(one.name, 0)) if has_list(one) else one
        for one in groups
    ]
    return msgspec.structs.replace(job, task_groups=sized)
