"""Constraints: resolve their targets on a node and evaluate their operators.

Targets are `${node...}`, `${attr...}`, `${meta...}`, or literal text. A missing attribute fails
every operator except `is_not_set` and `!=`. An invalid constraint (an unknown operator, a malformed
version or pattern, a pattern that takes too long) always fails. The job is then blocked, and the
placement metrics name the constraint.
"""

import operator
import re
from collections.abc import Callable, Iterable

from daemon.matching import regexp, versions
from storage.errors import Invalid
from storage.records.constraints import Affinity, Constraint
from storage.records.node import Node

DISTINCT_HOSTS = "distinct_hosts"
DISTINCT_PROPERTY = "distinct_property"

# Targets with these prefixes differ between nodes of one class.
_UNIQUE = ("${unique.", "${node.unique.", "${attr.unique.", "${meta.unique.")


def resolve(target: str, node: Node, region: str) -> str | None:
    """Return the value of a target on a node, or None if the node has no such value.

    All nodes are in one region, so the region is an argument and not a field of the node.
    """
    if not target.startswith("${"):
        return target
    scope, _, key = target[2:].removesuffix("}").partition(".")
    match scope:
        case "attr":
            return node.attributes.get(key)
        case "meta":
            return node.meta.get(key)
        case "node":
            return region if key == "region" else _of_node(key, node)
        case _:
            return None


def _of_node(key: str, node: Node) -> str | None:
    match key:
        case "unique.id":
            return node.id
        case "unique.name":
            return node.name
        case "datacenter":
            return node.datacenter
        case "class":
            return node.node_class
        case "pool":
            return node.node_pool
        case _:
            return None


def matches(condition: Constraint | Affinity, node: Node, region: str) -> bool:
    """Return whether a node satisfies a constraint or an affinity.

    A constraint that depends on several nodes always counts as satisfied.
    """
    left = resolve(condition.l_target, node, region)
    right = resolve(condition.r_target, node, region)
    return compare(condition.operand, left, right)


def compare(operand: str, left: str | None, right: str | None) -> bool:
    """Return whether an operator holds for two values; None means a missing value."""
    match operand:
        case "distinct_hosts" | "distinct_property":
            return True  # these depend on several nodes: see `feasibility` and `spread`
        case "is_set":
            return left is not None
        case "is_not_set":
            return left is None
        case "!=" | "not":
            return (left or "") != (right or "")
    relation = _RELATIONS.get(operand)
    return relation is not None and left is not None and right is not None and relation(left, right)


def text_of(constraint: Constraint) -> str:
    """Format a constraint as placement metrics do.

    Source: Nomad's recorded responses `blocked-evaluation`.
    """
    return f"{constraint.l_target} {constraint.operand} {constraint.r_target}"


def escapes_node_class(constraints: Iterable[Constraint]) -> bool:
    """Return whether any constraint can have different results for nodes of one class."""
    return any(
        target.startswith(_UNIQUE)
        for constraint in constraints
        for target in (constraint.l_target, constraint.r_target)
    )


# --- operators ---

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")


def _ordered(*signs: int) -> Callable[[str, str], bool]:
    """Return a function that compares two values, and returns whether their order is in `signs`.

    The order is -1 if the left value is smaller, 0 if both are equal, and 1 if it is larger.
    Integers are compared as numbers, other values as text.
    """
    return lambda left, right: _order(left, right) in signs


def _order(left: str, right: str) -> int:
    if _WHOLE.fullmatch(left) and _WHOLE.fullmatch(right):
        return _sign(int(left) - int(right))
    if _DECIMAL.fullmatch(left) and _DECIMAL.fullmatch(right):
        return _sign(float(left) - float(right))
    return (left > right) - (left < right)


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _version(dialect: versions.VersionDialect) -> Callable[[str, str], bool]:
    def check(left: str, right: str) -> bool:
        try:
            return versions.satisfies(left, right, dialect)
        except Invalid:
            return False

    return check


def _regexp(left: str, right: str) -> bool:
    try:
        return regexp.search(right, left)
    except regexp.PatternsTooCostly:
        raise  # the decision as a whole has reached its limit
    except Invalid:
        return False


def _items(text: str) -> set[str]:
    return {part.strip() for part in text.split(",")}


def _contains_all(left: str, right: str) -> bool:
    return _items(right) <= _items(left)


def _contains_any(left: str, right: str) -> bool:
    return not _items(right).isdisjoint(_items(left))


_RELATIONS: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "is": operator.eq,
    "<": _ordered(-1),
    "<=": _ordered(-1, 0),
    ">": _ordered(1),
    ">=": _ordered(0, 1),
    "regexp": _regexp,
    "version": _version(versions.VersionDialect.VERSION),
    "semver": _version(versions.VersionDialect.SEMVER),
    "set_contains": _contains_all,
    "set_contains_all": _contains_all,
    "set_contains_any": _contains_any,
}
