"""What tasks and the machine use at a moment: asked for, shown, and never stored."""

import msgspec

from storage.records.base import Record


class CPUUsage(Record, frozen=True, kw_only=True):
    """Processor time since the last look: percent of one processor, and the same in MHz."""

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


class ResourceUsage(Record, frozen=True, kw_only=True):
    """What one process, one task or one allocation uses."""

    cpu_stats: CPUUsage = msgspec.field(default=CPUUsage(), name="CpuStats")
    memory_stats: MemoryUsage = MemoryUsage()
    device_stats: list[dict[str, object]] | None = None


class TaskUsage(Record, frozen=True, kw_only=True):
    """What a task uses, with each of its processes."""

    resource_usage: ResourceUsage
    timestamp: int
    pids: dict[str, ResourceUsage]


class AllocationUsage(Record, frozen=True, kw_only=True):
    """What an allocation uses, with each of its tasks that run."""

    resource_usage: ResourceUsage
    tasks: dict[str, TaskUsage]
    timestamp: int


class ProcessorUsage(Record, frozen=True, kw_only=True):
    """What one processor of the machine did since the last look, in percent."""

    cpu: str = msgspec.field(name="CPU")
    user: float
    system: float
    idle: float
    total_percent: float
    total_ticks: float


class MachineMemory(Record, frozen=True, kw_only=True):
    """The machine's memory in bytes."""

    total: int
    available: int
    used: int
    free: int


class DiskUsage(Record, frozen=True, kw_only=True):
    """A file system, in bytes and percent."""

    device: str
    mountpoint: str
    size: int
    used: int
    available: int
    used_percent: float
    inodes_used_percent: float


class MachineUsage(Record, frozen=True, kw_only=True):
    """What the machine uses."""

    memory: MachineMemory
    cpu: list[ProcessorUsage] = msgspec.field(name="CPU")
    cpu_ticks_consumed: float = msgspec.field(name="CPUTicksConsumed")
    disk_stats: list[DiskUsage]
    alloc_dir_stats: DiskUsage
    device_stats: list[dict[str, object]] | None = None
    uptime: int
    timestamp: int
