"""Isolated networks of allocations: only a loopback interface, shared by the tasks.

A process inherits the network namespace of its parent. The launcher therefore enters the namespace
of an allocation for the duration of a start. The namespace exists while a task or the launcher
holds it.
"""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

_NEW_NETWORK = 0x40000000  # from linux/sched.h
_SET_FLAGS, _IS_UP = 0x8914, 1  # from linux/sockios.h and linux/if.h
_OF_US = "/proc/self/ns/net"
_READ = os.O_RDONLY | os.O_CLOEXEC


class Networks:
    """The namespaces that this launcher holds, by allocation."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    @contextmanager
    def inside(self, allocation: str, shims: Iterable[int]) -> Iterator[None]:
        """Enter the namespace of an allocation for the block, and create it if needed.

        `shims` are those of its running tasks: one that an earlier launcher started is in the
        namespace. Raises `OSError`.
        """
        own = os.open(_OF_US, _READ)
        try:
            if allocation not in self._held and (found := _network_of(shims, own)) is not None:
                self._held[allocation] = found
            if allocation in self._held:
                _call("setns", self._held[allocation], _NEW_NETWORK)
            else:
                _call("unshare", _NEW_NETWORK)
            try:
                if allocation not in self._held:
                    _raise_loopback()
                    self._held[allocation] = os.open(_OF_US, _READ)
                yield
            finally:
                _call("setns", own, _NEW_NETWORK)
        finally:
            os.close(own)

    def release(self, allocation: str) -> None:
        """Release the namespace of an allocation whose last task has ended."""
        if (found := self._held.pop(allocation, None)) is not None:
            os.close(found)


def _network_of(shims: Iterable[int], own: int) -> int | None:
    """Return the namespace of the first of these processes that is not in the launcher's."""
    for pid in shims:
        with suppress(OSError):
            found = os.open(f"/proc/{pid}/ns/net", _READ)
            if not os.path.sameopenfile(found, own):
                return found
            os.close(found)
    return None


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
        fcntl.ioctl(one, _SET_FLAGS, struct.pack("16sH14x", b"lo", _IS_UP))


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
