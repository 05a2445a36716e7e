"""Capacity of a node: fitting asks, missing resources, and allocated resources."""

from typing import Any

import pytest

from daemon.scheduler.nodes.capacity import NodeCapacity, resource_ask
from daemon.scheduler.state import NodeState, Plan
from storage.records.allocation import AllocatedCPU, AllocatedMemory, AllocatedTask
from storage.records.group import EphemeralDisk, TaskGroup
from storage.records.node import (
    Node,
    NodeCPU,
    NodeDisk,
    NodeMemory,
    ReservedCPU,
    ReservedNetworks,
    ReservedResources,
)
from storage.records.task import Lifecycle, Resources
from tests.samples import group, job, task
from tests.unit.scheduler.world import World, node, resources, small


def sized(*, count: int = 1, disk: int = 10, **needs: int) -> TaskGroup:
    needed = Resources(**{"cpu": 1, "memory_mb": 1, **needs})
    disk_needed = EphemeralDisk(size_mb=disk)
    return group("web", task(resources=needed), count=count, ephemeral_disk=disk_needed)


def plan_of(wanted: TaskGroup, *nodes: Node, **fields: Any) -> Plan:
    return World(*nodes, **fields).run(job("web", wanted))


HERE = node(
    node_resources=resources(
        cpu=NodeCPU(cpu_shares=1000, total_cpu_cores=4, reservable_cpu_cores=[0, 1, 2, 3]),
        memory=NodeMemory(memory_mb=1000),
        disk=NodeDisk(disk_mb=1000),
    )
)


@pytest.mark.parametrize(
    ("wanted", "dimension"),
    [
        (sized(cpu=1001), "cpu"),
        (sized(memory_mb=1001), "memory"),
        (sized(memory_mb=900, secrets_mb=101), "memory"),
        (sized(disk=1001), "disk"),
        (sized(cores=5), "cores"),
        (sized(cpu=1001, memory_mb=1001, disk=1001), "cpu"),
    ],
)
def test_exhausted_dimension_is_named(wanted: TaskGroup, dimension: str) -> None:
    metric = plan_of(wanted, HERE).failed["web"]
    assert metric.dimension_exhausted == {dimension: 1}
    assert metric.class_exhausted == {"class-1": 1}
    assert (metric.nodes_exhausted, metric.nodes_filtered, metric.nodes_evaluated) == (1, 0, 1)


@pytest.mark.parametrize(
    "wanted", [sized(cpu=1000), sized(memory_mb=1000), sized(disk=1000), sized(cores=3)]
)
def test_allocation_as_large_as_the_node_fits(wanted: TaskGroup) -> None:
    assert plan_of(wanted, HERE).place


KEPT = ReservedResources(
    cpu=ReservedCPU(cpu_shares=100, reserved_cpu_cores=[0]),
    memory=NodeMemory(memory_mb=100),
    disk=NodeDisk(disk_mb=100),
    networks=ReservedNetworks(reserved_host_ports="22,8000-8010"),
)


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (sized(cpu=900), True),
        (sized(cpu=901), False),
        (sized(memory_mb=900), True),
        (sized(memory_mb=901), False),
        (sized(disk=900), True),
        (sized(disk=901), False),
        (sized(cores=3), True),
        (sized(cores=4), False),
    ],
)
def test_reserved_resources_of_the_node_are_not_assigned(wanted: TaskGroup, fits: bool) -> None:
    here = node(node_resources=HERE.node_resources, reserved_resources=KEPT)
    assert bool(plan_of(wanted, here).place) is fits


def test_resources_of_other_jobs_are_not_assigned() -> None:
    others = plan_of(sized(count=3, cpu=300), HERE).place
    assert not plan_of(sized(cpu=101), HERE, others=others).place
    assert plan_of(sized(cpu=100), HERE, others=others).place


def test_tasks_of_a_group_are_summed() -> None:
    two = group(
        "web", task("a", resources=Resources(cpu=600)), task("b", resources=Resources(cpu=500))
    )
    assert plan_of(two, HERE).failed["web"].dimension_exhausted == {"cpu": 1}


def test_node_with_an_allocation_limit_accepts_no_more() -> None:
    here = node(node_resources=HERE.node_resources, node_max_allocs=2)
    plan = plan_of(sized(count=3), here)
    assert len(plan.place) == 2
    assert plan.failed["web"].dimension_exhausted == {"max allocation exceeded": 1}


def test_fitting_allocations_are_placed_and_the_others_blocked() -> None:
    plan = plan_of(sized(count=5, memory_mb=300), HERE)
    assert [alloc.name for alloc in plan.place] == [f"web.web[{number}]" for number in range(3)]
    assert plan.queued == {"web": 2}
    assert plan.failed["web"].coalesced_failures == 1


def test_shortage_is_summed_over_all_blocked_evaluations() -> None:
    exhausted = (
        plan_of(sized(count=3, memory_mb=5000, cpu=7), HERE).failed["web"].resources_exhausted
    )
    assert exhausted == {"main": Resources(cpu=0, memory_mb=15000)}


def test_shortage_of_other_resources_has_no_amounts() -> None:
    exhausted = plan_of(sized(disk=5000), HERE).failed["web"].resources_exhausted
    assert exhausted == {"main": Resources(cpu=0, memory_mb=0)}


# ---- allocated resources -------------------------------------------------------------------------


def test_allocation_holds_the_resources_of_its_tasks() -> None:
    prestart = Lifecycle(hook="prestart")
    wanted = group(
        "web",
        task("main", resources=Resources(cpu=30, memory_mb=40, secrets_mb=5)),
        task("init", resources=Resources(cpu=10, memory_mb=20), lifecycle=prestart),
        ephemeral_disk=EphemeralDisk(size_mb=70),
    )
    got = plan_of(wanted, HERE).place[0].placement.resources
    assert got.tasks == {
        "main": AllocatedTask(
            cpu=AllocatedCPU(cpu_shares=30), memory=AllocatedMemory(memory_mb=45)
        ),
        "init": AllocatedTask(
            cpu=AllocatedCPU(cpu_shares=10), memory=AllocatedMemory(memory_mb=20)
        ),
    }
    assert got.task_lifecycles == {"main": None, "init": prestart}
    assert got.shared.disk_mb == 70
    assert got.shared.ports is got.shared.networks is None


def test_reserved_cores_are_exclusive_and_count_as_cpu() -> None:
    plan = plan_of(sized(count=3, cores=2), HERE)
    got = [alloc.placement.resources.tasks["main"].cpu for alloc in plan.place]
    assert got == [
        AllocatedCPU(cpu_shares=500, reserved_cores=[0, 1]),
        AllocatedCPU(cpu_shares=500, reserved_cores=[2, 3]),
    ]
    assert plan.failed["web"].dimension_exhausted == {"cores": 1}


def test_cores_held_by_others_are_not_assigned() -> None:
    others = plan_of(sized(cores=1), HERE).place
    got = plan_of(sized(cores=1), HERE, others=others).place[0].placement.resources
    assert got.tasks["main"].cpu.reserved_cores == [1]


def test_capacity_is_restored_after_an_allocation_ended() -> None:
    placed = plan_of(sized(cores=1, memory_mb=30), HERE).place[0]
    node_capacity = NodeCapacity(NodeState(node=HERE), [])
    everything = resource_ask(sized(cores=4, memory_mb=1000, disk=1000))
    assert node_capacity.missing_resource(everything) is None
    node_capacity.hold(placed)
    assert node_capacity.missing_resource(everything) == "cores"
    node_capacity.free(placed)
    assert node_capacity.missing_resource(everything) is None
    assert node_capacity.groups["web"] == 0


@pytest.mark.parametrize("count", [1, 5])
def test_plan_can_use_its_freed_capacity(count: int) -> None:
    world = World(small())
    world.run(job("web", group("old", count=5)))
    plan = world.run(job("web", group("new", count=count)))
    assert len(plan.place) == count
    assert plan.blocked is None


def test_capacity_of_allocations_stopping_since_an_earlier_plan_is_not_used() -> None:
    world = World(small())
    world.run(job("web", group("old", count=5)))
    world.run(job("web", group("old", count=0)))
    assert world.run(job("web", group("new"))).failed["new"].dimension_exhausted == {"cpu": 1}
    world.start()
    assert world.evaluate().place
