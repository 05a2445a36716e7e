"""Attacks on the network bridge.

Forged messages to the launcher, and packets that no task could send itself.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.config.settings import Settings
from daemon.launcher.channel import sealed
from daemon.launcher.messages import (
    VERSION,
    BridgeSupport,
    ConnectNetwork,
    Done,
    ForwardedPort,
    Hello,
    NetworkConnected,
    OperationFailed,
    ProbeBridge,
    ProbeSandbox,
    ProcessStarted,
    RefusedReply,
    ReleaseNetwork,
    RemoveDirectory,
    StartTask,
)
from daemon.launcher.shims import children
from daemon.runner.core.bridge_rules import bridge_of
from storage.records.node import HostNetwork
from tests.launchers import EVERYTHING, start_server
from tests.netns import (
    HOST,
    OUTSIDE,
    World,
    elements,
    inside,
    interfaces,
    namespace,
    own_host,
    why_no_namespace,
)
from tests.parts.launcher.conftest import ALLOCATION, Place, Talk, ordered, passed

_WHY = why_no_namespace()
pytestmark = pytest.mark.skipif(bool(_WHY), reason=_WHY)

OTHER = "1b8a1c52-1c7e-4b6e-8f43-0123456789ab"
NETWORK = HostNetwork(name="public", cidr="198.51.100.0/24", reserved_ports="22,9000-9100")
POLICY = msgspec.structs.replace(
    EVERYTHING, bridge=bridge_of(Settings(port=4646, host_networks=[NETWORK]))
)
LISTEN = """
use IO::Socket::INET;
my $s = IO::Socket::INET->new(LocalAddr => $ARGV[0], LocalPort => $ARGV[1], Listen => 9, ReuseAddr => 1) or die;
$| = 1; print "ready\\n";
while (my $c = $s->accept) { print $c "here"; close $c }
"""
SEND = """
IO::Socket::INET->new(Proto => "udp", LocalAddr => "172.26.64.2", PeerAddr => "127.0.0.1:7777")->send("x");
"""


@pytest.fixture
def outside() -> Iterator[World]:
    with own_host() as found:
        yield found


@pytest.fixture
def launcher(outside: World, tmp_path: Path) -> Iterator[Talk]:
    """A launcher in the network of this test, whose policy permits the bridge."""
    server, process = start_server()
    with server:
        talk = Talk(server)
        with talk.channel:
            talk.greet(tmp_path, POLICY)
            yield talk
    process.wait()


def port(value: int, to: int = 80, address: str = HOST) -> ForwardedPort:
    return ForwardedPort(address=address, value=value, to=to)


def connected(launcher: Talk, *ports: ForwardedPort, allocation: str = ALLOCATION) -> Any:
    return launcher.ask(ConnectNetwork(allocation=allocation, ports=[*ports])).body


@contextmanager
def listening(address: str, number: int, *before: str) -> Iterator[None]:
    words = [*before, "perl", "-e", LISTEN, address, str(number)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


def connects(address: str, number: int, *before: str) -> bool:
    code = f"exit !IO::Socket::INET->new(PeerAddr => '{address}:{number}', Timeout => 2)"
    words = [*before, "perl", "-MIO::Socket::INET", "-e", code]
    return subprocess.run(words, check=False, timeout=20).returncode == 0


@contextmanager
def running(launcher: Talk) -> Iterator[int]:
    """Run a task of the allocation; yield the ID of a process in the network of the task."""
    request = StartTask(allocation=ALLOCATION, task="main", attempt=0, group="-", is_logged=False)
    order = ordered("/bin/sleep", "1000", network="bridge")
    answer = launcher.ask(request, passed(order)).body
    assert isinstance(answer, ProcessStarted), answer
    try:
        yield answer.pid
    finally:
        for one in [*children(answer.pid), answer.pid]:
            with suppress(ProcessLookupError):  # the shim ends after its task
                os.kill(one, signal.SIGKILL)


@pytest.mark.parametrize(
    "forged",
    [
        {"value": 0},
        {"value": 65536},
        {"value": -1},
        {"value": "80"},
        {"to": 0},
        {"to": 1.5},
        {"address": ""},
        {"address": "198.51.100.1; flush ruleset"},
        {"address": "198.51.100.1\n"},
        {"address": "198.51.100.256"},
        {"address": "::1"},
        {"address": "localhost"},
    ],
    ids=str,
)
def test_malformed_port_stops_the_launcher(
    launcher: Talk, tmp_path: Path, forged: dict[str, Any]
) -> None:
    Place(tmp_path)
    given = {"address": HOST, "value": 8080, "to": 80, **forged}
    launcher.send(2, 0, [12, ALLOCATION, [[*given.values()]]])
    assert launcher.has_ended()
    assert interfaces("sw") == []


def test_network_of_an_unknown_allocation_is_not_created(launcher: Talk) -> None:
    assert isinstance(connected(launcher), OperationFailed)
    assert interfaces("sw") == []


@pytest.mark.parametrize("number", [22, 4646, 4690, 9050])
def test_reserved_port_is_refused(launcher: Talk, tmp_path: Path, number: int) -> None:
    Place(tmp_path)
    answer = connected(launcher, port(number))
    assert isinstance(answer, RefusedReply)
    assert f"port {number} is reserved" in answer.text
    assert interfaces("sw") == []
    assert elements() == ""


@pytest.mark.parametrize("address", ["127.0.0.1", HOST])
def test_port_of_a_process_of_the_host_is_refused(
    launcher: Talk, tmp_path: Path, address: str
) -> None:
    Place(tmp_path)
    with listening(address, 8080):
        answer = connected(launcher, port(8080))
    assert isinstance(answer, OperationFailed)
    assert answer.text == "port 8080 of the host: Address already in use"
    assert interfaces("sw") == []


def test_port_of_another_allocation_is_not_taken_over(launcher: Talk, tmp_path: Path) -> None:
    Place(tmp_path)
    assert isinstance(connected(launcher, port(8080)), NetworkConnected)
    before = elements()
    (tmp_path / OTHER / "main").mkdir(parents=True)
    for number in (8080, 8080):
        answer = connected(launcher, port(number, to=81), allocation=OTHER)
        assert isinstance(answer, OperationFailed)
        assert answer.text == f"port 8080 of {HOST} is already forwarded to another allocation"
    assert elements() == before
    assert len(interfaces("sw")) == 1


def test_task_starts_on_the_bridge_only_in_an_existing_network(
    launcher: Talk, tmp_path: Path
) -> None:
    Place(tmp_path)
    request = StartTask(allocation=ALLOCATION, task="main", attempt=0, group="-", is_logged=False)
    answer = launcher.ask(request, passed(ordered("/bin/true", network="bridge"))).body
    assert isinstance(answer, OperationFailed)
    assert "not connected to the bridge" in answer.text


def test_network_of_a_running_task_is_not_released(launcher: Talk, tmp_path: Path) -> None:
    Place(tmp_path)
    connected(launcher, port(8080))
    with running(launcher):
        answer = launcher.ask(ReleaseNetwork(allocation=ALLOCATION)).body
        assert isinstance(answer, OperationFailed)
        assert len(interfaces("sw")) == 1


def test_network_release_removes_every_object(launcher: Talk, tmp_path: Path) -> None:
    Place(tmp_path)
    connected(launcher, port(8080))
    for _ in range(2):
        assert launcher.ask(ReleaseNetwork(allocation=ALLOCATION)).body == Done()
        assert interfaces("sw") == []
        assert elements() == ""


def test_packets_to_other_hosts_are_not_redirected(
    launcher: Talk, tmp_path: Path, outside: World
) -> None:
    Place(tmp_path)
    answer = connected(launcher, port(8080, address=OUTSIDE))
    assert isinstance(answer, NetworkConnected)
    with listening(OUTSIDE, 8080, *outside.words()):
        assert connects(OUTSIDE, 8080)


def test_loopback_of_the_host_is_unreachable(launcher: Talk, tmp_path: Path) -> None:
    Place(tmp_path)
    connected(launcher)
    with (
        running(launcher) as pid,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as service,
    ):
        service.bind(("127.0.0.1", 7777))
        service.settimeout(0.5)
        # Send packets to 127.0.0.1 out of the task's network to the host. A task may not change
        # these settings itself.
        for line in (
            "sysctl -qw net.ipv4.conf.eth0.route_localnet=1",
            "ip route del local 127.0.0.0/8 dev lo table local",
            "ip route del local 127.0.0.1 dev lo table local",
            "ip route add 127.0.0.1 via 172.26.64.1 dev eth0 src 172.26.64.2",
        ):
            subprocess.run(inside(pid, *line.split()), check=True)
        words = inside(pid, "perl", "-MIO::Socket::INET", "-e", SEND)
        subprocess.run(words, check=True)
        with pytest.raises(TimeoutError):
            service.recv(9)
        # Without the rule the packets arrive, so only the rule keeps them out.
        subprocess.run(["nft", "flush", "chain", "ip", "steward-steward", "arriving"], check=True)
        subprocess.run(words, check=True)
        assert service.recv(9) == b"x"


def test_interface_other_than_a_bridge_is_not_changed(outside: World, tmp_path: Path) -> None:
    Place(tmp_path)
    policy = msgspec.structs.replace(POLICY, bridge=bridge_of(Settings(bridge_network_name="up0")))
    server, process = start_server()
    with server:
        talk = Talk(server)
        with talk.channel:
            talk.greet(tmp_path, policy)
            answer = connected(talk)
    process.wait()
    assert isinstance(answer, OperationFailed)
    done = subprocess.run(["ip", "addr", "show", "up0"], capture_output=True, text=True, check=True)
    assert "172.26.64.1" not in done.stdout
    assert HOST in done.stdout


def test_other_interfaces_are_not_connected_by_forwarding(
    launcher: Talk, tmp_path: Path, outside: World
) -> None:
    # The host forwards packets only from and to the bridge.
    Place(tmp_path)
    connected(launcher)
    with namespace() as third:
        for words in (
            f"ip link add up2 type veth peer name up3 netns {third}",
            "ip addr add 203.0.113.1/24 dev up2",
            "ip link set up2 up",
            " ".join(inside(third, "ip", "addr", "add", "203.0.113.2/24", "dev", "up3")),
            " ".join(inside(third, "ip", "link", "set", "up3", "up")),
            " ".join(inside(third, "ip", "route", "add", "default", "via", "203.0.113.1")),
            " ".join(outside.words("ip", "route", "add", "default", "via", HOST)),
        ):
            subprocess.run(words.split(), check=True)
        with listening("203.0.113.2", 7000, *inside(third)):
            assert connects("203.0.113.2", 7000)
            assert not connects("203.0.113.2", 7000, *outside.words())
            subprocess.run(["nft", "flush", "chain", "ip", "steward-steward", "closed"], check=True)
            assert connects("203.0.113.2", 7000, *outside.words())


def test_address_is_not_assigned_twice_after_a_kill_of_the_launcher(
    outside: World, tmp_path: Path
) -> None:
    Place(tmp_path)
    (tmp_path / OTHER / "main").mkdir(parents=True)
    server, process = start_server()
    with server:
        first = Talk(server)
        first.greet(tmp_path, POLICY)
        assert connected(first, port(8080)) == NetworkConnected(address="172.26.64.2")
        with running(first) as pid:
            launcher_pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(launcher_pid, signal.SIGKILL)
            assert first.has_ended()
            first.channel.close()
            # In the meantime, an administrator reloads the rules of the host.
            subprocess.run(["nft", "flush", "ruleset"], check=True)
            second = Talk(server)
            with second.channel:
                second.greet(tmp_path, POLICY)
                other = connected(second, port(8081), allocation=OTHER)
                assert other == NetworkConnected(address="172.26.64.3")
                again = connected(second, port(8080))
                assert again == NetworkConnected(address="172.26.64.2")
                assert "8080 : 172.26.64.2" in elements()
    process.wait()


def test_policy_with_another_bridge_name_stops_the_launcher(outside: World, tmp_path: Path) -> None:
    assert POLICY.bridge is not None
    bridge = msgspec.structs.asdict(POLICY.bridge)
    given = {**msgspec.structs.asdict(POLICY), "bridge": [*(bridge | {"name": "a;b"}).values()]}
    server, process = start_server()
    with server:
        talk = Talk(server)
        with talk.channel:
            hello = Hello(version=VERSION, directory=str(tmp_path))
            talk.send(1, 1, hello, descriptors=(sealed(msgspec.msgpack.encode([*given.values()])),))
            assert talk.has_ended()
    process.wait()


def test_removal_of_a_directory_releases_its_network(launcher: Talk, tmp_path: Path) -> None:
    Place(tmp_path)
    connected(launcher, port(8080))
    answer = launcher.ask(RemoveDirectory(allocation=ALLOCATION, is_kept=False)).body
    assert answer == Done()
    # The launcher answers before it releases the network. The next answer shows that this is done.
    launcher.ask(ProbeSandbox())
    assert interfaces("sw") == []
    assert elements() == ""


def test_port_forwards_without_a_network_are_deleted_at_the_next_change(
    launcher: Talk, outside: World, tmp_path: Path
) -> None:
    Place(tmp_path)
    connected(launcher, port(8080))
    table = "ip steward-steward ports"
    stale = f"{HOST} . 6 . 8081 : 172.26.64.9 . 80"
    subprocess.run(["nft", f"add element {table} {{ {stale} }}"], check=True)
    assert "8081" in elements()
    before = elements()
    assert connected(launcher, port(8080)) == NetworkConnected(address="172.26.64.2")
    assert "8081" not in elements()
    assert "8080" in elements()
    assert before != elements()


def test_host_stays_closed_to_tasks_after_a_reload_of_its_rules(
    launcher: Talk, tmp_path: Path
) -> None:
    Place(tmp_path)
    connected(launcher, port(8080))
    subprocess.run(["nft", "flush", "ruleset"], check=True)
    # Without the chain, a host that forwarded nothing before would forward between all interfaces.
    assert connected(launcher, port(8080)) == NetworkConnected(address="172.26.64.2")
    chain = ["nft", "list", "chain", "ip", "steward-steward", "closed"]
    subprocess.run(chain, check=True, capture_output=True)
    assert "8080" in elements()


def test_deleted_bridge_is_recreated_with_its_interfaces(launcher: Talk, tmp_path: Path) -> None:
    Place(tmp_path)
    connected(launcher)
    subprocess.run(["ip", "link", "delete", "steward"], check=True)
    assert connected(launcher) == NetworkConnected(address="172.26.64.2")
    words = ["ip", "-o", "link", "show", "master", "steward"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert interfaces("sw")[0] in done.stdout


def test_subnet_of_a_host_network_is_not_used(launcher: Talk, tmp_path: Path) -> None:
    Place(tmp_path)
    subprocess.run(["ip", "addr", "add", "172.26.70.5/16", "dev", "up0"], check=True)
    text = "overlaps the network 172.26.0.0/16 of up0"
    support = launcher.ask(ProbeBridge()).body
    assert isinstance(support, BridgeSupport)
    assert text in support.trouble
    answer = connected(launcher)
    assert isinstance(answer, OperationFailed)
    assert text in answer.text
    assert interfaces("steward") == []


def test_trial_succeeds_where_low_ports_are_reserved(outside: World, tmp_path: Path) -> None:
    network = msgspec.structs.replace(NETWORK, reserved_ports="1-1023")
    bridge = bridge_of(Settings(port=4646, host_networks=[network]))
    server, process = start_server()
    with server:
        talk = Talk(server)
        with talk.channel:
            talk.greet(tmp_path, msgspec.structs.replace(POLICY, bridge=bridge))
            assert talk.ask(ProbeBridge()).body == BridgeSupport(trouble="")
    process.wait()


def test_failed_connection_leaves_no_interface_without_an_address(
    launcher: Talk, tmp_path: Path
) -> None:
    Place(tmp_path)
    # The network exists, but it is not connected.
    order = ordered("/bin/sleep", "1000", network="none")
    request = StartTask(allocation=ALLOCATION, task="main", attempt=0, group="-", is_logged=False)
    answer = launcher.ask(request, passed(order)).body
    assert isinstance(answer, ProcessStarted)
    add = "ip addr add 172.26.64.2/20 dev lo"  # ip then fails after creating the interface
    subprocess.run(inside(answer.pid, *add.split()), check=True)
    route = "ip route add default dev lo"
    subprocess.run(inside(answer.pid, *route.split()), check=True)
    try:
        assert isinstance(connected(launcher), OperationFailed)
        assert interfaces("sw") == []
    finally:
        for one in [*children(answer.pid), answer.pid]:
            with suppress(ProcessLookupError):  # the process has ended
                os.kill(one, signal.SIGKILL)


def test_firewall_that_drops_forwarded_packets_is_not_changed(
    launcher: Talk, tmp_path: Path, outside: World
) -> None:
    # The rules are those of Docker. The documentation has the two rules that permit packets of the
    # bridge.
    Place(tmp_path)
    for rule in (
        "add table ip filter",
        "add chain ip filter FORWARD { type filter hook forward priority filter; policy drop; }",
        "add chain ip filter DOCKER-USER",
        "add rule ip filter FORWARD jump DOCKER-USER",
    ):
        subprocess.run(["nft", rule], check=True)
    connected(launcher, port(8080))
    words = ["nft", "list", "table", "ip", "filter"]
    before = subprocess.run(words, capture_output=True, check=True).stdout
    assert b"steward" not in before
    with (
        running(launcher) as pid,
        listening("172.26.64.2", 80, *inside(pid)),
        listening(OUTSIDE, 7000, *outside.words()),
    ):
        assert not connects(OUTSIDE, 7000, *inside(pid))
        assert not connects(HOST, 8080, *outside.words())
        assert connects(HOST, 8080)  # a connection from the host needs no forwarding
        for side in ("iifname", "oifname"):
            rule = f"insert rule ip filter DOCKER-USER {side} steward accept"
            subprocess.run(["nft", rule], check=True)
        assert connects(OUTSIDE, 7000, *inside(pid))
        assert connects(HOST, 8080, *outside.words())
