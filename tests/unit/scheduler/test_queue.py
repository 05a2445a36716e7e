"""A cluster among the nodes: placements that fit, unsupported groups, and no preemption."""

from typing import Any

import msgspec
import pytest

from daemon.scheduler.alloc_sets import is_on_lost_node
from daemon.scheduler.nodes.feasibility import NOT_FOR_CLUSTERS
from storage.records.allocation import AllocatedCPU
from storage.records.group import EphemeralDisk, TaskGroup
from storage.records.node import Node, NodeStatus
from storage.records.task import Network, Port, Resources
from tests.samples import group, job, task
from tests.unit.scheduler.world import World, cluster, node


def sized(count: int = 1, **needs: int) -> TaskGroup:
    resources = Resources(**{"cpu": 100, "memory_mb": 10, **needs})
    return group("web", task(resources=resources), count=count)


def plan_of(wanted: TaskGroup, *nodes: Node, pool: str = "hpc", **fields: Any) -> Any:
    return World(*nodes).run(job("web", wanted, type="batch", node_pool=pool, **fields))


@pytest.mark.parametrize(
    "wanted",
    [
        sized(cpu=8000),
        sized(cores=8),
        sized(memory_mb=4000, cpu=1001),
        sized(count=50, cpu=8000, memory_mb=1000),
    ],
)
def test_job_that_one_host_could_run_is_placed_in_a_busy_pool(wanted: TaskGroup) -> None:
    plan = plan_of(wanted, cluster())
    assert len(plan.place) == wanted.count
    assert plan.blocked is None


@pytest.mark.parametrize(
    ("wanted", "dimension"),
    [
        (sized(cpu=8001), "cpu"),
        (sized(cores=9), "cores"),
        (sized(memory_mb=4001), "memory"),
        (sized(memory_mb=4000, cpu=2001), "memory"),  # no host has enough of both
    ],
)
def test_job_too_large_for_every_host_is_blocked(wanted: TaskGroup, dimension: str) -> None:
    plan = plan_of(wanted, cluster())
    assert plan.place == ()
    assert plan.failed["web"].dimension_exhausted == {dimension: 1}
    assert plan.blocked is not None


def test_number_of_jobs_in_the_cluster_is_limited() -> None:
    plan = plan_of(sized(count=5), cluster(node_max_allocs=3))
    assert len(plan.place) == 3
    assert plan.failed["web"].dimension_exhausted == {"max allocation exceeded": 1}


def test_cores_are_counted_but_not_selected() -> None:
    (placed,) = plan_of(sized(cores=3), cluster()).place
    assert placed.placement.resources.tasks["main"].cpu == AllocatedCPU(cpu_shares=3000)


def test_local_node_with_capacity_precedes_a_cluster() -> None:
    here = node("here", node_pool="default")
    plan = plan_of(sized(), cluster(), here, pool="all")
    assert [alloc.node_id for alloc in plan.place] == [here.id]


@pytest.mark.parametrize(
    "wanted",
    [
        group("web", task("one"), task("two")),
        group("web", task(), networks=[Network(dynamic_ports=[Port(label="http")])]),
        group("web", task(), ephemeral_disk=EphemeralDisk(sticky=True)),
    ],
)
def test_job_unsupported_by_clusters_is_placed_only_on_other_nodes(wanted: TaskGroup) -> None:
    plan = plan_of(wanted, cluster(), pool="all")
    assert plan.failed["web"].constraint_filtered == {NOT_FOR_CLUSTERS: 1}


def test_system_job_ignores_clusters() -> None:
    plan = World(cluster(), node("here")).run(job("web", sized(), type="system", node_pool="all"))
    assert [alloc.node_id for alloc in plan.place] == [node("here").id]


@pytest.mark.parametrize("status", [NodeStatus.DISCONNECTED, NodeStatus.INITIALIZING])
def test_unreachable_cluster_gets_and_loses_no_allocations(status: str) -> None:
    world = World(cluster())
    wanted = job("web", sized(), type="batch", node_pool="hpc")
    (there,) = world.run(wanted).place
    away = cluster(status=status)
    assert not is_on_lost_node(there, {away.id: away})
    assert World(away).run(wanted).blocked is not None


def test_allocation_in_a_pool_that_is_down_is_lost() -> None:
    (there,) = plan_of(sized(), cluster()).place
    gone = cluster(status=NodeStatus.DOWN)
    assert is_on_lost_node(there, {gone.id: gone})


def test_feature_constraint_is_an_attribute_constraint() -> None:
    from storage.records.constraints import Constraint

    wanted = msgspec.structs.replace(
        sized(),
        constraints=[
            Constraint(l_target="${attr.engine.feature.gpu}", r_target="true", operand="=")
        ],
    )
    assert plan_of(wanted, cluster()).place == ()
    attributes = cluster().attributes | {"engine.feature.gpu": "true"}
    assert len(plan_of(wanted, cluster(attributes=attributes)).place) == 1
