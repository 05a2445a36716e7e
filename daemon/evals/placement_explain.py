"""Describe a placement failure: the scheduler's metrics combined with current values."""

from collections.abc import Container, Iterable, Iterator, Sequence

import msgspec

from daemon.evals.cluster_state import node_states
from daemon.evals.placement_precheck import OPERANDS_OF_MOMENT, values_of
from daemon.matching import regexp
from daemon.scheduler.nodes.capacity import NodeCapacity, ResourceAsk, resource_ask
from daemon.scheduler.nodes.cluster_capacity import cluster_capacity
from daemon.scheduler.nodes.constraints import matches, text_of
from daemon.scheduler.nodes.feasibility import in_datacenter, in_pool, in_scope
from daemon.scheduler.state import NodeState
from daemon.text.placement_message import count_noun, describe_metric
from storage.queries import allocated_resources
from storage.read_pool import ReadSnapshot
from storage.records.evaluation import PlacementMetric
from storage.records.explanation import Cause
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.node import Node, NodeStatus

_SHOWN_NODES = 3
_COLLISION = "network: reserved port collision"


def explain_group(
    db: ReadSnapshot, job: Job, group: TaskGroup, metric: PlacementMetric
) -> tuple[Cause, str]:
    """Return why no node can run a group, given the scheduler's last metric."""
    states = node_states(db)
    ready_nodes = [state for state in states if state.node.ready and in_scope(job, state.node)]
    if not ready_nodes:
        return Cause.NODE, "; ".join(_closed(job, [state.node for state in states]))
    need, short = resource_ask(group), metric.dimension_exhausted or {}
    description = describe_metric(msgspec.structs.replace(metric, resources_exhausted=None))
    filtered = metric.constraint_filtered or {}
    parts = [description, *_missing_resources(group, need, [*filtered, *short])]
    try:
        with regexp.limited():
            parts += _values(job, group, [state.node for state in ready_nodes], filtered)
    except regexp.PatternsTooCostly as error:
        parts.append(str(error))
    parts += _amounts(need, [cluster_capacity(state, ()) for state in ready_nodes], short)
    if any(name.startswith(_COLLISION) for name in short):
        parts += _ports(db, job, need, ready_nodes)
    return Cause.PLACE, "; ".join(parts)


def _closed(job: Job, nodes: Iterable[Node]) -> Iterator[str]:
    """Yield, for the nodes in the job's pool, why each accepts no placements.

    Call this function only if none of the nodes accepts placements of the job.
    """
    named = [node for node in nodes if in_pool(job, node)]
    if not named:
        yield f'no node is in pool "{job.node_pool}"'
    for node in named[:_SHOWN_NODES]:
        yield f'node "{node.name}" {_why_closed(job, node)}'
    if len(named) > _SHOWN_NODES:
        yield f"the same applies to {count_noun(len(named) - _SHOWN_NODES, 'other node')}"


def _why_closed(job: Job, node: Node) -> str:
    if not in_datacenter(job, node):
        datacenters = ", ".join(job.datacenters or ()) or "none"
        return f"is in datacenter {node.datacenter}, not in one of the job ({datacenters})"
    if node.status != NodeStatus.READY:
        return f"is {node.status}" + (
            f" ({description})" if (description := node.status_description) else ""
        )
    if node.drain:
        return f"is being drained; cancel the drain with: steward node drain -disable {node.name}"
    return f"is ineligible for placements; make it eligible with: steward node eligibility -enable {node.name}"


def _missing_resources(
    group: TaskGroup, need: ResourceAsk, reasons: Iterable[str]
) -> Iterator[str]:
    """Yield a text for each reason that concerns drivers, host volumes or devices.

    The text lists the drivers, volumes or devices that the group asks for.
    """
    names = {
        "missing drivers": sorted({task.driver for task in group.tasks or ()}),
        "missing compatible host volumes": sorted(
            volume.source for volume in (group.volumes or {}).values()
        ),
    }
    devices = [f"{device.count} of {device.name}" for device in need.devices]
    names |= dict.fromkeys(("missing devices", "devices: no devices match request"), devices)
    for reason in reasons:
        if reason in names:
            yield f"it asks for {', '.join(names[reason])}"


def _values(
    job: Job, group: TaskGroup, members: Sequence[Node], filtered: Container[str]
) -> Iterator[str]:
    """Yield the existing values of each attribute that a constraint in `filtered` compares.

    For an attribute that no node has, yield a message about the missing attribute.
    """
    constraint_lists = [
        job.constraints,
        group.constraints,
        *(task.constraints for task in group.tasks or ()),
    ]
    rules = {
        text_of(constraint): constraint for part in constraint_lists for constraint in part or ()
    }
    described: set[str] = set()
    for text, rule in rules.items():
        if text not in filtered or rule.operand in OPERANDS_OF_MOMENT:
            continue
        failing = [member for member in members if not matches(rule, member, job.region)]
        values = values_of(rule, failing, job.region) if failing else ""
        # If some node satisfies the constraint, other nodes without the attribute are not worth a
        # message.
        is_new = values and values not in described
        if is_new and (len(failing) == len(members) or not values.startswith("no node has ")):
            described.add(values)
            yield values


def _amounts(
    need: ResourceAsk, node_capacities: Iterable[NodeCapacity], short: Iterable[str]
) -> Iterator[str]:
    """Yield the ask for each resource in `short`, and the maximum that is free on any node."""
    capacities = list(node_capacities)
    cpu = max(node_capacity.cpu_of(need) for node_capacity in capacities)
    amounts = (
        ("cpu", " MHz of cpu", cpu, max(node_capacity.cpu for node_capacity in capacities)),
        (
            "memory",
            " MiB of memory",
            need.memory,
            max(node_capacity.memory for node_capacity in capacities),
        ),
        (
            "disk",
            " MiB of disk",
            need.disk,
            max(node_capacity.disk for node_capacity in capacities),
        ),
        (
            "cores",
            " cores",
            need.cores,
            max(node_capacity.free_cores for node_capacity in capacities),
        ),
    )
    for name, unit, requested, free in amounts:
        if name in short:
            yield (
                f"each needs {requested}{unit}, "
                f"and a node has at most {max(free, 0)}{unit.partition(' of ')[0]} free"
            )


def _ports(
    db: ReadSnapshot, job: Job, need: ResourceAsk, states: Iterable[NodeState]
) -> Iterator[str]:
    """Yield the allocations that hold the static ports; other namespaces are not named."""
    ports = {port.value for network in need.networks for port in network.reserved_ports or ()}
    for state in states:
        for port in sorted(ports & state.ports):
            for holder in allocated_resources.of_port(db, state.node.id, port):
                own = holder.namespace == job.namespace
                owner = f'job "{holder.job_id}"' if own else "another namespace"
                yield f"port {port} is held by allocation {holder.id[:8]} of {owner}"
