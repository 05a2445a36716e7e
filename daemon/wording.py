"""Why a group is not placed, in one sentence. Pure."""

from collections.abc import Mapping

from storage.records.evaluation import Evaluation, PlacementMetric

# What stands among the constraints though it is none (golden: blocked-evaluation).
_MISSING = {
    "missing drivers": "a driver of its tasks",
    "missing devices": "a device that its tasks ask for",
    "missing compatible host volumes": "a host volume that it asks for",
    "not for clusters": "what the group asks for besides one task, being a cluster",
    "missing network": "a network of the kind that it asks for",
}
_NO_NETWORK = "missing host network "  # its name, and that of the port, follow
_SHORT = {
    "cores": "too few cores left",
    "devices: no devices match request": "too few devices left that its tasks ask for",
    "max allocation exceeded": "as many allocations as it takes",
    "network: dynamic port selection failed": "too few dynamic ports left",
}


def several(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> several(2, "node")
    '2 nodes'
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def sentences(evaluation: Evaluation) -> list[str]:
    """Return a sentence for each group that an evaluation could not place."""
    return unplaced(evaluation.failed_tg_allocs or {})


def unplaced(failed: Mapping[str, PlacementMetric]) -> list[str]:
    """Return a sentence for each group that found no place."""
    return [f'group "{group}": {_sentence(metric)}' for group, metric in sorted(failed.items())]


def _sentence(metric: PlacementMetric) -> str:
    missing = several(1 + metric.coalesced_failures, "allocation")
    return f"{missing} not placed, because {why(metric)}"


def why(metric: PlacementMetric) -> str:
    """Return what a look at the nodes found, such as `the only node has too little memory left`."""
    if not metric.nodes_in_pool:
        return (
            f'no node that is open for new work is in pool "{metric.node_pool}" '
            "and in a datacenter of the job"
        )
    if not metric.nodes_evaluated:
        asked = ", ".join(sorted(metric.nodes_available or {}))
        return f"no node that is ready is in a datacenter of the job ({asked or 'none is known'})"
    reasons = [*_filtered(metric), *_exhausted(metric)]
    return "; ".join(reasons) or f"none of {several(metric.nodes_evaluated, 'node')} suits"


def _filtered(metric: PlacementMetric) -> list[str]:
    reasons = []
    for rule, count in sorted((metric.constraint_filtered or {}).items()):
        nodes = _nodes(count, metric)
        if rule in _MISSING or rule.startswith(_NO_NETWORK):
            missing = _MISSING.get(rule) or rule.removeprefix("missing ")
            reasons.append(f"{nodes} {_verb(count, 'lacks', 'lack')} {missing}")
        else:
            reasons.append(f"{nodes} {_verb(count, 'does', 'do')} not meet {rule}")
    return reasons


def _exhausted(metric: PlacementMetric) -> list[str]:
    reasons = [
        f"{_nodes(count, metric)} {_verb(count, 'has', 'have')} {_lack(dimension, metric)}"
        for dimension, count in sorted((metric.dimension_exhausted or {}).items())
    ]
    return [*reasons, *(f"quota {quota} is used up" for quota in metric.quota_exhausted or ())]


def _nodes(count: int, metric: PlacementMetric) -> str:
    if metric.nodes_evaluated == 1:
        return "the only node"
    return f"{count} of {several(metric.nodes_evaluated, 'node')}"


def _verb(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


def _lack(dimension: str, metric: PlacementMetric) -> str:
    """Return what is short, with the amount that is asked for where it is known."""
    asked = _asked(metric)
    if wanted := asked.get(dimension):
        return f"less than {wanted} of {dimension} left"
    if dimension in _SHORT:
        return _SHORT[dimension]
    if dimension.startswith("network: "):
        return f"a port in use ({dimension.removeprefix('network: ')})"
    return f"too little {dimension} left"


def _asked(metric: PlacementMetric) -> Mapping[str, str]:
    tasks = (metric.resources_exhausted or {}).values()
    memory = sum(task.memory_mb for task in tasks)
    cpu = sum(task.cpu for task in tasks)
    return {"memory": f"{memory} MiB" if memory else "", "cpu": f"{cpu} MHz" if cpu else ""}
