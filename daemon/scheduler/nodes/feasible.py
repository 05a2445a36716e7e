"""Feasibility: what keeps a group from a node however much room there is, and in which words.

The words are what the counts of an evaluation show (golden: blocked-evaluation). The first
obstacle found counts, in the order below; how many nodes each one keeps away is counted by
`placement`.
"""

from collections.abc import Iterable

from daemon.matching.clusters import unfit
from daemon.scheduler.nodes import devices
from daemon.scheduler.nodes.constraints import (
    DISTINCT_HOSTS,
    DISTINCT_PROPERTY,
    escapes,
    holds,
    resolve,
    text_of,
)
from storage.records.group import TaskGroup, Volume
from storage.records.job import Job
from storage.records.node import DEFAULT_NETWORK, Node
from storage.records.scope import Constraint
from storage.records.task import Network, Port

# Operators that look at what runs on the nodes, not at the nodes alone.
OF_MOMENT = frozenset({DISTINCT_HOSTS, DISTINCT_PROPERTY})

NOT_FOR_CLUSTERS = "not for clusters"

_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def in_scope(job: Job, node: Node) -> bool:
    """Tell whether a node is in a datacenter and the pool that the job names."""
    return in_pool(job, node) and in_datacenter(job, node)


def in_pool(job: Job, node: Node) -> bool:
    """Tell whether a node is in the pool that the job names."""
    return job.node_pool in ("all", "") or job.node_pool == node.node_pool


def in_datacenter(job: Job, node: Node) -> bool:
    """Tell whether a node is in a datacenter that the job names."""
    return any(_glob(name, node.datacenter) for name in job.datacenters or ())


def _glob(pattern: str, name: str) -> bool:
    """Tell whether a name fits a pattern in which `*` stands for any text."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    *middle, last = rest
    if not name.startswith(first) or not name[len(first) :].endswith(last):
        return False
    place, end = len(first), len(name) - len(last)
    for part in middle:
        place = name.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True


def obstacle(job: Job, group: TaskGroup, node: Node) -> str | None:
    """Return what keeps all allocations of a group from a node, None when nothing does."""
    unmet = _unmet(job.constraints, node, job.region)
    if unmet is None and node.engine and any(unfit(job, group)):
        return NOT_FOR_CLUSTERS
    if unmet is None and not _has_drivers(group, node):
        return "missing drivers"
    if unmet is None:
        unmet = _unmet(_own_constraints(group), node, job.region)
    if unmet is not None:
        return text_of(unmet)
    requests = [device for task in group.tasks or () for device in task.resources.devices or ()]
    if requests and not devices.has_all(node, requests):
        return "missing devices"
    return _network_obstacle(group, node, job.region)


def _unmet(constraints: Iterable[Constraint] | None, node: Node, region: str) -> Constraint | None:
    return next((one for one in constraints or () if not holds(one, node, region)), None)


def _own_constraints(group: TaskGroup) -> list[Constraint]:
    """Return the constraints of a group and its tasks."""
    own = list(group.constraints or ())
    for task in group.tasks or ():
        own += task.constraints or ()
    return own


def _has_drivers(group: TaskGroup, node: Node) -> bool:
    return all(_has_driver(task.driver, node) for task in group.tasks or ())


def _has_driver(name: str, node: Node) -> bool:
    driver = node.drivers.get(name)
    return driver is not None and driver.detected and driver.healthy


def _network_obstacle(group: TaskGroup, node: Node, region: str) -> str | None:
    if not group.networks:
        return None
    network = group.networks[0]
    mode = network.mode or "host"
    if mode == "none":
        return None
    if all((known.mode or "host") != mode for known in node.node_resources.networks):
        return "missing network"
    for port in ports_of(network):
        wanted = resolve(port.host_network, node, region)
        if wanted is None:
            return f'invalid host network "{port.host_network}" template for port "{port.label}"'
        if wanted not in ("", DEFAULT_NETWORK) and wanted not in node.host_networks:
            return f'missing host network "{wanted}" for port "{port.label}"'
    return None


def ports_of(network: Network) -> list[Port]:
    """Return all ports that a network asks for."""
    return [*(network.reserved_ports or ()), *(network.dynamic_ports or ())]


def escapes_class(job: Job) -> bool:
    """Tell whether nodes of one class may differ for this job."""
    return escapes(job.constraints or ()) or any(
        escapes(_own_constraints(group))
        or any(volume.type == "csi" for volume in (group.volumes or {}).values())
        for group in job.task_groups or ()
    )


def volume_obstacle(group: TaskGroup, node: Node, number: int) -> str | None:
    """Return what keeps the allocation with this number in its name from its volumes."""
    for volume in (group.volumes or {}).values():
        source = f"{volume.source}[{number}]" if volume.per_alloc else volume.source
        if volume.type == "csi":
            return f"missing CSI volume(s) {source}"
        if volume.type == "host" and not _has_volume(volume, source, node):
            return "missing compatible host volumes"
    return None


def _has_volume(volume: Volume, source: str, node: Node) -> bool:
    known = node.host_volumes.get(source)
    return known is not None and (volume.read_only or not known.get("ReadOnly"))


def wants_distinct_hosts(constraints: Iterable[Constraint] | None) -> bool:
    """Tell whether no two allocations may share a node."""
    return any(
        one.operand == DISTINCT_HOSTS and one.r_target not in _FALSE for one in constraints or ()
    )
