"""What every diff is made of: fields, lists of texts, blocks, and what stands across from what.

A block that did not change is left out; of one that did all values are shown, with what they were,
because a change is easier to read beside what stayed (golden: plan).
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

# Objects of one name stand in this order.
_ORDER = (DiffType.EDITED, DiffType.ADDED, DiffType.DELETED, DiffType.NONE)


class Both(msgspec.Struct, Generic[T], frozen=True):
    """One thing before and after; None where there is no such thing."""

    old: T | None
    new: T | None

    def of(self, part: Callable[[T], U | None]) -> "Both[U]":
        """Return a part of it, or another view of it."""
        old, new = self.old, self.new
        return Both(None if old is None else part(old), None if new is None else part(new))

    @property
    def same(self) -> bool:
        """Tell whether nothing changed."""
        return text_of(self.old) == text_of(self.new)

    @property
    def fate(self) -> DiffType:
        """Return what became of it; what is empty is not there."""
        if self.same:
            return DiffType.NONE
        if self.old and self.new:
            return DiffType.EDITED
        return DiffType.DELETED if self.old else DiffType.ADDED


def text_of(value: object) -> bytes:
    """Return anything as a text that is equal when it is: in Python 1 and True are equal, too."""
    return msgspec.json.encode(value, order="sorted")


# ---- lists ------------------------------------------------------------------------------------------


def by_key(both: Both[list[T]], key: Callable[[T], Hashable] = text_of) -> list[Both[T]]:
    """Return what stands across from what by a key; the second of a key across from the second.

    Without a key nothing can change: it is there or not.
    """
    old, new = _numbered(both.old or (), key), _numbered(both.new or (), key)
    return [Both(old.get(one), new.get(one)) for one in {**old, **new}]


def _numbered(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[tuple[Hashable, int], T]:
    seen: Counter[Hashable] = Counter()
    found = {}
    for item in items:
        name = key(item)
        found[name, seen[name]] = item
        seen[name] += 1
    return found


def by_place(both: Both[list[T]]) -> list[Both[T]]:
    """Return what stands across from what by its place in the list."""
    return [Both(*pair) for pair in zip_longest(both.old or (), both.new or ())]


def each(items: Iterable[Both[T]], compare: Callable[[Both[T]], Objects]) -> Objects:
    """Return what changed among items: by name, then by what became of it, then by content."""
    return sorted((one for item in items for one in compare(item)), key=_rank)


def _rank(one: ObjectDiff) -> tuple[object, ...]:
    inner, objects = one.fields or [], one.objects or []
    return (
        one.name,
        _ORDER.index(one.type),
        len(inner),
        len(objects),
        [(field.name, field.old, field.new) for field in inner],
        [_rank(nested) for nested in objects],
    )


# ---- fields -----------------------------------------------------------------------------------------


def fields(flat: Both[Flat]) -> list[FieldDiff]:
    """Return every value that there is or was, by name."""
    old, new = flat.old or {}, flat.new or {}
    return [_field(name, old.get(name, ""), new.get(name, "")) for name in sorted({**old, **new})]


def changes(flat: Both[Flat]) -> list[FieldDiff]:
    """Return the values that differ, by name."""
    return [one for one in fields(flat) if one.type != DiffType.NONE]


def _field(name: str, old: str, new: str) -> FieldDiff:
    if old == new:
        kind = DiffType.NONE
    elif not old:
        kind = DiffType.ADDED
    else:
        kind = DiffType.EDITED if new else DiffType.DELETED
    return FieldDiff(type=kind, name=name, old=old, new=new)


# ---- objects ----------------------------------------------------------------------------------------


def block(
    name: str,
    both: Both[T],
    *,
    flat: Callable[[T], Flat] = own_values,
    objects: Objects | None = None,
    show: Callable[[Both[Flat]], list[FieldDiff]] = fields,
) -> Objects:
    """Return a block with its values and what it holds; none if nothing changed, shown or not."""
    if both.same:
        return []
    return [_object(both.fate, name, show(both.of(flat)), objects)]


def values(name: str, both: Both[T], *, flat: Callable[[T], Flat] = own_values) -> Objects:
    """Return a block of which only the values count, none if they are the same."""
    return _unless_same(name, fields(both.of(flat)))


def texts(name: str, both: Both[list[str]]) -> Objects:
    """Return a list of texts whose order means nothing, none if there is and was nothing in it."""
    old, new = set(both.old or ()), set(both.new or ())
    found = [
        _field(name, one if one in old else "", one if one in new else "") for one in old | new
    ]
    found.sort(key=lambda field: (field.old, field.new))
    return [_object(_overall(found), name, found)] if found else []


def changed_texts(name: str, both: Both[list[str]]) -> Objects:
    """Return a list of texts whose order means nothing, none if they are the same."""
    return [one for one in texts(name, both) if one.type != DiffType.NONE]


def _unless_same(name: str, found: list[FieldDiff]) -> Objects:
    kind = _overall(found)
    return [] if kind == DiffType.NONE else [_object(kind, name, found)]


def _overall(found: Iterable[FieldDiff]) -> DiffType:
    """Return what became of something with these fields."""
    types = {one.type for one in found} - {DiffType.NONE}
    if not types:
        return DiffType.NONE
    return types.pop() if len(types) == 1 else DiffType.EDITED


def _object(
    kind: DiffType, name: str, found: list[FieldDiff], objects: Objects | None = None
) -> ObjectDiff:
    return ObjectDiff(type=kind, name=name, fields=found or None, objects=objects or None)
