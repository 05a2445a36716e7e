"""The values of templates: what is empty, how they are shown, compared and taken apart. Pure.

They are nil, truths, whole numbers of 64 bits, floating numbers, texts, lists, maps, and records
whose fields are known. Rules and texts of errors are Go's (pkg.go.dev/text/template).
"""

from collections.abc import Mapping

import msgspec

from daemon.jobspec import gotext
from daemon.templates.faults import Budget, Fault

NO_VALUE = "<no value>"
_LEAST, _MOST = -(2**63), 2**63 - 1


class Items(dict[str, str]):
    """A map of texts: what is not in it is an empty text."""


class Absent:
    """What a map has not: nil, which is shown in another way."""


ABSENT = Absent()


class Tuple(msgspec.Struct, frozen=True):
    """A key with its value."""

    Key: str
    Value: str


def type_name(value: object) -> str:
    """Return what Go calls the type of a value."""
    match value:
        case None | Absent():
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
    """Tell whether a value is not empty."""
    if isinstance(value, msgspec.Struct):
        return True
    return not isinstance(value, Absent) and bool(value)


def shown(value: object, budget: Budget, *, nested: bool = False) -> str:
    """Return a value as a template writes it."""
    match value:
        case Absent():
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
            text = gotext.words(shown(one, budget, nested=True) for one in value)
        case Mapping():
            budget.spend(len(value))
            pairs = (f"{key}:{shown(value[key], budget, nested=True)}" for key in sorted(value))
            text = f"map{gotext.words(pairs)}"
        case msgspec.Struct():
            fields = [getattr(value, name) for name in value.__struct_fields__]
            text = f"{{{' '.join(shown(one, budget, nested=True) for one in fields)}}}"
        case _:
            return str(value)
    budget.make(len(text))
    return text


def float_text(value: float) -> str:
    """Return a floating number as Go prints it."""
    if value != value:  # not a number
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return gotext.decimal(value)


def bounded(value: float) -> int | float:
    """Return the result of a calculation. Raises `Fault` for a whole number beyond 64 bits."""
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise Fault("the result is beyond 64 bits")
    return value


def field(value: object, name: str, *, strict: bool) -> object:
    """Return a field of a record or an entry of a map. Raises `Fault`.

    An entry that there is not is an error only if it is to be `strict`.
    """
    if isinstance(value, Mapping):
        return entry(value, name, strict=strict)
    if isinstance(value, msgspec.Struct) and name[:1].isupper() and hasattr(value, name):
        return getattr(value, name)
    if value is None or isinstance(value, Absent):
        raise Fault(f"nil pointer evaluating interface {{}}.{name}")
    raise Fault(f"can't evaluate field {name} in type {type_name(value)}")


def entry(value: Mapping[str, object], name: str, *, strict: bool) -> object:
    """Return an entry of a map. Raises `Fault` if there is none and it is to be `strict`."""
    if name in value:
        return value[name]
    if isinstance(value, Items):
        if name[:1].isupper() and (made := _of_items(value, name)) is not None:
            return made
        if not strict:
            return ""
    if strict:
        raise Fault(f"map has no entry for key {gotext.quote(name)}")
    return ABSENT


def _of_items(value: Items, name: str) -> object:
    """Return what the values of a variable have besides themselves."""
    match name:
        case "Keys":
            return sorted(value)
        case "Values":
            return [value[key] for key in sorted(value)]
        case "Tuples":
            return [Tuple(key, value[key]) for key in sorted(value)]
    return None


# ---- comparing ----------------------------------------------------------------------------------


def _kind(value: object) -> str:
    match value:
        case bool():
            return "truth"
        case int() | float():
            return "number"
        case str():
            return "text"
        case None | Absent():
            return "nil"
    return ""


def equal(first: object, second: object) -> bool:
    """Tell whether two values are the same. Raises `Fault` for those that cannot be compared."""
    kinds = _kind(first), _kind(second)
    if "nil" in kinds:
        return kinds[0] == kinds[1]
    if not all(kinds):
        raise Fault("invalid type for comparison")
    if kinds[0] != kinds[1]:
        raise Fault("incompatible types for comparison")
    return first == second


def less(first: object, second: object) -> bool:
    """Tell whether a value comes before another. Raises `Fault` for those that have no order."""
    match first, second:
        case (bool(), _) | (_, bool()):
            raise Fault("invalid type for comparison")
        case (int() | float(), int() | float()):
            return first < second
        case str(), str():
            return first < second
    if _kind(first) in {"number", "text"} and _kind(second) in {"number", "text"}:
        raise Fault("incompatible types for comparison")
    raise Fault("invalid type for comparison")


# ---- what functions ask for ---------------------------------------------------------------------


def text_of(value: object) -> str:
    """Return a text. Raises `Fault` for another value."""
    if isinstance(value, str):
        return value
    raise Fault(f"wrong type for value; expected string; got {type_name(value)}")


def whole_of(value: object) -> int:
    """Return a whole number. Raises `Fault` for another value."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Fault(f"wrong type for value; expected int; got {type_name(value)}")


def number_of(value: object) -> int | float:
    """Return a number. Raises `Fault` for another value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise Fault(f"wrong type for value; expected a number; got {type_name(value)}")


def list_of(value: object) -> list[object] | range:
    """Return a list as it is: one of `loop` may have no end. Raises `Fault` for another value."""
    if isinstance(value, list | range):
        return value
    raise Fault(f"wrong type for value; expected a list; got {type_name(value)}")
