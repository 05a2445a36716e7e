"""Egress policy of the daemon: addresses that it never connects to on behalf of a job.

Artifacts, webhooks and service checks name addresses that the job's author chose. The daemon can
reach addresses that the author cannot, such as the cloud's metadata service and the daemon itself.
"""

import ipaddress
import socket
from collections.abc import Collection

from daemon.config.settings import Settings

# Services of Amazon, Azure (WireServer) and Alibaba that are not at a link-local address.
_METADATA_SERVICES = frozenset({"fd00:ec2::254", "168.63.129.16", "100.100.100.200"})
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the IPv4 address is in the last 32 bits


class EgressDenied(Exception):
    """A connection to this address is blocked by the egress policy."""


def check(address: str, port: int, *, own_ports: Collection[int]) -> None:
    """Raise `EgressDenied` for a blocked address; `own_ports` are the daemon's listening ports."""
    plain = _plain(address)
    if plain.is_link_local or str(plain) in _METADATA_SERVICES:
        raise EgressDenied(
            f"{address} is the cloud's metadata service or another link-local address"
        )
    if port in own_ports and (plain.is_loopback or _is_ours(str(plain))):
        raise EgressDenied(f"{address}:{port} is the daemon itself")
    if plain.is_multicast or plain.is_unspecified:
        raise EgressDenied(f"{address} is not the address of a host")


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address. If an IPv6 address contains an IPv4 address, return the IPv4 address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if not isinstance(ip, ipaddress.IPv6Address):
        return ip
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip


def own_ports(config: Settings) -> frozenset[int]:
    """Return the ports of the daemon's listeners."""
    return config.own_ports


def _is_ours(address: str) -> bool:
    """Return whether an address belongs to this host."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
