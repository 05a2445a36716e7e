"""Why no node takes what is to be placed: what the scheduler found, with what there is at this moment."""

from collections.abc import Iterable, Iterator

import msgspec

from daemon.evals.state import node_states
from daemon.scheduler.nodes.feasible import in_datacenter, in_pool, in_scope
from daemon.scheduler.nodes.fit import Need, Room, need_of
from daemon.scheduler.nodes.queue import room_of
from daemon.scheduler.state import NodeState
from daemon.wording import several, why
from storage.queries import holdings
from storage.readers import Snapshot
from storage.records.evaluation import PlacementMetric
from storage.records.explanation import Cause
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.node import Node, NodeStatus

_SHOWN_NODES = 3
_COLLISION = "network: reserved port collision"


def of_group(
    db: Snapshot, job: Job, group: TaskGroup, metric: PlacementMetric
) -> tuple[Cause, str]:
    """Return why no node takes a group, given what the scheduler found when it looked last."""
    states = node_states(db)
    here = [one for one in states if one.node.ready and in_scope(job, one.node)]
    if not here:
        return Cause.NODE, "; ".join(_closed(job, [one.node for one in states]))
    need, short = need_of(group), metric.dimension_exhausted or {}
    found = why(msgspec.structs.replace(metric, resources_exhausted=None))
    parts = [found, *_asked(group, need, [*(metric.constraint_filtered or ()), *short])]
    parts += _amounts(need, [room_of(one, ()) for one in here], short)
    if any(name.startswith(_COLLISION) for name in short):
        parts += _ports(db, job, need, here)
    return Cause.PLACE, "; ".join(parts)


def _closed(job: Job, nodes: Iterable[Node]) -> Iterator[str]:
    """Yield for each node that the job names why it takes nothing of it."""
    named = [node for node in nodes if in_pool(job, node)]
    if not named:
        yield f'no node is in pool "{job.node_pool}"'
    for node in named[:_SHOWN_NODES]:
        yield f'node "{node.name}" {_why_closed(job, node)}'
    if len(named) > _SHOWN_NODES:
        yield f"likewise {several(len(named) - _SHOWN_NODES, 'other node')}"


def _why_closed(job: Job, node: Node) -> str:
    if not in_datacenter(job, node):
        asked = ", ".join(job.datacenters or ()) or "none"
        return f"is in datacenter {node.datacenter}, not in one of the job ({asked})"
    if node.status != NodeStatus.READY:
        return f"is {node.status}" + (f" ({said})" if (said := node.status_description) else "")
    if node.drain:
        return f"is being drained; open it again with: steward node drain -disable {node.name}"
    return f"takes no new work; open it again with: steward node eligibility -enable {node.name}"


def _asked(group: TaskGroup, need: Need, found: Iterable[str]) -> Iterator[str]:
    """Yield what the group asks for by name of which a node has none, or none any more."""
    names = {
        "missing drivers": sorted({task.driver for task in group.tasks or ()}),
        "missing compatible host volumes": sorted(
            one.source for one in (group.volumes or {}).values()
        ),
    }
    wanted = [f"{one.count} of {one.name}" for one in need.devices]
    names |= dict.fromkeys(("missing devices", "devices: no devices match request"), wanted)
    for reason in found:
        if reason in names:
            yield f"it asks for {', '.join(names[reason])}"


def _amounts(need: Need, rooms: Iterable[Room], short: Iterable[str]) -> Iterator[str]:
    """Yield what is asked for of what is short, and the most that a node has free of it."""
    known = list(rooms)
    cpu = max(room.cpu_of(need) for room in known)
    amounts = (
        ("cpu", " MHz of cpu", cpu, max(room.cpu for room in known)),
        ("memory", " MiB of memory", need.memory, max(room.memory for room in known)),
        ("disk", " MiB of disk", need.disk, max(room.disk for room in known)),
        ("cores", " cores", need.cores, max(room.free_cores for room in known)),
    )
    for name, unit, wanted, free in amounts:
        if name in short:
            yield (
                f"each needs {wanted}{unit}, "
                f"the most that a node has free is {max(free, 0)}{unit.partition(' of ')[0]}"
            )


def _ports(db: Snapshot, job: Job, need: Need, states: Iterable[NodeState]) -> Iterator[str]:
    """Yield who holds the static ports; of other namespaces it is not said who."""
    wanted = {port.value for network in need.networks for port in network.reserved_ports or ()}
    for state in states:
        for port in sorted(wanted & state.ports):
            for holder in holdings.of_port(db, state.node.id, port):
                own = holder.namespace == job.namespace
                who = f'job "{holder.job_id}"' if own else "another namespace"
                yield f"port {port} is held by allocation {holder.id[:8]} of {who}"
