"""Definition of functions: a plain Python function with its parameters."""

from collections.abc import Callable, Sequence

from daemon.jobspec.hcl.scope import (
    MAX_DEPTH,
    MAX_STEPS,
    MAX_TEXT,
    FunctionFault,
    HclFunction,
    Parameter,
)
from daemon.jobspec.hcl.values import (
    ANY,
    NUMBER,
    STRING,
    CollectionType,
    Value,
    elements,
    list_of,
    measure,
)

STRINGS = list_of(STRING)


def text(name: str) -> Parameter:
    """Return a text parameter."""
    return Parameter(name, STRING)


def number(name: str) -> Parameter:
    """Return a number parameter."""
    return Parameter(name, NUMBER)


def any_value(name: str, *, may_be_null: bool = False) -> Parameter:
    """Return a parameter of any type."""
    return Parameter(name, ANY, may_be_null)


def texts(name: str) -> Parameter:
    """Return a parameter that is a list of strings."""
    return Parameter(name, STRINGS)


def function(
    run: Callable[..., Value],
    *parameters: Parameter,
    rest: Parameter | None = None,
    cost: Callable[[tuple[Value, ...]], int] | None = None,
) -> HclFunction:
    """Return an HCL function that calls `run` with the values of its arguments.

    `rest` describes any further arguments. `cost` computes the cost of a call from its arguments.
    """
    return HclFunction(
        parameters=parameters, rest=rest, run=lambda values, _: run(*values), cost=cost
    )


def per_character(values: tuple[Value, ...]) -> int:
    """Return the cost of a function that processes each character of its text arguments."""
    return sum([len(value) for value in values if isinstance(value, str)])


def per_part(values: tuple[Value, ...]) -> int:
    """Return the cost of a function that creates an object for each element of its arguments."""
    return 3 * sum([measure(value, MAX_STEPS, MAX_DEPTH) for value in values])


def bounded(length: int) -> None:
    """Raise `FunctionFault` if a result of `length` characters would exceed the limit."""
    if length > MAX_TEXT:
        raise FunctionFault(f"the result would have more than {MAX_TEXT} characters")


def bounded_parts(count: int) -> None:
    """Raise `FunctionFault` if a list would have more elements than an evaluation has steps.

    Making such a list would block other threads for long.
    """
    if count > MAX_STEPS:
        raise FunctionFault(f"the result would have more than {MAX_STEPS} parts")


def whole_number(value: Value, subject: str) -> int:
    """Return `value` if it is an integer. Otherwise, raise `FunctionFault`.

    `subject` is the name of the value in the error.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise FunctionFault(f"{subject} must be a whole number")


def text_list(items: Sequence[str]) -> CollectionType:
    """Return a list of strings."""
    return CollectionType("list", STRING, tuple(items))


def items_of(value: Value) -> tuple[Value, ...]:
    """Return the elements of a value that is already a list or set."""
    return elements(value) or ()


def strings_of(value: Value) -> list[str]:
    """Return the strings in a list of strings, without the nulls."""
    return [string for string in items_of(value) if isinstance(string, str)]
