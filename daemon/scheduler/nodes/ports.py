"""Ports: find missing and free ports of a node, and choose ports for an allocation.

All addresses of a node share one set of ports. A dynamic port comes from the node's range. The
search starts at a position derived from the allocation ID. Plans are therefore deterministic, and a
port that was just released is rarely reused immediately.
"""

from collections.abc import Iterable, Set
from itertools import chain
from zlib import crc32

from daemon.scheduler.nodes.constraints import resolve
from daemon.scheduler.nodes.feasibility import ports_of
from storage.records.allocation import (
    AllocatedNetwork,
    AllocatedPort,
    OfferedPort,
)
from storage.records.node import Node
from storage.records.numbers import parse_integer
from storage.records.task import Network, Port

_SAME = -1  # value of `to`: the port in the allocation's network equals the port of the host
_LAST = 65535


def reserved(node: Node) -> set[int]:
    """Return the reserved ports of a node, from all its networks."""
    texts = [node.reserved_resources.networks.reserved_host_ports]
    texts += [
        str(host_network.get("ReservedPorts", "")) for host_network in node.host_networks.values()
    ]
    ports: set[int] = set()
    for part in ",".join(texts).split(","):  # such as 22,8000-8010
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not dash):
            ports.update(range(parse_integer(first), min(parse_integer(last or first), _LAST) + 1))
    return ports


def dynamic_range(node: Node) -> range:
    """Return the range of dynamic ports."""
    resources = node.node_resources
    return range(resources.min_dynamic_port, resources.max_dynamic_port + 1)


def missing_ports(networks: Iterable[Network], used: Set[int], free_dynamic: int) -> str | None:
    """Return Nomad's text about the missing ports, or None.

    `free_dynamic` is the number of unused ports in the dynamic range.
    """
    static: set[int] = set()
    dynamic_count = 0
    for network in networks:
        for port in network.reserved_ports or ():
            if not 0 <= port.value <= _LAST:
                return f"network: invalid port {port.value} (out of range)"
            taken = port.value in used or port.value in static
            if taken and not port.ignore_collision:
                return f"network: reserved port collision {port.label}={port.value}"
            static.add(port.value)
        dynamic_count += len(network.dynamic_ports or ())
    # Static ports in the dynamic range reduce the number of free dynamic ports.
    if dynamic_count and dynamic_count > free_dynamic - len(static - used):
        return "network: dynamic port selection failed"
    return None


def count_port_conflicts(networks: Iterable[Network], used: Set[int]) -> int:
    """Return how many static ports of the networks are in use."""
    return sum(
        port.value in used and not port.ignore_collision
        for network in networks
        for port in network.reserved_ports or ()
    )


class PortAllocator:
    """Chooses free ports for one allocation, after `missing_ports` returned None."""

    def __init__(
        self,
        node: Node,
        used: Set[int],
        networks: Iterable[Network],
        seed: str,
        avoided: Set[int] = frozenset(),
    ) -> None:
        """Initialize with all requested networks; `seed` is the allocation ID.

        Ports in `avoided` are used only if no other ports are free.
        """
        self._avoided = avoided
        self._range = dynamic_range(node)
        self._used = used
        self._seed = seed
        # Dynamic ports must not use the allocation's static ports.
        self._taken = {port.value for network in networks for port in network.reserved_ports or ()}

    def values(self, network: Network) -> dict[str, int]:
        """Return the value of each port of a network, by label."""
        static = {port.label: port.value for port in network.reserved_ports or ()}
        return static | {port.label: self._take(port.label) for port in network.dynamic_ports or ()}

    def _take(self, label: str) -> int:
        size = len(self._range)
        start = crc32(f"{self._seed} {label}".encode()) % size
        candidates = (self._range[offset % size] for offset in range(start, start + size))
        free = (port for port in candidates if port not in self._used and port not in self._taken)
        first = next(free)
        unavoided = (port for port in chain([first], free) if port not in self._avoided)
        value = next(unavoided, first)
        self._taken.add(value)
        return value


def offer(
    network: Network, node: Node, region: str, chooser: PortAllocator
) -> tuple[AllocatedNetwork, list[AllocatedPort]]:
    """Return a network with the ports that `chooser` selects, and a flat list of these ports."""
    address = _host_address(node)
    values = chooser.values(network)
    flat = [
        AllocatedPort(
            label=port.label,
            value=values[port.label],
            to=_target_port(port, values[port.label]),
            host_ip=_address(port, node, region) or address,
        )
        for port in ports_of(network)
    ]
    allocated = AllocatedNetwork(
        mode=network.mode,
        device=network.device,
        cidr=network.cidr,
        ip=address,
        hostname=network.hostname,
        mbits=network.mbits,
        reserved_ports=_offered(network.reserved_ports, values),
        dynamic_ports=_offered(network.dynamic_ports, values),
    )
    return allocated, flat


def _offered(ports: list[Port] | None, values: dict[str, int]) -> list[OfferedPort] | None:
    if not ports:
        return None
    return [
        OfferedPort(
            label=port.label,
            value=values[port.label],
            to=_target_port(port, values[port.label]),
            host_network=port.host_network,
        )
        for port in ports
    ]


def _target_port(port: Port, value: int) -> int:
    return value if port.to == _SAME else port.to


def _host_address(node: Node) -> str:
    networks = node.node_resources.networks
    return next(
        (network.ip for network in networks if (network.mode or "host") == "host" and network.ip),
        "",
    )


def _address(port: Port, node: Node, region: str) -> str:
    """Return the address of a port's host network on the node, or an empty string."""
    name = resolve(port.host_network, node, region) or ""
    host_network = node.host_networks.get(name, {})
    for key in ("IP", "CIDR"):
        value = host_network.get(key)
        if isinstance(value, str) and value:
            return value.partition("/")[0]
    return ""
