"""Access to attributes and elements of a value."""

from fractions import Fraction

from daemon.jobspec.hcl.scope import Scope
from daemon.jobspec.hcl.source import HclError, did_you_mean
from daemon.jobspec.hcl.tree import AttrStep, IndexExpr, Step
from daemon.jobspec.hcl.values import (
    NUMBER,
    PRIMITIVES,
    ConversionError,
    Value,
    attributes,
    convert,
    elements,
    kind_of,
    to_text,
    type_of_shallow,
)

_NO_ELEMENT = "The given key does not identify an element in this collection value"


def attribute_of(value: Value, step: AttrStep, scope: Scope) -> Value:
    """Return an attribute of an object, or the value of a map's key."""
    if value is None:
        raise _step_fault(
            step,
            "Attempt to get attribute from null value",
            "This value is null, so it does not have any attributes.",
            scope,
        )
    named = attributes(value)
    if named is not None:
        if step.name in named:
            return named[step.name]
        detail = f'This object does not have an attribute named "{step.name}".'
        raise _step_fault(
            step, "Unsupported attribute", detail + did_you_mean(step.name, named), scope
        )
    kind = type_of_shallow(value)
    if kind in PRIMITIVES:
        detail = f"Can't access attributes on a primitive-typed value ({kind.name})."
    else:
        detail = (
            "This value does not have any attributes; to get one of each element, "
            f"write [*].{step.name}"
        )
    raise _step_fault(step, "Unsupported attribute", detail, scope)


def element_of(value: Value, step: IndexExpr, key: Value, scope: Scope) -> Value:
    """Return an element by index or key."""
    if value is None:
        detail = "This value is null, so it does not have any indices."
        raise _step_fault(step, "Attempt to index null value", detail, scope)
    if key is None:
        detail = "Can't use a null value as an indexing key."
        raise _step_fault(step, "Invalid index", detail, scope)
    items = elements(value)
    try:
        if items is not None and kind_of(value) != "set":
            return items[_position(key, len(items))]
        named = attributes(value)
        if named is not None:
            return named[_name(key, named)]
    except ConversionError as error:
        raise _step_fault(step, "Invalid index", f"{error}.", scope) from error
    raise _step_fault(step, "Invalid index", "This value does not have any indices.", scope)


def _position(key: Value, length: int) -> int:
    try:
        number = convert(key, NUMBER)
    except ConversionError as error:
        raise ConversionError(f"{_NO_ELEMENT}: {error}") from error
    if isinstance(number, Fraction):
        raise ConversionError(
            f"{_NO_ELEMENT}: indexing a sequence requires a whole number, but the given index "
            "has a fractional part"
        )
    if not isinstance(number, int) or number < 0:
        raise ConversionError(
            f"{_NO_ELEMENT}: a negative number is not a valid index for a sequence"
        )
    if number >= length:
        raise ConversionError(
            f"{_NO_ELEMENT}: the given index is greater than or equal to the length of the "
            "collection"
        )
    return number


def _name(key: Value, named: object) -> str:
    try:
        name = to_text(key)
    except ConversionError as error:
        raise ConversionError(f"{_NO_ELEMENT}: {error}") from error
    if not isinstance(named, dict) or name not in named:
        if isinstance(key, str):
            raise ConversionError(_NO_ELEMENT)
        raise ConversionError(
            f"{_NO_ELEMENT}. An object only supports looking up attributes by name, not by "
            "numeric index"
        )
    return name


def _step_fault(step: Step, summary: str, detail: str, scope: Scope) -> HclError:
    return scope.fault_at(step.start, step.end, summary, detail)
