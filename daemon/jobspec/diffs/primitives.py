"""Elements of every diff: fields, lists of strings, blocks, and pairing of objects.

A diff omits unchanged blocks. It shows all values of a changed block with their old values.
Unchanged values give the context of a change (source: Nomad's recorded responses `plan`).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from itertools import zip_longest
from typing import Generic, TypeVar

import msgspec

from daemon.jobspec.diffs.flat import Flat, own_values
from storage.records.diff import DiffType, FieldDiff, ObjectDiff

T = TypeVar("T")
U = TypeVar("U")

Objects = list[ObjectDiff]

# Sort order of objects with the same name.
_ORDER = (DiffType.EDITED, DiffType.ADDED, DiffType.DELETED, DiffType.NONE)


class BeforeAfter(msgspec.Struct, Generic[T], frozen=True):
    """One object before and after a change.

    `old` or `new` is None if the object does not exist at that time.
    """

    old: T | None
    new: T | None

    def of(self, part: Callable[[T], U | None]) -> "BeforeAfter[U]":
        """Return the results of `part` for the object before and after the change."""
        old, new = self.old, self.new
        return BeforeAfter(None if old is None else part(old), None if new is None else part(new))

    @property
    def same(self) -> bool:
        """Return whether nothing changed."""
        return text_of(self.old) == text_of(self.new)

    @property
    def change_type(self) -> DiffType:
        """Return the type of the change. An empty object counts as missing."""
        if self.same:
            return DiffType.NONE
        if self.old and self.new:
            return DiffType.EDITED
        return DiffType.DELETED if self.old else DiffType.ADDED


def text_of(value: object) -> bytes:
    """Return a text that is the same only for equal values of the same type.

    The values themselves cannot be compared, because in Python 1 equals True.
    """
    return msgspec.json.encode(value, order="sorted")


# --- lists ---


def by_key(
    both: BeforeAfter[list[T]], key: Callable[[T], Hashable] = text_of
) -> list[BeforeAfter[T]]:
    """Pair objects by key; the nth old object with a key matches the nth new object with this key.

    The default key is the whole content. With this key, objects are only added or deleted.
    """
    old, new = _numbered(both.old or (), key), _numbered(both.new or (), key)
    return [
        BeforeAfter(old.get(numbered_key), new.get(numbered_key)) for numbered_key in {**old, **new}
    ]


def _numbered(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[tuple[Hashable, int], T]:
    seen: Counter[Hashable] = Counter()
    numbered = {}
    for element in items:
        name = key(element)
        numbered[name, seen[name]] = element
        seen[name] += 1
    return numbered


def pair_by_position(both: BeforeAfter[list[T]]) -> list[BeforeAfter[T]]:
    """Pair objects by their position in the list."""
    return [BeforeAfter(*pair) for pair in zip_longest(both.old or (), both.new or ())]


def diff_each(
    items: Iterable[BeforeAfter[T]], compare: Callable[[BeforeAfter[T]], Objects]
) -> Objects:
    """Return the changed items, sorted by name, then type of change, then content."""
    return sorted((diff for pair in items for diff in compare(pair)), key=_rank)


def _rank(object_diff: ObjectDiff) -> tuple[object, ...]:
    inner, objects = object_diff.fields or [], object_diff.objects or []
    return (
        object_diff.name,
        _ORDER.index(object_diff.type),
        len(inner),
        len(objects),
        [(field.name, field.old, field.new) for field in inner],
        [_rank(nested) for nested in objects],
    )


# --- fields ---


def fields(flat: BeforeAfter[Flat]) -> list[FieldDiff]:
    """Return the diffs of all fields, sorted by name, including unchanged fields."""
    old, new = flat.old or {}, flat.new or {}
    return [_field(name, old.get(name, ""), new.get(name, "")) for name in sorted({**old, **new})]


def changes(flat: BeforeAfter[Flat]) -> list[FieldDiff]:
    """Return the diffs of the changed fields, sorted by name."""
    return [field for field in fields(flat) if field.type != DiffType.NONE]


def _field(name: str, old: str, new: str) -> FieldDiff:
    if old == new:
        kind = DiffType.NONE
    elif not old:
        kind = DiffType.ADDED
    else:
        kind = DiffType.EDITED if new else DiffType.DELETED
    return FieldDiff(type=kind, name=name, old=old, new=new)


# --- objects ---


def block(
    name: str,
    both: BeforeAfter[T],
    *,
    flat: Callable[[T], Flat] = own_values,
    objects: Objects | None = None,
    show: Callable[[BeforeAfter[Flat]], list[FieldDiff]] = fields,
) -> Objects:
    """Return the diff of a block; empty if nothing changed.

    `flat` returns the values of a block, `show` selects the field diffs, and `objects` are the
    diffs of its children.
    """
    if both.same:
        return []
    return [_object(both.change_type, name, show(both.of(flat)), objects)]


def values(name: str, both: BeforeAfter[T], *, flat: Callable[[T], Flat] = own_values) -> Objects:
    """Return the diff of a block without children; empty if its values are equal."""
    return _unless_same(name, fields(both.of(flat)))


def texts(name: str, both: BeforeAfter[list[str]]) -> Objects:
    """Return the diff of an unordered list of strings; empty if both lists are empty."""
    old, new = set(both.old or ()), set(both.new or ())
    text_fields = [
        _field(name, text if text in old else "", text if text in new else "") for text in old | new
    ]
    text_fields.sort(key=lambda field: (field.old, field.new))
    return [_object(_overall(text_fields), name, text_fields)] if text_fields else []


def changed_texts(name: str, both: BeforeAfter[list[str]]) -> Objects:
    """Return the diff of an unordered list of strings; empty if both lists are equal."""
    return [text for text in texts(name, both) if text.type != DiffType.NONE]


def _unless_same(name: str, field_diffs: list[FieldDiff]) -> Objects:
    kind = _overall(field_diffs)
    return [] if kind == DiffType.NONE else [_object(kind, name, field_diffs)]


def _overall(field_diffs: Iterable[FieldDiff]) -> DiffType:
    """Return the type of change of an object with these fields."""
    types = {field_diff.type for field_diff in field_diffs} - {DiffType.NONE}
    if not types:
        return DiffType.NONE
    return types.pop() if len(types) == 1 else DiffType.EDITED


def _object(
    kind: DiffType, name: str, field_diffs: list[FieldDiff], objects: Objects | None = None
) -> ObjectDiff:
    return ObjectDiff(type=kind, name=name, fields=field_diffs or None, objects=objects or None)
