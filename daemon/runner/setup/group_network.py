"""The network of a group in `bridge` mode: an address on the host's bridge, and forwarded ports.

The launcher creates the network before the first task starts, and removes it after the last task
has ended. Each attempt requests the network again: if the launcher was restarted while no task of
the allocation was running, the network no longer exists.
"""

import logging
from collections.abc import Mapping

from daemon.launcher.client import Launcher
from daemon.launcher.messages import MOST_PORTS, ForwardedPort
from daemon.runner.core.task_instance import TaskInstance
from daemon.runner.setup.runtime import RuntimeContext
from storage.errors import Refused
from storage.records.allocation import NetworkStatus
from storage.records.group import TaskGroup
from storage.records.node import BRIDGE_PLUGINS, NO_BRIDGE
from storage.records.task import Network, NetworkDNS

INTERFACE = "eth0"  # interface in the group's network
_VERSION = "1.0.0"  # satisfies the constraint that Nomad adds to groups with mode bridge

_log = logging.getLogger("steward.runner")


def bridge_attributes(problem: str) -> Mapping[str, str]:
    """Return the node attributes of the bridge; `problem` is the reason why there is none.

    Groups in `bridge` mode implicitly require some CNI plugins. The attributes list these plugins,
    although Steward's own bridge replaces them.
    """
    if problem:
        return {NO_BRIDGE: problem}
    return {f"plugins.cni.version.{name}": _VERSION for name in BRIDGE_PLUGINS}


def mode_of(group: TaskGroup) -> str:
    """Return the network mode of a group; empty means the host's network."""
    return next(iter(group.networks or ()), Network()).mode


def has_network(group: TaskGroup) -> bool:
    """Return whether the tasks of a group share a separate network."""
    return mode_of(group) in ("none", "bridge")


async def connect(
    host: RuntimeContext, instance: TaskInstance, dns: NetworkDNS | None
) -> NetworkStatus | None:
    """Connect an allocation to the bridge if its group requires it, and return its address.

    `dns` is the `dns` block of the group. Raises `Refused`, and `OSError` from the launcher.
    """
    if mode_of(instance.group) != "bridge" or host.capacity is None:
        return None
    address = await host.launcher.connect_network(instance.allocation.id, forwarded_ports(instance))
    return NetworkStatus(
        interface_name=INTERFACE, address=address, dns=_names(dns) if dns else None
    )


def _names(dns: NetworkDNS) -> dict[str, list[str]]:
    return {
        "Servers": dns.servers or [],
        "Searches": dns.searches or [],
        "Options": dns.options or [],
    }


def forwarded_ports(instance: TaskInstance) -> list[ForwardedPort]:
    """Return the ports that the launcher must forward for a group. Raises `Refused`."""
    ports = instance.allocation.placement.resources.shared.ports or []
    if len(ports) > MOST_PORTS:
        raise Refused(
            f"the group has {len(ports)} ports, more than the {MOST_PORTS} that a bridge forwards "
            "for a group"
        )
    for port in ports:
        if ":" in port.host_ip:
            raise Refused(
                f'port "{port.label}" has the address {port.host_ip} of the host, but the bridge '
                "forwards only ports of IPv4 addresses: choose another host_network"
            )
    return [
        ForwardedPort(
            address=port.host_ip, value=port.value, to=port.to if port.to > 0 else port.value
        )
        for port in ports
    ]


async def release(launcher: Launcher, alloc_id: str) -> None:
    """Remove the network of an ended allocation."""
    try:
        await launcher.release_network(alloc_id)
    except OSError as error:
        _log.warning("the network of allocation %s cannot be removed: %s", alloc_id, error)
