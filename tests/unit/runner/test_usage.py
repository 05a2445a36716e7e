"""Usage between two samples."""

import os

import msgspec
import pytest

from daemon.runner.core.resource_usage import (
    CpuAccount,
    ProcessSample,
    TrafficSample,
    UsageReading,
    UsageSample,
    memory,
    network_usage,
    of_allocation,
    sample,
    sum_usage,
    task_usage,
)
from storage.records.base import SECOND
from storage.records.usage import MemoryUsage, NetworkUsage

MHZ = 2000.0


def look(at: int, **of: ProcessSample) -> UsageSample:
    return UsageSample(
        at * SECOND, UsageReading({int(pid.lstrip("p")): one for pid, one in of.items()})
    )


def process(user: int, system: int, started: int = 1, rss: int = 0) -> ProcessSample:
    return ProcessSample(user * SECOND, system * SECOND, rss, 0, started)


def test_cpu_percent_is_measured_since_the_last_sample() -> None:
    used = task_usage(look(10, p1=process(5, 1)), look(20, p1=process(10, 6)), MHZ)
    cpu = used.resource_usage.cpu_stats
    assert (cpu.user_mode, cpu.system_mode, cpu.percent) == (50.0, 50.0, 100.0)
    assert cpu.total_ticks == MHZ


def test_new_process_counts_from_its_start() -> None:
    used = task_usage(look(10), look(20, p1=process(1, 0)), MHZ)
    assert used.resource_usage.cpu_stats.percent == 10.0


def test_reused_process_number_is_another_process() -> None:
    used = task_usage(look(10, p1=process(9, 9)), look(20, p1=process(1, 0, started=2)), MHZ)
    assert used.pids["1"].cpu_stats.percent == 10.0


def test_usage_is_summed_over_all_processes_of_a_task() -> None:
    now = look(20, p1=process(1, 0, rss=5), p2=process(2, 0, rss=6))
    used = task_usage(look(10), now, MHZ)
    assert used.resource_usage.cpu_stats.percent == pytest.approx(30.0)
    assert used.resource_usage.memory_stats.rss == 11


def counted(at: int, user: int, system: int) -> UsageSample:
    """Return a sample of a task whose CPU time comes from the accounting of a cgroup."""
    memory = MemoryUsage(measured=("Usage",), usage=7)
    account = CpuAccount(user=user * SECOND, system=system * SECOND, memory=memory)
    return UsageSample(at * SECOND, UsageReading({1: process(1, 0, rss=5)}, account))


def test_cgroup_accounting_includes_ended_processes() -> None:
    used = task_usage(counted(10, 5, 1), counted(20, 10, 6), MHZ).resource_usage
    assert (used.cpu_stats.user_mode, used.cpu_stats.system_mode) == (50.0, 50.0)
    assert (used.memory_stats.usage, used.memory_stats.measured) == (7, ("Usage",))


def test_restarted_accounting_counts_from_zero() -> None:
    used = task_usage(counted(10, 9, 9), counted(20, 1, 0), MHZ)
    assert used.resource_usage.cpu_stats.percent == 10.0


def test_sum_of_different_sources_has_their_common_values() -> None:
    parts = [
        task_usage(look(10), item, MHZ).resource_usage for item in (counted(20, 1, 0), look(20))
    ]
    assert sum_usage(parts).memory_stats.measured == ("RSS", "Swap")
    assert sum_usage(parts[:1]).memory_stats.measured == ("Usage",)


def test_simultaneous_samples_do_not_divide_by_zero() -> None:
    here = look(10, p1=process(1, 1))
    assert task_usage(here, here, MHZ).resource_usage.cpu_stats.percent == 0.0


def test_running_process_is_measured_and_an_ended_one_is_not() -> None:
    found = sample(os.getpid())
    assert found is not None
    assert found.rss > 1_000_000
    assert sample(2**22 + 1) is None


def test_available_memory_is_not_used() -> None:
    text = "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 40 kB\n"
    found = memory(text)
    assert (found.total, found.used, found.free) == (102400, 61440, 10240)


def test_traffic_is_a_rate_since_the_sample_before() -> None:
    before, now = TrafficSample(0, 100, 50), TrafficSample(2 * SECOND, 300, 60)
    assert network_usage(before, now) == NetworkUsage(received=100, sent=5)


def test_network_that_was_made_again_counts_from_zero() -> None:
    before, now = TrafficSample(0, 100, 50), TrafficSample(SECOND, 30, 60)
    assert network_usage(before, now) == NetworkUsage(received=30, sent=60)


def test_network_of_an_allocation_is_shared_and_of_its_tasks() -> None:
    reading = UsageReading(traffic=(SECOND, 0))
    usage = task_usage(UsageSample(0, UsageReading()), UsageSample(SECOND, reading), 1000)
    shared = NetworkUsage(received=1, sent=2)
    found = of_allocation({"box": usage}, 0, shared).resource_usage
    assert found.network_stats == NetworkUsage(received=SECOND + 1, sent=2)


def test_document_without_a_measured_network_is_that_of_the_peer() -> None:
    assert "NetworkStats" not in msgspec.to_builtins(of_allocation({}, 0).resource_usage)
