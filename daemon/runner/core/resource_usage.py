"""Resource usage of tasks and of the host, computed from two samples.

Samples are taken only when a caller asks for the usage. The caller gets the average since its
previous call, or since the start of the task. A task without such calls costs nothing.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from storage.records.base import SECOND
from storage.records.usage import (
    AllocationUsage,
    CPUUsage,
    DiskUsage,
    HostMemory,
    HostStats,
    MemoryUsage,
    NetworkUsage,
    ProcessorUsage,
    ResourceUsage,
    TaskUsage,
)

_TICK = SECOND // os.sysconf("SC_CLK_TCK")
_KILOBYTE = 1024
_SHORTEST = SECOND // 10  # minimum time between two samples; clock ticks are too coarse for less
_USER, _SYSTEM = 11, 12  # fields of `stat` after the name
_STARTED = 19


class ProcessSample(msgspec.Struct, frozen=True):
    """One sample of a process: CPU times (nanoseconds), memory (bytes), and start time."""

    user: int
    system: int
    rss: int
    swap: int
    started: int = 0  # in nanoseconds after boot


class CpuAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Total usage of a task, including its ended processes; units as in `ProcessSample`."""

    user: int = 0
    system: int = 0
    memory: MemoryUsage = MemoryUsage()


class TrafficSample(msgspec.Struct, frozen=True):
    """Received and sent bytes of a network since its creation; `at` is in nanoseconds."""

    at: int
    received: int
    sent: int


class UsageReading(msgspec.Struct, frozen=True):
    """Usage of a task: the usage of each process, and the total if a cgroup measures it.

    `traffic` has the received and sent bytes, if no other task shares the network.
    """

    processes: Mapping[int, ProcessSample] = {}
    account: CpuAccount | None = None
    traffic: tuple[int, int] | None = None


class UsageSample(msgspec.Struct, frozen=True):
    """The usage of a task and the time of the sample in nanoseconds."""

    at: int
    use: UsageReading


def sample(pid: int) -> ProcessSample | None:
    """Return a sample of a process; return None if it does not exist or `pid` is a thread."""
    try:
        # The name of a process may have any bytes.
        status = Path(f"/proc/{pid}/status").read_bytes().decode(errors="replace")
        stat = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return sample_of(status, stat).get(pid)


def sample_of(status: str, stat: str) -> dict[int, ProcessSample]:
    """Return the sample of a process, with its ID as key; empty if the ID is that of a thread.

    `status` and `stat` are the texts of the files in `/proc/<ID>`.
    """
    fields = stat.rpartition(")")[2].split()
    values = dict(line.partition(":")[::2] for line in status.split("\n"))
    if int(values["Tgid"]) != int(values["Pid"]):
        return {}
    process_sample = ProcessSample(
        user=int(fields[_USER]) * _TICK,
        system=int(fields[_SYSTEM]) * _TICK,
        rss=_bytes(values.get("VmRSS")),
        swap=_bytes(values.get("VmSwap")),
        started=int(fields[_STARTED]) * _TICK,
    )
    return {int(values["Pid"]): process_sample}


def samples(pids: Iterable[int]) -> dict[int, ProcessSample]:
    """Return samples by process ID, without processes that have ended."""
    return {pid: process_sample for pid in pids if (process_sample := sample(pid)) is not None}


def _bytes(text: str | None) -> int:
    return int(text.split()[0]) * _KILOBYTE if text else 0


def task_usage(before: UsageSample, now: UsageSample, mhz: float) -> TaskUsage:
    """Return the usage between two samples; `mhz` is the clock rate of one core."""
    span = now.at - before.at
    pids = {
        str(pid): _of_process(before.use.processes.get(pid), process, span, mhz)
        for pid, process in now.use.processes.items()
    }
    resource_usage = sum_usage(pids.values())
    if now.use.account is not None:
        resource_usage = _of_account(before.use.account or CpuAccount(), now.use.account, span, mhz)
    if now.use.traffic is not None:
        earlier = TrafficSample(before.at, *(before.use.traffic or (0, 0)))
        rates = network_usage(earlier, TrafficSample(now.at, *now.use.traffic))
        resource_usage = msgspec.structs.replace(resource_usage, network_stats=rates)
    return TaskUsage(resource_usage=resource_usage, timestamp=now.at, pids=pids)


def _of_account(before: CpuAccount, now: CpuAccount, span: int, mhz: float) -> ResourceUsage:
    if now.user < before.user:  # `before` belongs to a previous attempt
        before = CpuAccount()
    cpu = _cpu(now.user - before.user, now.system - before.system, span, mhz)
    return ResourceUsage(cpu_stats=cpu, memory_stats=now.memory)


def _of_process(
    before: ProcessSample | None, now: ProcessSample, span: int, mhz: float
) -> ResourceUsage:
    if before is None or before.started != now.started:
        before = ProcessSample(0, 0, 0, 0)
    cpu = _cpu(now.user - before.user, now.system - before.system, span, mhz)
    memory_stats = MemoryUsage(rss=now.rss, swap=now.swap, usage=0)
    return ResourceUsage(cpu_stats=cpu, memory_stats=memory_stats)


def _cpu(user: int, system: int, span: int, mhz: float) -> CPUUsage:
    """Return the CPU usage, given the user and system time used within `span`, in nanoseconds."""
    span = max(span, _SHORTEST)
    in_user, in_system = (max(0, spent) * 100 / span for spent in (user, system))
    percent = in_user + in_system
    return CPUUsage(
        percent=percent, user_mode=in_user, system_mode=in_system, total_ticks=percent * mhz / 100
    )


def network_usage(before: TrafficSample, now: TrafficSample) -> NetworkUsage:
    """Return the traffic between two samples in bytes per second.

    If a counter has decreased, the network was created again. Its counters then began at zero.
    """
    if now.received < before.received or now.sent < before.sent:
        before = TrafficSample(before.at, 0, 0)
    span = max(now.at - before.at, _SHORTEST)
    return NetworkUsage(
        received=(now.received - before.received) * SECOND // span,
        sent=(now.sent - before.sent) * SECOND // span,
    )


def sum_usage(parts: Iterable[ResourceUsage]) -> ResourceUsage:
    """Return the sum of several usages."""
    parts = list(parts)
    cpus = [part.cpu_stats for part in parts]
    memories = [part.memory_stats for part in parts]
    return ResourceUsage(
        cpu_stats=CPUUsage(
            percent=sum(cpu_stats.percent for cpu_stats in cpus),
            user_mode=sum(cpu_stats.user_mode for cpu_stats in cpus),
            system_mode=sum(cpu_stats.system_mode for cpu_stats in cpus),
            total_ticks=sum(cpu_stats.total_ticks for cpu_stats in cpus),
        ),
        memory_stats=_sum_memory(memories),
        network_stats=_sum_networks(part.network_stats for part in parts),
    )


def _sum_networks(
    parts: Iterable[NetworkUsage | msgspec.UnsetType],
) -> NetworkUsage | msgspec.UnsetType:
    reported = [part for part in parts if part is not msgspec.UNSET]
    if not reported:
        return msgspec.UNSET
    return NetworkUsage(
        received=sum(part.received for part in reported), sent=sum(part.sent for part in reported)
    )


def _sum_memory(parts: list[MemoryUsage]) -> MemoryUsage:
    """Return the sum of memory usages; a field that any of them lacks is omitted."""
    kinds = {part.measured for part in parts}
    sums = {
        name: sum(getattr(part, name) for part in parts)
        for name in MemoryUsage.__struct_fields__
        if name != "measured"
    }
    return MemoryUsage(**sums, measured=kinds.pop() if len(kinds) == 1 else MemoryUsage().measured)


def of_allocation(
    tasks: Mapping[str, TaskUsage],
    now: int,
    shared: NetworkUsage | msgspec.UnsetType = msgspec.UNSET,
) -> AllocationUsage:
    """Return the usage of an allocation; `shared` is the traffic of its network."""
    together = sum_usage(task.resource_usage for task in tasks.values())
    networks = _sum_networks([together.network_stats, shared])
    return AllocationUsage(
        resource_usage=msgspec.structs.replace(together, device_stats=[], network_stats=networks),
        tasks=dict(tasks),
        timestamp=now,
    )


# --- host ---


class HostUsage(msgspec.Struct, frozen=True):
    """CPU counters of the host: user, system and idle time of each core in ticks."""

    processors: Mapping[str, tuple[int, int, int]]


IDLE = HostUsage({})


def sample_cpus() -> HostUsage:
    """Return the current CPU counters of the host."""
    processors = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, waiting, *interrupts = map(int, values[:7])
            processors[name] = (user + nice, system + sum(interrupts), idle + waiting)
    return HostUsage(processors)


def host_usage(
    before: HostUsage, now: HostUsage, *, mhz: float, alloc_dir: Path, time: int
) -> HostStats:
    """Return the usage of the host between two samples."""
    processors = [
        _of_processor(name, before.processors.get(name, (0, 0, 0)), ticks, mhz)
        for name, ticks in now.processors.items()
    ]
    disk = _disk(alloc_dir)
    return HostStats(
        memory=memory(Path("/proc/meminfo").read_text()),
        cpu=processors,
        cpu_ticks_consumed=sum(processor.total_ticks for processor in processors),
        disk_stats=[disk],
        alloc_dir_stats=disk,
        uptime=int(float(Path("/proc/uptime").read_text().split()[0])),
        timestamp=time,
    )


def _of_processor(
    name: str, before: tuple[int, int, int], now: tuple[int, int, int], mhz: float
) -> ProcessorUsage:
    user, system, idle = (
        max(0, after - earlier) for earlier, after in zip(before, now, strict=True)
    )
    total = max(1, user + system + idle)
    busy = (user + system) * 100 / total
    return ProcessorUsage(
        cpu=name,
        user=user * 100 / total,
        system=system * 100 / total,
        idle=idle * 100 / total,
        total_percent=busy,
        total_ticks=busy * mhz / 100,
    )


def memory(meminfo: str) -> HostMemory:
    """Return the memory of the host, from the text of `/proc/meminfo`."""
    values = {
        key: _bytes(value)
        for key, _, value in (line.partition(":") for line in meminfo.splitlines())
    }
    total, available = values["MemTotal"], values["MemAvailable"]
    return HostMemory(
        total=total, available=available, used=total - available, free=values["MemFree"]
    )


def _disk(path: Path) -> DiskUsage:
    while not path.exists():
        path = path.parent
    filesystem = os.statvfs(path)
    size, free = filesystem.f_blocks * filesystem.f_frsize, filesystem.f_bfree * filesystem.f_frsize
    inodes = max(1, filesystem.f_files)
    return DiskUsage(
        device="",
        mountpoint=str(path),
        size=size,
        used=size - free,
        available=filesystem.f_bavail * filesystem.f_frsize,
        used_percent=(size - free) * 100 / max(1, size),
        inodes_used_percent=(filesystem.f_files - filesystem.f_ffree) * 100 / inodes,
    )
