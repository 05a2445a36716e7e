"""Resource usage of tasks and the host: sampled on request, never stored."""

import msgspec

from storage.records.base import Record


class CPUUsage(Record, frozen=True, kw_only=True):
    """CPU usage since the previous sample, in percent of one core; `total_ticks` is in MHz."""

    measured: tuple[str, ...] = ("System Mode", "User Mode", "Percent")
    percent: float = 0.0
    system_mode: float = 0.0
    user_mode: float = 0.0
    total_ticks: float = 0.0
    throttled_periods: int = 0
    throttled_time: int = 0


class MemoryUsage(Record, frozen=True, kw_only=True):
    """Memory in bytes."""

    measured: tuple[str, ...] = ("RSS", "Swap")
    rss: int = msgspec.field(default=0, name="RSS")
    swap: int = 0
    cache: int = 0
    usage: int = 0
    max_usage: int = 0
    mapped_file: int = 0
    kernel_usage: int = 0
    kernel_max_usage: int = 0


class NetworkUsage(Record, frozen=True, kw_only=True):
    """Network traffic in bytes per second."""

    received: int
    sent: int


class ResourceUsage(Record, frozen=True, kw_only=True):
    """The usage of one process, task or allocation.

    Nomad's clients do not know `network_stats`, so documents omit it if it was not measured.
    """

    cpu_stats: CPUUsage = msgspec.field(default=CPUUsage(), name="CpuStats")
    memory_stats: MemoryUsage = MemoryUsage()
    device_stats: list[dict[str, object]] | None = None
    network_stats: NetworkUsage | msgspec.UnsetType = msgspec.UNSET


class TaskUsage(Record, frozen=True, kw_only=True):
    """The usage of a task, with each of its processes."""

    resource_usage: ResourceUsage
    timestamp: int
    pids: dict[str, ResourceUsage]


class AllocationUsage(Record, frozen=True, kw_only=True):
    """The usage of an allocation, with each of its running tasks."""

    resource_usage: ResourceUsage
    tasks: dict[str, TaskUsage]
    timestamp: int


class AllocationUsageLine(Record, frozen=True, kw_only=True):
    """A summary of the usage of an allocation.

    `cpu_percent` is in percent of one core, and `memory` in bytes. `restarts` counts restarts of
    tasks. `recent` has the CPU usage of the last samples of the usage history, oldest first.
    """

    id: str
    cpu_percent: float = msgspec.field(default=0.0, name="CPUPercent")
    memory: int = 0
    restarts: int = 0
    recent: list[float | None] = []


class ProcessorUsage(Record, frozen=True, kw_only=True):
    """The usage of one core of the host since the previous sample, in percent."""

    cpu: str = msgspec.field(name="CPU")
    user: float
    system: float
    idle: float
    total_percent: float
    total_ticks: float


class HostMemory(Record, frozen=True, kw_only=True):
    """The memory of the host in bytes."""

    total: int
    available: int
    used: int
    free: int


class DiskUsage(Record, frozen=True, kw_only=True):
    """The usage of a file system, in bytes and percent."""

    device: str
    mountpoint: str
    size: int
    used: int
    available: int
    used_percent: float
    inodes_used_percent: float


class HostStats(Record, frozen=True, kw_only=True):
    """The usage of the host."""

    memory: HostMemory
    cpu: list[ProcessorUsage] = msgspec.field(name="CPU")
    cpu_ticks_consumed: float = msgspec.field(name="CPUTicksConsumed")
    disk_stats: list[DiskUsage]
    alloc_dir_stats: DiskUsage
    device_stats: list[dict[str, object]] | None = None
    uptime: int
    timestamp: int
