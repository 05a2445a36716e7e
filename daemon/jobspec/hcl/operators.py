"""Operators: arithmetic, comparison and logic on values."""

from collections.abc import Callable

from daemon.jobspec.hcl.number import Number, divide, number_size, remainder, rounded
from daemon.jobspec.hcl.scope import Scope
from daemon.jobspec.hcl.source import Diagnostic, HclError
from daemon.jobspec.hcl.tree import BinaryOp, UnaryOp
from daemon.jobspec.hcl.values import (
    BOOL,
    NUMBER,
    ConversionError,
    Type,
    Value,
    convert,
    equal,
    is_number,
)


def negated(node: UnaryOp, value: Value, scope: Scope) -> Value:
    """Return `-value` or `!value`."""
    target_type = NUMBER if node.operator == "-" else BOOL
    if value is None:
        raise _failed(node.start, node.end, "argument must not be null", scope)
    try:
        converted = convert(value, target_type)
    except ConversionError as error:
        detail = f"Unsuitable value for unary operand: {error}."
        raise scope.fault(node.operand, "Invalid operand", detail) from error
    if isinstance(converted, bool):
        return not converted
    return -_number(converted)


def apply(
    node: BinaryOp, position: int, operator: str, value: Value, right: Value, scope: Scope
) -> Value:
    """Return the result of an operator for two operands.

    `position` is the position of the operator in the chain `node`.
    """
    if operator == "==":
        return equal(value, right)
    if operator == "!=":
        return not equal(value, right)
    target_type = BOOL if operator in ("&&", "||") else NUMBER
    problems: list[Diagnostic] = []
    end = node.operands[position + 1].end
    span = (node.operands[0].start, node.operands[position].end)
    left = _operand("left", value, target_type, span, scope, problems)
    span = (node.operands[position + 1].start, end)
    right_value = _operand("right", right, target_type, span, scope, problems)
    if problems:
        raise HclError(problems)
    if left is None or right_value is None:
        raise _failed(node.start, end, "argument must not be null", scope)
    if isinstance(left, bool) or isinstance(right_value, bool):
        return bool(left and right_value) if operator == "&&" else bool(left or right_value)
    first, second = _number(left), _number(right_value)
    scope.spend(node, number_size(first) + number_size(second))
    try:
        return _ON_NUMBERS[operator](first, second)
    except ZeroDivisionError as error:
        why = "can't divide zero by zero or infinity by infinity" if not left else "divided by zero"
        raise _failed(node.start, end, why, scope) from error


def _operand(
    side: str,
    value: Value,
    type_: Type,
    span: tuple[int, int],
    scope: Scope,
    problems: list[Diagnostic],
) -> Value:
    """Convert an operand to the operator's type. If that fails, add an error to `problems`.

    `side` is `left` or `right`, and identifies the operand in the error.
    """
    try:
        return convert(value, type_)
    except ConversionError as error:
        detail = f"Unsuitable value for {side} operand: {error}."
        problems += scope.fault_at(*span, "Invalid operand", detail).diagnostics
        return None


def _failed(start: int, end: int, why: str, scope: Scope) -> HclError:
    detail = f"Error during operation: {why}."
    return scope.fault_at(start, end, "Operation failed", detail)


def _number(value: Value) -> Number:
    if not is_number(value):
        raise TypeError(f"{value!r} is not a number")
    return value


_ON_NUMBERS: dict[str, Callable[[Number, Number], Value]] = {
    "+": lambda operand, other: rounded(operand + other),
    "-": lambda operand, other: rounded(operand - other),
    "*": lambda operand, other: rounded(operand * other),
    "/": divide,
    "%": remainder,
    "<": lambda operand, other: operand < other,
    "<=": lambda operand, other: operand <= other,
    ">": lambda operand, other: operand > other,
    ">=": lambda operand, other: operand >= other,
}
