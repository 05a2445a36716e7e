"""Preemption: allocations that a higher-priority job can preempt, and protected ones."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from daemon.scheduler.nodes.devices import DeviceInstance, DeviceKind
from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState, NodeState, Plan
from storage.records.allocated_resources import ResourceHolder
from storage.records.evaluation import EvalStatus, Trigger
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.node import Node, NodeCPU, NodeMemory
from storage.records.task import Device, Network, Port, Resources
from tests.samples import NOW, evaluation, group, job, task
from tests.unit.scheduler.world import ids, node, resources

HERE = node(
    node_resources=resources(
        cpu=NodeCPU(cpu_shares=1000, total_cpu_cores=4, reservable_cpu_cores=[0, 1, 2, 3]),
        memory=NodeMemory(memory_mb=1000),
    )
)
WEB = [Network(mode="host", reserved_ports=[Port(label="web", value=8080)])]


def holder(name: str, priority: int = 20, *, memory: int = 0, **fields: Any) -> ResourceHolder:
    given = {"namespace": "default", "job_type": "service", "task_group": "web", **fields}
    return ResourceHolder(
        id=name,
        job_id=given.pop("job_id", f"job-{name}"),
        priority=priority,
        node_id=given.pop("node_id", HERE.id),
        alloc_modify_index=1,
        memory=memory,
        **given,
    )


def wanting(*, count: int = 1, networks: Any = None, **needs: Any) -> TaskGroup:
    needed = Resources(**{"cpu": 1, "memory_mb": 1, **needs})
    return group("web", task(resources=needed), count=count, networks=networks)


def state(
    wanted: Job,
    holders: Iterable[ResourceHolder],
    *,
    nodes: Iterable[Node] = (HERE,),
    allowed: bool = True,
) -> ClusterState:
    known = tuple(holders)
    states = []
    for item in nodes:
        here = [each for each in known if each.node_id == item.id]
        states.append(
            NodeState(
                node=item,
                cpu=sum(each.cpu for each in here),
                memory=sum(each.memory for each in here),
                disk=sum(each.disk for each in here),
                ports=frozenset(port for each in here for port in each.ports),
                cores=frozenset(core for each in here for core in each.cores),
                devices=frozenset(device for each in here for device in each.device_ids),
                allocations=len(here),
            )
        )
    return ClusterState(
        index=5,
        job=wanted,
        nodes=tuple(states),
        versions={0: wanted},
        holders=known if allowed else None,
    )


def plan_of(
    wanted: TaskGroup,
    *holders: ResourceHolder,
    priority: int = 80,
    kind: str = "service",
    **fields: Any,
) -> Plan:
    made = job("big", wanted, priority=priority, type=kind, **fields)
    return schedule(state(made, holders), evaluation(made), now=NOW, ids=ids())


def victims(plan: Plan) -> list[str]:
    return sorted(eviction.holder.id for eviction in plan.evict)


# ---- preempted allocations -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "holders", "gone"),
    [
        (wanting(memory_mb=500), [holder("a", 70, memory=600)], ["a"]),
        (wanting(memory_mb=500), [holder("a", 71, memory=600)], []),
        (wanting(memory_mb=500), [holder("a", 80, memory=600)], []),
        (wanting(memory_mb=500), [holder("a", 20, memory=600, job_id="big")], []),
        (wanting(memory_mb=400), [holder("a", 20, memory=600)], []),
        (wanting(memory_mb=1001), [holder("a", 20, memory=600)], []),
        # The allocations with the lowest priority, even if more of them must be preempted.
        (
            wanting(memory_mb=500),
            [holder("a", 30, memory=500), holder("b", memory=250), holder("c", memory=250)],
            ["b", "c"],
        ),
        # If the lowest priority does not suffice, no more of its allocations than necessary.
        (
            wanting(memory_mb=600),
            [holder("a", 30, memory=600), holder("b", memory=200), holder("c", memory=200)],
            ["a"],
        ),
        # Among equal priorities, the smallest allocation that suffices alone.
        (
            wanting(memory_mb=300),
            [holder("a", memory=100), holder("b", memory=500), holder("c", memory=400)],
            ["c"],
        ),
        (
            wanting(memory_mb=500),
            [holder("a", memory=400), holder("b", memory=100), holder("c", memory=500)],
            ["c"],
        ),
        # Among equal allocations, the youngest.
        (
            wanting(memory_mb=500),
            [holder("a", memory=500), holder("b", memory=500)],
            ["b"],
        ),
        (wanting(cpu=900), [holder("a", cpu=500), holder("b", memory=900)], ["a"]),
        (wanting(cpu=800, memory_mb=900), [holder("a", cpu=500), holder("b", memory=900)], ["a", "b"]),
        (
            wanting(networks=WEB),
            [holder("a", ports=frozenset({80})), holder("b", 60, ports=frozenset({8080}))],
            ["b"],
        ),
        (wanting(networks=WEB), [holder("a", 75, ports=frozenset({8080}))], []),
        (
            wanting(cores=2),
            [holder("a", cpu=500, cores=frozenset({0, 1})), holder("b", cpu=250, cores=frozenset({2}))],
            ["b"],
        ),
        (wanting(cores=4), [holder("a", cores=frozenset({0})), holder("b", memory=10)], ["a"]),
        # If either of two would suffice, the less important one is preempted.
        (
            wanting(cpu=600, memory_mb=900),
            [
                holder("a", 20, cpu=400, memory=10),
                holder("b", 30, cpu=400, memory=10),
                holder("c", 40, cpu=200, memory=900),
            ],
            ["a", "c"],
        ),
    ],
)  # fmt: skip
def test_only_required_lower_priority_allocations_are_preempted(
    wanted: TaskGroup, holders: list[ResourceHolder], gone: list[str]
) -> None:
    plan = plan_of(wanted, *holders)
    assert victims(plan) == gone
    assert bool(plan.evict) == bool(gone)
    if gone:
        (placed,) = plan.place
        assert sorted(placed.desired.preempted_allocations or ()) == gone
        assert {eviction.by for eviction in plan.evict} == {placed.id}
        assert not plan.failed


def test_holder_of_the_device_is_preempted() -> None:
    gpu = DeviceKind(vendor="acme", type="gpu", name="x1", instances=[DeviceInstance(id="g0")])
    here = node(node_resources=resources(devices=[msgspec.to_builtins(gpu)]))
    needed = Resources(cpu=1, memory_mb=1, devices=[Device(name="gpu")])
    made = job("big", group("web", task(resources=needed)), priority=80)
    holders = [
        holder("a", node_id=here.id),
        holder("b", 50, node_id=here.id, device_ids=frozenset({"g0"})),
    ]
    plan = schedule(state(made, holders, nodes=[here]), evaluation(made), now=NOW, ids=ids())
    assert victims(plan) == ["b"]


def test_disabled_preemption_evicts_no_allocation() -> None:
    made = job("big", wanting(memory_mb=500), priority=80)
    crowded = state(made, [holder("a", memory=900)], allowed=False)
    plan = schedule(crowded, evaluation(made), now=NOW, ids=ids())
    assert (plan.evict, plan.place, plan.queued) == ((), (), {"web": 1})


def test_system_job_preempts_on_each_of_its_nodes() -> None:
    plan = plan_of(wanting(memory_mb=500), holder("a", memory=900), kind="system")
    assert victims(plan) == ["a"]
    assert plan.annotations.desired_tg_updates["web"].preemptions == 1


def test_node_with_the_least_important_allocations_is_chosen() -> None:
    there = node("node-2", node_resources=HERE.node_resources)
    made = job("big", wanting(memory_mb=500), priority=80)
    holders = [holder("a", 40, memory=900), holder("b", 30, memory=900, node_id=there.id)]
    plan = schedule(state(made, holders, nodes=[HERE, there]), evaluation(made), now=NOW, ids=ids())
    assert victims(plan) == ["b"]
    assert [alloc.node_id for alloc in plan.place] == [there.id]


def test_no_allocation_is_preempted_on_an_infeasible_node() -> None:
    made = job("big", wanting(memory_mb=500), priority=80, datacenters=["elsewhere"])
    crowded = state(made, [holder("a", memory=900)])
    assert not schedule(crowded, evaluation(made), now=NOW, ids=ids()).evict


# ---- effects of a preemption ----------------------------------------------------------------------


def test_preempted_jobs_are_evaluated_once() -> None:
    plan = plan_of(
        wanting(memory_mb=1000),
        holder("a", 20, memory=300, job_id="low"),
        holder("b", 20, memory=300, job_id="low"),
        holder("c", 30, memory=400, job_id="mid", job_type="batch"),
    )
    found = [(alloc.job_id, alloc.priority, alloc.type) for alloc in plan.displaced]
    assert sorted(found) == [("low", 20, "service"), ("mid", 30, "batch")]
    assert {alloc.triggered_by for alloc in plan.displaced} == {Trigger.PREEMPTION}
    assert {alloc.status for alloc in plan.displaced} == {EvalStatus.PENDING}


def test_preempting_allocation_waits_for_all_preempted_ones() -> None:
    going = holder("a", memory=100, ending=True)
    plan = plan_of(wanting(memory_mb=950), going, holder("b", memory=500), holder("c", memory=400))
    (placed,) = plan.place
    assert sorted(placed.desired.preempted_allocations or ()) == ["b", "c"]
    assert sorted(placed.desired.waits_for or ()) == ["a", "b", "c"]


def test_no_allocation_is_preempted_for_capacity_that_is_about_to_be_freed() -> None:
    going = holder("a", memory=600, ending=True)
    plan = plan_of(wanting(memory_mb=500), going, holder("b", memory=400))
    (placed,) = plan.place
    assert (plan.evict, placed.desired.preempted_allocations) == ((), None)
    assert placed.desired.waits_for == ["a"]


def test_remaining_capacity_goes_to_the_next_blocked_evaluation() -> None:
    plan = plan_of(wanting(memory_mb=300, count=3), holder("a", memory=900))
    assert victims(plan) == ["a"]
    assert [alloc.desired.waits_for for alloc in plan.place] == [["a"], ["a"], ["a"]]
    assert [alloc.desired.preempted_allocations for alloc in plan.place] == [["a"], None, None]


def test_port_needed_by_a_blocked_evaluation_is_assigned_once() -> None:
    going = holder("a", ports=frozenset({8080}), ending=True)
    has_it = holder("b", 80, ports=frozenset({8080}))
    plan = plan_of(wanting(networks=WEB), going, has_it)
    assert (plan.place, plan.evict) == ((), ())


def test_port_assigned_to_one_allocation_is_not_assigned_to_another() -> None:
    plan = plan_of(wanting(networks=WEB, count=2), holder("a", ports=frozenset({8080})))
    assert len(plan.place) == 1
    assert plan.queued == {"web": 1}


def test_thousands_of_equal_candidates_are_checked_together() -> None:
    many = [holder(f"a{number}", cpu=1) for number in range(1000)]
    assert len(plan_of(wanting(cpu=700), *many).evict) == 700


# ---- properties of all decisions ------------------------------------------------------------------

sizes = some.sampled_from([0, 50, 100, 250, 400])
tenants = some.lists(
    some.builds(
        holder,
        some.just("x"),
        some.sampled_from([10, 20, 30, 70, 71, 90]),
        memory=sizes,
        cpu=sizes,
        job_id=some.sampled_from(["one", "two", "three"]),
        ports=some.sampled_from([frozenset(), frozenset(), frozenset({8080}), frozenset({9090})]),
        cores=some.sampled_from([frozenset(), frozenset(), frozenset({0}), frozenset({1, 2})]),
        ending=some.sampled_from([False, False, False, True]),
    ),
    max_size=8,
)
groups = some.builds(
    wanting,
    count=some.integers(1, 3),
    memory_mb=some.sampled_from([1, 100, 300, 900]),
    cpu=some.sampled_from([1, 100, 300, 900]),
    cores=some.sampled_from([0, 0, 1, 3]),
    networks=some.sampled_from([None, WEB]),
)


def _admitted(holders: list[ResourceHolder]) -> list[ResourceHolder]:
    """Return the feasible victims: none shares a resource with an allocation that stays."""
    admitted: list[ResourceHolder] = []
    for number, one in enumerate(holders):
        present = [each for each in admitted if not each.ending]
        fits = (
            sum(each.memory for each in present) + one.memory <= 1000
            and sum(each.cpu for each in present) + one.cpu <= 1000
            and not any(one.ports & each.ports or one.cores & each.cores for each in admitted)
        )
        if fits:
            admitted.append(msgspec.structs.replace(one, id=f"t{number}"))
    return admitted


def _with_priorities(holders: Iterable[ResourceHolder], movable: set[str]) -> list[ResourceHolder]:
    """Return the same holders; all except `movable` have a priority that forbids preemption."""
    return [
        holder if holder.id in movable else msgspec.structs.replace(holder, priority=100)
        for holder in holders
    ]


def _stays(plan: Plan, holders: Iterable[ResourceHolder]) -> list[ResourceHolder]:
    gone = {eviction.holder.id for eviction in plan.evict}
    return [holder for holder in holders if not holder.ending and holder.id not in gone]


@settings(max_examples=300, deadline=None)
@given(groups, tenants)
def test_remaining_and_new_allocations_never_exceed_capacity(
    wanted: TaskGroup, made: list[ResourceHolder]
) -> None:
    holders = _admitted(made)
    plan = plan_of(wanted, *holders)
    stays, placed = _stays(plan, holders), [alloc.placement.resources for alloc in plan.place]
    shares = [*stays, *placed]
    if not placed:
        assert not plan.evict
        return
    assert sum(share.memory for share in shares) <= 1000
    assert sum(share.cpu for share in shares) <= 1000
    for exclusive in ("ports", "cores"):
        held = [number for share in shares for number in getattr(share, exclusive)]
        assert len(held) == len(set(held))


@settings(max_examples=300, deadline=None)
@given(groups, tenants)
def test_preempted_allocation_is_less_important_by_the_margin_and_waited_for(
    wanted: TaskGroup, made: list[ResourceHolder]
) -> None:
    plan = plan_of(wanted, *_admitted(made))
    assert all(
        eviction.holder.priority <= 70 and not eviction.holder.ending for eviction in plan.evict
    )
    by_id = {alloc.id: alloc for alloc in plan.place}
    for eviction in plan.evict:
        assert eviction.holder.id in (by_id[eviction.by].desired.preempted_allocations or ())
        assert eviction.holder.id in (by_id[eviction.by].desired.waits_for or ())
    assert len({eviction.holder.id for eviction in plan.evict}) == len(plan.evict)
    named = {
        preempted_alloc
        for placed in plan.place
        for preempted_alloc in placed.desired.preempted_allocations or ()
    }
    assert named == set(victims(plan))


@settings(max_examples=300, deadline=None)
@given(groups, tenants)
def test_no_allocation_is_preempted_without_need(
    wanted: TaskGroup, made: list[ResourceHolder]
) -> None:
    one_of_it = msgspec.structs.replace(wanted, count=1)
    holders = _admitted(made)
    gone = set(victims(plan_of(one_of_it, *holders)))
    for spared in gone:
        without = plan_of(one_of_it, *_with_priorities(holders, gone - {spared}))
        assert not without.place


@settings(max_examples=300, deadline=None)
@given(groups, tenants)
def test_allocation_is_not_preempted_if_lower_priorities_free_enough(
    wanted: TaskGroup, made: list[ResourceHolder]
) -> None:
    one_of_it = msgspec.structs.replace(wanted, count=1)
    holders = _admitted(made)
    gone = [eviction.holder for eviction in plan_of(one_of_it, *holders).evict]
    highest = max((holder.priority for holder in gone), default=0)
    less = {holder.id for holder in holders if holder.priority < highest}
    if gone:
        assert not plan_of(one_of_it, *_with_priorities(holders, less)).place


@settings(max_examples=300, deadline=None)
@given(groups, tenants)
def test_sufficient_preemptible_capacity_leads_to_a_placement(
    wanted: TaskGroup, made: list[ResourceHolder]
) -> None:
    holders = _admitted(made)
    if plan_of(wanted, *holders).place:
        return
    firm = [holder for holder in holders if holder.priority > 70 and not holder.ending]
    assert not plan_of(wanted, *firm).place
