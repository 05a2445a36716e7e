"""Egress policy of the daemon: addresses that it never connects to on behalf of a job.

Artifacts, webhooks and service checks name addresses that the job's author chose. The daemon can
reach addresses that the author cannot, such as the cloud's metadata service and the daemon itself.
"""

import ipaddress
import socket
from collections.abc import Collection

from daemon.config.settings import Settings


class EgressDenied(Exception):
    """A connection to this address is blocked by the egress policy."""


def check(address: str, port: int, *, own_ports: Collection[int]) -> None:
    """Raise `EgressDenied` for a blocked address; `own_ports` are the daemon's listening ports."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    plain = getattr(ip, "ipv4_mapped", None) or ip
    if plain.is_link_local or str(plain) == "fd00:ec2::254":
        raise EgressDenied(
            f"{address} is the cloud's metadata service or another link-local address"
        )
    if port in own_ports and (plain.is_loopback or _is_ours(str(plain))):
        raise EgressDenied(f"{address}:{port} is the daemon itself")
    if plain.is_multicast or plain.is_unspecified:
        raise EgressDenied(f"{address} is not the address of a host")


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
