"""Messages with descriptors over a `SOCK_SEQPACKET` socket.

A message has at most `LONGEST` bytes. Longer content travels as a sealed memfd, which the sender
cannot change after the receiver has checked it. Malformed messages raise `ProtocolViolation`, and
their descriptors are closed.
"""

import array
import errno
import fcntl
import os
import socket
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

LONGEST = 65536  # bytes of a message; the kernel's default buffer holds three of these
MOST_DESCRIPTORS = 8  # descriptors in one message
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
# Plain numbers, because each operation on members of an enumeration takes 2 to 4 µs.
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_TOO_LONG, _CUT = int(socket.MSG_TRUNC), int(socket.MSG_CTRUNC)
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)  # this process or the host has no free descriptor
_T = TypeVar("_T")
_SIZE = array.array("i").itemsize
_ROOM = socket.CMSG_LEN(MOST_DESCRIPTORS * _SIZE)


class ProtocolViolation(Exception):
    """The other process sent a message that no correct program sends."""


class Refusal(PermissionError):
    """The operation is not permitted or not possible; the text is the answer to the caller."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EPERM, sendable(text))

    def __str__(self) -> str:
        """Return the text without the error number."""
        return str(self.strerror)


def sendable(text: str) -> str:
    r"""Return a text in a form that can be encoded as UTF-8.

    File names may contain invalid bytes. An escape sequence like `\udcff` replaces each such byte.
    """
    return text.encode(errors="backslashreplace").decode()


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new channel."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message. Raises `OSError`, and `ValueError` for a message that is too long."""
    if len(data) > LONGEST:
        raise ValueError(f"a message has {len(data)} bytes, more than {LONGEST}")
    rights = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
    channel.sendmsg([data], ancillary)


class DescriptorsLost(OSError):
    """The message `data` has arrived, but this process had no free number for its descriptors."""

    def __init__(self, data: bytes) -> None:
        super().__init__(errno.EMFILE, os.strerror(errno.EMFILE))
        self.data = data


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message and its descriptors.

    The message is empty after the other process has closed the channel. Raises `DescriptorsLost`,
    `OSError` or `ProtocolViolation`.
    """
    data, ancillary, flags, _ = channel.recvmsg(LONGEST, _ROOM, _CLOSE_ON_EXEC)
    numbers = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(content[: len(content) - len(content) % _SIZE])
    descriptors = numbers.tolist()
    if flags & _TOO_LONG or (flags & _CUT and len(descriptors) >= MOST_DESCRIPTORS):
        close(descriptors)
        raise ProtocolViolation("a message is too long, or has too many descriptors")
    if flags & _CUT:
        close(descriptors)
        raise DescriptorsLost(data)
    if descriptors and not data:
        close(descriptors)
        raise ProtocolViolation("a message has descriptors but no content")
    return data, descriptors


def close(descriptors: Iterable[int]) -> None:
    """Close received descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def sealed(content: bytes) -> int:
    """Return a descriptor of an immutable file in memory. Raises `OSError`."""
    descriptor = os.memfd_create("message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:  # nothing else closes a bare descriptor
        os.close(descriptor)
        raise
    return descriptor


def read_sealed(descriptor: int, most: int) -> bytes:
    """Return the content of a sealed file.

    Raises `ProtocolViolation` if the file is not sealed, or is longer than `most` bytes.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise ProtocolViolation("a descriptor is not a sealed file") from None
    size = os.fstat(descriptor).st_size
    if seals & _SEALS != _SEALS or size > most:
        raise ProtocolViolation(f"a file of {size} bytes is not sealed, or exceeds {most} bytes")
    return os.pread(descriptor, size, 0)


def read_record(descriptor: int, most: int, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    """Decode the record in a sealed file.

    Raises `ProtocolViolation` like `read_sealed`, and for an invalid record.
    """
    try:
        return decoder.decode(read_sealed(descriptor, most))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolViolation(f"invalid {decoder.type.__name__}: {error}") from None
