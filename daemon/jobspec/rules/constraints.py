"""Validation of constraints, affinities and spreads of jobs, groups, tasks and devices."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from daemon.matching import regexp, versions
from daemon.text.go_format import quote, uint_error, wrap_error
from storage.errors import Invalid
from storage.records.constraints import Affinity, Constraint, Spread
from storage.records.job import JobType
from storage.records.numbers import parse_integer

_COMPARISONS = frozenset({"=", "==", "is", "!=", "not", "<", "<=", ">", ">="})
_SETS = frozenset({"set_contains", "set_contains_all", "set_contains_any"})
_PRESENCE = frozenset({"is_set", "is_not_set"})
DISTINCT = frozenset({"distinct_hosts", "distinct_property"})

_EXACT_ATTRIBUTES = frozenset(
    {
        "${node.unique.id}",
        "${node.datacenter}",
        "${node.unique.name}",
        "${node.class}",
        "${node.pool}",
    }
)
_ATTRIBUTE_PREFIXES = ("${attr.", "${device.", "${meta.")

_Item = TypeVar("_Item")


def each(
    kind: str, items: Iterable[_Item] | None, rule: Callable[[_Item], Iterator[str]]
) -> Iterator[str]:
    """Yield the errors of each item of a list, with the item's number, which starts at 1."""
    for number, element in enumerate(items or (), 1):
        yield from wrap_error(f"{kind} {number} validation failed", rule(element))


def affinities(items: list[Affinity] | None, job_type: str) -> Iterator[str]:
    """Yield the errors of affinities. System jobs may not have any: they run on every node."""
    if job_type != JobType.SYSTEM:
        yield from each("Affinity", items, affinity)
    elif items is not None:
        yield "System jobs may not have an affinity block"


def spreads(items: list[Spread] | None, job_type: str) -> Iterator[str]:
    """Yield the errors of spreads. System jobs may not have any: they run on every node."""
    if job_type != JobType.SYSTEM:
        yield from each("Spread", items, spread)
    elif items is not None:
        yield "System jobs may not have a spread block"


# --- single items ---


def constraint(constraint: Constraint) -> Iterator[str]:
    """Yield the errors of a constraint."""
    if not constraint.operand:
        yield "Missing constraint operand"
    if constraint.operand == "distinct_property":
        yield from _distinct_count(constraint.r_target)
    elif constraint.operand in _PRESENCE:
        if constraint.r_target:
            yield f"Operator {quote(constraint.operand)} does not support an RTarget"
    elif constraint.operand != "distinct_hosts":
        yield from _operand(
            constraint.operand,
            constraint.r_target,
            subject="constraint",
            empty_set="Set contains constraint requires an RTarget",
            unknown="Unknown constraint type",
        )
    if constraint.operand != "distinct_hosts":
        yield from _attribute(constraint.l_target)
    yield from _search(constraint)


def affinity(affinity: Affinity) -> Iterator[str]:
    """Yield the errors of an affinity."""
    if not affinity.operand:
        yield "Missing affinity operand"
    yield from _operand(
        affinity.operand,
        affinity.r_target,
        subject="affinity",
        empty_set="Set contains operators require an RTarget",
        unknown="Unknown affinity operator",
    )
    if not affinity.l_target:
        yield "No LTarget provided but is required"
    yield from _search(affinity)
    if affinity.weight == 0:
        yield "Affinity weight cannot be zero"
    if not -100 <= affinity.weight <= 100:
        yield "Affinity weight must be within the range [-100,100]"


def spread(spread: Spread) -> Iterator[str]:
    """Yield the errors of a spread."""
    if not spread.attribute:
        yield "Missing spread attribute"
    if not 0 < spread.weight <= 100:
        yield "Spread block must have a positive weight from 0 to 100"
    targets = spread.spread_target or []
    seen: Counter[str] = Counter()
    for target in targets:
        seen[target.value] += 1
        if seen[target.value] > 1:
            yield f"Spread target value {quote(target.value)} already defined"
        if target.percent > 100:
            value = quote(target.value)
            yield f"Spread target percentage for value {value} must be between 0 and 100"
    if (total := sum(target.percent for target in targets)) > 100:
        yield f"Sum of spread target percentages must not be greater than 100%; got {total}%"


def _operand(
    operand: str, value: str, *, subject: str, empty_set: str, unknown: str
) -> Iterator[str]:
    version = partial(versions.constraint_error, dialect=versions.VersionDialect.VERSION)
    semver = partial(versions.constraint_error, dialect=versions.VersionDialect.SEMVER)
    readers: dict[str, tuple[str, Callable[[str], str | None]]] = {
        "regexp": ("Regular expression failed to compile", regexp.pattern_error),
        "version": (f"Version {subject} is invalid", version),
        "semver": (f"Semver {subject} is invalid", semver),
    }
    if operand in _COMPARISONS:
        if not value:
            yield f"Operator {quote(operand)} requires an RTarget"
    elif operand in _SETS:
        if not value:
            yield empty_set
    elif operand in readers:
        kind, problem_of = readers[operand]
        if problem := problem_of(value):
            yield f"{kind}: {problem}"
    else:
        yield f"{unknown} {quote(operand)}"


def _search(condition: Constraint | Affinity) -> Iterator[str]:
    """Yield an error if a regexp search in a literal text would take too long."""
    if condition.operand != "regexp" or condition.l_target.startswith("${"):
        return
    try:
        problem = regexp.search_error(condition.r_target, condition.l_target)
    except regexp.PatternsTooCostly:
        raise
    except Invalid:  # an error of the pattern, which has its own text
        return
    if problem:
        yield f"LTarget: {problem}"


def _distinct_count(value: str) -> Iterator[str]:
    if not value:
        return
    if problem := uint_error(value, base=10, bits=64):
        yield f"Failed to convert RTarget {quote(value)} to uint64: {problem}"
    elif parse_integer(value) < 1:
        yield f"Distinct Property must have an allowed count of 1 or greater: {parse_integer(value)} < 1"


def _attribute(target: str) -> Iterator[str]:
    """Yield the errors of the left operand; an operand without a leading `$` is a literal."""
    if not target:
        yield "no attribute provided but is required by operator"
    elif not target.startswith("$"):
        return
    elif not target.startswith("${"):
        yield f"attribute {quote(target)} is missing an opening brace"
    elif not target.endswith("}"):
        yield f"attribute {quote(target)} is missing a closing brace"
    elif target not in _EXACT_ATTRIBUTES and not target.startswith(_ATTRIBUTE_PREFIXES):
        yield f"unsupported attribute {quote(target)}"
