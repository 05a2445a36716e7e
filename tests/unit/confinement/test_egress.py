"""Egress filter programs, executed by an interpreter in the tests, return the expected verdicts."""

import operator
import struct
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.confinement import egress
from daemon.confinement.egress import DeniedAddresses

OWN_PORT = 4646
EVERY = [
    *map(DeniedAddresses, egress.LINK_LOCAL),
    *(DeniedAddresses(item, OWN_PORT) for item in (*egress.LOOPBACK, ip_network("192.0.2.7/32"))),
]
PACKETS, CONNECTIONS4, CONNECTIONS6 = 1, 10, 11  # linux/bpf.h
LENGTHS = {4: 20, 6: 40}
STACK = 512
END, CALL, COPY = 0x95, 0x85, 0xBF
JUMPS = {0x16: operator.eq, 0x56: operator.ne}
SUMS: dict[int, Callable[[int, int], int]] = {
    0xB7: lambda _, value: value,
    COPY: lambda _, value: value,
    0x07: lambda old, value: old + (value - 2**32 if value >> 31 else value),
    0x54: operator.and_,
    0x64: operator.lshift,
}
WIDTHS = {0x61: "=I", 0x69: "=H", 0x71: "=B"}


class Kernel:
    """Runs a program.

    Registers hold numbers, and the context and the stack are one block of memory.
    """

    def __init__(self, program: bytes, context: bytes, packet: bytes = b"") -> None:
        self.steps = [*struct.iter_unpack("=BBhI", program)]
        self.memory = bytearray(context.ljust(256, b"\0") + bytes(STACK))
        self.packet = packet
        self.registers = [0] * 11
        self.registers[10] = len(self.memory)

    def run(self) -> int:
        at = 0
        while True:
            operation, registers, offset, number = self.steps[at]
            to, by = registers & 15, registers >> 4
            at += 1
            if operation == END:
                return self.registers[0]
            if operation in JUMPS:
                at += offset if JUMPS[operation](self.registers[to], number) else 0
            elif operation in WIDTHS:
                place = self.registers[by] + offset
                (self.registers[to],) = struct.unpack_from(WIDTHS[operation], self.memory, place)
            elif operation == CALL:
                self.load_bytes()
            else:
                value = self.registers[by] if operation == COPY else number
                self.registers[to] = SUMS[operation](self.registers[to], value)

    def load_bytes(self) -> None:
        _, offset, place, count = self.registers[1:5]
        found = self.packet[offset : offset + count]
        is_whole = len(found) == count
        self.memory[place : place + count] = found if is_whole else bytes(count)
        self.registers[0] = 0 if is_whole else 2**32 - 14


def is_let(address: IPv4Address | IPv6Address, port: int) -> bool:
    """Return whether a socket of the address's family may connect."""
    where = CONNECTIONS4 if address.version == 4 else CONNECTIONS6
    place = 4 if address.version == 4 else 8
    context = bytes(place) + address.packed
    context = context.ljust(24, b"\0") + port.to_bytes(2, "big") + bytes(2)
    return bool(Kernel(egress.programs(EVERY)[where], context).run())


def is_sent(
    address: IPv4Address | IPv6Address, port: int, options: int = 0, cut: int | None = None
) -> bool:
    """Return whether a packet leaves; `cut` is its length."""
    protocol = 0x0800 if address.version == 4 else 0x86DD
    if address.version == 4:
        header = bytes([0x45 + options]) + bytes(15) + address.packed + bytes(4 * options)
    else:
        header = b"\x60" + bytes(23) + address.packed
    packet = header + b"\1\2" + port.to_bytes(2, "big") + b"payload"
    context = bytes(16) + protocol.to_bytes(2, "big") + bytes(2)
    return bool(Kernel(egress.programs(EVERY)[PACKETS], context, packet[:cut]).run())


def should_be(address: IPv4Address | IPv6Address, port: int) -> bool:
    """Return the expected result of `is_let`, derived from the list."""
    plain = getattr(address, "ipv4_mapped", None) or address
    if port == 53:
        return True
    return not any(plain in item.network and item.port in (0, port) for item in EVERY)


NEAR = st.sampled_from(
    [
        *("169.253.255.255", "169.254.0.0", "169.254.169.254", "169.254.255.255", "169.255.0.0"),
        *("127.0.0.1", "127.255.255.255", "126.255.255.255", "128.0.0.0", "0.0.0.0", "0.0.0.1"),  # noqa: S104  # an address that is tested
        *("192.0.2.7", "192.0.2.8", "::1", "::", "::2", "fd00:ec2::254", "fd00:ec2::255"),
        *("fe80::", "febf:ffff::1", "fec0::", "fe7f::1", "::ffff:169.254.169.254"),
        *("::ffff:127.0.0.1", "::ffff:192.0.2.7", "::fffe:127.0.0.1", "2001:db8::1"),
    ]
).map(ip_address)
ADDRESSES = NEAR | st.ip_addresses()
PORTS = st.sampled_from([0, 53, 80, OWN_PORT, OWN_PORT - 1, 65535]) | st.integers(0, 65535)


@given(ADDRESSES, PORTS)
def test_connection_is_refused_only_to_listed_addresses(
    address: IPv4Address | IPv6Address, port: int
) -> None:
    assert is_let(address, port) is should_be(address, port)


@given(NEAR.filter(lambda item: not getattr(item, "ipv4_mapped", None)), PORTS, st.integers(0, 10))
def test_packet_is_refused_only_to_listed_addresses(
    address: IPv4Address | IPv6Address, port: int, options: int
) -> None:
    assert is_sent(address, port, options) is should_be(address, port)


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1"])
def test_packet_without_ports_is_filtered_by_its_address(address: str) -> None:
    one = ip_address(address)
    assert not is_sent(one, 80, cut=LENGTHS[one.version])


def test_empty_list_permits_everything() -> None:
    for program in egress.programs(()).values():
        assert Kernel(program, bytes(64), bytes(64)).run() == 1
