"""Checks that values have the types that their contexts require, and the errors.

Contexts are an object key, a template part, a condition, a conditional branch and a collection.
"""

from collections.abc import Iterator, Sequence

from daemon.jobspec.hcl.scope import Scope
from daemon.jobspec.hcl.tree import Conditional, Expression, For, Interpolation
from daemon.jobspec.hcl.values import (
    BOOL,
    ConversionError,
    Value,
    convert,
    kind_of,
    to_text,
    type_of,
    unify,
)
from daemon.jobspec.hcl.values import pairs as pairs_of


def key(node: Expression, value: Value, value_node: Expression, scope: Scope) -> str:
    """Return the value of an object's key as text. Raises `HclError`."""
    if value is None:
        # Nomad points at the value.
        raise scope.fault(value_node, "Null value as key", "Can't use a null value as a key.")
    try:
        return to_text(value)
    except ConversionError as error:
        detail = f"Can't use this value as a key: {error}."
        raise scope.fault(node, "Incorrect key type", detail) from error


def part(node: Expression, value: Value, scope: Scope) -> str:
    """Return the text of a template's part. Raises `HclError`."""
    if isinstance(value, str):
        return value
    inner = node.inner if isinstance(node, Interpolation) else node
    if value is None:
        raise scope.fault(
            inner,
            "Invalid template interpolation value",
            "The expression result is null. Cannot include a null value in a string template.",
        )
    try:
        return to_text(value)
    except ConversionError as error:
        raise scope.fault(
            inner,
            "Invalid template interpolation value",
            f"Cannot include the given value in a string template: {error}.",
        ) from error


def branch(node: Conditional, value: Value, then: Value, otherwise: Value, scope: Scope) -> Value:
    """Return a branch's value, converted to the common type of both branches.

    Raises `HclError`.
    """
    common = unify([type_of(then), type_of(otherwise)])
    if common is not None and common.kind not in ("list", "map", "set"):
        return convert(value, common)
    kinds = {kind_of(then), kind_of(otherwise)}
    if kinds <= {"tuple", "list", "set"} or kinds <= {"object", "map"}:
        if common is not None and kinds & {"list", "set", "map"}:
            return convert(value, common)
        return value
    detail = (
        "The true and false result expressions must have consistent types. The 'true' value is "
        f"{type_of(then).name}, but the 'false' value is {type_of(otherwise).name}."
    )
    raise scope.fault_at(node.then.start, node.end, "Inconsistent conditional result types", detail)


def condition(node: Expression, value: Value, scope: Scope) -> bool:
    """Return a condition as a Boolean. Raises `HclError`."""
    if value is None:
        detail = "The condition value is null. Conditions must either be true or false."
        raise scope.fault(node, "Null condition", detail)
    try:
        return convert(value, BOOL) is True
    except ConversionError as error:
        detail = "The condition expression must be of type bool."
        raise scope.fault(node, "Incorrect condition type", detail) from error


def pairs(node: Expression, collection: Value, scope: Scope) -> Iterator[tuple[Value, Value]]:
    """Return keys and values of a collection; objects and maps are sorted by key.

    Raises `HclError`.
    """
    if collection is None:
        detail = "A null value cannot be used as the collection in a 'for' expression."
        raise scope.fault(node, "Iteration over null value", detail)
    key_value_pairs = pairs_of(collection)
    if key_value_pairs is None:
        detail = (
            f"A value of type {type_of(collection).name} cannot be used as the collection in a "
            "'for' expression."
        )
        raise scope.fault(node, "Iteration over non-iterable value", detail)
    return key_value_pairs


def for_condition(node: Expression, value: Value, scope: Scope) -> bool:
    """Return the `if` condition of a `for` as a Boolean. Raises `HclError`."""
    if value is None:
        detail = "The value of the 'if' clause must not be null."
        raise scope.fault(node, "Condition is null", detail)
    try:
        return convert(value, BOOL) is True
    except ConversionError as error:
        detail = f"The 'if' clause value is invalid: {error}."
        raise scope.fault(node, "Invalid 'for' condition", detail) from error


def add_for_element(
    node: For, key_node: Expression, pair: Sequence[Value], scope: Scope, named: dict[str, Value]
) -> None:
    """Add one element's key and value to the result of a `for`. Raises `HclError`."""
    name_value, value = pair
    if name_value is None:
        detail = "Key expression in 'for' expression must not produce a null value."
        raise scope.fault(key_node, "Invalid object key", detail)
    try:
        name = to_text(name_value)
    except ConversionError as error:
        detail = f"The key expression produced an invalid result: {error}."
        raise scope.fault(key_node, "Invalid object key", detail) from error
    if node.groups:
        before = named.get(name, ())
        named[name] = (*(before if isinstance(before, tuple) else ()), value)
    elif name in named:
        detail = (
            f"Two different items produced the key \"{name}\" in this 'for' expression. If "
            "duplicates are expected, use the ellipsis (...) after the value expression to "
            "enable grouping by key."
        )
        raise scope.fault(key_node, "Duplicate object key", detail)
    else:
        named[name] = value
