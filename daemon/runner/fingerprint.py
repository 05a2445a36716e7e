"""Detect the attributes and resources of this host, named as in job files.

`Settings` can override CPU, memory and disk. Attributes that begin with `unique.` belong to this
host alone. All other attributes, together with the node's class, datacenter and metadata, define
its computed node class.
"""

import os
import platform
import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from daemon.config.settings import Settings
from daemon.runner import host_networks
from daemon.runner.core.driver import Fingerprint
from daemon.version import VERSION
from storage.records.node import (
    DriverInfo,
    Node,
    NodeCPU,
    NodeDisk,
    NodeMemory,
    NodeNetwork,
    NodeResources,
    NodeStatus,
    computed_class,
)
from storage.records.times import rfc3339

# The Nomad version of the jobs API; constraints in job files test for it.
PEER_VERSION = "2.0.6"
_SECRETS_VERSION = "1.16.0"  # the Vault version of the token API for tasks

_HAS_BRIDGE = "plugins.cni.version.bridge"  # a host with this attribute has a bridge
_MEGABYTE = 1024 * 1024
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_FALLBACK_MHZ = 1000.0  # MHz assumed if the clock rate is unknown, as in Nomad


class CpuInfo(msgspec.Struct, frozen=True):
    """The CPU: the numbers of its cores, the clock rate of one core in MHz, and the model name."""

    cores: list[int]
    mhz: float
    model: str

    @property
    def total(self) -> int:
        """Return the sum of the clock rates of all cores in MHz."""
        return int(len(self.cores) * self.mhz)


def fingerprint(
    config: Settings,
    drivers: Mapping[str, Fingerprint],
    now: int,
    further: Mapping[str, str] = MappingProxyType({}),
) -> Node:
    """Return this host as a ready node; the caller adds its ID and its history.

    `further` are additional attributes.
    """
    cpu = find_cpu(Path("/proc/cpuinfo").read_text(), sorted(os.sched_getaffinity(0)))
    memory = memory_bytes(Path("/proc/meminfo").read_text())
    disk = os.statvfs(config.data_dir)
    network = host_networks.find_network(loopback=config.dev)
    shares = config.cpu_total_mhz or cpu.total
    attributes = {
        **_system(),
        **_cpu(cpu, shares),
        "memory.totalbytes": str(memory),
        "unique.hostname": config.node_name,
        "unique.network.ip-address": network.ip,
        "unique.storage.volume": volume(
            os.fsdecode(Path("/proc/self/mountinfo").read_bytes()), config.data_dir
        ),
        "unique.storage.bytestotal": str(disk.f_blocks * disk.f_frsize),
        "unique.storage.bytesfree": str(disk.f_bavail * disk.f_frsize),
        **of_daemon(),
        **further,
    }
    for name, info in drivers.items():
        if not info.trouble:
            attributes |= {**info.attributes, f"driver.{name}": "1"}
    node = Node(
        id="",
        name=config.node_name,
        datacenter=config.datacenter,
        node_class=config.node_class,
        node_pool=config.node_pool,
        http_addr=config.address.removeprefix("http://"),
        attributes=attributes,
        meta=dict(config.node_meta),
        node_resources=NodeResources(
            cpu=NodeCPU(
                cpu_shares=shares,
                total_cpu_cores=len(cpu.cores),
                reservable_cpu_cores=cpu.cores,
            ),
            memory=NodeMemory(memory_mb=config.memory_total_mb or memory // _MEGABYTE),
            disk=NodeDisk(
                disk_mb=config.disk_total_mb or disk.f_blocks * disk.f_frsize // _MEGABYTE
            ),
            networks=[network, *([NodeNetwork(mode="bridge")] if _HAS_BRIDGE in further else [])],
        ),
        drivers={
            name: DriverInfo(
                attributes=info.attributes or None,
                detected=not info.trouble,
                healthy=not info.trouble,
                health_description=info.trouble or "Healthy",
                update_time=rfc3339(now),
            )
            for name, info in drivers.items()
        },
        host_volumes={
            host_volume.name: {
                "Name": host_volume.name,
                "Path": host_volume.path,
                "ReadOnly": host_volume.read_only,
            }
            for host_volume in config.host_volumes
        },
        host_networks=host_networks.host_networks(
            config.host_networks, host_networks.addresses() if config.host_networks else ()
        ),
        status=NodeStatus.READY,
    )
    return msgspec.structs.replace(node, computed_class=computed_class(node))


def of_daemon() -> dict[str, str]:
    """Return the attributes that all nodes of this daemon share."""
    return {
        "nomad.version": PEER_VERSION,
        "nomad.service_discovery": "true",
        "vault.version": _SECRETS_VERSION,
        "steward.version": VERSION,
        "os.signals": ",".join(_signals()),
        "kernel.name": platform.system().lower(),
    }


def _system() -> dict[str, str]:
    release = _os_release()
    return {
        "kernel.version": platform.release(),
        "kernel.arch": platform.machine(),
        "os.name": release.get("ID", "linux"),
        "os.version": release.get("VERSION_ID", ""),
    }


def _signals() -> list[str]:
    """Return the names of the signals for tasks, without real-time signals."""
    return sorted(name for name in signal.Signals.__members__ if not name.startswith("SIGRT"))


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _cpu(cpu: CpuInfo, shares: int) -> dict[str, str]:
    return {
        "cpu.arch": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "cpu.modelname": cpu.model,
        "cpu.frequency": str(int(cpu.mhz)),
        "cpu.numcores": str(len(cpu.cores)),
        "cpu.reservablecores": str(len(cpu.cores)),
        "cpu.totalcompute": str(shares),
        "cpu.usablecompute": str(shares),
    }


def find_cpu(cpuinfo: str, cores: list[int]) -> CpuInfo:
    """Return the CPU with its usable cores, from the text of `/proc/cpuinfo`."""
    values: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    mhz = _highest_mhz(cores) or float(values.get("cpu MHz") or 0) or _FALLBACK_MHZ
    return CpuInfo(cores, mhz, values.get("model name", ""))


def _highest_mhz(cores: list[int]) -> float:
    """Return the maximum clock rate of a core in MHz; 0 if unknown.

    Unlike the current rate, the maximum does not change with the load.
    """
    speeds = []
    for core in cores:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq")
        try:
            speeds.append(int(path.read_text()) / 1000)
        except (OSError, ValueError):
            return 0.0
    return sum(speeds) / len(speeds)


def memory_bytes(meminfo: str) -> int:
    """Return the memory of the host in bytes, from the text of `/proc/meminfo`."""
    line = next(line for line in meminfo.splitlines() if line.startswith("MemTotal:"))
    return int(line.split()[1]) * 1024


def volume(mountinfo: str, path: Path) -> str:
    """Return the device or file system that holds a path, from the text of a `mountinfo` file."""
    best, source = "", ""
    # A path may contain other line separators.
    for line in mountinfo.removesuffix("\n").split("\n"):
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4]
        if path.is_relative_to(point) and len(point) >= len(best):
            best, source = point, after.split(" ")[1]
    return source
