"""Current resource usage of tasks and the host: `alloc status -stats`, `node status -stats`."""

from collections.abc import Sequence

import msgspec

from daemon.cli.core.formatting import format_duration
from daemon.cli.core.output import Screen
from daemon.cli.core.sparkline import coarser, sparkline
from daemon.text.placement_message import count_noun
from storage.records.allocation import AllocatedResources
from storage.records.base import SECOND
from storage.records.usage import AllocationUsage, HostStats, MemoryUsage
from storage.records.usage_history import UsageHistory, UsageSeries

_KILOBYTE = 1024
_MEGABYTE = 1024 * 1024
_WIDTH = 60  # bars of a trend


def show_tasks(
    screen: Screen,
    usage: AllocationUsage,
    resources: AllocatedResources,
    history: UsageHistory | None,
) -> None:
    """Print the usage of the tasks of an allocation, compared to their resources.

    With a `history`, the trend of the usage is also printed.
    """
    series = {sample.task: sample for sample in history.series} if history else {}
    if not usage.tasks:
        screen.title("Resource Usage")
        screen.line("No running tasks")
    for name, used in sorted(usage.tasks.items()):
        allocated = resources.tasks.get(name)
        cpu, memory = used.resource_usage.cpu_stats, used.resource_usage.memory_stats
        screen.title(f'Resource Usage of Task "{name}"')
        screen.facts(
            [
                (
                    "CPU",
                    f"{cpu.total_ticks:.0f}{_format_limit(allocated.cpu.cpu_shares if allocated else 0)} MHz",
                ),
                ("CPU Percent", f"{cpu.percent:.1f} of one core"),
                (
                    "Memory",
                    f"{_mib(_memory_bytes(memory))}{_format_limit(allocated.memory.memory_mb if allocated else 0)} MiB",
                ),
                *_parts(memory),
                ("Processes", str(len(used.pids))),
                *(_trends(series[name]) if name in series else []),
            ]
        )
    network = usage.resource_usage.network_stats
    if network is not msgspec.UNSET:
        screen.title("Network Usage")
        rates = [("Received", _rate(network.received)), ("Sent", _rate(network.sent))]
        screen.facts([*rates, *(_network_trends(series[""]) if "" in series else [])])
    elif history and history.no_network and usage.tasks:
        screen.title("Network Usage")
        screen.line(f"Not measured: {history.no_network}")


def _network_trends(series: UsageSeries) -> list[tuple[str, str]]:
    """Return the trend and the highest rate of received and of sent data."""
    return [
        (
            f"{name} Trend",
            f"{sparkline(coarser(values, _WIDTH))} highest {_rate(max(_known(values)))}",
        )
        for name, values in (("Received", series.received), ("Sent", series.sent))
        if _known(values)
    ]


def _rate(count: float) -> str:
    return f"{count / _KILOBYTE:.1f} KiB/s"


def _trends(series: UsageSeries) -> list[tuple[str, str]]:
    """Return the trend and the highest value of the CPU usage and of the memory usage."""
    cpu, memory = _known(series.cpu_percent), _known(series.memory)
    trends = []
    if cpu:
        line = sparkline(coarser(series.cpu_percent, _WIDTH))
        trends.append(("CPU Trend", f"{line} highest {max(cpu):.1f} %"))
    if memory:
        line = sparkline(coarser(series.memory, _WIDTH))
        trends.append(("Memory Trend", f"{line} highest {_mib(int(max(memory)))} MiB"))
    return trends


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def show_host(screen: Screen, usage: HostStats) -> None:
    """Print the total resource usage of a node's host."""
    memory, disk = usage.memory, usage.alloc_dir_stats
    screen.title("Host Usage")
    busy = sum(processor_usage.total_percent for processor_usage in usage.cpu) / max(
        1, len(usage.cpu)
    )
    screen.facts(
        [
            ("CPU", f"{usage.cpu_ticks_consumed:.0f} MHz"),
            ("CPU Percent", f"{busy:.1f} of {count_noun(len(usage.cpu), 'core')}"),
            ("Memory", f"{_mib(memory.used)}/{_mib(memory.total)} MiB"),
            ("Disk", f"{_mib(disk.used)}/{_mib(disk.size)} MiB at {disk.mountpoint}"),
            ("Inodes", f"{disk.inodes_used_percent:.1f} %"),
            ("Uptime", format_duration(usage.uptime * SECOND)),
        ]
    )


def _format_limit(limit: int) -> str:
    return f"/{limit}" if limit else ""


def _memory_bytes(memory: MemoryUsage) -> int:
    """Return the memory usage in bytes: of the whole cgroup if that is known, else the RSS."""
    return memory.usage or memory.rss


def _parts(memory: MemoryUsage) -> list[tuple[str, str]]:
    """Return the parts of the memory usage that were measured, under the daemon's names."""
    values = {
        "RSS": memory.rss,
        "Cache": memory.cache,
        "Swap": memory.swap,
        "Mapped File": memory.mapped_file,
        "Max Usage": memory.max_usage,
        "Kernel Usage": memory.kernel_usage,
    }
    return [(name, f"{_mib(values[name])} MiB") for name in memory.measured if name in values]


def _mib(count: int) -> str:
    return f"{count / _MEGABYTE:.1f}"
