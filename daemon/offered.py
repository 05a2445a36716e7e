"""What of its machine an agent offers to jobs by name, and why something cannot be offered.

Volumes, networks and commands stand in the configuration (`config.py`); each function yields what
is wrong with one kind, with the name, the value and what to write instead.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network

from storage.records.node import DEFAULT_NETWORK, HostNetwork, HostVolume

_COMMAND = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PORTS = re.compile(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", re.ASCII)
_LAST_PORT = 65535


def faults_of_commands(commands: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield what is wrong with the commands by which jobs may have somebody told of them."""
    for name, words in commands.items():
        what = f"notify_commands, {name!r}"
        if not _COMMAND.fullmatch(name):
            yield f"{what}: a name has at most 64 letters, digits, - and _"
        if not words or not os.path.isabs(words[0]) or not os.access(words[0], os.X_OK):
            yield f"{what} = {words!r}: begin with a program of this machine, from its root on"
        elif reason := _why_not_ours(words[0]):
            yield f"{what} = {words!r}: it runs with the daemon's rights, but {reason}"


def _why_not_ours(program: str) -> str:
    """Return why somebody else could put something in the place of a program; empty: nobody could."""
    real = os.path.realpath(program)
    for path in (real, os.path.dirname(real), os.path.dirname(program)):
        known = os.stat(path)
        if known.st_uid not in (0, os.geteuid()):
            return f"{path} belongs to another user; make it root's, or the daemon's"
        if known.st_mode & 0o022 and not known.st_mode & stat.S_ISVTX:
            return f"others may write to {path}; take that away with chmod go-w"
    return ""


def faults_of_volumes(volumes: Iterable[HostVolume]) -> Iterator[str]:
    """Yield what is wrong with the directories that tasks may mount."""
    known = list(volumes)
    yield from _names("host_volumes", [one.name for one in known])
    for one in known:
        if not os.path.isabs(one.path) or not os.path.isdir(one.path):
            yield (
                f"host_volumes, {one.name!r}, path = {one.path!r}: name a directory of this"
                " machine, from its root on"
            )


def faults_of_networks(networks: Iterable[HostNetwork]) -> Iterator[str]:
    """Yield what is wrong with the networks whose address a port may ask for."""
    known = list(networks)
    yield from _names("host_networks", [one.name for one in known])
    for one in known:
        what = f"host_networks, {one.name!r}"
        if one.name == DEFAULT_NETWORK:
            yield f"{what}: that is the name of the network of all other ports; choose another one"
        if not one.cidr and not one.interface:
            yield f"{what}: say which addresses it has, by cidr, interface, or both"
        if one.cidr:
            try:
                ip_network(one.cidr, strict=False)
            except ValueError:
                yield (
                    f"{what}, cidr = {one.cidr!r}: write an address or a network such as"
                    " 10.0.0.0/8 or fd00::/8"
                )
        for part in one.reserved_ports.split(",") if one.reserved_ports else ():
            if not _are_ports(part):
                yield (
                    f"{what}, reserved_ports = {one.reserved_ports!r}: {part.strip()!r} is neither"
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
        yield f"{setting}: the name {name!r} must be there once, and not be empty"
