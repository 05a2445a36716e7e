"""Blocks as flat texts: what a diff compares is a name and a text, each value as Go prints it.

`Count` is `2`, an entry of a map `Meta[a]`, an item of a list `args[0]`.
"""

from collections.abc import Collection, Iterator
from functools import cache

import msgspec
from msgspec import inspect

from daemon.jobspec.gotext import decimal
from storage.records.codec import ALIASES

Flat = dict[str, str]

_SCALARS = (inspect.StrType, inspect.IntType, inspect.BoolType, inspect.EnumType)


def own_values(record: object, hidden: Collection[str] = ()) -> Flat:
    """Return a record's own values and the entries of its maps of texts.

    Its blocks and lists are for others, and so is what may be absent altogether.
    """
    kind: type = type(record)
    values = [(name, getattr(record, field)) for field, name in _own(kind)]
    flat = {name: text for at, value in values for name, text in _inside(at, value)}
    return {name: text for name, text in flat.items() if name not in hidden}


def all_values(record: msgspec.Struct) -> Flat:
    """Return the values of a record without blocks and lists; what is absent is `nil`."""
    fields = msgspec.structs.fields(record)
    return {field.encode_name: _text(getattr(record, field.name)) for field in fields}


def free_values(values: object) -> Flat:
    """Return everything in a map of any form: its numbers are what JSON has, floating ones."""
    return dict(_free("", values))


@cache
def _own(record: type) -> tuple[tuple[str, str], ...]:
    """Return the fields that hold values of a record's own, by name and as a diff calls them."""
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
        case inspect.UnionType():  # may be absent: then only a map counts
            return any(isinstance(one, inspect.DictType) and _is_own(one) for one in kind.types)
        case inspect.DictType():
            return isinstance(kind.value_type, inspect.StrType)
        case _:
            return isinstance(kind, _SCALARS)


def _inside(at: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list):
        yield from _free(at, value)
    elif value is not None and value is not msgspec.UNSET:
        yield at, _text(value)


def _free(at: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _free(f"{at}[{key}]" if at else key, item)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _free(f"{at}[{number}]", item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield at, decimal(float(value))
    else:
        yield at, _text(value)


def _text(value: object) -> str:
    if value is None:
        return "nil"
    return str(value).lower() if isinstance(value, bool) else str(value)
