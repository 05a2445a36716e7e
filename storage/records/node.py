"""The node: the local host, or a partition of a cluster."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from storage.records.base import Duration, Record, SparseRecord
from storage.records.times import ZERO_TIME, nanoseconds, rfc3339

DEFAULT_NETWORK = "default"  # the host network of ports that name none

ENGINE = "engine.name"  # the attribute of nodes that are partitions of a cluster
MHZ_PER_CORE = "engine.mhz_per_core"


class NodeStatus(StrEnum):
    """The status of a node."""

    INITIALIZING = "initializing"
    READY = "ready"
    DOWN = "down"
    DISCONNECTED = "disconnected"


class Eligibility(StrEnum):
    """The scheduling eligibility of a node."""

    ELIGIBLE = "eligible"
    INELIGIBLE = "ineligible"


class DriverInfo(Record, frozen=True, kw_only=True):
    """The state of a driver on a node."""

    attributes: dict[str, str] | None = None
    detected: bool = True
    healthy: bool = True
    health_description: str = "Healthy"
    update_time: str = ""


class NodeCPU(Record, frozen=True, kw_only=True):
    """The CPU of a node: its total MHz, its number of cores, and the cores that can be reserved."""

    cpu_shares: int = msgspec.field(name="CpuShares")
    total_cpu_cores: int = msgspec.field(name="TotalCpuCores")
    reservable_cpu_cores: list[int] = msgspec.field(name="ReservableCpuCores")


class NodeMemory(Record, frozen=True, kw_only=True):
    """Memory in MB."""

    memory_mb: int


class NodeDisk(Record, frozen=True, kw_only=True):
    """Disk in MB."""

    disk_mb: int


# CNI plugins that the bridge of a node replaces. A node without a bridge has an attribute with the
# reason.
BRIDGE_PLUGINS = ("bridge", "firewall", "host-local", "loopback", "portmap")
NO_BRIDGE = "bridge.unavailable"


class NodeNetwork(SparseRecord, frozen=True, kw_only=True):
    """An address of the node for ports, or a network mode that the node offers."""

    mode: str
    device: str = ""
    cidr: str = ""
    ip: str = ""
    mbits: int = 0


class NodeResources(Record, frozen=True, kw_only=True):
    """The resources of a node."""

    cpu: NodeCPU = msgspec.field(name="Cpu")
    memory: NodeMemory
    disk: NodeDisk
    networks: list[NodeNetwork]
    min_dynamic_port: int = 20000
    max_dynamic_port: int = 32000
    devices: list[dict[str, object]] | None = None


class ReservedCPU(Record, frozen=True, kw_only=True):
    """CPU reserved for the host."""

    cpu_shares: int = msgspec.field(default=0, name="CpuShares")
    reserved_cpu_cores: list[int] | None = msgspec.field(default=None, name="ReservedCpuCores")


class ReservedNetworks(Record, frozen=True, kw_only=True):
    """Ports reserved for the host, as text such as `22,8000-8010`."""

    reserved_host_ports: str = ""


class ReservedResources(Record, frozen=True, kw_only=True):
    """Resources reserved for the host."""

    cpu: ReservedCPU = msgspec.field(default=ReservedCPU(), name="Cpu")
    memory: NodeMemory = NodeMemory(memory_mb=0)
    disk: NodeDisk = NodeDisk(disk_mb=0)
    networks: ReservedNetworks = ReservedNetworks()


class NodeEvent(Record, frozen=True, kw_only=True):
    """A node event."""

    message: str
    subsystem: str
    timestamp: str
    details: dict[str, str] | None = None
    create_index: int = 0


class DrainSpec(Record, frozen=True, kw_only=True):
    """The parameters of a drain.

    The deadline is in nanoseconds; 0 means no deadline, and a negative value means immediately.
    """

    deadline: Duration = 0
    ignore_system_jobs: bool = False


class DrainStrategy(Record, frozen=True, kw_only=True):
    """The state of a drain."""

    deadline: Duration
    ignore_system_jobs: bool
    force_deadline: str
    started_at: str

    @property
    def ends(self) -> int | None:
        """Return the deadline in nanoseconds since the epoch; None if the drain has no deadline."""
        if self.deadline == 0:
            return None
        return nanoseconds(self.force_deadline if self.deadline > 0 else self.started_at)

    @classmethod
    def of(cls, spec: DrainSpec, now: int) -> "DrainStrategy":
        """Return the strategy of a drain that begins now."""
        ends = rfc3339(now + spec.deadline) if spec.deadline > 0 else ZERO_TIME
        return cls(
            deadline=spec.deadline,
            ignore_system_jobs=spec.ignore_system_jobs,
            force_deadline=ends,
            started_at=rfc3339(now),
        )


class LastDrain(Record, frozen=True, kw_only=True):
    """The last drain of a node: its time, its author, and its outcome."""

    started_at: str
    updated_at: str
    status: str = "draining"
    accessor_id: str = ""
    meta: dict[str, str] | None = None


class HostedTask(Record, frozen=True, kw_only=True):
    """A running task of a cluster. `host` is the name that the host reports for itself."""

    host: str
    allocation_id: str
    task: str


class HostVolume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A configured host directory that tasks may mount by name."""

    name: str
    path: str
    read_only: bool = False


class HostNetwork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configured addresses of the host that ports may request by name.

    These are the addresses within `cidr` and of `interface`, if set. `reserved_ports`, as text such
    as `22,8000-8010`, are never assigned.
    """

    name: str
    cidr: str = ""
    interface: str = ""
    reserved_ports: str = ""


class DriverLimit(Record, frozen=True, kw_only=True):
    """A limit of a driver on a node.

    `how` is the mechanism that enforces the limit, or the reason why it is not enforced.
    """

    name: str
    enforced: bool
    how: str


class EngineHost(Record, frozen=True, kw_only=True):
    """A host of a cluster. `description` combines its state and the reason for the state."""

    name: str
    state: str
    reason: str = ""
    description: str = ""
    cores: int
    memory_mb: int
    features: list[str] = []


class ClusterEngine(Record, frozen=True, kw_only=True):
    """The cluster of a node, and the number of its non-terminal allocations."""

    name: str
    partition: str
    version: str
    reachable: bool
    hosts: list[EngineHost]
    running: int
    waiting: int


class Node(Record, frozen=True, kw_only=True):
    """A node: a host, or a partition of a cluster, which has `hosts`."""

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
        """Return the cluster engine that queues tasks and chooses hosts; empty for a host."""
        return self.attributes.get(ENGINE, "")

    @property
    def ready(self) -> bool:
        """Return whether the node is ready and accepts new placements."""
        return (
            self.status == NodeStatus.READY
            and self.scheduling_eligibility == Eligibility.ELIGIBLE
            and not self.drain
        )

    @property
    def capacity(self) -> tuple[int, int, int]:
        """Return CPU (MHz), memory and disk (MB) without the reserved resources."""
        has, keeps = self.node_resources, self.reserved_resources
        return (
            has.cpu.cpu_shares - keeps.cpu.cpu_shares,
            has.memory.memory_mb - keeps.memory.memory_mb,
            has.disk.disk_mb - keeps.disk.disk_mb,
        )

    def limits(self, driver: str) -> list[DriverLimit]:
        """Return the enforced and the unenforced limits of a driver on this node, by name."""
        limits = []
        for word in ("enforced", "unenforced"):
            prefix = f"driver.{driver}.{word}."
            limits += [
                DriverLimit(name=name.removeprefix(prefix), enforced=word == "enforced", how=how)
                for name, how in self.attributes.items()
                if name.startswith(prefix)
            ]
        return sorted(limits, key=lambda task: task.name)


def computed_class(node: Node) -> str:
    """Return a class name shared by nodes that differ only in unique attributes."""
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
