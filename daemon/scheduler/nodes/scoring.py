"""Score nodes with sufficient capacity.

The names of the scores are Nomad's (source: Nomad's recorded responses `evaluations-allocations`,
`Metrics`). The score of a node is the mean of the fit and of all other applicable scores.
"""

import math
from collections.abc import Mapping

import msgspec

from daemon.scheduler.nodes import spread
from daemon.scheduler.nodes.capacity import NodeCapacity, ResourceAsk
from daemon.scheduler.nodes.constraints import matches
from storage.records.constraints import Affinity
from storage.records.group import TaskGroup
from storage.records.job import Job

_BEST_FIT = 18.0  # 20 minus the minimal sum of two powers of ten with exponents up to 1


class NodePreferences(msgspec.Struct, frozen=True, kw_only=True):
    """The node preferences of a group that are the same for all its allocations."""

    affinities: list[Affinity]
    spreads: list[spread.SpreadTargetCounts]


def node_preferences(job: Job, group: TaskGroup) -> NodePreferences:
    """Return the node preferences of a group, its job and its tasks."""
    affinities = [*(job.affinities or ()), *(group.affinities or ())]
    for task in group.tasks or ():
        affinities += task.affinities or ()
    return NodePreferences(affinities=affinities, spreads=spread.spread_targets(job, group))


class NodeScores(msgspec.Struct, frozen=True):
    """The scores of one node, and their mean."""

    mean: float
    by_name: Mapping[str, float]


def fit_score(need: ResourceAsk, node_capacity: NodeCapacity) -> float:
    """Return the utilization of the node after placement, 0 to 1; higher is better (bin packing).

    Nodes with a queue come last.
    """
    if node_capacity.queues:
        return 0.0
    free_cpu = (node_capacity.cpu - node_capacity.cpu_of(need)) / (node_capacity.capacity_cpu or 1)
    free_memory = (node_capacity.memory - need.memory) / (node_capacity.capacity_memory or 1)
    total = 20.0 - math.pow(10, free_cpu) - math.pow(10, free_memory)
    return min(max(total, 0.0), _BEST_FIT) / _BEST_FIT


def fit_only(need: ResourceAsk, node_capacity: NodeCapacity) -> NodeScores:
    """Return the scores for the only candidate node, without comparisons."""
    score = fit_score(need, node_capacity)
    return NodeScores(score, {"binpack": score})


def scores(
    job: Job,
    need: ResourceAsk,
    preferences: NodePreferences,
    node_capacity: NodeCapacity,
    node_capacities: Mapping[str, NodeCapacity],
    *,
    failed_here: bool,
) -> NodeScores:
    """Return all scores of a node.

    `failed_here` is true if an earlier allocation failed there. Spread and devices are included
    only if they apply.
    """
    group, same = need.group, node_capacity.groups[need.group.name]
    # name, score, whether it is part of the mean
    views = [
        ("binpack", fit_score(need, node_capacity), True),
        ("job-anti-affinity", -(same + 1) / max(group.count, 1) if same else 0.0, bool(same)),
        ("node-reschedule-penalty", -1.0 if failed_here else 0.0, failed_here),
        (
            "node-affinity",
            _affinity(preferences.affinities, node_capacity, job.region),
            bool(preferences.affinities),
        ),
    ]
    device = node_capacity.device_score(need) if need.devices else None
    if device is not None:
        views.append(("devices", device, True))
    spread_score = spread.score(
        preferences.spreads, group, node_capacity, node_capacities.values(), job.region
    )
    if spread_score:
        views.append(("allocation-spread", spread_score, True))
    counted = [score for _, score, counts in views if counts]
    return NodeScores(sum(counted) / len(counted), {name: score for name, score, _ in views})


def _affinity(affinities: list[Affinity], node_capacity: NodeCapacity, region: str) -> float:
    if not affinities:
        return 0.0
    met = sum(
        affinity.weight for affinity in affinities if matches(affinity, node_capacity.node, region)
    )
    return met / (sum(abs(affinity.weight) for affinity in affinities) or 1)
