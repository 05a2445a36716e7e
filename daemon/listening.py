"""Who listens on the ports of this machine, whoever that is.

Dynamic ports are taken elsewhere. A static port is what a job wants, whoever has it at the moment:
the plan and the task say so, and the task is restarted by its policy.
"""

import pwd
import sys
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from ipaddress import ip_address
from itertools import islice
from pathlib import Path

import msgspec

_TABLES = ("tcp", "tcp6", "udp", "udp6")  # in /proc/net
_ADDRESS, _STATE, _USER = 1, 3, 7  # fields of a line
_WAITS = {"tcp": "0A", "udp": "07"}  # listens; is bound
_WORD = 4  # bytes; addresses are written as numbers of the machine


class Listener(msgspec.Struct, frozen=True, order=True):
    """Somebody who listens: on which port and address, by `tcp` or `udp`, and by whose right."""

    port: int
    protocol: str
    address: str
    user: str

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"a program of user {self.user} listens on {host}:{self.port} ({self.protocol})"


def ports() -> frozenset[int]:
    """Return the ports on which somebody listens; what the machine does not tell is left out."""
    return frozenset(port for name in _TABLES for port, _ in _waiting(name))


def on(wanted: Set[int]) -> list[Listener]:
    """Return who listens on any of these ports."""
    if not wanted:
        return []
    return sorted(
        {
            _listener(name, port, fields)
            for name in _TABLES
            for port, fields in _waiting(name)
            if port in wanted
        }
    )


def sentences(labels: Iterable[tuple[str, int]], listeners: Iterable[Listener]) -> list[str]:
    """Return a sentence for each of these ports, by label and number, that somebody has."""
    known = list(listeners)
    return [
        f'port "{label}" is in use: {one}'
        for label, port in labels
        for one in known
        if one.port == port
    ]


def waiting(protocol: str, table: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield port and fields of each line, of a table of the kernel, where somebody listens.

    Of TCP the rest is not read: first come those who listen, then all connections, which may be very
    many (proc_net_tcp of the kernel's documentation).
    """
    for line in islice(table, 1, None):  # below the names of the fields
        fields = line.split()
        if fields[_STATE] == _WAITS[protocol]:
            yield int(fields[_ADDRESS].rpartition(":")[2], 16), fields
        elif protocol == "tcp":
            return


def _listener(name: str, port: int, fields: list[str]) -> Listener:
    protocol, user = name.removesuffix("6"), int(fields[_USER])
    try:
        known = pwd.getpwuid(user).pw_name
    except KeyError:
        known = str(user)
    return Listener(port, protocol, address(fields[_ADDRESS].rpartition(":")[0]), known)


def address(text: str) -> str:
    """Return an address of a table as people write it.

    >>> address("0100007F") if sys.byteorder == "little" else "127.0.0.1"
    '127.0.0.1'
    """
    raw = bytes.fromhex(text)
    words = [raw[at : at + _WORD] for at in range(0, len(raw), _WORD)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return str(ip_address(b"".join(words)))


def _waiting(name: str) -> Iterator[tuple[int, list[str]]]:
    with suppress(OSError), Path(f"/proc/net/{name}").open() as table:
        yield from waiting(name.removesuffix("6"), table)
