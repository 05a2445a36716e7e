"""`yamlencode` and `yamldecode`."""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction

import yaml

from daemon.jobspec.hcl.functions.encoding import quoted, scalar_text
from daemon.jobspec.hcl.functions.times import read_time
from daemon.jobspec.hcl.number import number_text, read_number, rounded
from daemon.jobspec.hcl.scope import MAX_DEPTH, FunctionFault
from daemon.jobspec.hcl.strings import normal
from daemon.jobspec.hcl.values import Value, attributes, elements, measure

MAX_DOCUMENT = 200_000  # characters: parsing YAML is slow
MAX_SIZE = 50_000  # values, with aliases expanded: one alias can represent many

_TRUTHS = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NULLS = ("", "~", "null", "Null", "NULL")
_INTEGER = re.compile(r"([-+]?)(0x[0-9a-fA-F]+|0o[0-7]+|0b[01]+|\d+)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_BASES = {"0x": 16, "0o": 8, "0b": 2}
_TAGS = "tag:yaml.org,2002:"
_MERGE = "<<"


def _yamldecode(value: str) -> Value:
    if len(value) > MAX_DOCUMENT:
        raise FunctionFault(f"the document has more than {MAX_DOCUMENT} characters")
    try:
        return _Reader(value).document()
    except yaml.MarkedYAMLError as error:
        raise FunctionFault(error.problem or "not a YAML document") from error
    except (yaml.YAMLError, ValueError) as error:
        raise FunctionFault(f"not a YAML document: {error}") from error


class _Reader:
    """A converter from YAML events to values, which limits the number of values."""

    def __init__(self, value: str) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events: Iterator[yaml.Event] = yaml.parse(value, loader)
        self._anchors: dict[str, Value] = {}
        self._left = MAX_SIZE

    def document(self) -> Value:
        """Return the value of the first document."""
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                return self._value(event, MAX_DEPTH)
        raise FunctionFault("on line 1, column 1: missing start of document")

    def _value(self, event: yaml.NodeEvent, depth: int) -> Value:
        if not depth:
            raise FunctionFault("the document is nested too deep")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise FunctionFault(f"undefined alias {event.anchor!r}")
            value = self._anchors[event.anchor]
            self._count(measure(value, self._left, depth))
            return value
        self._count(1)
        if isinstance(event, yaml.SequenceStartEvent):
            value = tuple(
                [self._value(element_event, depth - 1) for element_event in self._until_end()]
            )
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(depth)
        else:
            value = _scalar(event)
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise FunctionFault("the document has too many values")

    def _until_end(self) -> Iterator[yaml.NodeEvent]:
        """Yield the events at which the parts of a collection begin."""
        for event in self._events:
            if not isinstance(event, yaml.NodeEvent):
                return
            yield event

    def _mapping(self, depth: int) -> dict[str, Value]:
        merged: dict[str, Value] = {}
        own: dict[str, Value] = {}
        parts = self._until_end()
        for event in parts:
            is_merge = isinstance(event, yaml.ScalarEvent) and event.value == _MERGE
            key = self._value(event, depth - 1)
            value = self._value(next(parts), depth - 1)
            if is_merge and event.implicit[0]:
                for part in reversed(elements(value) or (value,)):
                    merged.update(attributes(part) or {})
            else:
                own[_key(key)] = value
        return {**merged, **own}


def _key(value: Value) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | Fraction():
            return number_text(value)
        case _:
            raise FunctionFault("a key of a mapping must be a string, a number or a boolean")


def _scalar(event: yaml.ScalarEvent) -> Value:
    written: str = event.value
    if event.tag and event.tag != "!":
        return _tagged(written, event.tag.removeprefix(_TAGS))
    return _plain(written) if event.implicit[0] else normal(written)


def _tagged(written: str, tag: str) -> Value:
    """Convert a scalar to the type of its tag. Raises `FunctionFault` if that is not possible."""
    if tag in ("str", "binary"):
        return normal(written)
    value = _plain(written)
    is_number = isinstance(value, int | Fraction) and not isinstance(value, bool)
    fits = {
        "bool": isinstance(value, bool),
        "null": value is None,
        "int": is_number and isinstance(value, int),
        "float": is_number,
        "timestamp": isinstance(value, str),
    }
    if not fits.get(tag, False):
        raise FunctionFault(f'cannot parse "{written[:50]}" as {tag}')
    return value


def _plain(written: str) -> Value:
    if written in _NULLS:
        return None
    if written in _TRUTHS:
        return _TRUTHS[written]
    if match := _INTEGER.fullmatch(written):
        sign, digits = match.groups()
        base = _BASES.get(digits[:2], 10)
        number = read_number(digits) if base == 10 else rounded(int(digits[2:], base))
        return -number if sign == "-" else number
    if _FLOAT.fullmatch(written):
        return read_number(written)
    if _DATE.match(written):
        return _format_time(written)
    return normal(written)


def _format_time(written: str) -> str:
    """Return a date or time as an RFC 3339 timestamp; invalid input stays text."""
    try:
        if _DATE.fullmatch(written):
            read_time(f"{written}T00:00:00Z")
            return f"{written}T00:00:00Z"
        moment = read_time(written.replace(" ", "T", 1))
    except ValueError:
        return normal(written)
    return moment.isoformat().replace("+00:00", "Z")


# --- output ---


def _yamlencode(value: Value) -> Value:
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Value) -> list[str]:
    """Return the lines of a value without indentation."""
    items, named = elements(value), attributes(value)
    if items:
        return [line for element in items for line in _lines_after_marker("- ", "  ", element)]
    if named:
        return [line for key in sorted(named) for line in _lines_below_key(key, named[key])]
    if items is not None or named is not None:
        return ["[]" if named is None else "{}"]
    if isinstance(value, str) and "\n" in value and not value.startswith((" ", "\n")):
        return _block(value)
    return [scalar_text(value)]


def _lines_after_marker(mark: str, margin: str, value: Value) -> list[str]:
    """Return the lines of a value: the first with the prefix `mark`, later lines with `margin`."""
    first, *rest = _lines(value)
    return [mark + first, *[f"{margin}{line}" if line else "" for line in rest]]


def _lines_below_key(key: str, value: Value) -> list[str]:
    name = f"{quoted(key)}:"
    if elements(value):
        return [name, *_lines(value)]
    if attributes(value):
        return [name, *[f"  {line}" if line else "" for line in _lines(value)]]
    return _lines_after_marker(f"{name} ", "", value)


def _block(value: str) -> list[str]:
    """Return multi-line text as a block scalar, with an indicator for its final newlines."""
    body = value.rstrip("\n")
    ending = len(value) - len(body)
    mark = "|-" if ending == 0 else "|" if ending == 1 else "|+"
    lines = [f"  {line}" if line else "" for line in body.split("\n")]
    return [mark, *lines, *[""] * (ending - 1)]


FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    "yamlencode": _yamlencode,
    "yamldecode": lambda value: _yamldecode(str(value)),
}
