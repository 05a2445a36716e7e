"""Numeric functions."""

import math
from collections.abc import Callable

from daemon.jobspec.hcl.functions.registry import (
    any_value,
    function,
    number,
    per_character,
    whole_number,
)
from daemon.jobspec.hcl.number import MAX_EXPONENT, Number, from_float, rounded
from daemon.jobspec.hcl.scope import ArgumentFault, FunctionFault, HclFunction
from daemon.jobspec.hcl.values import Value, type_of

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CASELESS = 36  # up to this base, digits are case-insensitive


def _extreme(choose: Callable[..., Number]) -> Callable[..., Value]:
    def run(*numbers: Number) -> Value:
        if not numbers:
            raise FunctionFault("must pass at least one number")
        return choose(numbers)

    return run


def _signum(value: Value) -> Value:
    parsed = whole_number(value, "the number")
    return (parsed > 0) - (parsed < 0)


def _floating(compute: Callable[[float, float], float], number: Number, other: Number) -> Value:
    try:
        return from_float(compute(float(number), float(other)))
    except (OverflowError, ValueError, ZeroDivisionError) as error:
        raise FunctionFault("the result is not a finite number") from error


def _log(value: float, base: float) -> float:
    logarithm = math.log(base) if base else -math.inf
    return math.log(value) / logarithm


def _parseint(value: Value, base: Number) -> Value:
    if not isinstance(value, str):
        kind = type_of(value).name
        raise ArgumentFault(0, f"first argument must be a string, not {kind}")
    if not isinstance(base, int) or not 2 <= base <= len(_DIGITS):
        raise ArgumentFault(1, "base must be a whole number between 2 and 62 inclusive")
    digits = value[1:] if value[:1] in ("-", "+") else value
    folded = digits.lower() if base <= _CASELESS else digits
    if not digits or len(digits) > MAX_EXPONENT or set(folded) - set(_DIGITS[:base]):
        raise ArgumentFault(0, f'cannot parse "{value[:100]}" as a base {base} integer')
    parsed = 0
    for digit in folded:
        parsed = parsed * base + _DIGITS.index(digit)
    return rounded(-parsed if value.startswith("-") else parsed)


FUNCTIONS: dict[str, HclFunction] = {
    "abs": function(abs, number("num")),
    "ceil": function(math.ceil, number("num")),
    "floor": function(math.floor, number("num")),
    "max": function(_extreme(max), rest=number("numbers")),
    "min": function(_extreme(min), rest=number("numbers")),
    "signum": function(_signum, number("num")),
    "pow": function(
        lambda base, power: _floating(math.pow, base, power), number("num"), number("power")
    ),
    "log": function(
        lambda value, base: _floating(_log, value, base), number("num"), number("base")
    ),
    "parseint": function(_parseint, any_value("number"), number("base"), cost=per_character),
}
