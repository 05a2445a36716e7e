"""Programs that listen on ports of this host, including programs outside Steward.

The scheduler avoids used ports when it assigns dynamic ports. A job gets its static port even if
the port is in use. The plan and the task's events then report the conflict. If the task fails, its
restart policy applies.
"""

import pwd
import sys
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from ipaddress import ip_address
from itertools import islice
from pathlib import Path

import msgspec

_TABLES = ("tcp", "tcp6", "udp", "udp6")  # tables in /proc/net
_ADDRESS, _STATE, _USER = 1, 3, 7  # positions of fields in a line
_WAITS = {"tcp": "0A", "udp": "07"}  # states of listening TCP and of unconnected UDP sockets
_WORD = 4  # bytes; addresses are written in the byte order of the host


class PortListener(msgspec.Struct, frozen=True, order=True):
    """A listening program: its port and address, `tcp` or `udp`, and the user that owns it."""

    port: int
    protocol: str
    address: str
    user: str

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"a program of user {self.user} listens on {host}:{self.port} ({self.protocol})"


def ports() -> frozenset[int]:
    """Return the ports in use; a table that the kernel does not offer is left out."""
    return frozenset(port for name in _TABLES for port, _ in _waiting(name))


def listeners_on(ports_asked: Set[int]) -> list[PortListener]:
    """Return the listeners on the given ports."""
    if not ports_asked:
        return []
    return sorted(
        {
            _listener(name, port, fields)
            for name in _TABLES
            for port, fields in _waiting(name)
            if port in ports_asked
        }
    )


def describe_conflicts(
    labels: Iterable[tuple[str, int]], listeners: Iterable[PortListener]
) -> list[str]:
    """Return a sentence for each port in use; `labels` are pairs of label and port."""
    listener_list = list(listeners)
    return [
        f'port "{label}" is in use: {listener}'
        for label, port in labels
        for listener in listener_list
        if listener.port == port
    ]


def read_listening_sockets(protocol: str, table: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the port and the columns of each listening socket in a kernel table.

    A TCP table lists all listening sockets before the connections, and there may be many of these.
    So reading stops at the first connection (kernel documentation: proc_net_tcp).
    """
    for line in islice(table, 1, None):  # below the header
        fields = line.split()
        if fields[_STATE] == _WAITS[protocol]:
            yield int(fields[_ADDRESS].rpartition(":")[2], 16), fields
        elif protocol == "tcp":
            return


def _listener(name: str, port: int, fields: list[str]) -> PortListener:
    protocol, user = name.removesuffix("6"), int(fields[_USER])
    try:
        user_name = pwd.getpwuid(user).pw_name
    except KeyError:
        user_name = str(user)
    return PortListener(
        port, protocol, decode_address(fields[_ADDRESS].rpartition(":")[0]), user_name
    )


def decode_address(text: str) -> str:
    """Return an address of a kernel table in its usual notation.

    >>> decode_address("0100007F" if sys.byteorder == "little" else "7F000001")
    '127.0.0.1'
    """
    raw = bytes.fromhex(text)
    words = [raw[offset : offset + _WORD] for offset in range(0, len(raw), _WORD)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return str(ip_address(b"".join(words)))


def _waiting(name: str) -> Iterator[tuple[int, list[str]]]:
    # A host without IPv6 has no such table.
    with suppress(OSError), Path(f"/proc/net/{name}").open() as table:
        yield from read_listening_sockets(name.removesuffix("6"), table)
