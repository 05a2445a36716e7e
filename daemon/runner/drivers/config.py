"""Reading the block that a task gives its driver, by a table of the settings that it may hold.

The texts are the peer's (golden: task-events). Numbers and booleans are taken as texts and the
other way round where that loses nothing, as in job files.
"""

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import TypeVar

import msgspec

from daemon.runner.drivers.driver import InvalidConfig
from storage.records import resolver
from storage.records.numbers import whole
from storage.records.task import NetworkDNS

T = TypeVar("T", bound=msgspec.Struct)


class Kind(Enum):
    """What a setting may hold, in the words of an error."""

    TEXT = "string"
    TEXTS = "list of string"
    MAP = "map of string"
    NUMBER = "number"
    FLAG = "bool"


_KINDS = {
    str: Kind.TEXT,
    list[str]: Kind.TEXTS,
    dict[str, str]: Kind.MAP,
    int: Kind.NUMBER,
    bool: Kind.FLAG,
}


def read(record: type[T], config: Mapping[str, object]) -> T:
    """Return the block as a record: each field is a setting. Raises `InvalidConfig` with all faults."""
    fields = _fields(record)
    faults = [
        f'Invalid label: No argument or block type is named "{name}".'
        for name in sorted(config.keys() - fields.keys())
    ]
    values: dict[str, object] = {}
    for name, field in fields.items():
        given = config.get(name)
        if given is None:
            if field.required:
                faults.append(
                    f'Missing required argument: The argument "{name}" is required, '
                    "but no definition was found."
                )
            continue
        kind = _KINDS[field.type]
        value = _value(kind, given)
        if value is None:
            faults.append(
                "Incorrect attribute value type: Inappropriate value for attribute "
                f'"{name}": {kind.value} required.'
            )
        values[name] = value
    if faults:
        raise InvalidConfig(_all(faults))
    return msgspec.convert(values, record)


def check_names(dns: NetworkDNS) -> None:
    """Raise `InvalidConfig` unless each text of a group's `dns` block is valid."""
    for fault in resolver.faults(dns, filled=True):
        raise InvalidConfig(fault)


@cache  # of a handful of records; looking them up takes longer than the rest of `read`
def _fields(record: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(record)}


def _all(faults: list[str]) -> str:
    lines = "".join(f"\t* {fault}\n" for fault in ["failed to parse config: ", *faults])
    return f"{len(faults) + 1} errors occurred:\n{lines}\n"


def _value(kind: Kind, given: object) -> object | None:
    """Return a value as its kind, or None."""
    match kind:
        case Kind.TEXT:
            return _text(given)
        case Kind.TEXTS:
            texts = [_text(one) for one in given] if isinstance(given, list) else [None]
            return None if None in texts else texts
        case Kind.MAP:
            return _map(given)
        case Kind.NUMBER:
            return _number(given)
        case Kind.FLAG:
            return {"true": True, "false": False}.get(_text(given) or "")


def _map(given: object) -> dict[str, str] | None:
    """Return texts by name: from a map, or from blocks of a job file, which come as a list."""
    found: dict[str, str] = {}
    for block in given if isinstance(given, list) else [given]:
        if not isinstance(block, dict):
            return None
        for name, value in block.items():
            if (text := _text(value)) is None:
                return None
            found[str(name)] = text
    return found


def _text(given: object) -> str | None:
    match given:
        case str():
            return given
        case bool():
            return "true" if given else "false"
        case int() | float():
            return f"{given:g}" if isinstance(given, float) else str(given)
        case _:
            return None


def _number(given: object) -> int | None:
    text = _text(given) or ""
    return whole(text) if text.lstrip("-").isdecimal() else None
