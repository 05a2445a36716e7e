"""Limits of a task, and the node attributes about their enforcement."""

import pytest

from daemon.runner.drivers.limits import (
    BY_RLIMIT,
    CONTROLLERS,
    UNLIMITED,
    ResourceLimits,
    RlimitEnforcer,
    data_limit,
    limit_attributes,
    limits_of,
    with_rlimits,
)
from storage.records.task import Resources

MEGABYTE = 1024 * 1024


def test_resources_of_a_task_become_its_limits() -> None:
    resource_limits = limits_of(Resources(cpu=500, memory_mb=10, memory_max_mb=30), ())
    assert (resource_limits.mhz, resource_limits.memory, resource_limits.memory_max) == (
        500,
        10 * MEGABYTE,
        30 * MEGABYTE,
    )
    assert limits_of(Resources(memory_mb=10), ()).memory_max == 10 * MEGABYTE


@pytest.mark.parametrize(
    ("mhz", "shares", "weight"),
    [(1, 2, 1), (100, 100, 10), (200, 200, 20), (24_000, 24_000, 2400), (10**6, 10**6, 10_000)],
)
def test_cpu_shares_are_proportional(mhz: int, shares: int, weight: int) -> None:
    assert (ResourceLimits(mhz=mhz).shares, ResourceLimits(mhz=mhz).weight) == (shares, weight)


def test_node_names_each_limit_once_with_its_enforcer_or_a_reason() -> None:
    bounds = RlimitEnforcer(with_rlimits({"cpu": "x"}), dict.fromkeys(CONTROLLERS, "y"))
    assert limit_attributes(bounds) == {
        "enforced.cpu": "x",
        "enforced.memory": BY_RLIMIT,
        "unenforced.cores": "y",
        "unenforced.processes": "y",
    }
    assert set(limit_attributes(UNLIMITED)) == {f"unenforced.{name}" for name in CONTROLLERS}


def test_process_memory_limits_apply_only_without_a_cgroup_limit() -> None:
    limits = ResourceLimits(memory_max=8 * MEGABYTE)
    assert data_limit(RlimitEnforcer(with_rlimits({}), {}), limits) == 8 * 1024
    assert data_limit(RlimitEnforcer(with_rlimits({"memory": "a group"}), {}), limits) == 0
    assert data_limit(UNLIMITED, limits) == 0
