"""Values in use: how the allocations of a job are distributed over an attribute of their nodes.

Both `distinct_property`, which limits how many may share a value, and `spread`, which wishes for
a distribution, look at the same counts: allocations that are wanted, without those the plan
stops and with those it has placed so far.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from daemon.scheduler.nodes.constraints import DISTINCT_PROPERTY, resolve
from daemon.scheduler.nodes.fit import Room
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.scope import Constraint, Spread

_COUNT = re.compile(r"[0-9]{1,9}")
_REST = "*"  # every value that no target names


def _in_use(rooms: Iterable[Room], attribute: str, region: str, group: str | None) -> Counter[str]:
    """Return how many allocations, of one group or of all, run on nodes with each value."""
    used: Counter[str] = Counter()
    for room in rooms:
        count = room.groups.total() if group is None else room.groups[group]
        value = resolve(attribute, room.node, region) if count else None
        if value is not None:
            used[value] += count
    return used


# ---- distinct_property -------------------------------------------------------------------------


def crowded(job: Job, group: TaskGroup, room: Room, rooms: Iterable[Room]) -> str | None:
    """Return which `distinct_property` leaves no place on a node, None when none does."""
    checks: list[tuple[Constraint, str | None]]
    checks = [(one, None) for one in _limits(job.constraints)]
    checks += [(one, group.name) for one in _limits(group.constraints)]
    for constraint, scope in checks:
        attribute = constraint.l_target
        value = resolve(attribute, room.node, job.region)
        if value is None:
            return f'missing property "{attribute}"'
        allowed = int(constraint.r_target) if _COUNT.fullmatch(constraint.r_target) else 1
        used = _in_use(rooms, attribute, job.region, scope)[value]
        if used >= allowed:
            return f"distinct_property: {attribute}={value} used by {used} allocs"
    return None


def _limits(constraints: Iterable[Constraint] | None) -> list[Constraint]:
    return [one for one in constraints or () if one.operand == DISTINCT_PROPERTY]


# ---- spread --------------------------------------------------------------------------------------


class Wish(msgspec.Struct, frozen=True):
    """One spread of a group: the share of its weight, and how many it wants on each value.

    Without targets all values are to be used evenly.
    """

    attribute: str
    share: float
    wanted: Mapping[str, float]


def wishes(job: Job, group: TaskGroup) -> list[Wish]:
    """Return the spreads of a group and of its job."""
    spreads = [*(group.spreads or ()), *(job.spreads or ())]
    total = sum(spread.weight for spread in spreads) or 1
    return [
        Wish(spread.attribute, spread.weight / total, _wanted(spread, group.count))
        for spread in spreads
    ]


def _wanted(spread: Spread, count: int) -> dict[str, float]:
    wanted = {target.value: target.percent / 100 * count for target in spread.spread_target or ()}
    named = sum(wanted.values())
    if 0 < named < count:
        wanted[_REST] = count - named
    return wanted


def score(
    wanted: Iterable[Wish], group: TaskGroup, room: Room, rooms: Iterable[Room], region: str
) -> float:
    """Return how much one more allocation on this node does for the distribution."""
    total = 0.0
    for wish in wanted:
        used = _in_use(rooms, wish.attribute, region, group.name)
        value = resolve(wish.attribute, room.node, region)
        if value is None:
            total -= 1.0
        elif wish.wanted:
            total += _towards_target(wish, value, used)
        else:
            total += _towards_even(value, used)
    return total


def _towards_target(wish: Wish, value: str, used: Counter[str]) -> float:
    if value not in wish.wanted:
        unnamed = [count for other, count in used.items() if other not in wish.wanted]
        value, count = _REST, sum(unnamed)
    else:
        count = used[value]
    wanted = wish.wanted.get(value, 0.0)
    if not wanted:
        return -1.0
    return (wanted - (count + 1)) / wanted * wish.share


def _towards_even(value: str, used: Counter[str]) -> float:
    if not used:
        return 0.0
    least, most, current = min(used.values()), max(used.values()), used[value]
    if current != least:
        return (least - current) / least
    return -1.0 if least == most else (most - least) / least
