"""Template values: emptiness, formatting, comparison and access. No I/O.

Values are nil, Booleans, 64-bit integers, floats, strings, lists, maps, and records with known
fields. The rules and the error texts are Go's (pkg.go.dev/text/template).
"""

from collections.abc import Mapping

import msgspec

from daemon.templates.errors import StepBudget, TemplateError
from daemon.text import go_format

NO_VALUE = "<no value>"
_LEAST, _MOST = -(2**63), 2**63 - 1


class StringMap(dict[str, str]):
    """A map of strings; a missing entry is an empty string."""


class MissingValue:
    """A missing map entry. It is like nil, but is shown as `<no value>`."""


ABSENT = MissingValue()


class ValueList(msgspec.Struct, frozen=True):
    """An item of the `.Tuples` of a variable: a key and its value."""

    Key: str
    Value: str


def type_name(value: object) -> str:
    """Return Go's name for the type of a value."""
    match value:
        case None | MissingValue():
            return "<nil>"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float64"
        case str():
            return "string"
        case Mapping():
            return "map[string]interface {}"
        case list() | range():
            return "[]interface {}"
    return type(value).__name__


def is_true(value: object) -> bool:
    """Return whether a value is not empty."""
    if isinstance(value, msgspec.Struct):
        return True
    return not isinstance(value, MissingValue) and bool(value)


def format_value(value: object, budget: StepBudget, *, nested: bool = False) -> str:
    """Format a value as template output."""
    match value:
        case MissingValue():
            return NO_VALUE
        case str():
            return value
        case None:
            return "<nil>" if nested else NO_VALUE
        case bool():
            return "true" if value else "false"
        case float():
            return float_text(value)
        case list() | range():
            budget.spend(len(value))
            text = go_format.format_list(
                format_value(element, budget, nested=True) for element in value
            )
        case Mapping():
            budget.spend(len(value))
            pairs = (
                f"{key}:{format_value(value[key], budget, nested=True)}" for key in sorted(value)
            )
            text = f"map{go_format.format_list(pairs)}"
        case msgspec.Struct():
            fields = [getattr(value, name) for name in value.__struct_fields__]
            text = f"{{{' '.join(format_value(field, budget, nested=True) for field in fields)}}}"
        case _:
            return str(value)
    budget.make(len(text))
    return text


def float_text(value: float) -> str:
    """Format a float as Go does."""
    if value != value:  # NaN
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return go_format.decimal(value)


def bounded(value: float) -> int | float:
    """Return a number unchanged. Raises `TemplateError` for an integer beyond 64 bits."""
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise TemplateError("the result is beyond 64 bits")
    return value


def field(value: object, name: str, budget: StepBudget, *, strict: bool) -> object:
    """Return a field of a record or an entry of a map. Raises `TemplateError`.

    A missing entry is an error only with `strict`.
    """
    if isinstance(value, Mapping):
        return entry(value, name, budget, strict=strict)
    if isinstance(value, msgspec.Struct) and name[:1].isupper() and hasattr(value, name):
        return getattr(value, name)
    if value is None or isinstance(value, MissingValue):
        raise TemplateError(f"nil pointer evaluating interface {{}}.{name}")
    raise TemplateError(f"can't evaluate field {name} in type {type_name(value)}")


def entry(value: Mapping[str, object], name: str, budget: StepBudget, *, strict: bool) -> object:
    """Return an entry of a map. Raises `TemplateError` if it is missing and `strict` is set."""
    if name in value:
        return value[name]
    if isinstance(value, StringMap):
        if name[:1].isupper() and (selected := _of_items(value, name, budget)) is not None:
            return selected
        if not strict:
            return ""
    if strict:
        raise TemplateError(f"map has no entry for key {go_format.quote(name)}")
    return ABSENT


def _of_items(value: StringMap, name: str, budget: StepBudget) -> object:
    """Return the result of `.Keys`, `.Values` or `.Tuples` of a variable; None for another name."""
    if name in ("Keys", "Values", "Tuples"):
        budget.spend(len(value))
    match name:
        case "Keys":
            return sorted(value)
        case "Values":
            return [value[key] for key in sorted(value)]
        case "Tuples":
            return [ValueList(key, value[key]) for key in sorted(value)]
    return None


# --- comparison ---


def _kind(value: object) -> str:
    match value:
        case bool():
            return "truth"
        case int() | float():
            return "number"
        case str():
            return "text"
        case None | MissingValue():
            return "nil"
    return ""


def equal(first: object, second: object) -> bool:
    """Return whether two values are equal. Raises `TemplateError` for incomparable values."""
    kinds = _kind(first), _kind(second)
    if "nil" in kinds:
        return kinds[0] == kinds[1]
    if not all(kinds):
        raise TemplateError("invalid type for comparison")
    if kinds[0] != kinds[1]:
        raise TemplateError("incompatible types for comparison")
    return first == second


def less(first: object, second: object) -> bool:
    """Return whether a value is less than another. Raises `TemplateError` for unordered values."""
    match first, second:
        case (bool(), _) | (_, bool()):
            raise TemplateError("invalid type for comparison")
        case (int() | float(), int() | float()):
            return first < second
        case str(), str():
            return first < second
    if _kind(first) in {"number", "text"} and _kind(second) in {"number", "text"}:
        raise TemplateError("incompatible types for comparison")
    raise TemplateError("invalid type for comparison")


# --- argument types ---


def text_of(value: object) -> str:
    """Return the value if it is a string. Raises `TemplateError` for a value of another type."""
    if isinstance(value, str):
        return value
    raise TemplateError(f"wrong type for value; expected string; got {type_name(value)}")


def whole_of(value: object) -> int:
    """Return the value if it is an integer. Raises `TemplateError` for a value of another type."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TemplateError(f"wrong type for value; expected int; got {type_name(value)}")


def number_of(value: object) -> int | float:
    """Return the value if it is a number. Raises `TemplateError` for a value of another type."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise TemplateError(f"wrong type for value; expected a number; got {type_name(value)}")


def list_of(value: object) -> list[object] | range:
    """Return a list or a range unchanged. Raises `TemplateError` for any other value.

    The value is not copied, because the range of a `loop` can be very long.
    """
    if isinstance(value, list | range):
        return value
    raise TemplateError(f"wrong type for value; expected a list; got {type_name(value)}")
