"""Feasibility: why a group cannot run on a node, regardless of capacity.

The reasons appear in placement metrics (source: Nomad's recorded responses `blocked-evaluation`).
If several checks fail for a node, only the first reason is reported. `placement` counts the nodes
for each reason.
"""

from collections.abc import Iterable, Mapping

from daemon.matching.cluster_support import unsupported_on_cluster
from daemon.scheduler.nodes import devices
from daemon.scheduler.nodes.constraints import (
    DISTINCT_HOSTS,
    DISTINCT_PROPERTY,
    escapes_node_class,
    matches,
    resolve,
    text_of,
)
from storage.records.constraints import Constraint
from storage.records.group import READER_ONLY, TaskGroup, Volume
from storage.records.job import Job
from storage.records.node import DEFAULT_NETWORK, Node
from storage.records.task import Network, Port

# Operators that depend on the allocations of nodes, not only on their attributes.
OF_MOMENT = frozenset({DISTINCT_HOSTS, DISTINCT_PROPERTY})

NOT_FOR_CLUSTERS = "not for clusters"

_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def in_scope(job: Job, node: Node) -> bool:
    """Return whether a node is in the node pool and in a datacenter of the job."""
    return in_pool(job, node) and in_datacenter(job, node)


def in_pool(job: Job, node: Node) -> bool:
    """Return whether a node is in the job's node pool."""
    return job.node_pool in ("all", "") or job.node_pool == node.node_pool


def in_datacenter(job: Job, node: Node) -> bool:
    """Return whether a node is in one of the job's datacenters."""
    return any(_glob(name, node.datacenter) for name in job.datacenters or ())


def _glob(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern, in which `*` is a wildcard."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    *middle, last = rest
    if not name.startswith(first) or not name[len(first) :].endswith(last):
        return False
    position, end = len(first), len(name) - len(last)
    for part in middle:
        position = name.find(part, position, end)
        if position < 0:
            return False
        position += len(part)
    return True


def infeasibility(job: Job, group: TaskGroup, node: Node) -> str | None:
    """Return why a node is infeasible for all allocations of a group, or None."""
    unmet = _unmet(job.constraints, node, job.region)
    if unmet is None and node.engine and any(unsupported_on_cluster(job, group)):
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
    return next(
        (constraint for constraint in constraints or () if not matches(constraint, node, region)),
        None,
    )


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
    if all((network.mode or "host") != mode for network in node.node_resources.networks):
        return "missing network"
    for port in ports_of(network):
        network_name = resolve(port.host_network, node, region)
        if network_name is None:
            return f'invalid host network "{port.host_network}" template for port "{port.label}"'
        if network_name not in ("", DEFAULT_NETWORK) and network_name not in node.host_networks:
            return f'missing host network "{network_name}" for port "{port.label}"'
    return None


def ports_of(network: Network) -> list[Port]:
    """Return all ports that a network requests."""
    return [*(network.reserved_ports or ()), *(network.dynamic_ports or ())]


def escapes_class(job: Job) -> bool:
    """Return whether feasibility can differ between nodes of one class for this job."""
    return escapes_node_class(job.constraints or ()) or any(
        escapes_node_class(_own_constraints(group))
        or any(volume.type == "csi" for volume in (group.volumes or {}).values())
        for group in job.task_groups or ()
    )


def volume_obstacle(job: Job, group: TaskGroup, node: Node, number: int) -> str | None:
    """Return why the allocation with this name index cannot mount its volumes, or None."""
    for volume in (group.volumes or {}).values():
        source = f"{volume.source}[{number}]" if volume.per_alloc else volume.source
        if volume.type == "csi":
            return f"missing CSI volume(s) {source}"
        if volume.type == "host" and not _has_volume(volume, source, node, job.namespace):
            return "missing compatible host volumes"
    return None


def _has_volume(volume: Volume, source: str, node: Node, namespace: str) -> bool:
    host_volume = node.host_volumes.get(source)
    if host_volume is None or host_volume.get("Namespace", namespace) != namespace:
        return False
    offered = host_volume.get("Capabilities")  # an API-created volume
    if not isinstance(offered, list):
        return volume.read_only or not host_volume.get("ReadOnly")
    return any(_suits(volume, capability) for capability in offered)


def _suits(volume: Volume, capability: Mapping[str, str]) -> bool:
    """Return whether a capability of a stored volume fits the requested `volume`."""
    mode, attachment = capability["AccessMode"], capability["AttachmentMode"]
    return (
        volume.access_mode in ("", mode)
        and volume.attachment_mode in ("", attachment)
        and (volume.read_only or mode != READER_ONLY)
    )


def wants_distinct_hosts(constraints: Iterable[Constraint] | None) -> bool:
    """Return whether no two allocations may share a node."""
    return any(
        constraint.operand == DISTINCT_HOSTS and constraint.r_target not in _FALSE
        for constraint in constraints or ()
    )
