"""Block addresses for tasks with eBPF programs on the cgroup above the tasks.

The kernel runs such a program for each connection, each datagram with an address and each packet of
a process in the cgroup, regardless of its user. The programs are removed with the cgroup. Firewall
rules are not touched. The next start of the daemon replaces each program atomically.

Connections fail immediately (`EPERM`). The packet program covers raw sockets and protocols without
their own hook.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from daemon.confinement import bpf

Network = IPv4Network | IPv6Network
LINK_LOCAL = tuple(
    ip_network(network) for network in ("169.254.0.0/16", "fd00:ec2::254/128", "fe80::/10")
)
LOOPBACK = tuple(
    ip_network(network) for network in ("127.0.0.0/8", "0.0.0.0/32", "::1/128", "::/128")
)
_DNS = 53  # some clouds have their name server among the link-local addresses

# linux/bpf.h
_PROG_LOAD, _PROG_ATTACH, _PROG_DETACH, _PROG_QUERY = 5, 8, 9, 16
_CGROUP_SKB, _CGROUP_SOCK_ADDR = 8, 18  # types of programs
_EGRESS, _CONNECT4, _CONNECT6, _SENDMSG4, _SENDMSG6 = 1, 10, 11, 14, 15  # types of attachments
_ALLOW_OVERRIDE = 1  # allows the next attachment to replace this one
_LOAD_BYTES = 26  # bpf_skb_load_bytes
_LICENSE, _NAME = b"GPL", b"steward_egress"
_LOAD_FORM = struct.Struct("=IIQQIIQII16sII")
_LONGEST_REASON = 65536

# eBPF opcodes. Comparisons have 32 bits, so no number is negative.
_LOAD, _LOAD_HALF, _LOAD_BYTE, _SET, _COPY, _ADD = 0x61, 0x69, 0x71, 0xB7, 0xBF, 0x07
_AND, _SHIFT, _EQUAL, _UNEQUAL, _CALL, _EXIT = 0x54, 0x64, 0x16, 0x56, 0x85, 0x95
_STACK = 10  # the frame pointer
_HEADER, _PORTS = -64, -8  # stack offsets

# struct bpf_sock_addr and struct __sk_buff
_ADDRESS4, _ADDRESS6, _PORT, _PROTOCOL = 4, 8, 24, 16
_IP4, _IP6 = 0x0800, 0x86DD  # linux/if_ether.h
_HEADERS = {_IP4: (20, 16), _IP6: (40, 24)}  # header length, and offset of the destination


class DeniedAddresses(NamedTuple):
    """A network that tasks cannot reach, at one port or at all ports except DNS."""

    network: Network
    port: int = 0


def programs(denied: Iterable[DeniedAddresses]) -> Mapping[int, bytes]:
    """Return the eBPF programs that deny connections to these addresses, by attachment type."""
    targets = list(denied)
    four = [target for target in targets if isinstance(target.network, IPv4Network)]
    six = [target for target in targets if isinstance(target.network, IPv6Network)]
    mapped = [DeniedAddresses(_mapped(target.network), target.port) for target in four]
    own = b"".join(_of_address(_ADDRESS4, four))
    mapped_program = b"".join(_of_address(_ADDRESS6, [*six, *mapped]))
    packets = b"".join(_of_packets({_IP4: four, _IP6: six}))
    return {
        _EGRESS: packets,
        _CONNECT4: own,
        _SENDMSG4: own,
        _CONNECT6: mapped_program,
        _SENDMSG6: mapped_program,
    }


def attach(group: str, denied: Iterable[DeniedAddresses]) -> None:
    """Block the addresses for all processes of a cgroup and its children. Raises `OSError`."""
    with _Directory(group) as descriptor:
        for where, program in programs(denied).items():
            loaded = _load(where, program)
            try:
                _bpf(_PROG_ATTACH, struct.pack("=IIII", descriptor, loaded, where, _ALLOW_OVERRIDE))
            finally:
                os.close(loaded)


def detach(group: str) -> None:
    """Remove the programs of a cgroup. Raises `OSError`."""
    with _Directory(group) as descriptor:
        for where in programs(()):
            try:
                _bpf(_PROG_DETACH, struct.pack("=IIII", descriptor, 0, where, 0))
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise


def is_attached(group: str) -> bool:
    """Return whether a cgroup has a program of every type.

    Raises `PermissionError` if only root may query that.
    """
    try:
        with _Directory(group) as descriptor:
            return all(_count(descriptor, where) for where in programs(()))
    except PermissionError:
        raise
    except OSError:
        return False


class _Directory:
    """An open descriptor of a cgroup, closed at the end of the block."""

    def __init__(self, path: str) -> None:
        self._path, self._descriptor = path, -1

    def __enter__(self) -> int:
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


# --- programs ---


def _of_address(address: int, denied: Iterable[DeniedAddresses]) -> Iterator[bytes]:
    """Yield the program for connections. `address` is the offset of the address in its argument."""
    yield _do(_LOAD, to=2, by=1, offset=_PORT)
    yield from _decide(1, address, denied)


def _of_packets(denied: Mapping[int, list[DeniedAddresses]]) -> Iterator[bytes]:
    """Yield the packet program; a packet begins with the IP header."""
    yield _do(_COPY, to=6, by=1)
    yield _do(_LOAD, to=7, by=6, offset=_PROTOCOL)
    for protocol, targets in denied.items():
        body = b"".join(_of_protocol(protocol, targets))
        yield _do(_UNEQUAL, to=7, offset=len(body) // bpf.SIZE, number=_network_order(protocol))
        yield body
    yield from _answer(1)


def _of_protocol(protocol: int, denied: Iterable[DeniedAddresses]) -> Iterator[bytes]:
    length, destination = _HEADERS[protocol]
    yield _do(_SET, to=8)
    yield from _bytes_of_packet(_HEADER, length)
    yield _do(_EQUAL, to=0, offset=2)
    yield from _answer(1)  # too short for an address
    if protocol == _IP4:
        yield _do(_LOAD_BYTE, to=8, by=_STACK, offset=_HEADER)
        yield _do(_AND, to=8, number=0xF)
        yield _do(_SHIFT, to=8, number=2)
    else:
        yield _do(_SET, to=8, number=length)
    yield from _bytes_of_packet(_PORTS, 4)  # zeros if the packet has no ports
    yield _do(_LOAD_HALF, to=2, by=_STACK, offset=_PORTS + 2)
    yield from _decide(_STACK, _HEADER + destination, denied)


def _bytes_of_packet(offset: int, count: int) -> Iterator[bytes]:
    """Yield instructions that copy the packet bytes at the offset in register 8 to the stack."""
    yield _do(_COPY, to=1, by=6)
    yield _do(_COPY, to=2, by=8)
    yield _do(_COPY, to=3, by=_STACK)
    yield _do(_ADD, to=3, number=offset)
    yield _do(_SET, to=4, number=count)
    yield _do(_CALL, number=_LOAD_BYTES)


def _decide(register: int, address: int, denied: Iterable[DeniedAddresses]) -> Iterator[bytes]:
    """Yield instructions that decide about an address and a port.

    Register 2 holds the port, and `register` points to the address.
    """
    yield _do(_UNEQUAL, to=2, offset=2, number=_network_order(_DNS))
    yield from _answer(1)
    for target in denied:
        tests: list[tuple[bytes, int, int]] = []  # load instruction, register, expected value
        words = struct.iter_unpack("=I", target.network.network_address.packed)
        masks = struct.iter_unpack("=I", target.network.netmask.packed)
        for index, ((word,), (mask,)) in enumerate(zip(words, masks, strict=True)):
            if mask:
                load = _do(_LOAD, to=4, by=register, offset=address + 4 * index)
                tests.append((load + _do(_AND, to=4, number=mask), 4, word))
        if target.port:
            tests.append((b"", 2, _network_order(target.port)))
        body = b"".join(_answer(0))
        for load, tested_register, number in reversed(tests):
            body_length = len(body) // bpf.SIZE
            body = (
                load + _do(_UNEQUAL, to=tested_register, offset=body_length, number=number) + body
            )
        yield body
    yield from _answer(1)


def _answer(verdict: int) -> Iterator[bytes]:
    yield _do(_SET, to=0, number=verdict)
    yield _do(_EXIT)


def _do(operation: int, *, to: int = 0, by: int = 0, offset: int = 0, number: int = 0) -> bytes:
    """Return an eBPF instruction: `to` and `by` are registers, `number` is the constant."""
    return struct.pack("=BBhI", operation, by << 4 | to, offset, number & 0xFFFFFFFF)


def _network_order(number: int) -> int:
    """Return a 16-bit number converted to network byte order, like `htons`."""
    return int.from_bytes(number.to_bytes(2, "big"), sys.byteorder)


def _mapped(network: Network) -> IPv6Network:
    """Return an IPv4 network as an IPv4-mapped IPv6 network."""
    return IPv6Network(f"::ffff:{network.network_address}/{96 + network.prefixlen}")


# --- the kernel ---


def _load(where: int, program: bytes) -> int:
    kind = _CGROUP_SKB if where == _EGRESS else _CGROUP_SOCK_ADDR
    text = ctypes.create_string_buffer(program, len(program))
    license_ = ctypes.create_string_buffer(_LICENSE)
    reason = ctypes.create_string_buffer(_LONGEST_REASON)
    addresses = [ctypes.addressof(buffer) for buffer in (text, license_, reason)]
    form = _LOAD_FORM.pack(
        kind,
        len(program) // bpf.SIZE,
        *addresses[:2],
        1,
        len(reason),
        addresses[2],
        0,
        0,
        _NAME,
        0,
        where,
    )
    return _bpf(_PROG_LOAD, form)


def _count(descriptor: int, where: int) -> int:
    """Return the number of attached programs of the type `where` on an open cgroup."""
    form = ctypes.create_string_buffer(struct.pack("=IIIIQII", descriptor, where, 0, 0, 0, 0, 0))
    _call(_PROG_QUERY, form)
    return int(struct.unpack_from("=I", form, 24)[0])


def _bpf(command: int, form: bytes) -> int:
    return _call(command, ctypes.create_string_buffer(form, len(form)))


def _call(command: int, form: "ctypes.Array[ctypes.c_char]") -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    number = bpf.numbers(bpf.host_architecture())["bpf"]
    result = int(libc.syscall(number, command, form, len(form)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
