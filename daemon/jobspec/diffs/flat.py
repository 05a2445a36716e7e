"""Blocks as flat maps from names to texts.

A diff compares these maps. The texts are the values as Go prints them.

Names look like `Count`, `Meta[a]` for an entry of a map, and `args[0]` for an item of a list.
"""

from collections.abc import Collection, Iterator
from functools import cache

import msgspec
from msgspec import inspect

from daemon.text.go_format import decimal
from storage.records.codec import ALIASES

Flat = dict[str, str]

_SCALARS = (inspect.StrType, inspect.IntType, inspect.BoolType, inspect.EnumType)


def own_values(record: object, hidden: Collection[str] = ()) -> Flat:
    """Return a record's values, without those in `hidden`, and the entries of its text maps.

    Callers handle nested blocks, lists and optional fields.
    """
    kind: type = type(record)
    values = [(name, getattr(record, field)) for field, name in _scalar_fields(kind)]
    flat = {name: text for member, value in values for name, text in _flatten_member(member, value)}
    return {name: text for name, text in flat.items() if name not in hidden}


def all_values(record: msgspec.Struct) -> Flat:
    """Return a record's values without blocks and lists; absent values are `nil`."""
    fields = msgspec.structs.fields(record)
    return {field.encode_name: _text(getattr(record, field.name)) for field in fields}


def free_values(values: object) -> Flat:
    """Return all values of a free-form map. Numbers are floats, as in JSON."""
    return dict(_free("", values))


@cache
def _scalar_fields(record: type) -> tuple[tuple[str, str], ...]:
    """Return a record's scalar fields: the field names with their names in a diff."""
    kind = inspect.type_info(record)
    return tuple(
        (field.name, ALIASES.get(field.encode_name, field.encode_name))
        for field in kind.fields  # type: ignore[attr-defined]  # a StructType
        if _is_own(field.type)
    )


def _is_own(kind: inspect.Type) -> bool:
    match kind:
        case inspect.Metadata():
            return _is_own(kind.type)
        case inspect.UnionType():  # of the optional types, only a map counts
            return any(
                isinstance(type_, inspect.DictType) and _is_own(type_) for type_ in kind.types
            )
        case inspect.DictType():
            return isinstance(kind.value_type, inspect.StrType)
        case _:
            return isinstance(kind, _SCALARS)


def _flatten_member(path: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list):
        yield from _free(path, value)
    elif value is not None and value is not msgspec.UNSET:
        yield path, _text(value)


def _free(path: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, element in value.items():
            yield from _free(f"{path}[{key}]" if path else key, element)
    elif isinstance(value, list):
        for number, element in enumerate(value):
            yield from _free(f"{path}[{number}]", element)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, _number(value)
    else:
        yield path, _text(value)


def _number(value: float) -> str:
    try:
        return decimal(float(value))
    except OverflowError:  # more digits than a float can hold
        return str(value)


def _text(value: object) -> str:
    if value is None:
        return "nil"
    return str(value).lower() if isinstance(value, bool) else str(value)
