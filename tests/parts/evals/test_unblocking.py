"""A blocked evaluation is re-evaluated exactly when its missing resource appears."""

from typing import Any

import msgspec
import pytest

from daemon.evals.scheduler_config import configure
from daemon.scheduler.nodes.devices import DeviceInstance, DeviceKind
from storage.records.allocation import ClientStatus, DesiredStatus
from storage.records.evaluation import EvalStatus
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.node import Node, NodeCPU, NodeMemory
from storage.records.operator_api import PreemptionConfig, SchedulerConfig
from storage.records.task import Device, Network, Port, Resources
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job, task
from tests.unit.scheduler.world import node, resources

KINDS = [
    DeviceKind(vendor="acme", type=name, name="x", instances=[DeviceInstance(id=f"{name}-0")])
    for name in ("gpu", "fpga")
]


def host(*, memory: int = 100, cores: int = 2, **fields: Any) -> Node:
    made = resources(
        cpu=NodeCPU(cpu_shares=400, total_cpu_cores=4, reservable_cpu_cores=list(range(cores))),
        memory=NodeMemory(memory_mb=memory),
        devices=[msgspec.to_builtins(kind) for kind in KINDS],
    )
    return node(node_resources=made, **fields)


def asking(
    *, port: int = 0, device: str = "", count: int = 1, networks: Any = None, **needs: Any
) -> TaskGroup:
    needed = Resources(
        **{"cpu": 1, "memory_mb": 1, **needs},
        devices=[Device(name=device)] if device else None,
    )
    if port:
        networks = [Network(mode="host", reserved_ports=[Port(label="p", value=port)])]
    return group("web", task(resources=needed), count=count, networks=networks)


async def run(cluster: Cluster, *jobs: Job) -> None:
    for item in jobs:
        await cluster.register(item)
    await cluster.work()
    for item in jobs:
        await cluster.run_all(job_id=item.id)


async def end(cluster: Cluster, job_id: str) -> None:
    for alloc in cluster.allocations(job_id):
        if not alloc.client_terminal:
            await cluster.report(alloc, ClientStatus.COMPLETE)


async def allow(cluster: Cluster, **kinds: bool) -> None:
    preemption_config = PreemptionConfig(system_scheduler_enabled=False, **kinds)
    await configure(cluster.store, SchedulerConfig(preemption_config=preemption_config))


@pytest.fixture
async def one_host(cluster: Cluster) -> Cluster:
    await cluster.join(host())
    return cluster


@pytest.mark.parametrize(
    ("wanted", "related", "unrelated"),
    [
        (asking(memory_mb=90), asking(memory_mb=80), asking(cpu=50)),
        (asking(cpu=390), asking(cpu=100), asking(memory_mb=50)),
        (asking(port=8080), asking(port=8080), asking(port=9090, memory_mb=50)),
        (asking(cpu=0, cores=2), asking(cpu=0, cores=1), asking(memory_mb=50)),
        (asking(device="gpu"), asking(device="gpu"), asking(device="fpga")),
        (asking(device="gpu", memory_mb=60), asking(device="gpu"), asking(memory_mb=30)),
    ],
)
async def test_only_missing_resources_unblock_evaluations(
    one_host: Cluster, wanted: TaskGroup, related: TaskGroup, unrelated: TaskGroup
) -> None:
    await run(one_host, job("related", related), job("unrelated", unrelated))
    await run(one_host, job("web", wanted))
    (blocked,) = one_host.evaluations(EvalStatus.BLOCKED)
    await end(one_host, "unrelated")
    assert one_host.next() is None
    await end(one_host, "related")
    assert blocked.id in await one_host.work()
    assert len(one_host.wanted()) == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (asking(memory_mb=40), asking(memory_mb=70)),
        (asking(memory_mb=40, port=8080), asking(memory_mb=70, port=8080)),
    ],
)
async def test_replacement_wakes_when_its_additional_resources_are_free(
    one_host: Cluster, before: TaskGroup, after: TaskGroup
) -> None:
    await run(one_host, job("web", before), job("other", asking(memory_mb=40)))
    await run(one_host, job("web", after))
    (blocked,) = one_host.evaluations(EvalStatus.BLOCKED)
    await end(one_host, "other")
    assert blocked.id in await one_host.work()
    assert [alloc.placement.resources.memory for alloc in one_host.wanted("web")] == [70]


async def test_freed_dynamic_port_unblocks_a_request_for_any_port(cluster: Cluster) -> None:
    narrow = msgspec.structs.replace(
        host().node_resources, min_dynamic_port=20000, max_dynamic_port=20000
    )
    await cluster.join(node(node_resources=narrow))
    any_port = asking(networks=[Network(mode="host", dynamic_ports=[Port(label="p")])])
    await run(cluster, job("holder", any_port), job("other"))
    await run(cluster, job("web", any_port))
    await end(cluster, "other")
    assert cluster.next() is None
    await end(cluster, "holder")
    await cluster.work()
    assert len(cluster.wanted()) == 1


async def test_allocations_for_an_ineligible_node_wait_for_its_eligibility(
    one_host: Cluster,
) -> None:
    await run(one_host, job("other", asking(memory_mb=50)))
    await one_host.join(host(scheduling_eligibility="ineligible"))
    await run(one_host, job("web"))
    await end(one_host, "other")
    assert one_host.next() is None
    await one_host.join(host())
    await one_host.work()
    assert len(one_host.wanted()) == 1


async def test_allocation_is_placed_after_its_host_network_was_added_to_the_node(
    one_host: Cluster,
) -> None:
    networks = [Network(mode="host", dynamic_ports=[Port(label="p", host_network="lan")])]
    await run(one_host, job("web", asking(networks=networks)))
    assert one_host.wanted() == []
    lan = {"Name": "lan", "CIDR": "10.0.0.0/8", "IP": "10.1.2.3"}
    await one_host.join(host(host_networks={"lan": lan}))
    await one_host.work()
    (placed,) = one_host.wanted()
    assert [port.host_ip for port in placed.placement.resources.shared.ports or ()] == ["10.1.2.3"]


async def test_permission_to_preempt_unblocks_evaluations_that_can_preempt(
    one_host: Cluster,
) -> None:
    await allow(one_host)
    await run(one_host, job("low", asking(memory_mb=80), priority=20))
    await run(one_host, job("web", asking(memory_mb=60), priority=80))
    await run(one_host, job("near", asking(memory_mb=60), priority=29))
    await run(one_host, job("batch", asking(memory_mb=60), priority=80, type="batch"))
    await configure(one_host.store, SchedulerConfig(scheduler_algorithm="spread"))
    assert one_host.next() is None
    (blocked,) = one_host.evaluations(EvalStatus.BLOCKED)
    await allow(one_host, service_scheduler_enabled=True)
    tried = await one_host.work()
    assert tried[0] == blocked.id
    for others in ("near", "batch"):
        (still,) = one_host.evaluations(EvalStatus.BLOCKED, others)
        assert still.id not in tried
    assert [alloc.desired_status for alloc in one_host.allocations("low")] == [DesiredStatus.EVICT]


async def test_sufficient_combined_capacity_unblocks(one_host: Cluster) -> None:
    await allow(one_host, service_scheduler_enabled=True)
    await run(one_host, job("firm", asking(memory_mb=60), priority=80))
    await run(one_host, job("low", asking(memory_mb=40), priority=20))
    await run(one_host, job("web", asking(memory_mb=90), priority=80))
    assert one_host.wanted() == []
    await end(one_host, "firm")
    await one_host.work()
    assert len(one_host.wanted()) == 1
    assert one_host.wanted("low") == []


async def test_allocation_with_a_lowered_priority_can_be_preempted(one_host: Cluster) -> None:
    await allow(one_host, service_scheduler_enabled=True)
    await run(one_host, job("firm", asking(memory_mb=60), priority=80))
    await run(one_host, job("web", asking(memory_mb=90), priority=80))
    await run(one_host, job("firm", asking(memory_mb=60), priority=70))
    assert len(one_host.wanted()) == 1


async def test_evaluation_without_a_helpful_change_is_checked_once_per_change(
    one_host: Cluster,
) -> None:
    """The evaluation wakes when memory is freed, and blocks again because the port is in use."""
    await run(one_host, job("other", asking(memory_mb=50)), job("holder", asking(port=8080)))
    wanted = job("web", asking(port=8080), msgspec.structs.replace(asking(port=8080), name="db"))
    await run(one_host, wanted)
    await end(one_host, "other")
    assert len(await one_host.work()) <= 1
    assert one_host.next() is None
