# ruff: noqa: ANN401  # a wire document may hold any value; its shape has the type
"""Operators of filter expressions.

An operator compares a value with a text. It parses the text as the type of the value.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from daemon.jobspec.filters.shapes import ANY, INVALID, NUMERIC, DocumentShape
from daemon.jobspec.filters.tree import Comparison
from daemon.matching import regexp
from daemon.text.go_format import quote
from storage.errors import Invalid, Malformed
from storage.records import durations


def _equal(node: Comparison, value: Any, shape: DocumentShape) -> bool:
    if not shape.scalar:
        raise Malformed("unable to find suitable primitive comparison function for matching")
    return bool(_read(node.value, shape) == value)


def _in(node: Comparison, value: Any, shape: DocumentShape) -> bool:
    if shape.kind == "map":
        return node.value in value
    if shape.kind == "slice":
        return _in_list(node, value, shape.item or ANY)
    literal = _read(node.value, shape)
    if shape.kind == "string":
        return node.value in value
    del literal  # parsed for its errors, which have precedence
    raise Malformed(
        f"cannot perform in/contains operations on type {shape.kind} for selector: "
        f"{quote(str(node.selector))}"
    )


def _in_list(node: Comparison, items: list[Any], shape: DocumentShape) -> bool:
    nowhere = 'unable to find suitable primitive comparison function for "in" comparison'
    if shape is not ANY:
        if not shape.scalar:
            raise Malformed(nowhere)
        return _read(node.value, shape) in items
    for element in items:
        value, kind = ANY.dynamic(element)
        if not kind.scalar:
            raise Malformed(f"{nowhere} in interface slice: {kind.kind}")
        try:
            if _read(node.value, kind) == value:
                return True
        except _NotThat:
            continue
    return False


def _empty(node: Comparison, value: Any, shape: DocumentShape) -> bool:
    if shape.kind in ("map", "slice", "string"):
        return not value
    raise Malformed(
        f"cannot perform is-empty operations on type {shape.kind} for selector: "
        f"{quote(str(node.selector))}"
    )


def _nil(node: Comparison, value: Any, shape: DocumentShape) -> bool:
    if shape.kind in ("map", "slice"):
        return bool(getattr(value, "absent", False))
    if shape.kind in ("struct", "invalid"):
        return shape is INVALID
    raise Malformed(
        f"cannot perform is-nil operations on type {shape.kind} for selector: "
        f"{quote(str(node.selector))}"
    )


def _matches(node: Comparison, value: Any, shape: DocumentShape) -> bool:
    if shape.kind != "string":
        raise Malformed(f"value of type {shape.name} is not convertible to []byte")
    try:
        return regexp.search(node.value, value, most=None)  # the evaluation counts `match_cost`
    except Invalid as error:
        raise _bad_pattern(node, error) from error


def match_cost(node: Comparison, value: Any, shape: DocumentShape) -> int:
    """Return the maximum CPU time of `matches` in microseconds. Raises `Malformed`."""
    if node.operator != "matches" or shape.kind != "string":
        return 0
    try:
        return regexp.match_cost(node.value, value)
    except Invalid as error:
        raise _bad_pattern(node, error) from error


def _bad_pattern(node: Comparison, error: Invalid) -> Malformed:
    return Malformed(f"failed to compile regular expression {quote(node.value)}: {error}")


def _ordered(
    holds: Callable[[float, float], bool],
) -> Callable[[Comparison, Any, DocumentShape], bool]:
    """Return the operator for an ordered comparison of numbers."""

    def compare(node: Comparison, value: Any, shape: DocumentShape) -> bool:
        operand = _number_in(value, node) if shape is NUMERIC else value
        return holds(operand, number(node, shape))

    return compare


def _number_in(text: str, node: Comparison) -> float:
    if not _FLOAT.fullmatch(text):
        raise Malformed(f"{node.selector} is {quote(text[:_SHOWN])}, which is not a number")
    return float(text.replace("_", ""))


OPERATORS: Mapping[str, Callable[[Comparison, Any, DocumentShape], bool]] = {
    "equal": _equal,
    "in": _in,
    "empty": _empty,
    "nil": _nil,
    "matches": _matches,
    "less": _ordered(operator.lt),
    "at most": _ordered(operator.le),
    "more": _ordered(operator.gt),
    "at least": _ordered(operator.ge),
}
_SHOWN = 40  # characters of a string that is not a number
ORDER = frozenset({"less", "at most", "more", "at least"})


# --- parsing of values ---

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INTEGER = re.compile(
    r"([+-]?)(?:0[xX]((?:_?[0-9a-fA-F])+)|0[bB]((?:_?[01])+)|0[oO]?((?:_?[0-7])+)|"
    r"(0|[1-9](?:_?[0-9])*))"
)
_BASES = (16, 2, 8, 10)
_DIGITS = r"[0-9](?:_?[0-9])*"
_FLOAT = re.compile(
    rf"[+-]?(?:(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?"
    "|inf|infinity|nan)",
    re.IGNORECASE,
)


class _NotThat(Malformed):
    """The text cannot be parsed as the type of the compared value."""


def number(node: Comparison, shape: DocumentShape) -> float:
    """Return the number for an ordered comparison; durations accept strings such as `30s`."""
    if shape is NUMERIC:
        return _number_in(node.value, node)
    if not shape.kind.startswith(("int", "uint", "float")):
        raise Malformed(
            f"cannot compare type {shape.kind} by order, for selector: {quote(str(node.selector))}"
        )
    if shape.name == "time.Duration" and integer(node.value) is None:
        try:
            return durations.nanoseconds(node.value)
        except ValueError as error:
            raise Malformed(str(error)) from error
    parsed = _read(node.value, shape)
    return parsed if isinstance(parsed, int | float) else 0


def check_value(node: Comparison, shape: DocumentShape) -> None:
    """Raise `Malformed` if values of this shape do not support the comparison."""
    if node.operator in ORDER:
        number(node, shape)
    elif node.operator == "equal":
        if not shape.scalar:
            raise Malformed(
                f"cannot compare type {shape.kind}, for selector: {quote(str(node.selector))}"
            )
        _read(node.value, shape)
    elif node.operator == "matches":
        _matches(node, "", shape)


def _read(text: str, shape: DocumentShape) -> object:
    match shape.kind:
        case "bool":
            if text in _TRUE or text in _FALSE:
                return text in _TRUE
            raise _unreadable("ParseBool", text)
        case "float64":
            if _FLOAT.fullmatch(text):
                return float(text.replace("_", ""))
            raise _unreadable("ParseFloat", text)
        case kind if kind.startswith("uint"):
            return _bounded("ParseUint", text, 0, 2**64)
        case kind if kind.startswith("int"):
            return _bounded("ParseInt", text, -(2**63), 2**63)
        case _:
            return text


def _bounded(reader: str, text: str, least: int, beyond: int) -> int:
    signed = text.startswith(("+", "-"))
    number = None if signed and least == 0 else integer(text)
    if number is None:
        raise _unreadable(reader, text)
    if not least <= number < beyond:
        raise _unreadable(reader, text, "value out of range")
    return number


def integer(text: str) -> int | None:
    """Parse an integer in any Go notation; None if the text is not an integer."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    sign, *groups = match.groups()
    digits, base = next(
        (digits_of_group, base)
        for digits_of_group, base in zip(groups, _BASES, strict=True)
        if digits_of_group
    )
    value = int(digits.replace("_", "")[:400], base)  # more digits are out of range anyway
    return -value if sign == "-" else value


def _unreadable(reader: str, text: str, why: str = "invalid syntax") -> _NotThat:
    problem = f"strconv.{reader}: parsing {quote(text)}: {why}"
    return _NotThat(f"error getting match value in expression: {problem}")
