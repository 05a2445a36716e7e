"""Values and their types: conversion, equality and size.

Text is `str`, a number is `int` or `Fraction`, a Boolean is `bool`, and null is `None`. `[…]` is a
`tuple` and `{…}` a `dict`, with elements of any types. A `CollectionType` is a list, set or map
with elements of one type. Only typed variables and some functions create a `CollectionType`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TypeGuard, Union

import msgspec

from daemon.jobspec.hcl.number import Number, number_size, number_text, read_number


class Type(msgspec.Struct, frozen=True):
    """A type. `kind` determines which other fields apply."""

    kind: str  # any, text, number, bool, list, set, map, tuple, object
    element: Union["Type", None] = None  # element type of a list, set or map
    items: tuple["Type", ...] = ()
    attributes: dict[str, "Type"] = {}

    @property
    def name(self) -> str:
        """Return the type's name in messages."""
        if self.element is not None and self.element.kind != "any":
            return f"{self.kind} of {self.element.name}"
        return self.kind


ANY = Type("any")
STRING = Type("string")
NUMBER = Type("number")
BOOL = Type("bool")
PRIMITIVES = (STRING, NUMBER, BOOL)


class CollectionType(msgspec.Struct, frozen=True):
    """A list, set or map with elements of one type. A set is sorted and has no duplicates."""

    kind: str  # list, set, map
    element: Type
    items: tuple["Value", ...] | dict[str, "Value"]


# `|` does not accept the quoted names of a union.
Value = Union[  # noqa: UP007
    str, Number, bool, None, tuple["Value", ...], dict[str, "Value"], CollectionType
]


class ConversionError(Exception):
    """A value does not convert to a type; the text states the required type."""


def is_number(value: Value) -> TypeGuard[Number]:
    """Return whether a value is a number. In Python a Boolean is also a number, but not here."""
    return isinstance(value, Number) and not isinstance(value, bool)


def list_of(element: Type) -> Type:
    """Return the list type with this element type."""
    return Type("list", element)


def set_of(element: Type) -> Type:
    """Return the set type with this element type."""
    return Type("set", element)


def map_of(element: Type) -> Type:
    """Return the map type with this element type."""
    return Type("map", element)


def type_of(value: Value) -> Type:
    """Return the type of a value; null has any type."""
    match value:
        case None:
            return ANY
        case str():
            return STRING
        case bool():
            return BOOL
        case int() | Fraction():
            return NUMBER
        case tuple():
            return Type("tuple", items=tuple([type_of(element) for element in value]))
        case dict():
            return Type(
                "object", attributes={key: type_of(member) for key, member in value.items()}
            )
        case CollectionType():
            return Type(value.kind, value.element)


def kind_of(value: Value) -> str:
    """Return the kind of a value's type, as named in messages."""
    return type_of_shallow(value).kind


def type_of_shallow(value: Value) -> Type:
    """Return the type of a value without the types of its elements."""
    if isinstance(value, tuple):
        return _TUPLE
    if isinstance(value, dict):
        return _OBJECT
    return type_of(value)


_TUPLE = Type("tuple")
_OBJECT = Type("object")


def elements(value: Value) -> tuple[Value, ...] | None:
    """Return the elements of a tuple, list or set in order; None for other values."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, CollectionType) and isinstance(value.items, tuple):
        return value.items
    return None


def attributes(value: Value) -> Mapping[str, Value] | None:
    """Return the attributes of an object or map; None for other values."""
    if isinstance(value, dict):
        return value
    if isinstance(value, CollectionType) and isinstance(value.items, dict):
        return value.items
    return None


def pairs(value: Value) -> Iterator[tuple[Value, Value]] | None:
    """Return the keys and values of a collection; None for other values.

    Objects and maps are sorted by key.
    """
    if (named := attributes(value)) is not None:
        return ((key, named[key]) for key in sorted(named))
    items = elements(value)
    if items is None:
        return None
    return zip(items, items, strict=True) if kind_of(value) == "set" else iter(enumerate(items))


# --- conversion ---

_DECIMAL = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?", re.ASCII)
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}


def convert(value: Value, type_: Type) -> Value:
    """Convert a value to a type. Raises `ConversionError`."""
    if value is None or type_.kind == "any":
        return value
    match type_.kind:
        case "string":
            return to_text(value)
        case "number":
            return to_number(value)
        case "bool":
            return _to_bool(value)
        case "list" | "set":
            return _to_sequence(value, type_)
        case "map":
            return _to_map(value, type_)
        case "tuple":
            return _to_tuple(value, type_)
        case _:
            return _to_object(value, type_)


def _mismatch(value: Value, type_: Type) -> ConversionError:
    return ConversionError(f"{type_.name} required, but have {type_of_shallow(value).name}")


def to_text(value: Value) -> str:
    """Convert a text, number or Boolean to text. Raises `ConversionError`."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | Fraction():
            return number_text(value)
        case _:
            raise _mismatch(value, STRING)


def to_number(value: Value) -> Number:
    """Convert a number or a numeric text to a number. Raises `ConversionError`."""
    match value:
        case bool():
            raise _mismatch(value, NUMBER)
        case int() | Fraction():
            return value
        case str():
            if not _DECIMAL.fullmatch(value):
                raise ConversionError("a number is required")
            try:
                return read_number(value)
            except ValueError as error:
                raise ConversionError(str(error)) from error
        case _:
            raise _mismatch(value, NUMBER)


def _to_bool(value: Value) -> bool:
    match value:
        case bool():
            return value
        case str():
            if value in _TRUTHS:
                return _TRUTHS[value]
            if value.lower() in ("true", "false"):
                raise ConversionError(f'a bool is required; write "{value.lower()}" in lower case')
            raise ConversionError("a bool is required")
        case _:
            raise _mismatch(value, BOOL)


def _to_sequence(value: Value, type_: Type) -> Value:
    items = elements(value)
    if items is None or type_.element is None:
        raise _mismatch(value, type_)
    element = type_.element
    if element.kind == "any":
        element_type = unify([type_of(part) for part in items])
        if element_type is None:
            raise ConversionError("all elements must be of the same type")
        element = element_type
    converted = tuple(
        [_convert_at(f"element {index}", part, element) for index, part in enumerate(items)]
    )
    return make_set(element, converted) if type_.kind == "set" else _list(element, converted)


def _list(element: Type, items: tuple[Value, ...]) -> CollectionType:
    return CollectionType("list", element, items)


def _convert_at(where: str, value: Value, type_: Type) -> Value:
    try:
        return convert(value, type_)
    except ConversionError as error:
        raise ConversionError(f"{where}: {error}") from error


def _to_map(value: Value, type_: Type) -> Value:
    items = attributes(value)
    if items is None or type_.element is None:
        raise ConversionError(f"{type_.name} required")
    element = type_.element
    if element.kind == "any":
        element_type = unify([type_of(member) for member in items.values()])
        if element_type is None:
            raise ConversionError("all elements must be of the same type")
        element = element_type
    converted = {
        key: _convert_at(f'element "{key}"', member, element)
        for key, member in sorted(items.items())
    }
    return CollectionType("map", element, converted)


def _to_tuple(value: Value, type_: Type) -> Value:
    items = elements(value)
    if items is None:
        raise _mismatch(value, type_)
    if len(items) != len(type_.items):
        raise ConversionError(f"a tuple of {len(type_.items)} elements is required")
    pairs = zip(items, type_.items, strict=True)
    return tuple(
        [_convert_at(f"element {index}", part, kind) for index, (part, kind) in enumerate(pairs)]
    )


def _to_object(value: Value, type_: Type) -> Value:
    items = attributes(value)
    if items is None:
        raise _mismatch(value, type_)
    missing = [f'"{name}"' for name in sorted(type_.attributes) if name not in items]
    if len(missing) == 1:
        raise ConversionError(f"attribute {missing[0]} is required")
    if missing:
        raise ConversionError(f"attributes {', '.join(missing)} are required")
    return {
        name: _convert_at(f'attribute "{name}"', items[name], kind)
        for name, kind in sorted(type_.attributes.items())
    }


def unify(types: Sequence[Type]) -> Type | None:
    """Return the type that values of all these types can be converted to, or None."""
    concrete_types = [type_ for type_ in types if type_.kind != "any"]
    if not concrete_types:
        return ANY
    first = concrete_types[0]
    if all(type_ == first for type_ in concrete_types[1:]):
        return first
    kinds = {type_.kind for type_ in concrete_types}
    if kinds <= {"string", "number", "bool"}:
        return STRING if "string" in kinds else None
    if kinds <= {"tuple", "list", "set"}:
        return _unify_sequences(concrete_types, kinds)
    if kinds <= {"object", "map"}:
        return _unify_mappings(concrete_types, kinds)
    return None


def _unify_sequences(types: Sequence[Type], kinds: set[str]) -> Type | None:
    lengths = {len(type_.items) for type_ in types}
    if kinds == {"tuple"} and len(lengths) == 1:
        columns = [unify(column) for column in zip(*[type_.items for type_ in types], strict=True)]
        items = tuple([column for column in columns if column is not None])
        return Type("tuple", items=items) if len(items) == len(columns) else None
    parts = [
        part for type_ in types for part in ((type_.element,) if type_.element else type_.items)
    ]
    element = unify(parts)
    if element is None:
        return None
    return set_of(element) if "set" in kinds and "list" not in kinds else list_of(element)


def _unify_mappings(types: Sequence[Type], kinds: set[str]) -> Type | None:
    names = {tuple(sorted(type_.attributes)) for type_ in types}
    if kinds == {"object"} and len(names) == 1:
        unified = {name: unify([type_.attributes[name] for type_ in types]) for name in names.pop()}
        unified_attributes = {name: type_ for name, type_ in unified.items() if type_ is not None}
        return (
            Type("object", attributes=unified_attributes)
            if len(unified_attributes) == len(unified)
            else None
        )
    parts = [
        part
        for type_ in types
        for part in ((type_.element,) if type_.element else type_.attributes.values())
    ]
    element = unify(parts)
    return None if element is None else map_of(element)


# --- comparison ---


def equal(value: Value, other: Value) -> bool:
    """Return whether two values are equal; values of different types are never equal."""
    match value, other:
        case (bool(), _) | (_, bool()):
            return value is other
        case (None, _) | (_, None):
            return value is other
        case (tuple(), tuple()):
            return len(value) == len(other) and all(
                equal(a, b) for a, b in zip(value, other, strict=True)
            )
        case (dict(), dict()):
            return value.keys() == other.keys() and all(
                equal(value[key], other[key]) for key in value
            )
        case (CollectionType(), CollectionType()):
            same_type = value.kind == other.kind and value.element == other.element
            return same_type and equal(value.items, other.items)
        case _:
            return type_of_shallow(value).kind == type_of_shallow(other).kind and value == other


def make_set(element: Type, items: Sequence[Value]) -> CollectionType:
    """Return a set without duplicates, with numbers ordered by value and text by its bytes."""
    unique = {sort_key(value): value for value in items}
    return CollectionType("set", element, tuple([unique[key] for key in sorted(unique)]))


def sort_key(value: Value) -> tuple[int, Number, bytes]:
    """Return a sort key, which is the same for equal values."""
    match value:
        case None:
            return 0, 0, b""
        case bool():
            return 1, int(value), b""
        case int() | Fraction():
            return 2, value, b""
        case str():
            return 3, 0, value.encode(errors="surrogatepass")
        case _:
            return 4, 0, repr(_comparable(value)).encode(errors="surrogatepass")


def _comparable(value: Value) -> object:
    items = elements(value)
    if items is not None:
        return [_comparable(part) for part in items]
    named = attributes(value)
    if named is not None:
        return [(key, _comparable(named[key])) for key in sorted(named)]
    return value


def measure(value: Value, limit: int, depth: int) -> int:
    """Return the size of a value: 1 per part, plus 1 for every 32 characters or 16 bits.

    Counting stops above `limit`. Raises `RecursionError` for more than `depth` levels, because no
    other function here could traverse such a value.
    """
    if isinstance(value, str):
        return 1 + len(value) // 32
    items = elements(value)
    if items is None:
        named = attributes(value)
        if named is None:
            return number_size(value) if is_number(value) else 1
        size = 1 + sum([len(key) for key in named]) // 32
        items = tuple(named.values())
    else:
        size = 1
    if not depth:
        raise RecursionError
    for part in items:
        size += measure(part, limit - size, depth - 1)
        if size > limit:
            break
    return size
