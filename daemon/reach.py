"""What nobody may reach through the daemon: by the address of an artifact, a webhook or a service.

Addresses that a job names are the word of whoever submits it, and the daemon sits where they may
not: beside the machine's metadata service, and beside itself.
"""

import ipaddress
import socket
from collections.abc import Collection

from daemon.config import Config


class Forbidden(Exception):
    """Something that nobody may have the daemon connect to."""


def check(address: str, port: int, *, own_ports: Collection[int]) -> None:
    """Raise `Forbidden` for an address that is not to be connected to; `own_ports` are the daemon's."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    plain = getattr(ip, "ipv4_mapped", None) or ip
    if plain.is_link_local or str(plain) == "fd00:ec2::254":
        raise Forbidden(f"{address} is the machine's metadata service or another link address")
    if port in own_ports and (plain.is_loopback or _is_ours(str(plain))):
        raise Forbidden(f"{address}:{port} is the daemon itself")
    if plain.is_multicast or plain.is_unspecified:
        raise Forbidden(f"{address} is not the address of a machine")


def own_ports(config: Config) -> frozenset[int]:
    """Return the ports at which the daemon listens, its small cloud for development among them."""
    public = {config.issuer_port} if config.issuer_bind else set()
    cloud = {config.dev_cloud_port} if config.dev_cloud else set()
    return frozenset({config.port} | public | cloud)


def _is_ours(address: str) -> bool:
    """Tell whether an address is one of this machine's own."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
