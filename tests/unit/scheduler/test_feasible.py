"""Reasons that exclude a node for a group, and their texts in evaluations."""

from typing import Any

import msgspec
import pytest

from daemon.scheduler.state import Plan
from storage.records.allocation import AllocatedDevice
from storage.records.constraints import Constraint
from storage.records.evaluation import PlacementMetric
from storage.records.group import TaskGroup, Volume
from storage.records.job import Job
from storage.records.node import DriverInfo, Eligibility, Node, NodeNetwork, NodeStatus
from storage.records.task import Device, Network, Port, Resources
from tests.samples import group, job, task
from tests.unit.scheduler.world import World, blocked, node, resources

NOT_THERE = Constraint(l_target="${meta.zone}", operand="=", r_target="zz")
MET = Constraint(l_target="${attr.kernel.name}", operand="=", r_target="linux")


def plan_of(job: Job, *nodes: Node) -> Plan:
    return World(*nodes).run(job)


def why(job: Job, *nodes: Node) -> PlacementMetric:
    """Return the metrics that explain why the group `web` of a job was not placed."""
    return plan_of(job, *nodes).failed["web"]


def with_volume(**fields: Any) -> TaskGroup:
    return group(volumes={"data": Volume(name="data", type="host", source="data", **fields)})


# ---- considered nodes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datacenters", "found"),
    [
        (["*"], True),
        (["dc1"], True),
        (["dc2", "dc1"], True),
        (["d*1"], True),
        (["*c*"], True),
        (["dc*dc1"], False),
        (["dc?"], False),
        (["dc"], False),
        (["*2"], False),
        ([], False),
    ],
)
def test_job_is_placed_in_a_matching_datacenter(datacenters: list[str], found: bool) -> None:
    assert bool(plan_of(job(datacenters=datacenters)).place) is found


@pytest.mark.parametrize(
    ("pool", "found"), [("gpu", True), ("all", True), ("default", False), ("gp", False)]
)
def test_job_is_placed_on_nodes_of_its_pool(pool: str, found: bool) -> None:
    assert bool(plan_of(job(node_pool=pool), node(node_pool="gpu")).place) is found


@pytest.mark.parametrize(
    "fields",
    [
        {"status": NodeStatus.DOWN},
        {"status": NodeStatus.INITIALIZING},
        {"scheduling_eligibility": Eligibility.INELIGIBLE},
        {"drain": True},
        {"datacenter": "dc2"},
    ],
)
def test_excluded_nodes_are_not_counted(fields: dict[str, Any]) -> None:
    metric = why(job(datacenters=["dc1"]), node(**fields))
    assert metric == PlacementMetric(nodes_available={}, node_pool="default")


def test_available_nodes_are_counted_by_datacenter() -> None:
    nodes = [node("a"), node("b", datacenter="dc2"), node("c", datacenter="dc2")]
    metric = plan_of(job(), *nodes).place[0].placement.metrics
    assert metric.nodes_available == {"dc1": 1, "dc2": 2}
    assert metric.nodes_in_pool == metric.nodes_evaluated == 3


# ---- reasons -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted",
    [
        job(constraints=[MET, NOT_THERE]),
        job("web", group(constraints=[NOT_THERE])),
        job("web", group("web", task(constraints=[NOT_THERE]))),
    ],
)
def test_constraint_applies_at_every_level(wanted: Job) -> None:
    metric = why(wanted)
    assert metric.constraint_filtered == {"${meta.zone} = zz": 1}
    assert metric.class_filtered == {"class-1": 1}
    assert (metric.nodes_evaluated, metric.nodes_filtered, metric.nodes_exhausted) == (1, 1, 0)
    assert metric.dimension_exhausted is metric.resources_exhausted is None


@pytest.mark.parametrize(
    "drivers",
    [
        {},
        {"mock_driver": DriverInfo()},
        {"raw_exec": DriverInfo(healthy=False)},
        {"raw_exec": DriverInfo(detected=False)},
    ],
)
def test_driver_must_exist_and_be_healthy(drivers: dict[str, DriverInfo]) -> None:
    assert why(job(), node(drivers=drivers)).constraint_filtered == {"missing drivers": 1}


def test_first_of_several_infeasibilities_is_reported() -> None:
    wanted = job("web", group(constraints=[NOT_THERE]))
    assert why(wanted, node(drivers={})).constraint_filtered == {"missing drivers": 1}


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (Network(mode="bridge"), "missing network"),
        (
            Network(mode="host", dynamic_ports=[Port(label="web", host_network="wan")]),
            'missing host network "wan" for port "web"',
        ),
        (
            Network(mode="host", dynamic_ports=[Port(label="web", host_network="${meta.net}")]),
            'invalid host network "${meta.net}" template for port "web"',
        ),
    ],
)
def test_network_must_exist(network: Network, reason: str) -> None:
    assert why(job("web", group(networks=[network]))).constraint_filtered == {reason: 1}


@pytest.mark.parametrize(
    ("network", "here"),
    [
        (Network(mode="none"), node(node_resources=resources(networks=[]))),
        (Network(mode=""), node()),
        (
            Network(mode="bridge"),
            node(
                node_resources=resources(
                    networks=[NodeNetwork(mode="bridge", device="", cidr="", ip="", mbits=0)]
                )
            ),
        ),
        (
            Network(mode="host", dynamic_ports=[Port(label="web", host_network="${meta.zone}")]),
            node(host_networks={"a": {"CIDR": "10.0.0.0/8"}}),
        ),
    ],
)
def test_existing_network_is_feasible(network: Network, here: Node) -> None:
    assert plan_of(job("web", group(networks=[network])), here).place


def made(access: str) -> dict[str, Any]:
    """Return the description of an API-created volume with this access mode on a node."""
    capability = {"AccessMode": access, "AttachmentMode": "file-system"}
    return {"Namespace": "default", "Capabilities": [capability]}


@pytest.mark.parametrize(
    ("volume", "volumes", "found"),
    [
        ({}, {}, False),
        ({}, {"data": {"ReadOnly": False}}, True),
        ({}, {"data": {"ReadOnly": True}}, False),
        ({"read_only": True}, {"data": {"ReadOnly": True}}, True),
        ({"per_alloc": True}, {"data": {}}, False),
        ({"per_alloc": True}, {"data[0]": {}}, True),
        ({}, {"data": made("single-node-writer")}, True),
        ({}, {"data": {**made("single-node-writer"), "Namespace": "other"}}, False),
        ({}, {"data": made("single-node-reader-only")}, False),
        ({"read_only": True}, {"data": made("single-node-reader-only")}, True),
        ({"access_mode": "single-node-multi-writer"}, {"data": made("single-node-writer")}, False),
        ({"attachment_mode": "block-device"}, {"data": made("single-node-writer")}, False),
    ],
)
def test_host_volume_must_exist(
    volume: dict[str, Any], volumes: dict[str, Any], found: bool
) -> None:
    plan = plan_of(job("web", with_volume(**volume)), node(host_volumes=volumes))
    assert bool(plan.place) is found
    reasons = [metric.constraint_filtered for metric in plan.failed.values()]
    assert reasons == [] if found else [{"missing compatible host volumes": 1}]


def test_plugin_volume_is_never_feasible() -> None:
    wanted = group(volumes={"v": Volume(type="csi", source="disk", per_alloc=True)})
    assert why(job("web", wanted)).constraint_filtered == {"missing CSI volume(s) disk[0]": 1}


# ---- devices -------------------------------------------------------------------------------------

GPU = {
    "Vendor": "acme",
    "Type": "gpu",
    "Name": "fast",
    "Attributes": {"memory": {"Int": 8, "Unit": "GiB"}, "ecc": {"Bool": True}},
    "Instances": [{"ID": "gpu-2", "Healthy": True}, {"ID": "gpu-1", "Healthy": True}],
}
SLOW = {**GPU, "Name": "slow", "Attributes": {}, "Instances": [{"ID": "gpu-0", "Healthy": True}]}
BROKEN = {**GPU, "Instances": [{"ID": "gpu-9", "Healthy": False}]}


def wants(*devices: Device) -> Job:
    return job("web", group("web", task(resources=Resources(cpu=1, devices=list(devices)))))


def with_devices(*devices: dict[str, object]) -> Node:
    return node(node_resources=resources(devices=list(devices)))


@pytest.mark.parametrize(
    ("device", "found"),
    [
        (Device(name="gpu"), True),
        (Device(name="acme/gpu"), True),
        (Device(name="acme/gpu/fast"), True),
        (Device(name="gpu", count=2), True),
        (Device(name="gpu", count=3), False),
        (Device(name="other/gpu"), False),
        (Device(name="acme/gpu/slow"), False),
        (Device(name="acme/gpu/fast/x"), False),
    ],
)
def test_a_device_is_found_by_its_name(device: Device, found: bool) -> None:
    plan = plan_of(wants(device), with_devices(GPU))
    assert bool(plan.place) is found
    reasons = [metric.constraint_filtered for metric in plan.failed.values()]
    assert reasons == [] if found else [{"missing devices": 1}]


@pytest.mark.parametrize(
    ("left", "operand", "right", "found"),
    [
        ("${device.attr.memory}", ">=", "8", True),
        ("${device.attr.memory}", ">", "8", False),
        ("${device.attr.ecc}", "=", "true", True),
        ("${device.model}", "=", "fast", True),
        ("${device.vendor}", "=", "other", False),
        ("${device.type}", "=", "gpu", True),
        ("${device.ids}", "set_contains", "gpu-1", True),
        ("${device.attr.nope}", "is_set", "", False),
        ("${meta.zone}", "is_set", "", False),
    ],
)
def test_a_device_meets_its_constraints(left: str, operand: str, right: str, found: bool) -> None:
    limit = Constraint(l_target=left, operand=operand, r_target=right)
    plan = plan_of(wants(Device(name="gpu", constraints=[limit])), with_devices(GPU))
    assert bool(plan.place) is found


def test_allocation_names_its_assigned_devices() -> None:
    placed = plan_of(wants(Device(name="gpu", count=2)), with_devices(BROKEN, SLOW, GPU)).place[0]
    assert placed.placement.resources.tasks["main"].devices == [
        AllocatedDevice(vendor="acme", type="gpu", name="fast", device_ids=["gpu-1", "gpu-2"])
    ]


def test_devices_in_use_are_exhausted_and_not_missing() -> None:
    other = plan_of(wants(Device(name="gpu")), with_devices(GPU)).place
    plan = World(with_devices(GPU), others=other).run(wants(Device(name="gpu", count=2)))
    assert plan.failed["web"].dimension_exhausted == {"devices: no devices match request": 1}


def test_devices_of_replaced_allocations_are_free() -> None:
    world = World(with_devices(GPU))
    world.run(wants(Device(name="gpu", count=2)))
    placed = world.run(wants(Device(name="gpu"), Device(name="gpu"))).place
    assert [item.name for item in placed] == ["web.web[0]"]


# ---- several allocations ---------------------------------------------------------------------------


def distinct(operand: str = "distinct_hosts", left: str = "", right: str = "") -> Constraint:
    return Constraint(l_target=left, operand=operand, r_target=right)


@pytest.mark.parametrize(
    ("constraint", "placed"),
    [
        (distinct(), 2),
        (distinct(right="true"), 2),
        (distinct(right="what"), 2),
        (distinct(right="false"), 3),
        (distinct("distinct_property", "${meta.rack}"), 1),
        (distinct("distinct_property", "${meta.rack}", "2"), 2),
        (distinct("distinct_property", "${node.unique.id}"), 2),
        (distinct("distinct_property", "${meta.nope}"), 0),
    ],
)
@pytest.mark.parametrize("level", ["job", "group"])
def test_distinct_constraints_limit_allocations_per_node_or_value(
    constraint: Constraint, placed: int, level: str
) -> None:
    of_group = {"constraints": [constraint]} if level == "group" else {}
    of_job = {"constraints": [constraint]} if level == "job" else {}
    nodes = [node("a", meta={"rack": "r1"}), node("b", meta={"rack": "r1"})]
    plan = plan_of(job("web", group(count=3, **of_group), **of_job), *nodes)
    assert len(plan.place) == placed
    assert plan.queued == {"web": 3 - placed}


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (distinct(), "distinct_hosts"),
        (
            distinct("distinct_property", "${meta.zone}"),
            "distinct_property: ${meta.zone}=a used by 1 allocs",
        ),
        (distinct("distinct_property", "${meta.nope}"), 'missing property "${meta.nope}"'),
    ],
)
def test_distinct_constraints_name_the_conflict(constraint: Constraint, reason: str) -> None:
    metric = why(job("web", group(count=2, constraints=[constraint])))
    assert metric.constraint_filtered == {reason: 1}


def test_distinct_hosts_apply_across_groups_of_a_job_or_within_a_group() -> None:
    of_job = plan_of(job("web", group("web"), group("db"), constraints=[distinct()]))
    of_group = plan_of(job("web", group("web"), group("db", constraints=[distinct()])))
    assert len(of_job.place) == 1
    assert len(of_group.place) == 2


# ---- blocked evaluations -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "classes"),
    [
        (job(constraints=[NOT_THERE]), {"v1:1": False}),
        (job("web", group("web", task(driver="nope"))), {"v1:1": False}),
        (job("web", group("web", task(resources=Resources(memory_mb=10**9)))), {"v1:1": True}),
        (job("web", with_volume()), {"v1:1": True}),  # nodes can get the volume later
        (job("web", group(constraints=[NOT_THERE]), group("db")), {"v1:1": True}),
        (job(datacenters=["dc9"]), None),
    ],
)
def test_blocked_evaluation_names_infeasible_classes(
    wanted: Job, classes: dict[str, bool] | None
) -> None:
    waiting = plan_of(wanted).blocked
    assert waiting is not None
    assert waiting.class_eligibility == classes
    assert not waiting.escaped_computed_class


def test_unique_constraints_escape_the_classes() -> None:
    only = Constraint(l_target="${node.unique.name}", operand="=", r_target="node-7")
    waiting = plan_of(job("web", group("web", task(constraints=[only])))).blocked
    assert waiting is not None
    assert waiting.escaped_computed_class
    assert waiting.class_eligibility is None


def test_unblocked_evaluation_without_a_placement_is_blocked_again() -> None:
    world = World()
    first = world.run(job(constraints=[NOT_THERE])).blocked
    assert first is not None
    world.wait(5)
    again = world.dry_run(first).blocked
    assert again == msgspec.structs.replace(first, modify_time=world.now)
    assert world.dry_run(blocked(world.evaluation())).blocked is not None
