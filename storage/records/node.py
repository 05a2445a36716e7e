"""The node: a place where tasks run. One machine has one; a pool on a cluster is one as well."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from storage.records.base import Duration, Record
from storage.records.times import ZERO_TIME, nanoseconds, rfc3339

DEFAULT_NETWORK = "default"  # the host network of ports that name none

ENGINE = "engine.name"  # the attribute that a node has when it is a partition of a cluster
MHZ_PER_CORE = "engine.mhz_per_core"


class NodeStatus(StrEnum):
    """Whether a node can take work."""

    INITIALIZING = "initializing"
    READY = "ready"
    DOWN = "down"
    DISCONNECTED = "disconnected"


class Eligibility(StrEnum):
    """Whether a node may take new work."""

    ELIGIBLE = "eligible"
    INELIGIBLE = "ineligible"


class DriverInfo(Record, frozen=True, kw_only=True):
    """What a node says of one of its drivers."""

    attributes: dict[str, str] | None = None
    detected: bool = True
    healthy: bool = True
    health_description: str = "Healthy"
    update_time: str = ""


class NodeCPU(Record, frozen=True, kw_only=True):
    """CPU in MHz over all cores, and the cores."""

    cpu_shares: int = msgspec.field(name="CpuShares")
    total_cpu_cores: int = msgspec.field(name="TotalCpuCores")
    reservable_cpu_cores: list[int] = msgspec.field(name="ReservableCpuCores")


class NodeMemory(Record, frozen=True, kw_only=True):
    """Memory in MB."""

    memory_mb: int


class NodeDisk(Record, frozen=True, kw_only=True):
    """Disk in MB."""

    disk_mb: int


class NodeNetwork(Record, frozen=True, kw_only=True):
    """An address of the node on which ports can be held."""

    mode: str
    device: str
    cidr: str
    ip: str
    mbits: int


class NodeResources(Record, frozen=True, kw_only=True):
    """What a node has."""

    cpu: NodeCPU = msgspec.field(name="Cpu")
    memory: NodeMemory
    disk: NodeDisk
    networks: list[NodeNetwork]
    min_dynamic_port: int = 20000
    max_dynamic_port: int = 32000
    devices: list[dict[str, object]] | None = None


class ReservedCPU(Record, frozen=True, kw_only=True):
    """CPU that tasks may not use."""

    cpu_shares: int = msgspec.field(default=0, name="CpuShares")
    reserved_cpu_cores: list[int] | None = msgspec.field(default=None, name="ReservedCpuCores")


class ReservedNetworks(Record, frozen=True, kw_only=True):
    """Ports that tasks may not use, as text such as `22,8000-8010`."""

    reserved_host_ports: str = ""


class ReservedResources(Record, frozen=True, kw_only=True):
    """What the node keeps for itself."""

    cpu: ReservedCPU = msgspec.field(default=ReservedCPU(), name="Cpu")
    memory: NodeMemory = NodeMemory(memory_mb=0)
    disk: NodeDisk = NodeDisk(disk_mb=0)
    networks: ReservedNetworks = ReservedNetworks()


class NodeEvent(Record, frozen=True, kw_only=True):
    """Something that happened to a node."""

    message: str
    subsystem: str
    timestamp: str
    details: dict[str, str] | None = None
    create_index: int = 0


class DrainSpec(Record, frozen=True, kw_only=True):
    """How a node is to be emptied: until when, in nanoseconds; 0 is without an end, less is at once."""

    deadline: Duration = 0
    ignore_system_jobs: bool = False


class DrainStrategy(Record, frozen=True, kw_only=True):
    """How a node is being emptied."""

    deadline: Duration
    ignore_system_jobs: bool
    force_deadline: str
    started_at: str

    @property
    def ends(self) -> int | None:
        """When everything must end, in nanoseconds since the epoch; None when it is not said."""
        if self.deadline == 0:
            return None
        return nanoseconds(self.force_deadline if self.deadline > 0 else self.started_at)

    @classmethod
    def of(cls, spec: DrainSpec, now: int) -> "DrainStrategy":
        """Return what begins now."""
        ends = rfc3339(now + spec.deadline) if spec.deadline > 0 else ZERO_TIME
        return cls(
            deadline=spec.deadline,
            ignore_system_jobs=spec.ignore_system_jobs,
            force_deadline=ends,
            started_at=rfc3339(now),
        )


class LastDrain(Record, frozen=True, kw_only=True):
    """When a node was emptied last, by whom, and how that ended."""

    started_at: str
    updated_at: str
    status: str = "draining"
    accessor_id: str = ""
    meta: dict[str, str] | None = None


class HostVolume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A directory of the machine that tasks may mount by its name, as the configuration has it."""

    name: str
    path: str
    read_only: bool = False


class HostNetwork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Addresses of the machine that ports may ask for by a name, as the configuration has it.

    Those within `cidr` and of `interface`, where these are not empty. `reserved_ports`, as text
    such as `22,8000-8010`, are given to nobody.
    """

    name: str
    cidr: str = ""
    interface: str = ""
    reserved_ports: str = ""


class DriverLimit(Record, frozen=True, kw_only=True):
    """Something that a driver may hold tasks to: whether it does, and by what or why not."""

    name: str
    enforced: bool
    how: str


class EngineHost(Record, frozen=True, kw_only=True):
    """A host of a cluster: how the cluster says it is, and why; and both in words. Memory in MB."""

    name: str
    state: str
    reason: str = ""
    description: str = ""
    cores: int
    memory_mb: int
    features: list[str] = []


class Engine(Record, frozen=True, kw_only=True):
    """What a node says of the cluster that it stands for, and how many allocations have not ended."""

    name: str
    partition: str
    version: str
    reachable: bool
    hosts: list[EngineHost]
    running: int
    waiting: int


class Node(Record, frozen=True, kw_only=True):
    """A place where tasks run: a machine, or a partition of a cluster, which then has `hosts`."""

    id: str
    name: str
    datacenter: str
    node_class: str = ""
    node_pool: str = "default"
    http_addr: str = ""
    tls_enabled: bool = False
    attributes: dict[str, str]
    meta: dict[str, str]
    links: dict[str, str] = {}
    node_resources: NodeResources
    reserved_resources: ReservedResources = ReservedResources()
    drivers: dict[str, DriverInfo]
    host_volumes: dict[str, dict[str, object]] = {}
    host_networks: dict[str, dict[str, object]] = {}
    csi_controller_plugins: dict[str, dict[str, object]] = {}
    csi_node_plugins: dict[str, dict[str, object]] = {}
    computed_class: str = ""
    node_max_allocs: int = 0
    drain: bool = False
    drain_strategy: DrainStrategy | None = None
    last_drain: LastDrain | None = None
    scheduling_eligibility: str = Eligibility.ELIGIBLE
    status: str = NodeStatus.INITIALIZING
    status_description: str = ""
    status_updated_at: int = 0
    secret_id: str = ""
    events: list[NodeEvent] | None = None
    hosts: list[EngineHost] | UnsetType = UNSET
    gc_volumes_on_node_gc: bool = msgspec.field(default=False, name="GCVolumesOnNodeGC")
    identity_signing_key_id: str = ""
    last_alloc_update_index: int = 0
    last_missed_heartbeat_index: int = 0
    create_index: int = 0
    modify_index: int = 0

    @property
    def engine(self) -> str:
        """Return what chooses hosts for the tasks here, and lets them wait; nothing: it is a machine."""
        return self.attributes.get(ENGINE, "")

    @property
    def ready(self) -> bool:
        """Tell whether new work may be placed here."""
        return (
            self.status == NodeStatus.READY
            and self.scheduling_eligibility == Eligibility.ELIGIBLE
            and not self.drain
        )

    @property
    def capacity(self) -> tuple[int, int, int]:
        """Return CPU (MHz), memory and disk (MB) without what the node keeps for itself."""
        has, keeps = self.node_resources, self.reserved_resources
        return (
            has.cpu.cpu_shares - keeps.cpu.cpu_shares,
            has.memory.memory_mb - keeps.memory.memory_mb,
            has.disk.disk_mb - keeps.disk.disk_mb,
        )

    def limits(self, driver: str) -> list[DriverLimit]:
        """Return what a driver holds tasks to here, and what not, by name."""
        found = []
        for word in ("enforced", "unenforced"):
            prefix = f"driver.{driver}.{word}."
            found += [
                DriverLimit(name=name.removeprefix(prefix), enforced=word == "enforced", how=how)
                for name, how in self.attributes.items()
                if name.startswith(prefix)
            ]
        return sorted(found, key=lambda one: one.name)


def computed_class(node: Node) -> str:
    """Return a name that nodes share which cannot be told apart by what is not unique."""
    common = {
        "attributes": _common(node.attributes),
        "meta": _common(node.meta),
        "class": node.node_class,
        "datacenter": node.datacenter,
        "pool": node.node_pool,
    }
    digest = hashlib.blake2b(msgspec.json.encode(common, order="sorted"), digest_size=8).digest()
    return f"v1:{int.from_bytes(digest, 'big')}"


def _common(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if not name.startswith("unique.")}
