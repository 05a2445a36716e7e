"""Argument types of job files, and their conversion to document values."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial

from daemon.jobspec.durations import read_duration
from daemon.jobspec.hcl.number import Number
from daemon.jobspec.hcl.values import (
    BOOL,
    NUMBER,
    STRING,
    ConversionError,
    Value,
    attributes,
    convert,
    elements,
    list_of,
    map_of,
    to_number,
    to_text,
)

# Converts a non-null value to its document form. Raises `ConversionError`.
Kind = Callable[[Value], object]

_INT64 = (-(2**63), 2**63 - 1)


def text(value: Value) -> object:
    """Return text; convert numbers and Booleans."""
    return to_text(value)


def flag(value: Value) -> object:
    """Return a Boolean."""
    return convert(value, BOOL)


def whole(least: int, most: int) -> Kind:
    """Return a converter that accepts integers from `least` to `most`."""
    return partial(_whole, least, most)


def _whole(least: int, most: int, value: Value) -> object:
    number = to_number(value)
    if isinstance(number, Fraction) or not least <= number <= most:
        raise ConversionError(
            f"value must be a whole number, between {least} and {most}{_ending(most)}"
        )
    return number


def _ending(most: int) -> str:
    return "" if most == _INT64[1] else " inclusive"


integer = whole(*_INT64)


def duration(value: Value) -> object:
    """Return a duration in nanoseconds, from text with a unit or from a number of nanoseconds."""
    if isinstance(value, bool) or not isinstance(value, Number | str):
        raise ConversionError('expected a string such as "30s"')
    if not isinstance(value, str):
        return _whole(*_INT64, value)
    try:
        return read_duration(value)
    except ValueError as error:
        raise BadDuration(str(error)) from error


class BadDuration(ConversionError):
    """The text is not a duration."""


def texts(value: Value) -> object:
    """Return a list of strings."""
    return list(elements(convert(value, list_of(STRING))) or ())


def text_map(value: Value) -> object:
    """Return a map of non-null strings."""
    named = attributes(convert(value, map_of(STRING))) or {}
    if None in named.values():
        raise ConversionError("null value is not allowed")
    return dict(named)


def ports(value: Value) -> object:
    """Return a list of port numbers."""
    return [_whole(0, 65535, port) for port in elements(convert(value, list_of(NUMBER))) or ()]
