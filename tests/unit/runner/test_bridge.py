"""The texts of the bridge: rules, ports, variables, name servers and reasons."""

import msgspec
import pytest

from daemon.config.settings import Settings
from daemon.launcher.messages import ForwardedPort
from daemon.runner.core.bridge_rules import bridge_of
from daemon.runner.core.driver import Attempt, InvalidConfig
from daemon.runner.core.task_env import network_variables
from daemon.runner.core.task_instance import TaskInstance
from daemon.runner.drivers.bridged_names import reachable_servers
from daemon.runner.drivers.limits import ResourceLimits
from daemon.runner.drivers.podman.container_spec import PodmanConfig, container
from daemon.runner.setup.group_network import bridge_attributes, forwarded_ports
from daemon.text.placement_message import describe_metric
from storage.errors import Refused
from storage.records.allocation import AllocatedPort, Allocation, NetworkStatus
from storage.records.evaluation import PlacementMetric
from storage.records.node import HostNetwork
from storage.records.task import NetworkDNS
from tests import samples
from tests.unit.runner.placements import placed

STUB = "# made by systemd\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch lan\n"
REAL = "nameserver 192.0.2.53\nnameserver 2001:db8::53\nsearch lan example.org\noptions ndots:2\n"


def allocation(*ports: AllocatedPort) -> Allocation:
    made = placed(samples.job("web", samples.group("web", samples.task())), "n", "a")
    resources = made.placement.resources
    shared = msgspec.structs.replace(resources.shared, ports=[*ports])
    resources = msgspec.structs.replace(resources, shared=shared)
    return msgspec.structs.replace(
        made, placement=msgspec.structs.replace(made.placement, resources=resources)
    )


def instance(*ports: AllocatedPort) -> TaskInstance:
    group = samples.group("web", samples.task())
    return TaskInstance(allocation=allocation(*ports), job=samples.job("web", group), group=group)


def test_rules_name_the_bridge_and_its_subnet() -> None:
    config = Settings(bridge_network_name="br-x", bridge_network_subnet="10.9.0.0/24")
    found = bridge_of(config)
    assert (found.name, found.table, found.subnet, found.bits) == (
        "br-x",
        "steward-br-x",
        "10.9.0.0",
        24,
    )
    rules = [line for line in found.rules.splitlines() if line.startswith("add rule")]
    assert rules[:2] == [
        'add rule ip steward-br-x arriving iifname "br-x" ip saddr != 10.9.0.0/24 drop',
        'add rule ip steward-br-x arriving iifname "br-x" ip daddr 127.0.0.0/8 drop',
    ]
    assert "172.26" not in found.rules
    assert "{" not in found.closing.replace("{ type filter", "")
    # The decoder of the launcher accepts the policy.
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=type(found)) == found


@pytest.mark.parametrize(("policy", "is_guarded"), [("open", False), ("guarded", True)])
def test_rules_block_the_daemon_for_guarded_tasks(policy: str, is_guarded: bool) -> None:
    rules = bridge_of(Settings(task_egress=policy, port=4711)).rules
    assert ("fib daddr type local tcp dport { 4711 } drop" in rules) is is_guarded
    assert ("169.254.0.0/16" in rules) is is_guarded


def test_ports_of_the_daemon_and_reserved_ports_are_refused() -> None:
    network = HostNetwork(name="lan", interface="eth0", reserved_ports="22,8000-8010")
    config = Settings(port=4646, wrapper_port=4690, host_networks=[network])
    assert bridge_of(config).kept_ports == [(4646, 4646), (4690, 4690), (22, 22), (8000, 8010)]


def test_port_without_a_target_maps_to_the_same_number() -> None:
    ports = (
        AllocatedPort(label="http", value=80, to=8080, host_ip="192.0.2.1"),
        AllocatedPort(label="same", value=20001, to=0, host_ip="127.0.0.1"),
    )
    assert forwarded_ports(instance(*ports)) == [
        ForwardedPort(address="192.0.2.1", value=80, to=8080),
        ForwardedPort(address="127.0.0.1", value=20001, to=20001),
    ]


def test_port_with_an_ipv6_address_is_refused_with_its_name() -> None:
    port = AllocatedPort(label="http", value=80, to=0, host_ip="2001:db8::1")
    with pytest.raises(Refused, match='port "http" has the address 2001:db8::1'):
        forwarded_ports(instance(port))


def test_variables_have_the_address_on_the_bridge() -> None:
    status = NetworkStatus(interface_name="eth0", address="172.26.64.9")
    port = AllocatedPort(label="my-http", value=20001, to=80, host_ip="192.0.2.1")
    assert network_variables(allocation(port), samples.task(), status) == {
        "NOMAD_ALLOC_INTERFACE_my_http": "eth0",
        "NOMAD_ALLOC_IP_my_http": "172.26.64.9",
        "NOMAD_ALLOC_ADDR_my_http": "172.26.64.9:80",
    }
    assert network_variables(allocation(port), samples.task(), None) == {}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (
            [STUB, REAL],
            NetworkDNS(
                servers=["192.0.2.53"], searches=["lan", "example.org"], options=["ndots:2"]
            ),
        ),
        (
            ["nameserver 192.0.2.1\n", REAL],
            NetworkDNS(servers=["192.0.2.1"], searches=[], options=[]),
        ),
        ([STUB, ""], None),
        (["nameserver\nnameserver 2001:db8::1\n"], None),
        (["nameserver not-an-address\n"], None),
    ],
    ids=["stub", "plain", "stub alone", "ipv6 alone", "no address"],
)
def test_loopback_name_servers_are_replaced_by_their_upstreams(
    files: list[str], found: NetworkDNS | None
) -> None:
    assert reachable_servers(files) == found


def test_container_outside_of_its_group_network_is_refused() -> None:
    attempt = Attempt(
        alloc_id="a", task="t", number=0, directory="/d", config={}, env={}, network_mode="bridge"
    )
    with pytest.raises(InvalidConfig, match="a container cannot join the network"):
        container(attempt, PodmanConfig(image="x"), ResourceLimits(), "/log")


def test_node_reports_bridge_plugins_or_a_reason() -> None:
    assert bridge_attributes("no nft") == {"bridge.unavailable": "no nft"}
    assert sorted(bridge_attributes("")) == [
        f"plugins.cni.version.{one}"
        for one in ("bridge", "firewall", "host-local", "loopback", "portmap")
    ]


def test_placement_failure_names_the_bridge() -> None:
    rule = "${attr.plugins.cni.version.bridge} semver >= 0.4.0"
    metric = PlacementMetric(
        nodes_in_pool=1, nodes_evaluated=1, constraint_filtered={rule: 1}, nodes_filtered=1
    )
    assert describe_metric(metric) == 'the only node has no bridge for the network mode "bridge"'
