"""Validation of the host's resources that jobs can use by name: volumes, networks and commands.

The configuration defines these resources (`settings.py`). Each function yields the faults of one
kind of resource. A fault is a message with the name, the value and the fix.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path

from daemon.config.data_directory import weak_places
from storage.records.node import DEFAULT_NETWORK, HostNetwork, HostVolume

_COMMAND = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PORTS = re.compile(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", re.ASCII)
_LAST_PORT = 65535
_BRIDGE = re.compile(r"[a-z][a-z0-9_-]{0,14}", re.ASCII)


def command_errors(commands: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the faults of the commands that jobs can use as notification channels."""
    for name, words in commands.items():
        setting = f"notify_commands, {name!r}"
        if not _COMMAND.fullmatch(name):
            yield f"{setting}: a name has at most 64 letters, digits, - and _"
        if not words or not os.path.isabs(words[0]) or not os.access(words[0], os.X_OK):
            yield f"{setting} = {words!r}: begin with the absolute path of a program on this host"
        elif reason := _why_not_ours(words[0]):
            yield f"{setting} = {words!r}: it runs with the daemon's rights, but {reason}"


def _why_not_ours(program: str) -> str:
    """Return why another user could replace a program, or an empty string if no user can."""
    real = os.path.realpath(program)
    for path in (real, os.path.dirname(real), os.path.dirname(program)):
        metadata = os.stat(path)
        if metadata.st_uid not in (0, os.geteuid()):
            return f"{path} belongs to another user; make root or the daemon's user its owner"
        if metadata.st_mode & 0o022 and not metadata.st_mode & stat.S_ISVTX:
            return f"other users may write to {path}; run chmod go-w on it"
    # Check the parents too: a compromised daemon may rename entries of its directories.
    return next(weak_places(Path(real).parent), "")


def volume_errors(volumes: Iterable[HostVolume]) -> Iterator[str]:
    """Yield the faults of the directories that tasks may mount."""
    volume_list = list(volumes)
    yield from _names("host_volumes", [volume.name for volume in volume_list])
    for volume in volume_list:
        if not os.path.isabs(volume.path) or not os.path.isdir(volume.path):
            yield (
                f"host_volumes, {volume.name!r}, path = {volume.path!r}: name a directory of this host by its"
                " absolute path"
            )


def faults_of_volume_paths(paths: Iterable[str]) -> Iterator[str]:
    """Yield the faults of the directories that the API may offer as volumes."""
    for path in paths:
        if not os.path.isabs(path) or not os.path.isdir(path):
            yield (
                f"host_volume_paths, {path!r}: name a directory of this host by its absolute path"
            )


def why_no_volume(path: str, allowed: Iterable[str], known_paths: Iterable[str]) -> str:
    """Return why the API cannot offer a directory as a volume, or an empty string if it can.

    Volumes must not be nested: tasks write to them, and could put a link at the inner path.
    """
    within = [f"{os.path.realpath(allowed_path).rstrip('/')}/" for allowed_path in allowed]
    if not within:
        return "host_volume_paths does not allow it: add its directory to the settings"
    if os.path.realpath(path) != path:
        return f"it contains a symbolic link, '.' or '..': write {os.path.realpath(path)!r}"
    if not f"{path}/".startswith(tuple(within)):
        return f"it must be in one of host_volume_paths: {', '.join(within)}"
    if not os.path.isdir(path):
        return "it is not a directory of this host"
    for known_path in known_paths:
        if known_path != path and (
            f"{known_path}/".startswith(f"{path}/") or f"{path}/".startswith(f"{known_path}/")
        ):
            return f"it overlaps with the volume at {known_path!r}"
    return "; ".join(weak_places(Path(path).parent))


def bridge_errors(name: str, subnet: str) -> Iterator[str]:
    """Yield the faults of the settings of the bridge."""
    if not _BRIDGE.fullmatch(name):
        yield (
            f"bridge_network_name = {name!r}: write 1 to 15 lower-case letters, digits, _ or -, "
            "beginning with a letter"
        )
    try:
        network = ip_network(subnet)
    except ValueError as error:
        yield f"bridge_network_subnet = {subnet!r}: {error}; write a subnet such as 172.26.64.0/20"
        return
    if network.version != 4 or not 16 <= network.prefixlen <= 29:
        yield (
            f"bridge_network_subnet = {subnet!r}: write a subnet of IPv4 from /16 to /29, such as"
            " 172.26.64.0/20"
        )


def network_errors(networks: Iterable[HostNetwork]) -> Iterator[str]:
    """Yield the faults of the networks whose address a port may request."""
    network_list = list(networks)
    yield from _names("host_networks", [network.name for network in network_list])
    for network in network_list:
        setting = f"host_networks, {network.name!r}"
        if network.name == DEFAULT_NETWORK:
            yield f"{setting}: this name is reserved for the default network; choose another one"
        if not network.cidr and not network.interface:
            yield f"{setting}: set cidr, interface, or both, to select its addresses"
        if network.cidr:
            try:
                ip_network(network.cidr, strict=False)
            except ValueError:
                yield (
                    f"{setting}, cidr = {network.cidr!r}: write an address or a network such as"
                    " 10.0.0.0/8 or fd00::/8"
                )
        for part in network.reserved_ports.split(",") if network.reserved_ports else ():
            if not _are_ports(part):
                yield (
                    f"{setting}, reserved_ports = {network.reserved_ports!r}: {part.strip()!r} is neither"
                    " a port from 1 to 65535 nor a range such as 8000-8010"
                )


def _are_ports(part: str) -> bool:
    match = _PORTS.fullmatch(part)
    if match is None:
        return False
    first, last = match.groups()
    return 1 <= int(first) <= int(last or first) <= _LAST_PORT


def _names(setting: str, names: list[str]) -> Iterator[str]:
    for name in sorted({name for name in names if names.count(name) > 1 or not name}):
        yield f"{setting}: the name {name!r} must be unique and not empty"
