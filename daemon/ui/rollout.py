"""A rollout as a picture: a square for each allocation, by version and health. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from daemon.ui.formatting import format_duration
from storage.records.times import nanoseconds

MOST = 120  # squares of one row; the others are shown as a number
_LIVE = frozenset({"pending", "running", "unknown"})
_ACTIVE = frozenset({"running", "paused", "pending", "blocked", "initializing", "unblocking"})
# The kinds of squares, with the shape and the words of each.
KINDS = {
    "healthy": ("ok", "healthy"),
    "unhealthy": ("warn", "unhealthy"),
    "failed": ("bad", "failed"),
    "checking": ("wait", "not yet healthy"),
    "older": ("dot", "runs an older version"),
    "stopping": ("stop", "stopping"),
    "missing": ("none", "not placed yet"),
}


class Square(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation as a square; without `alloc_id`, the allocation is not placed yet."""

    kind: str
    alloc_id: str = ""
    text: str


class SquareRow(msgspec.Struct, frozen=True, kw_only=True):
    """Squares of one kind of allocations; `more` is the number of squares that are left out."""

    title: str
    squares: list[Square]
    more: int


class GroupRollout(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout of one group; `elapsed` is the used part of the progress deadline in percent."""

    name: str
    healthy: int
    desired: int
    unhealthy: int
    rows: list[SquareRow]
    canaries: str
    elapsed: int | None
    deadline: str


class RolloutPicture(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of a deployment, and the kinds of squares that occur."""

    is_active: bool
    groups: list[GroupRollout]
    kinds: list[tuple[str, str, str]]

    def sign(self, kind: str) -> str:
        """Return the name of the shape that is drawn in squares of this kind."""
        return KINDS[kind][0]


def rollout(
    deployment: Mapping[str, Any], allocations: Sequence[Mapping[str, Any]], now: int
) -> RolloutPicture:
    """Return the picture of a deployment, from the allocations of its job."""
    is_active = deployment["Status"] in _ACTIVE
    groups = [
        _group(
            name,
            group,
            [alloc for alloc in allocations if alloc["TaskGroup"] == name],
            deployment,
            now if is_active else 0,
        )
        for name, group in sorted(deployment["TaskGroups"].items())
    ]
    kinds_used = {square.kind for group in groups for row in group.rows for square in row.squares}
    return RolloutPicture(
        is_active=is_active,
        groups=groups,
        kinds=[(kind, *KINDS[kind]) for kind in KINDS if kind in kinds_used],
    )


def _group(
    name: str,
    group: Mapping[str, Any],
    allocations: Iterable[Mapping[str, Any]],
    deployment: Mapping[str, Any],
    now: int,
) -> GroupRollout:
    version, sorted_allocs = (
        deployment["JobVersion"],
        sorted(allocations, key=lambda alloc: str(alloc["Name"])),
    )
    newer = [alloc for alloc in sorted_allocs if alloc["JobVersion"] == version and _counts(alloc)]
    canaries = [alloc for alloc in newer if _is_canary(alloc)]
    ordinary = [alloc for alloc in newer if not _is_canary(alloc)]
    older = [
        alloc
        for alloc in sorted_allocs
        if alloc["JobVersion"] < version and alloc["ClientStatus"] in _LIVE
    ]
    missing = max(0, group["DesiredTotal"] - len(newer)) if now else 0
    return GroupRollout(
        name=name,
        healthy=group["HealthyAllocs"],
        desired=group["DesiredTotal"],
        unhealthy=group["UnhealthyAllocs"],
        rows=[
            row
            for row in (
                _row("Canaries", [_new(canary) for canary in canaries]),
                _row(f"Version {version}", [*map(_new, ordinary), *[_MISSING] * missing]),
                _row("Older versions", [_old(alloc) for alloc in older] if now else []),
            )
            if row.squares
        ],
        canaries=_canaries(group),
        elapsed=_elapsed(group, now),
        deadline=_deadline(group, now),
    )


_MISSING = Square(kind="missing", text=KINDS["missing"][1])


def _counts(alloc: Mapping[str, Any]) -> bool:
    """Return whether the picture shows an allocation: it is to run, or it has failed."""
    return bool(alloc["DesiredStatus"] == "run" or alloc["ClientStatus"] == "failed")


def _is_canary(alloc: Mapping[str, Any]) -> bool:
    return bool((alloc["DeploymentStatus"] or {}).get("Canary"))


def _row(title: str, squares: list[Square]) -> SquareRow:
    return SquareRow(title=title, squares=squares[:MOST], more=max(0, len(squares) - MOST))


def _new(alloc: Mapping[str, Any]) -> Square:
    healthy = (alloc["DeploymentStatus"] or {}).get("Healthy")
    if alloc["ClientStatus"] in ("failed", "lost"):
        kind = "failed"
    elif healthy is None:
        kind = "checking"
    else:
        kind = "healthy" if healthy else "unhealthy"
    return _square(kind, alloc)


def _old(alloc: Mapping[str, Any]) -> Square:
    return _square("older" if alloc["DesiredStatus"] == "run" else "stopping", alloc)


def _square(kind: str, alloc: Mapping[str, Any]) -> Square:
    text = (
        f"{alloc['Name']}, version {alloc['JobVersion']}: {KINDS[kind][1]}, {alloc['ClientStatus']}"
    )
    return Square(kind=kind, alloc_id=alloc["ID"], text=text)


def _canaries(group: Mapping[str, Any]) -> str:
    if not group["DesiredCanaries"]:
        return ""
    placed = len(group["PlacedCanaries"] or ())
    progress = f"{placed} of {group['DesiredCanaries']} canaries placed"
    if group["Promoted"]:
        return f"{progress}, promoted"
    return f"{progress}, {'promoted when healthy' if group['AutoPromote'] else 'not promoted'}"


def _due(group: Mapping[str, Any]) -> int:
    text = group["RequireProgressBy"]
    return 0 if not text or text.startswith("0001-") else nanoseconds(text)


def _elapsed(group: Mapping[str, Any], now: int) -> int | None:
    """Return the elapsed part of the progress deadline in percent; None without a deadline."""
    due, length = _due(group), group["ProgressDeadline"]
    if not now or not due or not length or _is_done(group):
        return None
    return min(100, max(0, round(100 * int(length - (due - now)) / int(length))))


def _is_done(group: Mapping[str, Any]) -> bool:
    return bool(group["HealthyAllocs"] >= group["DesiredTotal"])


def _deadline(group: Mapping[str, Any], now: int) -> str:
    due = _due(group)
    if not now or not due or _is_done(group):
        return ""
    if now > due:
        return f"the deadline passed {format_duration(now - due)} ago"
    return f"{format_duration(due - now)} left for the next healthy allocation"
