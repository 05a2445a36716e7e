"""Networks of allocations.

The tasks of an allocation share a loopback interface. An allocation may also have a connection to
the bridge.

A process inherits the network namespace of its parent. The launcher therefore enters the namespace
of an allocation for the duration of a start. The namespace exists while a task or the launcher
holds it.
"""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from daemon.launcher.bridge import Bridge
from daemon.launcher.channel import Refusal
from daemon.launcher.hardening import called
from daemon.launcher.messages import ForwardedPort

_NEW_NETWORK = 0x40000000  # from linux/sched.h
_SET_FLAGS, _IS_UP = 0x8914, 1  # from linux/sockios.h and linux/if.h
_OF_US = "/proc/self/ns/net"
_READ = os.O_RDONLY | os.O_CLOEXEC
_TRIAL = "00000000-0000-0000-0000-000000000000"


class Networks:
    """The network namespaces that this launcher holds. `bridge` is None if there is no bridge."""

    def __init__(self, bridge: Bridge | None = None) -> None:
        self._descriptors: dict[str, int] = {}
        self._bridge = bridge

    @contextmanager
    def inside(
        self, allocation: str, shims: Iterable[int], *, is_connected: bool = False
    ) -> Iterator[None]:
        """Enter the namespace of an allocation for the block, and create it if needed.

        `shims` are the shims of the allocation's running tasks. If an earlier launcher started the
        tasks, the namespace is found through these shims. With `is_connected`, the namespace must
        exist already. Raises `OSError`.
        """
        own = os.open(_OF_US, _READ)
        try:
            if self._is_known(allocation, shims):
                called("setns", self._descriptors[allocation], _NEW_NETWORK)
            elif is_connected:
                raise OSError(errno.ENETDOWN, "the allocation is not connected to the bridge")
            else:
                called("unshare", _NEW_NETWORK)
            try:
                if allocation not in self._descriptors:
                    _raise_loopback()
                    self._descriptors[allocation] = os.open(_OF_US, _READ)
                yield
            finally:
                called("setns", own, _NEW_NETWORK)
        finally:
            os.close(own)

    def connect(self, allocation: str, ports: Sequence[ForwardedPort], shims: Iterable[int]) -> str:
        """Return the address of an allocation on the bridge; connect it first if needed.

        `shims` are the shims of the allocation. Raises `Refusal` or `OSError`.
        """
        if self._bridge is None or self._trouble:
            raise Refusal(self._trouble)
        is_new = not self._is_known(allocation, shims)
        try:
            if not (self._bridge.is_ready and self._bridge.exists):
                self._bridge.set_up()
            with self.inside(allocation, ()):
                descriptor = self._descriptors[allocation]
            entered = partial(self.inside, allocation, ())
            return self._bridge.connect(allocation, ports, descriptor, entered, is_new=is_new)
        except OSError:
            self._bridge.is_ready = False  # something may have changed the bridge or its rules
            with suppress(OSError):  # the error above says more; a later start cleans up
                if is_new:
                    self.release(allocation)
            raise

    def _is_known(self, allocation: str, shims: Iterable[int]) -> bool:
        """Return whether a namespace of the allocation exists, and hold that namespace."""
        if allocation not in self._descriptors and (descriptor := _network_of(shims)) is not None:
            self._descriptors[allocation] = descriptor
        return allocation in self._descriptors

    @property
    def _trouble(self) -> str:
        return self._bridge.missing if self._bridge else "no bridge is configured"

    def why_no_bridge(self) -> str:
        """Test the bridge; return why this host cannot connect allocations, or an empty string.

        The test runs in a child process, whose namespace disappears with it.
        """
        if self._bridge is None or self._trouble or self._bridge.is_ready:
            return self._trouble
        try:
            self._bridge.check_subnet()  # the namespace of the test has no other networks
            port = ForwardedPort(address="127.0.0.1", value=self._bridge.allowed_port, to=1)
            with self.inside("host", ()):
                self.connect(_TRIAL, [port], ())
        except OSError as error:
            return f"this host does not allow a bridge: {error.strerror}"
        return ""

    def update_bridge(self) -> None:
        """Set up an existing bridge again: apply the current rules and delete leftovers.

        Do nothing if the host has no bridge. Raises `OSError`.
        """
        if self._bridge and not self._trouble and self._bridge.exists:
            self._bridge.set_up()

    def __contains__(self, allocation: str) -> bool:
        """Return whether the launcher holds the namespace of an allocation."""
        return allocation in self._descriptors

    def release(self, allocation: str) -> None:
        """Release the namespace of an allocation that has ended. Raises `OSError`."""
        if (descriptor := self._descriptors.pop(allocation, None)) is not None:
            os.close(descriptor)
        if self._bridge and not self._trouble and self._bridge.exists:
            self._bridge.release(allocation)

    def close(self) -> None:
        """Close all namespaces."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def _network_of(shims: Iterable[int]) -> int | None:
    """Return a descriptor of the network namespace that the shims share, or None.

    Ignore ended shims, and shims in the launcher's own namespace.
    """
    for pid in shims:
        with suppress(OSError):  # it has ended
            descriptor = os.open(f"/proc/{pid}/ns/net", _READ)
            if not os.path.samestat(os.fstat(descriptor), os.stat(_OF_US)):
                return descriptor
            os.close(descriptor)
    return None


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        fcntl.ioctl(probe, _SET_FLAGS, struct.pack("16sH14x", b"lo", _IS_UP))
