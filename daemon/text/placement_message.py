"""Sentences about placement failures: why a group was not placed. No I/O."""

from collections.abc import Mapping

from storage.records.evaluation import Evaluation, PlacementMetric

# Entries of the constraint filter that are not constraints (recorded response: blocked-evaluation).
_MISSING = {
    "missing drivers": "a driver of its tasks",
    "missing devices": "a device that its tasks need",
    "missing compatible host volumes": "a host volume that it needs",
    "not for clusters": "features that the group uses, because clusters do not support them",
    "missing network": "a network of the requested kind",
}
_OF_BRIDGE = "${attr.plugins.cni.version."  # implicit constraints of a group with mode bridge
_NO_NETWORK = "missing host network "  # the names of the network and the port are appended
_SHORT = {
    "cores": "too few free cores",
    "devices: no devices match request": "too few free devices for its tasks",
    "max allocation exceeded": "the maximum number of allocations",
    "network: dynamic port selection failed": "too few free dynamic ports",
}


def count_noun(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> count_noun(2, "node")
    '2 nodes'
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def describe_failures(evaluation: Evaluation) -> list[str]:
    """Return a sentence for each group that an evaluation could not place."""
    return describe_unplaced(evaluation.failed_tg_allocs or {})


def describe_unplaced(failed: Mapping[str, PlacementMetric]) -> list[str]:
    """Return a sentence for each group that was not placed."""
    return [f'group "{group}": {_sentence(metric)}' for group, metric in sorted(failed.items())]


def _sentence(metric: PlacementMetric) -> str:
    missing = count_noun(1 + metric.coalesced_failures, "allocation")
    return f"{missing} not placed, because {describe_metric(metric)}"


def describe_metric(metric: PlacementMetric) -> str:
    """Return why a placement failed, such as `the only node has too little memory left`."""
    if not metric.nodes_in_pool:
        return f'no eligible node is in pool "{metric.node_pool}" and in a datacenter of the job'
    if not metric.nodes_evaluated:
        datacenters = ", ".join(sorted(metric.nodes_available or {}))
        return f"no ready node is in a datacenter of the job ({datacenters or 'none is known'})"
    reasons = [*_filtered(metric), *_exhausted(metric)]
    return "; ".join(reasons) or f"none of {count_noun(metric.nodes_evaluated, 'node')} is suitable"


def _filtered(metric: PlacementMetric) -> list[str]:
    reasons = []
    for rule, count in sorted((metric.constraint_filtered or {}).items()):
        nodes = _nodes(count, metric)
        if rule in _MISSING or rule.startswith(_NO_NETWORK):
            missing = _MISSING.get(rule) or rule.removeprefix("missing ")
            reasons.append(f"{nodes} {_verb(count, 'lacks', 'lack')} {missing}")
        elif rule.startswith(_OF_BRIDGE):
            reasons.append(
                f'{nodes} {_verb(count, "has", "have")} no bridge for the network mode "bridge"'
            )
        else:
            reasons.append(f"{nodes} {_verb(count, 'does', 'do')} not meet {rule}")
    return reasons


def _exhausted(metric: PlacementMetric) -> list[str]:
    reasons = [
        f"{_nodes(count, metric)} {_verb(count, 'has', 'have')} {_describe_shortage(dimension, metric)}"
        for dimension, count in sorted((metric.dimension_exhausted or {}).items())
    ]
    return [*reasons, *(f"quota {quota} is used up" for quota in metric.quota_exhausted or ())]


def _nodes(count: int, metric: PlacementMetric) -> str:
    if metric.nodes_evaluated == 1:
        return "the only node"
    return f"{count} of {count_noun(metric.nodes_evaluated, 'node')}"


def _verb(count: int, singular: str, many: str) -> str:
    return singular if count == 1 else many


def _describe_shortage(dimension: str, metric: PlacementMetric) -> str:
    """Describe the insufficient resource, with the requested amount if it is known."""
    amounts = _requested_amounts(metric)
    if amount := amounts.get(dimension):
        return f"less than {amount} of {dimension} left"
    if dimension in _SHORT:
        return _SHORT[dimension]
    if dimension.startswith("network: "):
        return f"a port in use ({dimension.removeprefix('network: ')})"
    return f"too little {dimension} left"


def _requested_amounts(metric: PlacementMetric) -> Mapping[str, str]:
    tasks = (metric.resources_exhausted or {}).values()
    memory = sum(task.memory_mb for task in tasks)
    cpu = sum(task.cpu for task in tasks)
    return {"memory": f"{memory} MiB" if memory else "", "cpu": f"{cpu} MHz" if cpu else ""}
