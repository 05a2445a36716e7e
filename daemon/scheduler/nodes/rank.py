"""Rank: how well a node that has room suits, as a number for each point of view.

The names of the scores are the peer's (golden: evaluations-allocations, Metrics). The score of
a node is the mean of the fit and of those others that apply.
"""

import math
from collections.abc import Mapping

import msgspec

from daemon.scheduler.nodes import spread
from daemon.scheduler.nodes.constraints import holds
from daemon.scheduler.nodes.fit import Need, Room
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.scope import Affinity

_BEST_FIT = 18.0  # 20 minus the least that two powers of ten up to 10 can add up to


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a group wishes of its nodes, as far as it is the same for all its allocations."""

    affinities: list[Affinity]
    spreads: list[spread.Wish]


def wishes_of(job: Job, group: TaskGroup) -> Wishes:
    """Return what a group, its job and its tasks wish of the nodes."""
    affinities = [*(job.affinities or ()), *(group.affinities or ())]
    for task in group.tasks or ():
        affinities += task.affinities or ()
    return Wishes(affinities=affinities, spreads=spread.wishes(job, group))


class Scores(msgspec.Struct, frozen=True):
    """The scores of one node, and their mean."""

    mean: float
    by_name: Mapping[str, float]


def fit_score(need: Need, room: Room) -> float:
    """Return how full the node would be, 0 to 1: fuller is better (best fit).

    What may have to wait there comes last.
    """
    if room.queues:
        return 0.0
    free_cpu = (room.cpu - room.cpu_of(need)) / (room.capacity_cpu or 1)
    free_memory = (room.memory - need.memory) / (room.capacity_memory or 1)
    total = 20.0 - math.pow(10, free_cpu) - math.pow(10, free_memory)
    return min(max(total, 0.0), _BEST_FIT) / _BEST_FIT


def fit_only(need: Need, room: Room) -> Scores:
    """Return the score that counts where there is no choice between nodes."""
    score = fit_score(need, room)
    return Scores(score, {"binpack": score})


def scores(
    job: Job,
    need: Need,
    wishes: Wishes,
    room: Room,
    rooms: Mapping[str, Room],
    *,
    failed_here: bool,
) -> Scores:
    """Return all scores of a node; `failed_here` when an earlier allocation failed on it.

    The spread, and devices, are shown only when they apply.
    """
    group, same = need.group, room.groups[need.group.name]
    # name, score, whether it counts for the mean
    views = [
        ("binpack", fit_score(need, room), True),
        ("job-anti-affinity", -(same + 1) / max(group.count, 1) if same else 0.0, bool(same)),
        ("node-reschedule-penalty", -1.0 if failed_here else 0.0, failed_here),
        (
            "node-affinity",
            _affinity(wishes.affinities, room, job.region),
            bool(wishes.affinities),
        ),
    ]
    device = room.device_score(need) if need.devices else None
    if device is not None:
        views.append(("devices", device, True))
    spread_score = spread.score(wishes.spreads, group, room, rooms.values(), job.region)
    if spread_score:
        views.append(("allocation-spread", spread_score, True))
    counted = [score for _, score, counts in views if counts]
    return Scores(sum(counted) / len(counted), {name: score for name, score, _ in views})


def _affinity(affinities: list[Affinity], room: Room, region: str) -> float:
    if not affinities:
        return 0.0
    met = sum(one.weight for one in affinities if holds(one, room.node, region))
    return met / (sum(abs(one.weight) for one in affinities) or 1)
