"""Client of the systemd journal's native protocol, which carries fields instead of plain lines.

A record is a list of `NAME=value` lines. If a value has line breaks, the name is on its own line.
The length of the value follows in eight bytes, and then the value (systemd: "Native Journal
Protocol").
"""

import errno
import fcntl
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

SOCKET = Path("/run/systemd/journal/socket")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def is_behind(descriptor: int, environment: Mapping[str, str]) -> bool:
    """Return whether a descriptor is connected to the journal.

    systemd names the device and inode of the journal's socket in the environment.
    """
    try:
        metadata = os.fstat(descriptor)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM") == f"{metadata.st_dev}:{metadata.st_ino}"


def record(fields: Mapping[str, str]) -> bytes:
    """Return a record of these fields; names have upper case letters, digits and underscores."""
    return b"".join(_field(name, value.encode(errors="replace")) for name, value in fields.items())


def _field(name: str, value: bytes) -> bytes:
    if b"\n" not in value:
        return b"%s=%s\n" % (name.encode(), value)
    return b"%s\n%s%s\n" % (name.encode(), len(value).to_bytes(8, "little"), value)


def send(path: Path, records: Iterable[bytes]) -> None:
    """Send records to the journal's socket. Raises `OSError`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.connect(str(path))
        for journal_record in records:
            _send(connection, journal_record)


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.send(data)
    except OSError as error:
        if error.errno != errno.EMSGSIZE:
            raise
        # A record that is too large for a datagram is passed as a sealed file in memory.
        with os.fdopen(os.memfd_create("journal", os.MFD_ALLOW_SEALING), "w+b") as file:
            file.write(data)
            file.flush()
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            socket.send_fds(connection, [b""], [file.fileno()])
