"""The host of the daemon, as Nomad shows it to operators who collect debug information."""

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import trio

from daemon.api.cluster.target import check_here
from daemon.runner.core.task_env import inherited_environment
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Unavailable
from storage.records.base import Record

_MEBIBYTE = 2**20
_LONGEST_FILE = 64 * 1024  # bytes that are shown of each file
_REDACTED = "<redacted>"
_DEVICES = "/dev/"  # file systems of a local device; others may be remote, and never answer
_PATIENCE = 10  # seconds
_AT_THE_SAME_TIME = trio.CapacityLimiter(1)


class FileSystemUsage(Record, frozen=True, kw_only=True):
    """The size and the usage of a file system."""

    disk_mb: int
    used_mb: int


class HostData(Record, frozen=True, kw_only=True):
    """The system, the network and the file systems of the host."""

    os: str = msgspec.field(name="OS")
    network: list[dict[str, str]]
    resolv_conf: str
    hosts: str
    environment: dict[str, str]
    disk: dict[str, FileSystemUsage]


class HostDataResponse(Record, frozen=True, kw_only=True):
    """The response with the data of an agent's host."""

    agent_id: str
    host_data: HostData


async def host(request: Request) -> HandlerReply:
    """Show the host of this daemon.

    Raises `Malformed` or `NotFound` if the request names another agent.
    """
    check_here(request)
    config, node = request.parts.config, request.query.text("node_id")
    host_data = None
    with trio.move_on_after(_PATIENCE):
        host_data = await trio.to_thread.run_sync(
            _host_data, abandon_on_cancel=True, limiter=_AT_THE_SAME_TIME
        )
    if host_data is None:
        raise Unavailable("a file system of this host does not respond: check the host with `df`")
    name = f"{config.node_name}.{config.region}"
    return HandlerReply(body=HostDataResponse(agent_id=node or name, host_data=host_data))


def _host_data() -> HostData:
    return HostData(
        os=" ".join(os.uname()),
        network=[_interface(name) for _, name in socket.if_nameindex()],
        resolv_conf=_text("/etc/resolv.conf"),
        hosts=_text("/etc/hosts"),
        environment=shown_environment(os.environ),
        disk=dict(_disks(mount_points(_text("/proc/self/mounts")))),
    )


def shown_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return all variables; a value is hidden unless every task inherits the variable.

    A value that contains `@` is always hidden, because the URL of a proxy may contain a password.

    >>> shown_environment({"LANG": "C", "DATABASE_URL": "x", "http_proxy": "http://u:p@proxy"})
    {'DATABASE_URL': '<redacted>', 'LANG': 'C', 'http_proxy': '<redacted>'}
    """
    public = inherited_environment(environment, bundled=False)
    return {
        name: value if name in public and "@" not in value else _REDACTED
        for name, value in sorted(environment.items())
    }


def _interface(name: str) -> dict[str, str]:
    directory = f"/sys/class/net/{name}"
    return {
        "name": name,
        "hardware_address": _text(f"{directory}/address").strip(),
        "mtu": _text(f"{directory}/mtu").strip(),
        "state": _text(f"{directory}/operstate").strip(),
    }


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_LONGEST_FILE).decode(errors="replace")
    except OSError:
        return ""


def mount_points(mounts: str) -> list[str]:
    r"""Return the mount points of local devices, from the text of `/proc/self/mounts`.

    >>> mount_points("/dev/sda1 / ext4 rw 0 0\n/dev/sda1 /a\\040b ext4 rw 0 0\nproc /proc proc rw 0 0")
    ['/', '/a b']
    """
    lines = [words for line in mounts.splitlines() if len(words := line.split(" ")) > 1]
    return [_unescaped(words[1]) for words in lines if words[0].startswith(_DEVICES)]


def _unescaped(path: str) -> str:
    """Return a path from the kernel with its octal escapes decoded.

    A space, for example, is escaped.
    """
    return path.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")


def _disks(paths: Iterable[str]) -> Iterable[tuple[str, FileSystemUsage]]:
    for path in paths:
        try:
            facts = os.statvfs(path)
        except OSError:  # unmounted, or not accessible to the daemon's user
            continue
        unit = facts.f_frsize
        used = (facts.f_blocks - facts.f_bfree) * unit // _MEBIBYTE
        yield path, FileSystemUsage(disk_mb=facts.f_blocks * unit // _MEBIBYTE, used_mb=used)
