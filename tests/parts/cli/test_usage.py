"""Resource usage of tasks and of the host on the command line."""

from typing import Any

import pytest

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
from storage.records.usage_history import UsageHistory, UsageSeries
from tests.parts.cli.conftest import FakeDaemon, Terminal
from tests.parts.cli.test_commands import ALLOC, NODE, node, node_line, whole, wire

MIB = 1024 * 1024
STATS = f"/v1/client/allocation/{ALLOC}/stats"


def used(memory: MemoryUsage) -> Any:
    cpu = CPUUsage(percent=12.34, total_ticks=7.6)
    usage = ResourceUsage(cpu_stats=cpu, memory_stats=memory)
    task = TaskUsage(resource_usage=usage, timestamp=0, pids={"17": usage, "18": usage})
    return wire(AllocationUsage(resource_usage=usage, tasks={"main": task}, timestamp=0))


@pytest.mark.parametrize(
    ("memory", "shown"),
    [
        (
            MemoryUsage(rss=3 * MIB, swap=MIB // 2),
            ["Memory      = 3.0/30 MiB", "RSS         = 3.0 MiB", "Swap        = 0.5 MiB"],
        ),
        (
            MemoryUsage(measured=("RSS", "Cache"), rss=3 * MIB, cache=MIB, usage=5 * MIB),
            ["Memory      = 5.0/30 MiB", "RSS         = 3.0 MiB", "Cache       = 1.0 MiB"],
        ),
    ],
)
def test_allocation_shows_the_usage_of_its_tasks(
    fake: FakeDaemon, terminal: Terminal, memory: MemoryUsage, shown: list[str]
) -> None:
    fake.tell(f"/v1/allocation/{ALLOC}", whole())
    fake.tell(f"/v1/node/{NODE}", node())
    fake.tell(STATS, used(memory))
    assert "Resource Usage" not in terminal.type("alloc", "status", ALLOC).stdout
    lines = terminal.type("alloc", "status", "--stats", ALLOC).stdout.splitlines()
    at = lines.index('Resource Usage of Task "main"') + 1
    assert lines[at : at + 6] == [
        "CPU         = 8/20 MHz",
        "CPU Percent = 12.3 of one core",
        *shown,
        "Processes   = 2",
    ]


def test_allocation_shows_the_trend_of_the_last_hour(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell(f"/v1/allocation/{ALLOC}", whole())
    fake.tell(f"/v1/node/{NODE}", node())
    fake.tell(STATS, used(MemoryUsage(rss=3 * MIB)))
    series = UsageSeries(task="main", cpu_percent=[0, None, 70], memory=[MIB, None, 4 * MIB])
    history = UsageHistory(begin=0, end=3, step=1, enabled=True, series=[series])
    fake.tell(f"/v1/allocation/{ALLOC}/history", wire(history))
    lines = terminal.type("alloc", "status", "--stats", ALLOC).stdout.splitlines()
    found = [line for line in lines if "Trend" in line]
    assert found == [
        "CPU Trend    = ▁ █ highest 70.0 %",
        "Memory Trend = ▂ █ highest 4.0 MiB",
    ]


def test_allocation_shows_its_traffic(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell(f"/v1/allocation/{ALLOC}", whole())
    fake.tell(f"/v1/node/{NODE}", node())
    usage = ResourceUsage(network_stats=NetworkUsage(received=2048, sent=512))
    task = TaskUsage(resource_usage=ResourceUsage(), timestamp=0, pids={})
    fake.tell(STATS, wire(AllocationUsage(resource_usage=usage, tasks={"main": task}, timestamp=0)))
    series = UsageSeries(received=[1024, None, 4096], sent=[None, None])
    history = UsageHistory(begin=0, end=3, step=1, enabled=True, series=[series])
    fake.tell(f"/v1/allocation/{ALLOC}/history", wire(history))
    lines = terminal.type("alloc", "status", "--stats", ALLOC).stdout.splitlines()
    at = lines.index("Network Usage") + 1
    assert lines[at : at + 3] == [
        "Received       = 2.0 KiB/s",
        "Sent           = 0.5 KiB/s",
        "Received Trend = ▂ █ highest 4.0 KiB/s",
    ]


def test_allocation_says_why_its_traffic_is_not_measured(
    fake: FakeDaemon, terminal: Terminal
) -> None:
    fake.tell(f"/v1/allocation/{ALLOC}", whole())
    fake.tell(f"/v1/node/{NODE}", node())
    fake.tell(STATS, used(MemoryUsage(rss=3 * MIB)))
    history = UsageHistory(
        begin=0, end=3, step=1, enabled=True, series=[], no_network="it has none"
    )
    fake.tell(f"/v1/allocation/{ALLOC}/history", wire(history))
    assert "Not measured: it has none" in terminal.type("alloc", "status", "--stats", ALLOC).stdout


def test_ended_allocation_has_no_usage(fake: FakeDaemon, terminal: Terminal) -> None:
    fake.tell(f"/v1/allocation/{ALLOC}", whole(client_status="complete"))
    fake.tell(f"/v1/node/{NODE}", node())
    nothing = AllocationUsage(resource_usage=ResourceUsage(), tasks={}, timestamp=0)
    fake.tell(STATS, wire(nothing))
    lines = terminal.type("alloc", "status", "--stats", ALLOC).stdout.splitlines()
    assert lines[lines.index("Resource Usage") + 1] == "No running tasks"


def test_node_shows_the_usage_of_its_host(fake: FakeDaemon, terminal: Terminal) -> None:
    disk = DiskUsage(
        device="/dev/vda",
        mountpoint="/",
        size=100 * MIB,
        used=40 * MIB,
        available=60 * MIB,
        used_percent=40.0,
        inodes_used_percent=2.5,
    )
    cores = [
        ProcessorUsage(cpu=str(one), user=0, system=0, idle=0, total_percent=share, total_ticks=0)
        for one, share in enumerate((10.0, 30.0))
    ]
    host = HostStats(
        memory=HostMemory(total=8 * MIB, available=6 * MIB, used=2 * MIB, free=MIB),
        cpu=cores,
        cpu_ticks_consumed=1234.5,
        disk_stats=[disk],
        alloc_dir_stats=disk,
        uptime=3700,
        timestamp=0,
    )
    fake.tell("/v1/nodes", [node_line()])
    fake.tell(f"/v1/node/{NODE}", node())
    fake.tell(f"/v1/node/{NODE}/allocations", [])
    fake.tell("/v1/client/stats", wire(host))
    lines = terminal.type("node", "status", "--stats", "node-1").stdout.splitlines()
    at = lines.index("Host Usage") + 1
    assert lines[at : at + 6] == [
        "CPU         = 1234 MHz",
        "CPU Percent = 20.0 of 2 cores",
        "Memory      = 2.0/8.0 MiB",
        "Disk        = 40.0/100.0 MiB at /",
        "Inodes      = 2.5 %",
        "Uptime      = 1h1m",
    ]
