"""Ports: static and dynamic ones, and their form in an allocation."""

from typing import Any

import msgspec
import pytest

from daemon.scheduler.nodes.ports import reserved
from daemon.scheduler.state import Plan
from storage.records.allocation import AllocatedNetwork, AllocatedPort, OfferedPort
from storage.records.node import Node, ReservedNetworks, ReservedResources
from storage.records.task import Network, Port, Resources
from tests.samples import group, job, task
from tests.unit.scheduler.world import World, node, resources

ADMIN = Port(label="adm", value=18099, host_network="default")
HTTP = Port(label="http", host_network="default")
BOTH = Network(mode="host", dynamic_ports=[HTTP], reserved_ports=[ADMIN])


def plan_of(*networks: Network, count: int = 1, here: Node | None = None, **fields: Any) -> Plan:
    wanted = job("web", group("web", count=count, networks=list(networks)))
    return World(here or node(), **fields).run(wanted)


def static(value: int, **fields: Any) -> Network:
    return Network(mode="host", reserved_ports=[Port(label="web", value=value, **fields)])


def dynamic(number: int) -> Network:
    ports = [Port(label=f"p{number}") for number in range(number)]
    return Network(mode="host", dynamic_ports=ports)


def keeping(ports: str) -> Node:
    kept = ReservedResources(networks=ReservedNetworks(reserved_host_ports=ports))
    return node(reserved_resources=kept)


def with_range(first: int, last: int) -> Node:
    return node(node_resources=resources(min_dynamic_port=first, max_dynamic_port=last))


def test_allocation_shows_its_ports_twice_like_golden_services() -> None:
    shared = plan_of(BOTH).place[0].placement.resources.shared
    assert shared.ports is not None
    http = shared.ports[1].value
    assert 20000 <= http <= 32000
    assert shared.ports == [
        AllocatedPort(label="adm", value=18099, host_ip="127.0.0.1"),
        AllocatedPort(label="http", value=http, host_ip="127.0.0.1"),
    ]
    assert shared.networks == [
        AllocatedNetwork(
            mode="host",
            ip="127.0.0.1",
            reserved_ports=[OfferedPort(label="adm", value=18099, host_network="default")],
            dynamic_ports=[OfferedPort(label="http", value=http, host_network="default")],
        )
    ]


def test_a_static_port_0_of_a_client_holds_no_port() -> None:
    resources = plan_of(static(0)).place[0].placement.resources
    assert resources.shared.ports == [AllocatedPort(label="web", value=0, host_ip="127.0.0.1")]
    assert resources.ports == set()


@pytest.mark.parametrize(("to", "inside"), [(0, 0), (8080, 8080), (-1, "the same")])
def test_port_can_map_to_another_number(to: int, inside: object) -> None:
    network = Network(mode="host", dynamic_ports=[Port(label="http", to=to)])
    ports = plan_of(network).place[0].placement.resources.shared.ports
    assert ports is not None
    assert ports[0].to == (ports[0].value if inside == "the same" else inside)


def test_a_host_network_has_its_own_address() -> None:
    network = Network(mode="host", dynamic_ports=[Port(label="http", host_network="lan")])
    here = node(host_networks={"lan": {"Interface": "eth1", "CIDR": "10.1.2.3/24"}})
    shared = plan_of(network, here=here).place[0].placement.resources.shared
    assert shared.ports is not None
    assert shared.ports[0].host_ip == "10.1.2.3"


def test_reserved_port_of_a_host_network_is_not_assigned() -> None:
    here = node(host_networks={"lan": {"CIDR": "10.1.2.3/24", "ReservedPorts": "22,8000-8001"}})
    assert reserved(here) == {22, 8000, 8001}
    failed = plan_of(static(8001, host_network="lan"), here=here).failed["web"]
    assert failed.dimension_exhausted == {"network: reserved port collision web=8001": 1}


@pytest.mark.parametrize(
    ("network", "here", "dimension"),
    [
        (static(22), keeping("22,8000-8010"), "network: reserved port collision web=22"),
        (static(8005), keeping("22, 8000-8010"), "network: reserved port collision web=8005"),
        (static(70000), node(), "network: invalid port 70000 (out of range)"),
        (dynamic(3), with_range(20000, 20001), "network: dynamic port selection failed"),
        (
            Network(mode="host", reserved_ports=[ADMIN, Port(label="b", value=18099)]),
            node(),
            "network: reserved port collision b=18099",
        ),
        (
            Network(
                mode="host",
                reserved_ports=[Port(label="a", value=20000)],
                dynamic_ports=[Port(label="b")],
            ),
            with_range(20000, 20000),
            "network: dynamic port selection failed",
        ),
    ],
)
def test_unavailable_ports_are_named(network: Network, here: Node, dimension: str) -> None:
    assert plan_of(network, here=here).failed["web"].dimension_exhausted == {dimension: 1}


@pytest.mark.parametrize(
    ("listening", "taken"),
    [
        ({20000}, [20001]),
        ({20001}, [20000]),
        ({20000, 20001}, [20000, 20001]),  # no other port is free, so they are used
    ],
)
def test_dynamic_port_has_no_listener(listening: set[int], taken: list[int]) -> None:
    world = World(with_range(20000, 20001), listening=frozenset(listening))
    (placed,) = world.run(job("web", group("web", networks=[dynamic(1)]))).place
    assert placed.placement.resources.ports <= set(taken)


def test_static_port_is_assigned_despite_a_listener() -> None:
    world = World(node(), listening=frozenset({8080}))
    assert len(world.run(job("web", group("web", networks=[static(8080)]))).place) == 1


def test_static_port_is_assigned_once_per_node() -> None:
    plan = plan_of(static(8080), count=2)
    assert len(plan.place) == 1
    reason = "network: reserved port collision web=8080"
    assert plan.failed["web"].dimension_exhausted == {reason: 1}


def test_port_with_ignore_collision_is_shared() -> None:
    assert len(plan_of(static(8080, ignore_collision=True), count=2).place) == 2


def test_static_port_is_free_for_the_replacement_of_its_holder() -> None:
    world = World()
    world.run(job("web", group("web", networks=[static(8080)])))
    again = group("web", task(config={"command": "other"}), networks=[static(8080)])
    assert len(world.run(job("web", again)).place) == 1


def test_dynamic_ports_are_distinct_until_exhaustion() -> None:
    plan = plan_of(dynamic(3), count=4, here=with_range(20000, 20011))
    used = [port for alloc in plan.place for port in alloc.placement.resources.ports]
    assert sorted(used) == list(range(20000, 20012))
    assert not plan.failed


def test_dynamic_port_is_not_reserved_on_the_node() -> None:
    kept = ReservedResources(networks=ReservedNetworks(reserved_host_ports="20001-20009"))
    here = msgspec.structs.replace(with_range(20000, 20010), reserved_resources=kept)
    plan = plan_of(dynamic(1), count=3, here=here)
    used = [port for alloc in plan.place for port in alloc.placement.resources.ports]
    assert sorted(used) == [20000, 20010]


def test_recently_freed_port_is_not_reused_immediately() -> None:
    world = World()
    wanted = job("web", group("web", networks=[dynamic(1)]))
    first = world.run(wanted).place[0]
    world.complete(first)
    second = world.evaluate().place[0]
    assert first.placement.resources.ports != second.placement.resources.ports


def test_ports_of_a_task_are_held_by_the_allocation() -> None:
    wanted = Resources(cpu=1, memory_mb=1, networks=[BOTH])
    placed = World().run(job("web", group("web", task(resources=wanted)))).place[0]
    networks = placed.placement.resources.tasks["main"].networks
    assert networks is not None
    assert networks[0].ip == "127.0.0.1"
    assert 18099 in placed.placement.resources.ports
    assert len(placed.placement.resources.ports) == 2


@pytest.mark.parametrize(
    ("text", "ports"),
    [("", set()), ("22", {22}), ("22, 80-82", {22, 80, 81, 82}), ("x,5", {5}), ("9-", set())],
)
def test_reserved_ports_are_read_from_a_list_of_ranges(text: str, ports: set[int]) -> None:
    assert reserved(keeping(text)) == ports
