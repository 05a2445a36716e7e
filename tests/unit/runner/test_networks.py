"""The address of the host that a name in the configuration stands for."""

import socket
import struct

import pytest

from daemon.runner.host_networks import (
    HostAddress,
    address_of,
    addresses,
    host_networks,
    netlink_messages,
)
from storage.records.node import HostNetwork

KNOWN = [
    HostAddress("lo", "127.0.0.1"),
    HostAddress("eth0", "192.0.2.2"),
    HostAddress("eth1", "10.1.0.7"),
    HostAddress("eth1", "10.2.0.7"),
    HostAddress("eth0", "2001:db8::2"),
]
LAN = HostNetwork(name="lan", cidr="10.0.0.0/8", reserved_ports="22")


@pytest.mark.parametrize(
    ("wanted", "ip"),
    [
        (LAN, "10.1.0.7"),
        (HostNetwork(name="lan", cidr="10.2.0.0/16"), "10.2.0.7"),
        (HostNetwork(name="lan", cidr="10.2.0.7"), "10.2.0.7"),
        (HostNetwork(name="lan", interface="eth1"), "10.1.0.7"),
        (HostNetwork(name="lan", interface="eth0", cidr="::/0"), "2001:db8::2"),
    ],
)
def test_host_network_has_the_first_matching_address(wanted: HostNetwork, ip: str) -> None:
    assert host_networks([wanted], KNOWN)["lan"]["IP"] == ip


def test_node_shows_the_configured_host_network() -> None:
    assert host_networks([LAN], KNOWN) == {
        "lan": {
            "Name": "lan",
            "CIDR": "10.0.0.0/8",
            "Interface": "",
            "ReservedPorts": "22",
            "IP": "10.1.0.7",
        }
    }


@pytest.mark.parametrize(
    "wanted",
    [
        HostNetwork(name="wan", cidr="198.51.100.0/24"),
        HostNetwork(name="wan", interface="wg0"),
        HostNetwork(name="wan", interface="lo", cidr="10.0.0.0/8"),
    ],
)
def test_host_network_without_an_address_is_omitted_and_logged(
    wanted: HostNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    assert host_networks([wanted, LAN], KNOWN).keys() == {"lan"}
    (line,) = caplog.messages
    assert "host network wan is left out" in line
    assert "10.1.0.7 (eth1)" in line


def test_host_has_addresses() -> None:
    assert HostAddress("lo", "127.0.0.1") in addresses()


def test_forbidden_kernel_query_gives_no_addresses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("daemon.runner.host_networks.socket.socket", refused)
    assert addresses() == []
    assert "AF_NETLINK" in caplog.text


def test_interface_removed_during_the_query_is_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: int) -> str:
        raise OSError(6, "No such device or address")

    monkeypatch.setattr("daemon.runner.host_networks.socket.if_indextoname", gone)
    assert addresses() == []


def attribute(kind: int, value: bytes) -> bytes:
    padding = bytes(-len(value) % 4)
    return struct.pack("=HH", 4 + len(value), kind) + value + padding


def told(family: int, *attributes: bytes) -> bytes:
    """Return the body of a message of the kernel about an address."""
    return struct.pack("=BBBBI", family, 24, 0, 0, 2) + b"".join(attributes)


V4, OTHER_END = socket.inet_aton("192.0.2.2"), socket.inet_aton("192.0.2.9")


@pytest.mark.parametrize(
    ("body", "ip"),
    [
        (told(socket.AF_INET, attribute(1, V4), attribute(3, b"eth0\0")), "192.0.2.2"),
        (told(socket.AF_INET, attribute(1, OTHER_END), attribute(2, V4)), "192.0.2.2"),
        (
            told(socket.AF_INET6, attribute(1, socket.inet_pton(socket.AF_INET6, "2001:db8::2"))),
            "2001:db8::2",
        ),
        (told(socket.AF_INET6, attribute(1, socket.inet_pton(socket.AF_INET6, "fe80::1"))), None),
        (told(socket.AF_INET), None),
    ],
)
def test_address_is_parsed_from_a_kernel_message(body: bytes, ip: str | None) -> None:
    assert address_of(body) == ip


def test_kernel_response_has_several_messages() -> None:
    bodies = [b"abcd", b"12345"]  # attributes are aligned to four bytes
    answer = b"".join(
        struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body + bytes(-len(body) % 4)
        for kind, body in enumerate(bodies)
    )
    assert list(netlink_messages(answer)) == list(enumerate(bodies))
