"""How functions are defined: plain Python functions, with a line that says what they take."""

from collections.abc import Callable, Sequence

from daemon.jobspec.hcl.scope import (
    MAX_DEPTH,
    MAX_STEPS,
    MAX_TEXT,
    Function,
    FunctionFault,
    Parameter,
)
from daemon.jobspec.hcl.values import (
    ANY,
    NUMBER,
    STRING,
    Collection,
    Value,
    elements,
    list_of,
    measure,
)

STRINGS = list_of(STRING)


def text(name: str) -> Parameter:
    """Return a parameter that is text."""
    return Parameter(name, STRING)


def number(name: str) -> Parameter:
    """Return a parameter that is a number."""
    return Parameter(name, NUMBER)


def anything(name: str, *, may_be_null: bool = False) -> Parameter:
    """Return a parameter of any type."""
    return Parameter(name, ANY, may_be_null)


def texts(name: str) -> Parameter:
    """Return a parameter that is a list of texts."""
    return Parameter(name, STRINGS)


def function(
    run: Callable[..., Value],
    *parameters: Parameter,
    rest: Parameter | None = None,
    cost: Callable[[tuple[Value, ...]], int] | None = None,
) -> Function:
    """Return a function of the language from one that takes the values of its arguments."""
    return Function(parameters=parameters, rest=rest, run=lambda values, _: run(*values), cost=cost)


def per_character(values: tuple[Value, ...]) -> int:
    """Return the cost of a function that looks at each character of its texts by itself."""
    return sum([len(value) for value in values if isinstance(value, str)])


def per_part(values: tuple[Value, ...]) -> int:
    """Return the cost of a function that builds something of each part of its values."""
    return 3 * sum([measure(value, MAX_STEPS, MAX_DEPTH) for value in values])


def bounded(length: int) -> None:
    """Raise `FunctionFault` for a text that would be too long."""
    if length > MAX_TEXT:
        raise FunctionFault(f"the result would have more than {MAX_TEXT} characters")


def whole(value: Value, what: str) -> int:
    """Return a number that must be whole. Raises `FunctionFault`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise FunctionFault(f"{what} must be a whole number")


def text_list(items: Sequence[str]) -> Collection:
    """Return a list of texts."""
    return Collection("list", STRING, tuple(items))


def items_of(value: Value) -> tuple[Value, ...]:
    """Return the elements of what has been converted into a list or a set."""
    return elements(value) or ()


def strings_of(value: Value) -> list[str]:
    """Return the elements of a list of texts; null is left out."""
    return [item for item in items_of(value) if isinstance(item, str)]
