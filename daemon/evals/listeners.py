"""On which ports of this machine somebody listens: dynamic ports are taken elsewhere.

A static port is what a job wants, whoever has it at the moment: its task says so, and is restarted
by its policy.
"""

from collections.abc import Iterator
from pathlib import Path

_TABLES = tuple(Path("/proc/net") / name for name in ("tcp", "tcp6", "udp", "udp6"))
_ADDRESS, _STATE = 1, 3  # fields of a line
_WAITS = frozenset({"0A", "07"})  # TCP: listens; UDP: is bound


def listening() -> frozenset[int]:
    """Return the ports; what the machine does not tell is left out."""
    return frozenset(port for table in _TABLES for port in ports(_read(table)))


def ports(table: str) -> Iterator[int]:
    """Yield the ports of a table of the kernel, from its text."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > _STATE and fields[_STATE] in _WAITS:
            yield int(fields[_ADDRESS].rpartition(":")[2], 16)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
