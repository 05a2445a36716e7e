"""The addresses of this host, for port allocation and named host networks."""

import fcntl
import logging
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from ipaddress import ip_address, ip_network
from pathlib import Path

import msgspec

from storage.records.node import HostNetwork, NodeNetwork

_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_GET_MASK = 0x891B  # SIOCGIFNETMASK
_LINK_MBITS = 1000

# Structures of netlink requests and replies (rtnetlink(7)).
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
_MESSAGE = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_ALIGNED = 4
_GET_ADDRESSES = 22  # RTM_GETADDR
_ADDRESS_IS = 20  # RTM_NEWADDR
_DONE = 3  # NLMSG_DONE
_ERROR = 2  # NLMSG_ERROR
_ASK_FOR_ALL = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_ANSWER = 1 << 16  # bytes; larger than any datagram of the kernel

_log = logging.getLogger("steward.runner")


class HostAddress(msgspec.Struct, frozen=True):
    """An address of this host and its interface."""

    interface: str
    ip: str


def find_network(*, loopback: bool) -> NodeNetwork:
    """Return the network for ports: the address of the default route, or loopback."""
    if not loopback:
        device = default_device(Path("/proc/net/route").read_text())
        if device and (network := _network(device)):
            return network
    return NodeNetwork(mode="host", device="lo", cidr="127.0.0.1/32", ip="127.0.0.1", mbits=1000)


def default_device(routes: str) -> str:
    """Return the device of the default route, from the text of `/proc/net/route`."""
    for line in routes.splitlines()[1:]:
        fields = line.split()
        if fields[1] == "00000000" and fields[7] == "00000000":
            return fields[0]
    return ""


def _network(device: str) -> NodeNetwork | None:
    request = struct.pack("256s", device.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answers = [fcntl.ioctl(probe, code, request) for code in (_GET_ADDRESS, _GET_MASK)]
        except OSError:
            return None
    address, mask = (answer[20:24] for answer in answers)
    ip, bits = socket.inet_ntoa(address), int.from_bytes(mask, "big").bit_count()
    return NodeNetwork(mode="host", device=device, cidr=f"{ip}/{bits}", ip=ip, mbits=_LINK_MBITS)


def host_networks(
    configured: Iterable[HostNetwork], host_addresses: Sequence[HostAddress]
) -> dict[str, dict[str, object]]:
    """Return the configured host networks by name, each as a map of node attributes.

    Each network uses the first matching address. A network without a matching address is omitted,
    with a warning in the log.
    """
    networks: dict[str, dict[str, object]] = {}
    for host_network in configured:
        ip = next((address.ip for address in host_addresses if _is_of(host_network, address)), None)
        if ip is None:
            there = ", ".join(f"{address.ip} ({address.interface})" for address in host_addresses)
            _log.warning(
                "host network %s is left out: this host has no address for cidr %r and "
                "interface %r; it has %s",
                *(host_network.name, host_network.cidr, host_network.interface, there),
            )
            continue
        networks[host_network.name] = {
            "Name": host_network.name,
            "CIDR": host_network.cidr,
            "Interface": host_network.interface,
            "ReservedPorts": host_network.reserved_ports,
            "IP": ip,
        }
    return networks


def _is_of(network: HostNetwork, address: HostAddress) -> bool:
    if network.interface and network.interface != address.interface:
        return False
    return not network.cidr or ip_address(address.ip) in ip_network(network.cidr, strict=False)


def addresses() -> list[HostAddress]:
    """Return the addresses of this host, without link-local ones.

    Link-local addresses are not reachable without an interface. If netlink is not available, the
    result is empty, with a warning in the log.
    """
    try:
        return list(_request_addresses())
    except OSError as error:
        _log.warning("cannot read the addresses of this host (AF_NETLINK): %s", error)
        return []


def _request_addresses() -> Iterator[HostAddress]:
    with closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)) as kernel:
        kernel.send(
            _HEADER.pack(_HEADER.size + _MESSAGE.size, _GET_ADDRESSES, _ASK_FOR_ALL, 1, 0)
            + _MESSAGE.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        )
        while True:
            for kind, body in netlink_messages(kernel.recv(_ANSWER)):
                if kind in (_DONE, _ERROR):
                    return
                if kind == _ADDRESS_IS and (ip := address_of(body)) is not None:
                    with suppress(OSError):  # the interface may disappear
                        yield HostAddress(socket.if_indextoname(_MESSAGE.unpack_from(body)[4]), ip)


def netlink_messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of each message in a netlink reply."""
    while len(answer) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(answer)
        yield kind, answer[_HEADER.size : length]
        answer = answer[_aligned(length) :]


def address_of(body: bytes) -> str | None:
    """Return the address in the body of a message; None if the address is link-local."""
    family, values = body[0], {}
    rest = body[_MESSAGE.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        values[kind] = rest[_ATTRIBUTE.size : length]
        rest = rest[_aligned(length) :]
    # On a point-to-point link, IFA_ADDRESS is the address of the other end.
    own = values.get(_IFA_LOCAL) or values.get(_IFA_ADDRESS)
    if own is None or family not in (socket.AF_INET, socket.AF_INET6):
        return None
    address = ip_address(own)
    return None if address.is_link_local else str(address)


def _aligned(length: int) -> int:
    return (max(length, _ALIGNED) + _ALIGNED - 1) & -_ALIGNED
