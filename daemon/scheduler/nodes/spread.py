"""The distribution of a job's allocations over values of a node attribute.

`distinct_property` limits the allocations per value, and `spread` prefers a distribution. Both use
the same counts: the desired allocations, minus those that the plan stops, plus those that it has
placed so far.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from daemon.scheduler.nodes.capacity import NodeCapacity
from daemon.scheduler.nodes.constraints import DISTINCT_PROPERTY, resolve
from storage.records.constraints import Constraint, Spread
from storage.records.group import TaskGroup
from storage.records.job import Job

_COUNT = re.compile(r"[0-9]{1,9}")
_REST = "*"  # every value without a target


def _in_use(
    node_capacities: Iterable[NodeCapacity], attribute: str, region: str, group: str | None
) -> Counter[str]:
    """Return the number of allocations for each attribute value, of one group or of all groups."""
    used: Counter[str] = Counter()
    for node_capacity in node_capacities:
        count = node_capacity.groups.total() if group is None else node_capacity.groups[group]
        value = resolve(attribute, node_capacity.node, region) if count else None
        if value is not None:
            used[value] += count
    return used


# --- distinct_property ---


def exhausted_property(
    job: Job, group: TaskGroup, node_capacity: NodeCapacity, node_capacities: Iterable[NodeCapacity]
) -> str | None:
    """Return why a `distinct_property` constraint excludes a node, or None."""
    checks: list[tuple[Constraint, str | None]]
    checks = [(limit, None) for limit in _limits(job.constraints)]
    checks += [(limit, group.name) for limit in _limits(group.constraints)]
    for constraint, scope in checks:
        attribute = constraint.l_target
        value = resolve(attribute, node_capacity.node, job.region)
        if value is None:
            return f'missing property "{attribute}"'
        allowed = int(constraint.r_target) if _COUNT.fullmatch(constraint.r_target) else 1
        used = _in_use(node_capacities, attribute, job.region, scope)[value]
        if used >= allowed:
            return f"distinct_property: {attribute}={value} used by {used} allocs"
    return None


def _limits(constraints: Iterable[Constraint] | None) -> list[Constraint]:
    return [
        constraint for constraint in constraints or () if constraint.operand == DISTINCT_PROPERTY
    ]


# --- spread ---


class SpreadTargetCounts(msgspec.Struct, frozen=True):
    """One spread of a group: its share of the total weight, and the desired count per value.

    Without targets, allocations are distributed evenly over all values.
    """

    attribute: str
    share: float
    wanted: Mapping[str, float]


def spread_targets(job: Job, group: TaskGroup) -> list[SpreadTargetCounts]:
    """Return the spreads of a group and its job."""
    spreads = [*(group.spreads or ()), *(job.spreads or ())]
    total = sum(spread.weight for spread in spreads) or 1
    return [
        SpreadTargetCounts(
            spread.attribute, spread.weight / total, _desired_counts(spread, group.count)
        )
        for spread in spreads
    ]


def _desired_counts(spread: Spread, count: int) -> dict[str, float]:
    counts = {target.value: target.percent / 100 * count for target in spread.spread_target or ()}
    named = sum(counts.values())
    if 0 < named < count:
        counts[_REST] = count - named
    return counts


def score(
    target_counts: Iterable[SpreadTargetCounts],
    group: TaskGroup,
    node_capacity: NodeCapacity,
    node_capacities: Iterable[NodeCapacity],
    region: str,
) -> float:
    """Return how much an additional allocation on this node improves the distribution."""
    total = 0.0
    for spread_target_counts in target_counts:
        used = _in_use(node_capacities, spread_target_counts.attribute, region, group.name)
        value = resolve(spread_target_counts.attribute, node_capacity.node, region)
        if value is None:
            total -= 1.0
        elif spread_target_counts.wanted:
            total += _towards_target(spread_target_counts, value, used)
        else:
            total += _towards_even(value, used)
    return total


def _towards_target(
    spread_target_counts: SpreadTargetCounts, value: str, used: Counter[str]
) -> float:
    if value not in spread_target_counts.wanted:
        unnamed = [
            count for target, count in used.items() if target not in spread_target_counts.wanted
        ]
        value, count = _REST, sum(unnamed)
    else:
        count = used[value]
    desired = spread_target_counts.wanted.get(value, 0.0)
    if not desired:
        return -1.0
    return (desired - (count + 1)) / desired * spread_target_counts.share


def _towards_even(value: str, used: Counter[str]) -> float:
    if not used:
        return 0.0
    least, most, current = min(used.values()), max(used.values()), used[value]
    if current != least:
        return (least - current) / least
    return -1.0 if least == most else (most - least) / least
