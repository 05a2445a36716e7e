"""YAML of templates, read from the parser's events with a limit on the number of values. No I/O.

An alias costs as many steps as the value that it repeats. So a short text cannot make a huge value.
"""

import re
from collections.abc import Iterator

import yaml

from daemon.templates.errors import DEEPEST, StepBudget, TemplateError
from daemon.templates.values import bounded

_READ = 2  # steps per character; a short text can hold many values
_SLOW = 20  # steps per character without the library of the C parser
_LONGEST_NUMBER = 40  # characters
_MERGE = "<<"
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
_TRUTHS = {
    **dict.fromkeys(("yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NULLS = ("", "~", "null", "Null", "NULL")
_INTEGER = re.compile(r"([-+]?)(0x[0-9a-fA-F]+|0o?[0-7]+|0b[01]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
_BASES = {"0x": 16, "0b": 2, "0o": 8}


def read(budget: StepBudget, text: str) -> object:
    """Return the value of the first document; None for an empty string. Raises `TemplateError`."""
    loader = getattr(yaml, "CSafeLoader", None)
    budget.spend(1 + len(text) * (_READ if loader else _SLOW))
    try:
        return _Reader(budget, yaml.parse(text, loader or yaml.SafeLoader)).document()
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise TemplateError(f"yaml: {reason}") from error


class _Reader:
    def __init__(self, budget: StepBudget, events: Iterator[yaml.Event]) -> None:
        self._budget, self._events = budget, events
        self._anchors: dict[str, tuple[object, int]] = {}  # values, and the values in them
        self._read = 0  # values so far, with the repeated ones

    def document(self) -> object:
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                return self._value(event, DEEPEST)
        return None

    def _value(self, event: yaml.NodeEvent, depth: int) -> object:
        if not depth:
            raise TemplateError(f"yaml: the document is nested more than {DEEPEST} deep")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise TemplateError(f"yaml: unknown anchor {event.anchor!r} referenced")
            value, size = self._anchors[event.anchor]
            self._count(size)
            return value
        before = self._read
        self._count(1)
        if isinstance(event, yaml.SequenceStartEvent):
            value = [self._value(part, depth - 1) for part in self._parts()]
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(depth)
        else:
            value = _scalar(event)
        if event.anchor:
            self._anchors[event.anchor] = value, self._read - before
        return value

    def _count(self, values: int) -> None:
        self._budget.spend(values)
        self._read += values

    def _parts(self) -> Iterator[yaml.NodeEvent]:
        """Yield the events at which the parts of a collection begin."""
        for event in self._events:
            if not isinstance(event, yaml.NodeEvent):
                return
            yield event

    def _mapping(self, depth: int) -> dict[str, object]:
        merged: dict[str, object] = {}
        own: dict[str, object] = {}
        parts = self._parts()
        for event in parts:
            key, value = self._value(event, depth - 1), self._value(next(parts), depth - 1)
            is_scalar = isinstance(event, yaml.ScalarEvent)
            if is_scalar and event.value == _MERGE and event.implicit[0]:
                for part in value[::-1] if isinstance(value, list) else [value]:
                    if not isinstance(part, dict):
                        raise TemplateError("yaml: map merge requires map or sequence of maps")
                    merged.update(part)
            else:
                own[_key(key)] = value
        return {**merged, **own}


def _key(value: object) -> str:
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case _:
            raise TemplateError("yaml: a key must be a text, a number or a boolean")


def _scalar(event: yaml.ScalarEvent) -> object:
    written: str = event.value
    if event.tag in _TEXT_TAGS or not (event.implicit[0] or event.tag):
        return written
    if written in _NULLS:
        return None
    if written in _TRUTHS:
        return _TRUTHS[written]
    if len(written) <= _LONGEST_NUMBER:
        if match := _INTEGER.fullmatch(written):
            return _integer(*match.groups())
        if _FLOAT.fullmatch(written):
            return float(written)
    return written


def _integer(sign: str, digits: str) -> object:
    is_octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xbo"
    base = 8 if is_octal else _BASES.get(digits[:2], 10)
    number = int(digits[2:] if base != 10 and not is_octal else digits, base)
    return bounded(-number if sign == "-" else number)
