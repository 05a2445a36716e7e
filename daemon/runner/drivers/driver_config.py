"""Decode the driver configuration of a task into a record.

The messages are Nomad's (source: Nomad's recorded responses `task-events`). As in job files,
numbers and booleans convert from and to strings if no information is lost.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import TypeVar

import msgspec

from daemon.runner.core.driver import InvalidConfig
from storage.records import resolver
from storage.records.numbers import parse_integer
from storage.records.task import NetworkDNS

T = TypeVar("T", bound=msgspec.Struct)


_LONGEST_VALUE = 60  # characters of a value in a message


class ConfigType(Enum):
    """The type of a setting, as error messages name it."""

    TEXT = "string"
    TEXTS = "list of string"
    MAP = "map of string"
    NUMBER = "number"
    FLAG = "bool"


_KINDS = {
    str: ConfigType.TEXT,
    list[str]: ConfigType.TEXTS,
    dict[str, str]: ConfigType.MAP,
    int: ConfigType.NUMBER,
    bool: ConfigType.FLAG,
}


def read(record: type[T], config: Mapping[str, object]) -> T:
    """Return the configuration as a record. Raises `InvalidConfig` with all errors."""
    fields = _fields(record)
    faults = [
        f'Invalid label: No argument or block type is named "{name}".'
        for name in sorted(config.keys() - fields.keys())
    ]
    values: dict[str, object] = {}
    for name, field in fields.items():
        entry = config.get(name)
        if entry is None:
            if field.required:
                faults.append(
                    f'Missing required argument: The argument "{name}" is required, '
                    "but no definition was found."
                )
            continue
        kind = _KINDS[field.type]
        value = _value(kind, entry)
        if value is None:
            faults.append(
                "Incorrect attribute value type: Inappropriate value for attribute "
                f'"{name}": {kind.value} required.'
            )
        values[name] = value
    if faults:
        raise InvalidConfig(_join_faults(faults))
    return msgspec.convert(values, record)


def faults(record: type[msgspec.Struct], config: Mapping[str, object]) -> Iterator[str]:
    """Yield the errors of a configuration that can be found while variables are unknown."""
    from daemon.text.hints import Hints  # imported late: a start checks no job

    fields, hints = _fields(record), Hints()
    for name in sorted(config.keys() - fields.keys()):
        close = hints.closest(name, sorted(fields))
        hint = f' (did you mean "{close}"?)' if close else f"; there are {', '.join(fields)}"
        yield f'config has the unknown key "{name}"{hint}'
    for name, field in fields.items():
        value = config.get(name)
        if value is None:
            if field.required:
                yield f'config has no "{name}": add it as a {_KINDS[field.type].value}'
        elif "${" not in str(value) and _value(_KINDS[field.type], value) is None:
            yield f"config.{name} must be a {_KINDS[field.type].value}, but it is {_shown(value)}"


def _shown(value: object) -> str:
    kind = {str: "the string ", list: "the list ", dict: "a block", bool: "the bool "}
    text = "" if isinstance(value, dict) else msgspec.json.encode(value).decode()[:_LONGEST_VALUE]
    return f"{kind.get(type(value), 'the number ')}{text}"


def check_names(dns: NetworkDNS) -> None:
    """Raise `InvalidConfig` unless the values of a group's `dns` block are valid."""
    for fault in resolver.faults(dns, filled=True):
        raise InvalidConfig(fault)


@cache  # there are few record types, and `get_type_hints` takes longer than the rest of `read`
def _fields(record: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(record)}


def _join_faults(faults: list[str]) -> str:
    lines = "".join(f"\t* {fault}\n" for fault in ["failed to parse config: ", *faults])
    return f"{len(faults) + 1} errors occurred:\n{lines}\n"


def _value(kind: ConfigType, value: object) -> object | None:
    """Return a value converted to a type, or None if the conversion loses information."""
    match kind:
        case ConfigType.TEXT:
            return _text(value)
        case ConfigType.TEXTS:
            texts = [_text(element) for element in value] if isinstance(value, list) else [None]
            return None if None in texts else texts
        case ConfigType.MAP:
            return _map(value)
        case ConfigType.NUMBER:
            return _number(value)
        case ConfigType.FLAG:
            return {"true": True, "false": False}.get(_text(value) or "")


def _map(blocks: object) -> dict[str, str] | None:
    """Convert a map or a list of HCL blocks to one map of strings; return None for other values."""
    text_map: dict[str, str] = {}
    for block in blocks if isinstance(blocks, list) else [blocks]:
        if not isinstance(block, dict):
            return None
        for name, value in block.items():
            if (text := _text(value)) is None:
                return None
            text_map[str(name)] = text
    return text_map


def _text(value: object) -> str | None:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)
        case _:
            return None


def _number(value: object) -> int | None:
    text = _text(value) or ""
    return parse_integer(text) if text.lstrip("-").isdecimal() else None
