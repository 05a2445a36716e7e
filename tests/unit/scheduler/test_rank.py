"""The chosen node among several, and its scores."""

from typing import Any

import pytest

from storage.records.constraints import Affinity, Spread, SpreadTarget
from storage.records.group import EphemeralDisk, ReschedulePolicy
from storage.records.job import Job
from storage.records.node import Node, NodeCPU, NodeMemory
from storage.records.task import Device, Resources
from tests.samples import group, job, task
from tests.unit.scheduler.world import World, node, resources


def sized(name: str, memory: int = 1000, **fields: Any) -> Node:
    cpu = NodeCPU(cpu_shares=memory, total_cpu_cores=1, reservable_cpu_cores=[0])
    return node(
        name, node_resources=resources(memory=NodeMemory(memory_mb=memory), cpu=cpu), **fields
    )


def where(wanted: Job, *nodes: Node) -> list[str]:
    """Return the names of the nodes on which allocations were placed, in the order of their
    placement.
    """
    return [alloc.placement.node_name for alloc in World(*nodes).run(wanted).place]


def scores(wanted: Job, *nodes: Node) -> list[dict[str, float]]:
    """Return the scores of the chosen node for each allocation."""
    placed = World(*nodes).run(wanted).place
    return [dict((alloc.placement.metrics.score_meta_data or [])[0].scores) for alloc in placed]


def test_scores_match_golden_evaluations_allocations() -> None:
    placed = World().run(job()).place[0]
    (score,) = placed.placement.metrics.score_meta_data or []
    assert score.node_id == placed.node_id
    assert score.norm_score == pytest.approx(0.005966200562587589)
    assert score.scores == {
        "binpack": pytest.approx(0.005966200562587589),
        "job-anti-affinity": 0.0,
        "node-reschedule-penalty": 0.0,
        "node-affinity": 0.0,
    }


def test_fuller_node_with_capacity_is_chosen() -> None:
    assert where(job(), sized("large"), sized("small", 100)) == ["small"]
    large = job("web", group("web", task(resources=Resources(cpu=1, memory_mb=500))))
    assert where(large, sized("large"), sized("small", 100)) == ["large"]


def test_first_of_equal_nodes_is_chosen() -> None:
    assert where(job(), node("a"), node("b")) == ["a"]


def test_allocations_of_a_group_are_spread() -> None:
    wanted = job("web", group("web", count=4))
    assert where(wanted, node("a"), node("b")) == ["a", "b", "a", "b"]
    penalties = [score["job-anti-affinity"] for score in scores(wanted, node("a"))]
    assert penalties == [0.0, -0.5, -0.75, -1.0]


def test_mean_covers_only_applicable_scores() -> None:
    placed = World().run(job("web", group("web", count=2))).place
    first, second = ((alloc.placement.metrics.score_meta_data or [])[0] for alloc in placed)
    assert first.norm_score == first.scores["binpack"]
    assert second.norm_score == pytest.approx((second.scores["binpack"] - 1.0) / 2)


def test_best_five_nodes_are_shown_in_order() -> None:
    nodes = [sized(f"n{size}", size) for size in (700, 100, 600, 200, 500, 300, 400)]
    shown = World(*nodes).run(job()).place[0].placement.metrics.score_meta_data or []
    assert [score.node_id for score in shown] == [f"id-of-n{n}00" for n in (1, 2, 3, 4, 5)]


# ---- affinities ------------------------------------------------------------------------------------


def likes(value: str, weight: int, attribute: str = "${meta.zone}") -> Affinity:
    return Affinity(l_target=attribute, operand="=", r_target=value, weight=weight)


A, B = node("a", meta={"zone": "a"}), node("b", meta={"zone": "b"})


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (job(affinities=[likes("b", 50)]), "b"),
        (job(affinities=[likes("a", -50)]), "b"),
        (job("web", group(affinities=[likes("b", 1)])), "b"),
        (job("web", group("web", task(affinities=[likes("b", 1)]))), "b"),
        (job(affinities=[likes("b", 50), likes("a", 60)]), "a"),
        (job(affinities=[likes("c", 50)]), "a"),
    ],
)
def test_affinity_raises_or_lowers_the_score_of_a_node(wanted: Job, chosen: str) -> None:
    assert where(wanted, A, B) == [chosen]


def test_affinity_weights_are_relative() -> None:
    wanted = job(affinities=[likes("b", 75), likes("x", -25, "${meta.rack}")])
    assert scores(wanted, A, B)[0]["node-affinity"] == 0.75


# ---- spread ----------------------------------------------------------------------------------------


def spread(*targets: tuple[str, int], weight: int = 100) -> Spread:
    wanted = [SpreadTarget(value=value, percent=percent) for value, percent in targets]
    return Spread(attribute="${meta.zone}", weight=weight, spread_target=wanted or None)


NODES = [node(f"{zone}{n}", meta={"zone": zone}) for zone in "abc" for n in (1, 2)]


def zones(wanted: Job, nodes: list[Node] = NODES) -> dict[str, int]:
    names = [name[0] for name in where(wanted, *nodes)]
    return {zone: names.count(zone) for zone in sorted(set(names))}


@pytest.mark.parametrize(
    ("wanted", "count", "by_zone"),
    [
        (spread(), 6, {"a": 2, "b": 2, "c": 2}),
        (spread(("a", 50), ("b", 50)), 6, {"a": 3, "b": 3}),
        (spread(("a", 70), ("b", 20), ("c", 10)), 10, {"a": 7, "b": 2, "c": 1}),
        (spread(("a", 60)), 10, {"a": 6, "b": 2, "c": 2}),
        (spread(("c", 100)), 4, {"c": 4}),
    ],
)
@pytest.mark.parametrize("level", ["job", "group"])
def test_a_spread_distributes_over_the_values_of_an_attribute(
    wanted: Spread, count: int, by_zone: dict[str, int], level: str
) -> None:
    of_job = {"spreads": [wanted]} if level == "job" else {}
    of_group = {"spreads": [wanted]} if level == "group" else {}
    assert zones(job("web", group(count=count, **of_group), **of_job)) == by_zone


def test_spread_counts_existing_allocations() -> None:
    world = World(*NODES)
    wanted = {"spreads": [spread(("a", 50), ("b", 50))]}
    world.run(job("web", group(count=2, **wanted)))
    added = world.run(job("web", group(count=4, **wanted))).place
    assert sorted(alloc.placement.node_name[0] for alloc in added) == ["a", "b"]


def test_node_without_the_attribute_is_chosen_last() -> None:
    nodes = [node("x", meta={}), *NODES]
    assert "x" not in zones(job("web", group(count=3, spreads=[spread()])), nodes)


def test_nonzero_spread_score_is_shown() -> None:
    shown = scores(job("web", group(count=2, spreads=[spread(("a", 100))])), NODES[0])
    assert [score["allocation-spread"] for score in shown if "allocation-spread" in score] == [0.5]


# ---- failed allocations, and sticky disks ------------------------------------------------------------


def test_node_with_a_previous_failure_is_avoided() -> None:
    at_once = ReschedulePolicy(delay=0, delay_function="constant", unlimited=True)
    world = World(sized("small", 200), sized("large"))
    first = world.run(job("web", group(reschedule_policy=at_once))).place[0]
    assert first.placement.node_name == "small"
    world.fail()
    second = world.evaluate().place[0]
    assert second.placement.node_name == "large"
    penalties = {
        score.node_id: score.scores["node-reschedule-penalty"]
        for score in second.placement.metrics.score_meta_data or []
    }
    assert penalties == {"id-of-small": -1.0, "id-of-large": 0.0}


@pytest.mark.parametrize("disk", [EphemeralDisk(sticky=True), EphemeralDisk(migrate=True)])
def test_allocation_with_a_sticky_disk_stays_on_its_node(disk: EphemeralDisk) -> None:
    world = World(sized("small", 100), sized("large"))
    big = Resources(cpu=1, memory_mb=500)
    wanted = {"ephemeral_disk": disk}
    world.run(job("web", group("web", task(resources=big), **wanted)))
    moved = world.run(job("web", group("web", **wanted))).place[0]
    assert moved.placement.node_name == "large"


def test_preferred_devices_are_chosen() -> None:
    def gpu(name: str) -> dict[str, object]:
        return {"Type": "gpu", "Name": name, "Instances": [{"ID": name, "Healthy": True}]}

    nice = Affinity(l_target="${device.model}", operand="=", r_target="fast", weight=100)
    wanted = Resources(cpu=1, memory_mb=1, devices=[Device(name="gpu", affinities=[nice])])
    slow = node("a", node_resources=resources(devices=[gpu("slow")]))
    both = node("b", node_resources=resources(devices=[gpu("slow"), gpu("fast")]))
    placed = World(slow, both).run(job("web", group("web", task(resources=wanted)))).place[0]
    devices = placed.placement.resources.tasks["main"].devices or []
    assert [device.device_ids for device in devices] == [["fast"]]
    shown = placed.placement.metrics.score_meta_data or []
    assert [score.scores["devices"] for score in shown] == [1.0, 0.0]
