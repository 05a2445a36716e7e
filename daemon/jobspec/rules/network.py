"""Validation of networks: port collisions, CNI arguments and host names."""

from collections.abc import Iterator, Sequence

from daemon.text.go_format import quote
from storage.records import resolver
from storage.records.group import TaskGroup
from storage.records.task import Network, Port

MOST_PORT = 65535
_LABEL = 63  # octets of a DNS label
_NAME = 256  # octets of a DNS name, with a length before each label


class _Taken:
    """The used port labels and static ports of a group, each with the object that uses it."""

    def __init__(self) -> None:
        self.labels: set[str] = set()
        self.ports: dict[tuple[str, int], str] = {}  # host network, port -> user

    def label(self, port: Port) -> Iterator[str]:
        if port.label in self.labels:
            yield f"Port label {port.label} already in use by taskgroup network"

    def static(self, port: Port, user: str) -> Iterator[str]:
        if not port.value:
            return
        key = (port.host_network or "default", port.value)
        if key in self.ports:
            if not (port.ignore_collision and user == _GROUP):
                yield f"Static port {port.value} already reserved by {self.ports[key]}"
        elif port.value > MOST_PORT:
            yield f"Port {port.label} ({port.value}) cannot be greater than {MOST_PORT}"
        elif port.value < 0:
            yield f"Port {port.label} ({port.value}) must be from 1 to {MOST_PORT}"
        else:
            self.ports[key] = f"{user}:{port.label}"


_GROUP = "taskgroup network"


def networks(group: TaskGroup) -> Iterator[str]:
    """Yield the errors of a group's networks and of its tasks' deprecated networks."""
    taken = _Taken()
    plugin_arguments: set[str] = set()
    for network in group.networks or ():
        for port in _ports(network):
            yield from taken.label(port)
            taken.labels.add(port.label)
            yield from taken.static(port, _GROUP)
            yield from _mapping(port, network.mode)
        yield from _plugin_arguments(network, plugin_arguments)
        if network.hostname and "${" not in network.hostname and not _is_name(network.hostname):
            yield "Hostname is not a valid DNS name"
        if network.dns is not None:
            yield from resolver.faults(network.dns, filled=False)
    for task in group.tasks or ():
        for network in task.resources.networks or ():
            for port in _ports(network):
                yield from taken.label(port)
                yield from taken.static(port, task.name)


def labels(networks: Sequence[Network] | None) -> set[str]:
    """Return the port labels of some networks."""
    return {port.label for network in networks or () for port in _ports(network)}


def _ports(network: Network) -> Iterator[Port]:
    yield from network.reserved_ports or ()
    yield from network.dynamic_ports or ()


def _mapping(port: Port, mode: str) -> Iterator[str]:
    label = quote(port.label)
    if port.to < -1:
        yield f"Port {label} cannot be mapped to negative value {port.to}"
    elif port.to > MOST_PORT:
        yield f"Port {label} cannot be mapped to a port ({port.to}) greater than {MOST_PORT}"
    if port.ignore_collision and mode not in ("", "host"):
        yield (f"Port {label} collision may not be ignored on non-host network mode {quote(mode)}")


def _plugin_arguments(network: Network, seen: set[str]) -> Iterator[str]:
    arguments = (network.cni and network.cni.args) or {}
    for name, value in arguments.items():
        if name in seen:
            yield f"duplicate CNI arg {quote(name)}"
        seen.add(name)
        # Plugins receive the arguments as one text, joined with semicolons.
        if ";" in name:
            yield f"invalid ';' character in CNI arg key {quote(name)}"
        if ";" in value:
            yield f"invalid ';' character in CNI arg value {quote(value)}"


def _is_name(name: str) -> bool:
    if name == ".":
        return True
    parts = [part.encode() for part in name.removesuffix(".").split(".")]
    if sum(len(part) + 1 for part in parts) > _NAME:
        return False
    return all(0 < len(part) <= _LABEL for part in parts)
