"""One message at a time, with descriptors, over a socket that keeps messages apart.

A message has at most `LONGEST` bytes. Longer texts travel as a sealed file in memory: nobody can change
it after the look at it. Whatever arrives in another form raises `Wrong`, and its descriptors are closed.
"""

import array
import fcntl
import os
import socket
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

LONGEST = 65536  # bytes of a message; the kernel's default buffer takes three such
MOST_DESCRIPTORS = 8  # of a message
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_T = TypeVar("_T")
_SIZE = array.array("i").itemsize
_ROOM = socket.CMSG_LEN(MOST_DESCRIPTORS * _SIZE)


class Wrong(Exception):
    """The other side has sent something that no correct program sends."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message. Raises `OSError`, and `ValueError` for one that is too long."""
    if len(data) > LONGEST:
        raise ValueError(f"a message of {len(data)} bytes is longer than {LONGEST}")
    rights = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
    channel.sendmsg([data], ancillary)


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message with its descriptors; no bytes at the end. Raises `OSError` or `Wrong`."""
    data, ancillary, flags, _ = channel.recvmsg(LONGEST, _ROOM, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % _SIZE])
    descriptors = found.tolist()
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close(descriptors)
        raise Wrong("a message is too long, or has too many descriptors")
    if descriptors and not data:
        close(descriptors)
        raise Wrong("a message has descriptors and no text")
    return data, descriptors


def close(descriptors: Iterable[int]) -> None:
    """Close descriptors that arrived."""
    for descriptor in descriptors:
        os.close(descriptor)


def sealed(content: bytes) -> int:
    """Return a descriptor of a file in memory that nobody can change any more. Raises `OSError`."""
    descriptor = os.memfd_create("message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_sealed(descriptor: int, most: int) -> bytes:
    """Return the content of a sealed file. Raises `Wrong` for any other file, and for a longer one."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise Wrong("a descriptor is no sealed file") from None
    size = os.fstat(descriptor).st_size
    if seals & _SEALS != _SEALS or size > most:
        raise Wrong(f"a file of {size} bytes is not sealed, or longer than {most}")
    return os.pread(descriptor, size, 0)


def read_record(descriptor: int, most: int, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    """Return the record that a sealed file holds. Raises `Wrong` as above, and for another content."""
    try:
        return decoder.decode(read_sealed(descriptor, most))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Wrong(f"{decoder.type}: {error}") from None
