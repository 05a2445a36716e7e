"""Steps into a value: attributes and indexes."""

from fractions import Fraction

from daemon.jobspec.hcl.scope import Scope
from daemon.jobspec.hcl.source import Faulty, did_you_mean
from daemon.jobspec.hcl.tree import Attr, Lookup, Step
from daemon.jobspec.hcl.values import (
    NUMBER,
    PRIMITIVES,
    Unsuitable,
    Value,
    attributes,
    convert,
    elements,
    kind_of,
    to_text,
    type_of_shallow,
)

_NO_ELEMENT = "The given key does not identify an element in this collection value"


def attribute_of(value: Value, step: Attr, scope: Scope) -> Value:
    """Return an attribute of an object, or what a map holds under a name."""
    if value is None:
        raise _wrong(
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
        raise _wrong(step, "Unsupported attribute", detail + did_you_mean(step.name, named), scope)
    kind = type_of_shallow(value)
    if kind in PRIMITIVES:
        detail = f"Can't access attributes on a primitive-typed value ({kind.name})."
    else:
        detail = (
            "This value does not have any attributes; to get one of each element, "
            f"write [*].{step.name}"
        )
    raise _wrong(step, "Unsupported attribute", detail, scope)


def element_of(value: Value, step: Lookup, key: Value, scope: Scope) -> Value:
    """Return an element by its index or key."""
    if value is None:
        detail = "This value is null, so it does not have any indices."
        raise _wrong(step, "Attempt to index null value", detail, scope)
    if key is None:
        detail = "Can't use a null value as an indexing key."
        raise _wrong(step, "Invalid index", detail, scope)
    items = elements(value)
    try:
        if items is not None and kind_of(value) != "set":
            return items[_position(key, len(items))]
        named = attributes(value)
        if named is not None:
            return named[_name(key, named)]
    except Unsuitable as error:
        raise _wrong(step, "Invalid index", f"{error}.", scope) from error
    raise _wrong(step, "Invalid index", "This value does not have any indices.", scope)


def _position(key: Value, length: int) -> int:
    try:
        number = convert(key, NUMBER)
    except Unsuitable as error:
        raise Unsuitable(f"{_NO_ELEMENT}: {error}") from error
    if isinstance(number, Fraction):
        raise Unsuitable(
            f"{_NO_ELEMENT}: indexing a sequence requires a whole number, but the given index "
            "has a fractional part"
        )
    if not isinstance(number, int) or number < 0:
        raise Unsuitable(f"{_NO_ELEMENT}: a negative number is not a valid index for a sequence")
    if number >= length:
        raise Unsuitable(
            f"{_NO_ELEMENT}: the given index is greater than or equal to the length of the "
            "collection"
        )
    return number


def _name(key: Value, named: object) -> str:
    try:
        name = to_text(key)
    except Unsuitable as error:
        raise Unsuitable(f"{_NO_ELEMENT}: {error}") from error
    if not isinstance(named, dict) or name not in named:
        if isinstance(key, str):
            raise Unsuitable(_NO_ELEMENT)
        raise Unsuitable(
            f"{_NO_ELEMENT}. An object only supports looking up attributes by name, not by "
            "numeric index"
        )
    return name


def _wrong(step: Step, summary: str, detail: str, scope: Scope) -> Faulty:
    return scope.fault_at(step.start, step.end, summary, detail)
