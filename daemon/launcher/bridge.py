"""The bridge that connects the networks of allocations, set up with the programs `ip` and `nft`.

Both programs get text in a fixed format. It contains only numbers, addresses and names that the
launcher has checked or created. The `BridgePolicy` has the rules that apply to all allocations.

Only the kernel holds the state. The name of an interface on the host consists of a prefix, the
first digits of the allocation's ID, and the number of the allocation's address. The interface
exists as long as the network namespace of the allocation, so it disappears with the last process. A
map in the rules has an element for each forwarded port. Its key is an address, a protocol and a
port on the host, and its value is an address and a port inside the allocation. Map elements without
an interface are left over from a killed launcher. They are deleted when a launcher starts, and with
every change.
"""

import errno
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import AbstractContextManager, suppress
from itertools import chain

from daemon.launcher.channel import Refusal
from daemon.launcher.messages import BridgePolicy, ForwardedPort, Id
from daemon.launcher.root_programs import run
from daemon.launcher.shim_script import Tools

INSIDE = "eth0"  # the interface in the namespace of an allocation
_NAMESPACE = 5  # number of the namespace's descriptor in the process of `ip`
_SECONDS = 2  # time limit of a program
# After a program has hung, the launcher runs no program for so many seconds, because each hang
# delays other requests.
_PAUSE = 20
_PREFIX, _DIGITS = "sw", 9  # prefix of interface names; digits of the allocation ID in them
_OURS = re.compile(rf"{_PREFIX}([0-9a-f]{{{_DIGITS}}})([0-9a-f]{{4}})")
_LOOPBACK = "127.0.0.1"
# The alias of the bridge if the host forwarded no packets before. An alias outlives the rules.
_ALONE = "steward-forwards-alone"
_FORWARD, _NO_IPV6 = "ipv4/ip_forward", "ipv6/conf/default/disable_ipv6"
_FIRST_PORT = "ipv4/ip_unprivileged_port_start"
_PROTOCOLS = {"6": socket.SOCK_STREAM, "17": socket.SOCK_DGRAM}
# An element in the output of `nft -n list map`.
_PORT = re.compile(r"(?<![0-9.])([0-9.]++ \. [0-9]++ \. [0-9]++) : ([0-9.]++) \. ([0-9]++)")


class Bridge:
    """The bridge of one `BridgePolicy`; `tools` has the paths of the programs."""

    def __init__(self, policy: BridgePolicy, tools: Tools) -> None:
        self._policy, self._tools = policy, tools
        self._base = int.from_bytes(socket.inet_aton(policy.subnet), "big")
        self._last = 1  # number of the last assigned address; 1 is the bridge
        self.is_ready = False
        self._resumes = 0.0  # time from which programs may run again

    @property
    def missing(self) -> str:
        """Return why this launcher cannot set up a bridge; empty if nothing is missing."""
        if os.geteuid() != 0:
            return "the daemon was not started by root"
        for name, package in (("ip", "iproute2"), ("nft", "nftables")):
            if not getattr(self._tools, name):
                return f"the program {name} is missing: install the package {package}"
        return ""

    @property
    def exists(self) -> bool:
        """Return whether the host has the bridge."""
        return any(name == self._policy.name for _, name in socket.if_nameindex())

    @property
    def allowed_port(self) -> int:
        """Return a host port with which forwarding can be tested; 1 if all ports are reserved."""
        return next((port for port in range(1, 1 << 16) if not self._is_kept(port)), 1)

    def check_subnet(self) -> None:
        """Raise `OSError` if there is no bridge yet and the subnet overlaps a host network."""
        if self.exists:
            return
        own = self._base, (1 << 32) - (1 << 32 - self._policy.bits)
        with open("/proc/thread-self/net/route") as file:
            rows = [line.split() for line in file][1:]
        for device, *fields in rows:
            network, gateway, mask = (_number(fields[field]) for field in (0, 1, 6))
            if mask and not gateway and not (network ^ own[0]) & mask & own[1]:
                bits = f"{socket.inet_ntoa(network.to_bytes(4, 'big'))}/{mask.bit_count()}"
                text = (
                    f"bridge_network_subnet {self._policy.subnet}/{self._policy.bits} overlaps the "
                    f"network {bits} of {device}: choose another subnet"
                )
                raise OSError(errno.EADDRINUSE, text)

    def set_up(self) -> None:
        """Create the bridge and its rules, and delete leftovers. Raises `OSError`.

        If the host did not forward packets before, the rules permit only packets of the bridge.
        """
        name, bits = self._policy.name, self._policy.bits
        self.check_subnet()
        creation = "" if self.exists else f"link add name {name} type bridge\n"
        command = ["-o", "link", "show", "dev", name, "type", "bridge"]
        output = "" if creation else self._run("ip", command)
        if not creation and not output:
            text = f"the interface {name} is not a bridge: choose another bridge_network_name"
            raise OSError(errno.EEXIST, text)
        is_alone = _value(_FORWARD) == "0" or _ALONE in output
        self._ip(
            f"{creation}addr replace {self._address(1)}/{bits} dev {name}\n"
            + (f"link set dev {name} alias {_ALONE}\n" if is_alone else "")
            + f"link set dev {name} up\n"
        )
        for digits, number in (
            _interfaces().items() if creation else ()
        ):  # the bridge was deleted by hand
            with suppress(OSError):  # it has just disappeared with its namespace
                self._ip(f"link set dev {_PREFIX}{digits}{number:04x} master {name} up\n")
        with suppress(FileNotFoundError):  # the kernel has no IPv6
            _set(f"ipv6/conf/{name}/disable_ipv6")
        self._nft(self._policy.rules + (self._policy.closing if is_alone else ""))
        _set(_FORWARD)
        with suppress(OSError):  # without it, ports are not reachable through 127.0.0.1
            _set(f"ipv4/conf/{name}/route_localnet")
        self.tidy()
        self.is_ready = True

    def connect(
        self,
        allocation: Id,
        ports: Sequence[ForwardedPort],
        namespace: int,
        inside: Callable[[], AbstractContextManager[None]],
        *,
        is_new: bool,
    ) -> str:
        """Connect an allocation if needed and forward its ports; return its bridge address.

        `inside` enters the namespace. `is_new` means that no task is in the namespace yet. Raises
        `Refusal` for a port that must not be forwarded, and `OSError`, with EADDRINUSE for a port
        in use.
        """
        try:
            rules = self._forwarded()
        except OSError:  # the rules were deleted by hand
            self.set_up()
            rules = self._forwarded()
        interfaces = _interfaces()
        number = interfaces.pop(_digits(allocation), None)
        if number and is_new:
            self._disconnect(allocation, number)
        is_connected = number is not None and not is_new
        used = {*map(self._address, interfaces.values())}
        taken = {key for key, (address, _) in rules.items() if address in used}
        if number is None:
            number = self._free({*interfaces.values()})
        address = self._address(number)
        desired = {key: (address, str(port.to)) for port in ports for key in _keys(port)}
        for port in ports if not desired.items() <= rules.items() else ():
            self._check(port, taken)
        if not is_connected:
            try:
                self._attach(allocation, number, namespace, inside)
            except OSError:  # an interface without an address would count as connected
                self._disconnect(allocation, number)
                raise
        old = [key for key in rules if key not in taken and rules[key] != desired.get(key)]
        pairs = [f"{key} : {' . '.join(at)}" for key, at in desired.items() if rules.get(key) != at]
        self._nft(self._elements("delete", old) + self._elements("add", pairs))
        return address

    def _attach(
        self,
        allocation: Id,
        number: int,
        namespace: int,
        inside: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Create the interfaces of an allocation; `number` is the number of its address.

        Raises `OSError`.
        """
        with inside():
            # Every user may listen on every port of this separate network.
            _set(_FIRST_PORT, "0")
            with suppress(FileNotFoundError):  # the kernel has no IPv6
                _set(_NO_IPV6)
        name = _name(allocation, number)
        self._ip(
            f"link add {name} type veth peer name {INSIDE} netns /proc/self/fd/{_NAMESPACE}\n"
            f"link set dev {name} master {self._policy.name} up\n",
            [(namespace, _NAMESPACE)],
        )
        with inside():
            self._ip(
                f"addr add {self._address(number)}/{self._policy.bits} dev {INSIDE}\n"
                f"link set dev {INSIDE} up\nroute add default via {self._address(1)}\n"
            )

    def _disconnect(self, allocation: Id, number: int) -> None:
        """Delete the interface of an allocation, if it exists."""
        with suppress(OSError):  # it may have just disappeared with its namespace
            self._ip(f"link delete dev {_name(allocation, number)}\n")

    def release(self, allocation: Id) -> None:
        """Delete the interface of an allocation and its map elements. Raises `OSError`."""
        if number := _interfaces().get(_digits(allocation)):
            self._disconnect(allocation, number)
        self.tidy()

    def tidy(self) -> None:
        """Delete the map elements that have no interface. Raises `OSError`."""
        # Read the elements first, because an interface is created before its elements.
        forwarded = self._forwarded()
        in_use = {*map(self._address, _interfaces().values())}
        unused = [key for key, (address, _) in forwarded.items() if address not in in_use]
        self._nft(self._elements("delete", unused))

    def _forwarded(self) -> dict[str, tuple[str, str]]:
        """Return the target address and port of each map element, by key. Raises `OSError`."""
        text = self._run("nft", ["-n", "list", "map", "ip", self._policy.table, "ports"])
        return {match[1]: (match[2], match[3]) for match in _PORT.finditer(text)}

    def _elements(self, action: str, elements: Collection[str]) -> str:
        inside = f"ip {self._policy.table} ports {{ {', '.join(elements)} }}"
        return f"{action} element {inside}\n" if elements else ""

    def _check(self, port: ForwardedPort, used_keys: Set[str]) -> None:
        """Raise `Refusal` or `OSError` for a port of the host that must not be forwarded."""
        number = port.value
        if self._is_kept(number):
            raise Refusal(f"port {number} is reserved: choose another port of the host")
        if used_keys & {*_keys(port)}:
            text = f"port {number} of {port.address} is already forwarded to another allocation"
            raise OSError(errno.EADDRINUSE, text)
        for kind in _PROTOCOLS.values():
            with socket.socket(socket.AF_INET, kind) as probe:
                # Only listeners count, not connections that are being closed.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, kind == socket.SOCK_STREAM)
                try:
                    probe.bind(("", number))
                except OSError as error:
                    text = f"port {number} of the host: {error.strerror}"
                    raise OSError(error.errno, text) from None

    def _is_kept(self, port: int) -> bool:
        return any(first <= port <= last for first, last in self._policy.kept_ports)

    def _free(self, used: Set[int]) -> int:
        """Return the number of the first free address after the last assigned address.

        The search continues at the start of the subnet. Raises `OSError` if no address is free.
        """
        # 1 is the bridge, the last is the broadcast.
        numbers = range(2, (1 << 32 - self._policy.bits) - 1)
        turn = chain(numbers[self._last - 1 :], numbers)
        if not (address := next((candidate for candidate in turn if candidate not in used), 0)):
            raise OSError(errno.EADDRNOTAVAIL, "all addresses of bridge_network_subnet are in use")
        self._last = address
        return address

    def _address(self, number: int) -> str:
        return socket.inet_ntoa((self._base + number).to_bytes(4, "big"))

    def _ip(self, text: str, descriptors: Sequence[tuple[int, int]] = ()) -> None:
        self._run("ip", ["-batch", "-"], text, descriptors)

    def _nft(self, text: str) -> None:
        if text:
            self._run("nft", ["-f", "-"], text)

    def _run(
        self,
        name: str,
        words: Sequence[str],
        text: str = "",
        descriptors: Sequence[tuple[int, int]] = (),
    ) -> str:
        """Run a program with the input `text`, and return its output.

        Raises `OSError`. After a program has exceeded its time limit, all calls in the next
        `_PAUSE` seconds fail immediately with ETIMEDOUT.
        """
        if time.monotonic() < self._resumes:
            raise TimeoutError(errno.ETIMEDOUT, f"{name} was not run: ip or nft has just timed out")
        words = [getattr(self._tools, name), *words]
        try:
            status, output = run(words, text.encode(), descriptors, seconds=_SECONDS)
        except TimeoutError:
            self._resumes = time.monotonic() + _PAUSE
            raise
        if status:
            first = output.partition("\n")[0][:200] or f"exit status {status}"
            raise OSError(errno.EIO, f"the program {name} failed: {first}")
        return output


def _interfaces() -> dict[str, int]:
    """Return the address number of each connected allocation, by the first digits of its ID."""
    matches = (_OURS.fullmatch(name) for _, name in socket.if_nameindex())
    return {match[1]: int(match[2], 16) for match in matches if match}


def _digits(allocation: Id) -> str:
    return allocation.replace("-", "")[:_DIGITS]


def _name(allocation: Id, number: int) -> str:
    """Return the name of the interface of an allocation on the host."""
    return f"{_PREFIX}{_digits(allocation)}{number:04x}"


def _keys(port: ForwardedPort) -> Iterator[str]:
    """Yield the map keys of a port: for its address and for 127.0.0.1, each with TCP and UDP."""
    for address in dict.fromkeys((port.address, _LOOPBACK)):
        yield from (f"{address} . {protocol} . {port.value}" for protocol in _PROTOCOLS)


def _number(text: str) -> int:
    """Return the IPv4 address in `text`, which has the format of `/proc/net/route`, as a number."""
    return int.from_bytes(int(text, 16).to_bytes(4, sys.byteorder), "big")


def _value(setting: str) -> str:
    with open(f"/proc/sys/net/{setting}") as file:
        return file.read().strip()


def _set(setting: str, value: str = "1") -> None:
    """Change a network setting, unless it already has this value. Raises `OSError`."""
    if _value(setting) != value:
        with open(f"/proc/sys/net/{setting}", "w") as file:
            file.write(value)
