"""What tasks and the machine use: two looks, and what happened between them.

Nothing looks by itself: who asks gets the average since somebody asked last, or since the start.
So five hundred tasks that nobody watches cost nothing.
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
    MachineMemory,
    MachineUsage,
    MemoryUsage,
    ProcessorUsage,
    ResourceUsage,
    TaskUsage,
)

_TICK = SECOND // os.sysconf("SC_CLK_TCK")
_KILOBYTE = 1024
_SHORTEST = SECOND // 10  # between two looks that are compared: below, the clock's ticks rule
_USER, _SYSTEM = 11, 12  # fields of `stat` after the name
_STARTED = 19


class Sample(msgspec.Struct, frozen=True):
    """A process at a moment: nanoseconds of processor time, bytes of memory, when it started."""

    user: int
    system: int
    rss: int
    swap: int
    started: int = 0  # nanoseconds after the machine's start


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What all of a task has used, those of its processes that have ended included; as above."""

    user: int = 0
    system: int = 0
    memory: MemoryUsage = MemoryUsage()


class Use(msgspec.Struct, frozen=True):
    """What a task uses at a moment: each of its processes, and all together where that is known."""

    processes: Mapping[int, Sample] = {}
    account: Account | None = None


class Look(msgspec.Struct, frozen=True):
    """What a task uses, and when that was, nanoseconds."""

    at: int
    use: Use


NOTHING = Look(0, Use())


def sample(pid: int) -> Sample | None:
    """Look at a process; None when there is none, or the number is that of a thread."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    values = dict(line.partition(":")[::2] for line in status.splitlines())
    if int(values["Tgid"]) != pid:
        return None
    return Sample(
        user=int(fields[_USER]) * _TICK,
        system=int(fields[_SYSTEM]) * _TICK,
        rss=_bytes(values.get("VmRSS")),
        swap=_bytes(values.get("VmSwap")),
        started=int(fields[_STARTED]) * _TICK,
    )


def samples(pids: Iterable[int]) -> dict[int, Sample]:
    """Look at processes; of those that have ended, nothing."""
    return {pid: found for pid in pids if (found := sample(pid)) is not None}


def _bytes(text: str | None) -> int:
    return int(text.split()[0]) * _KILOBYTE if text else 0


def of_task(before: Look, now: Look, mhz: float) -> TaskUsage:
    """Return what a task used between two looks; `mhz` is what one processor does."""
    span = now.at - before.at
    pids = {
        str(pid): _of_process(before.use.processes.get(pid), one, span, mhz)
        for pid, one in now.use.processes.items()
    }
    whole = total(pids.values())
    if now.use.account is not None:
        whole = _of_account(before.use.account or Account(), now.use.account, span, mhz)
    return TaskUsage(resource_usage=whole, timestamp=now.at, pids=pids)


def _of_account(before: Account, now: Account, span: int, mhz: float) -> ResourceUsage:
    if now.user < before.user:  # that of an attempt before this one
        before = Account()
    cpu = _cpu(now.user - before.user, now.system - before.system, span, mhz)
    return ResourceUsage(cpu_stats=cpu, memory_stats=now.memory)


def _of_process(before: Sample | None, now: Sample, span: int, mhz: float) -> ResourceUsage:
    if before is None or before.started != now.started:
        before = Sample(0, 0, 0, 0)
    cpu = _cpu(now.user - before.user, now.system - before.system, span, mhz)
    memory_stats = MemoryUsage(rss=now.rss, swap=now.swap, usage=0)
    return ResourceUsage(cpu_stats=cpu, memory_stats=memory_stats)


def _cpu(user: int, system: int, span: int, mhz: float) -> CPUUsage:
    """Return what so many nanoseconds of processor time are in a span of time."""
    span = max(span, _SHORTEST)
    in_user, in_system = (max(0, spent) * 100 / span for spent in (user, system))
    percent = in_user + in_system
    return CPUUsage(
        percent=percent, user_mode=in_user, system_mode=in_system, total_ticks=percent * mhz / 100
    )


def total(parts: Iterable[ResourceUsage]) -> ResourceUsage:
    """Return what several use together."""
    parts = list(parts)
    cpus = [one.cpu_stats for one in parts]
    memories = [one.memory_stats for one in parts]
    return ResourceUsage(
        cpu_stats=CPUUsage(
            percent=sum(one.percent for one in cpus),
            user_mode=sum(one.user_mode for one in cpus),
            system_mode=sum(one.system_mode for one in cpus),
            total_ticks=sum(one.total_ticks for one in cpus),
        ),
        memory_stats=_together(memories),
    )


def _together(parts: list[MemoryUsage]) -> MemoryUsage:
    """Return the memory of several; what only one of them counts does not count."""
    kinds = {one.measured for one in parts}
    sums = {
        name: sum(getattr(one, name) for one in parts)
        for name in MemoryUsage.__struct_fields__
        if name != "measured"
    }
    return MemoryUsage(**sums, measured=kinds.pop() if len(kinds) == 1 else MemoryUsage().measured)


def of_allocation(tasks: Mapping[str, TaskUsage], now: int) -> AllocationUsage:
    """Return what an allocation uses."""
    together = total(one.resource_usage for one in tasks.values())
    return AllocationUsage(
        resource_usage=msgspec.structs.replace(together, device_stats=[]),
        tasks=dict(tasks),
        timestamp=now,
    )


# ---- the machine ---------------------------------------------------------------------------------


class Machine(msgspec.Struct, frozen=True):
    """The processors at a moment: ticks of user, system and idle time by name."""

    processors: Mapping[str, tuple[int, int, int]]


IDLE = Machine({})


def look_at_machine() -> Machine:
    """Look at the processors."""
    processors = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, waiting, *interrupts = map(int, values[:7])
            processors[name] = (user + nice, system + sum(interrupts), idle + waiting)
    return Machine(processors)


def of_machine(
    before: Machine, now: Machine, *, mhz: float, alloc_dir: Path, at: int
) -> MachineUsage:
    """Return what the machine did between two looks."""
    processors = [
        _of_processor(name, before.processors.get(name, (0, 0, 0)), ticks, mhz)
        for name, ticks in now.processors.items()
    ]
    disk = _disk(alloc_dir)
    return MachineUsage(
        memory=memory(Path("/proc/meminfo").read_text()),
        cpu=processors,
        cpu_ticks_consumed=sum(one.total_ticks for one in processors),
        disk_stats=[disk],
        alloc_dir_stats=disk,
        uptime=int(float(Path("/proc/uptime").read_text().split()[0])),
        timestamp=at,
    )


def _of_processor(
    name: str, before: tuple[int, int, int], now: tuple[int, int, int], mhz: float
) -> ProcessorUsage:
    user, system, idle = (
        max(0, after - earlier) for earlier, after in zip(before, now, strict=True)
    )
    whole = max(1, user + system + idle)
    busy = (user + system) * 100 / whole
    return ProcessorUsage(
        cpu=name,
        user=user * 100 / whole,
        system=system * 100 / whole,
        idle=idle * 100 / whole,
        total_percent=busy,
        total_ticks=busy * mhz / 100,
    )


def memory(meminfo: str) -> MachineMemory:
    """Return the machine's memory, from the text of `/proc/meminfo`."""
    values = {
        key: _bytes(value)
        for key, _, value in (line.partition(":") for line in meminfo.splitlines())
    }
    whole, available = values["MemTotal"], values["MemAvailable"]
    return MachineMemory(
        total=whole, available=available, used=whole - available, free=values["MemFree"]
    )


def _disk(place: Path) -> DiskUsage:
    while not place.exists():
        place = place.parent
    found = os.statvfs(place)
    size, free = found.f_blocks * found.f_frsize, found.f_bfree * found.f_frsize
    inodes = max(1, found.f_files)
    return DiskUsage(
        device="",
        mountpoint=str(place),
        size=size,
        used=size - free,
        available=found.f_bavail * found.f_frsize,
        used_percent=(size - free) * 100 / max(1, size),
        inodes_used_percent=(found.f_files - found.f_ffree) * 100 / inodes,
    )
