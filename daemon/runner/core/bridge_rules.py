"""The rules of the bridge for groups with network mode `bridge`, as text for `nft`. No I/O.

The map `ports`, which the launcher fills, forwards ports of the host to allocations. Packets from
outside reach an allocation only through this map, or as answers to packets of the allocation.
"""

from collections.abc import Iterable
from ipaddress import IPv4Network

from daemon.config.settings import GUARDED, Settings
from daemon.launcher.messages import BridgePolicy, Span
from storage.records.numbers import ranges

_PREFIX = "steward-"  # prefix of the table name, before the name of the bridge

# The `raw` hook precedes all address translation, so it sees the addresses that a task used.
_CHAINS = """\
add table ip {table}
add map ip {table} ports {{ type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }}
add chain ip {table} arriving {{ type filter hook prerouting priority raw; }}
add chain ip {table} inward {{ type nat hook prerouting priority dstnat; }}
add chain ip {table} local {{ type nat hook output priority -100; }}
add chain ip {table} outward {{ type nat hook postrouting priority srcnat; }}
add chain ip {table} through {{ type filter hook forward priority filter; }}
flush chain ip {table} arriving
flush chain ip {table} inward
flush chain ip {table} local
flush chain ip {table} outward
flush chain ip {table} through
add rule ip {table} arriving iifname "{name}" ip saddr != {subnet} drop
add rule ip {table} arriving iifname "{name}" ip daddr 127.0.0.0/8 drop
{guard}\
add rule ip {table} inward fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @ports
add rule ip {table} local fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @ports
add rule ip {table} outward ip saddr {subnet} oifname != "{name}" masquerade
add rule ip {table} outward ip saddr {subnet} oifname "{name}" ct status dnat masquerade
add rule ip {table} outward ip saddr 127.0.0.0/8 oifname "{name}" masquerade
add rule ip {table} through iifname != "{name}" oifname "{name}" ct status dnat accept
add rule ip {table} through iifname != "{name}" oifname "{name}" ct state established,related accept
add rule ip {table} through iifname != "{name}" oifname "{name}" drop
"""
_GUARD = """\
add rule ip {table} arriving iifname "{name}" ip daddr 169.254.0.0/16 th dport != 53 drop
add rule ip {table} arriving iifname "{name}" fib daddr type local tcp dport {{ {own} }} drop
"""
_CLOSING = """\
add chain ip {table} closed {{ type filter hook forward priority filter; }}
flush chain ip {table} closed
add rule ip {table} closed iifname != "{name}" oifname != "{name}" drop
"""


def bridge_of(config: Settings) -> BridgePolicy:
    """Return the bridge policy of a configuration.

    The configuration must be valid, and its `port` must be the port of the listener.
    """
    subnet = IPv4Network(config.bridge_network_subnet)
    values = {
        "table": f"{_PREFIX}{config.bridge_network_name}",
        "name": config.bridge_network_name,
        "subnet": str(subnet),
        "own": ", ".join(map(str, sorted(config.own_ports))),
    }
    guard = _GUARD.format(**values) if config.task_egress == GUARDED else ""
    return BridgePolicy(
        name=config.bridge_network_name,
        table=values["table"],
        subnet=str(subnet.network_address),
        bits=subnet.prefixlen,
        rules=_CHAINS.format(**values, guard=guard),
        closing=_CLOSING.format(**values),
        kept_ports=[*_kept_ports(config)],
    )


def _kept_ports(config: Settings) -> Iterable[Span]:
    """Yield the host ports that no job may use: the daemon's own ports and the reserved ports."""
    yield from ((port, port) for port in sorted({*config.own_ports, config.wrapper_port}))
    for network in config.host_networks:
        yield from ((ports.start, ports.stop - 1) for ports in ranges(network.reserved_ports))
