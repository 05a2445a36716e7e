"""What nobody may reach through the daemon: by an artifact's address, or a webhook's.

Addresses that a job names are the word of whoever submits it, and the daemon sits where they may
not: beside the machine's metadata service, and beside itself.
"""

import ipaddress
import socket


class Forbidden(Exception):
    """Something that nobody may have the daemon connect to."""


def check(address: str, port: int, *, own_port: int) -> None:
    """Raise `Forbidden` for an address that is not to be connected to; `own_port` is the daemon's."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    plain = getattr(ip, "ipv4_mapped", None) or ip
    if plain.is_link_local or str(plain) == "fd00:ec2::254":
        raise Forbidden(f"{address} is the machine's metadata service or another link address")
    if port == own_port and (plain.is_loopback or _is_ours(str(plain))):
        raise Forbidden(f"{address}:{port} is the daemon itself")
    if plain.is_multicast or plain.is_unspecified:
        raise Forbidden(f"{address} is not the address of a machine")


def _is_ours(address: str) -> bool:
    """Tell whether an address is one of this machine's own."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
