"""Groups with network mode `bridge`, on a separate host with an external network behind it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import trio

from tests.netns import (
    HOST,
    OUTSIDE,
    World,
    elements,
    inside,
    interfaces,
    own_host,
    why_no_namespace,
)
from tests.readable_home import UID, can_enter, entering
from tests.service.daemon import Steward, as_development, environment
from tests.time_limits import HAPPENS_WITHIN

EVERYWHERE = "0.0.0.0"  # noqa: S104  # of a separate host
_WHY = why_no_namespace()
pytestmark = pytest.mark.skipif(bool(_WHY), reason=_WHY)

# Answers each connection with the address of its client, and its own variables.
SERVER = """
use IO::Socket::INET;
my $s = IO::Socket::INET->new(LocalPort => $ENV{NOMAD_PORT_http}, Listen => 9, ReuseAddr => 1) or die;
while (my $c = $s->accept) {
  print $c join(" ", $c->peerhost, map { $ENV{"NOMAD_${_}_http"} } qw(PORT HOST_PORT ADDR ALLOC_ADDR)), "\\n";
  close $c;
}
"""
# Prints the data received from the address and port in its arguments.
READ = """
use IO::Socket::INET;
my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1], Timeout => 3) or exit 7;
print <$s>;
"""
LISTEN = """
use IO::Socket::INET;
my $s = IO::Socket::INET->new(LocalAddr => $ARGV[0], LocalPort => $ARGV[1], Listen => 9, ReuseAddr => 1) or die;
while (my $c = $s->accept) { print $c $c->peerhost; close $c }
"""


@pytest.fixture
def outside() -> Iterator[World]:
    with own_host() as found:
        yield found


@pytest.fixture
async def steward(tmp_path: Path, outside: World) -> AsyncIterator[Steward]:
    made = Hosted(outside, tmp_path, as_development(tmp_path))
    try:
        await made.start()
        (node,) = await made.get("/v1/nodes")
        if not node["Drivers"]["exec"]["Healthy"]:
            pytest.skip(node["Drivers"]["exec"]["HealthDescription"])
        yield made
    finally:
        with trio.CancelScope(shield=True):
            await made.close()


class Hosted(Steward):
    """A daemon in the network of a test.

    Trio starts processes in threads, which outlive the test. So they are started from outside of
    the network, and enter it later.
    """

    def __init__(self, world: World, directory: Path, flags: tuple[str, ...] = ("--dev",)) -> None:
        directory.chmod(0o711)
        super().__init__(directory, flags)
        self._world = world
        self.before = (*inside(world.host),)

    async def _run(
        self, words: list[str], log: BinaryIO, before: tuple[str, ...] = ()
    ) -> trio.Process:
        with self._world.left():
            return await super()._run(words, log, before)

    async def close(self) -> None:
        with self._world.left():
            await super().close()


@contextmanager
def listening(*before_and_address: str) -> Iterator[None]:
    """Run a program that sends each client the address of that client."""
    *before, address, port = before_and_address
    with subprocess.Popen([*before, "perl", "-e", LISTEN, address, port]) as process:
        try:
            while not read(address, int(port), *before):
                os.sched_yield()
            yield
        finally:
            process.kill()


def job(**port: object) -> dict[str, Any]:
    def task(name: str, *args: str) -> dict[str, Any]:
        return {
            "Name": name,
            "Driver": "exec",
            "Config": {"command": "/usr/bin/perl", "args": args},
        }

    return {
        "ID": "web",
        "Type": "service",
        "Datacenters": ["dc1"],
        "TaskGroups": [
            {
                "Name": "web",
                "Networks": [
                    {
                        "Mode": "bridge",
                        "ReservedPorts": [{"Label": "http", "Value": 8080, "To": 80, **port}],
                    }
                ],
                "Services": [{"Name": "web", "Provider": "nomad", "PortLabel": "http"}],
                "Tasks": [task("server", "-e", SERVER), task("other", "-e", "sleep 10000")],
            }
        ],
    }


def read(address: str, port: int, *before: str) -> str:
    done = subprocess.run(
        [*before, "perl", "-e", READ, address, f"{port}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    return done.stdout


def connects(address: str, port: int, *before: str) -> bool:
    code = f"exit !IO::Socket::INET->new(PeerAddr => '{address}:{port}', Timeout => 2)"
    words = [*before, "perl", "-MIO::Socket::INET", "-e", code]
    return subprocess.run(words, check=False, timeout=20).returncode == 0


async def until_it_answers(address: str, port: int, *before: str) -> str:
    with trio.fail_after(HAPPENS_WITHIN):
        while not (text := read(address, port, *before)):
            await trio.lowlevel.checkpoint()
    return text


def pid_of(steward: Steward, alloc_id: str) -> int:
    return next(
        pid
        for pid in steward.processes(alloc_id)
        if Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/thread-self/ns/net").readlink()
    )


def cli(steward: Steward, *words: str) -> str:
    env = environment(STEWARD_ADDR=steward.address, STEWARD_TOKEN=steward.token)
    done = subprocess.run(
        [sys.executable, "-m", "daemon", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=env,
    )
    return done.stdout + done.stderr


def exec_in(steward: Steward, alloc_id: str, *words: str) -> str:
    """Run a command in the other task of the group."""
    return cli(steward, "alloc", "exec", "-task", "other", alloc_id, *words)


async def test_host_ports_are_forwarded_into_the_network_of_a_group(
    steward: Steward, outside: World
) -> None:
    (one,) = await steward.run_job(job())
    address = "172.26.64.2"
    said = ["80", "8080", f"{HOST}:8080", f"{address}:80"]
    assert (await until_it_answers("127.0.0.1", 8080)).split() == ["172.26.64.1", *said]
    assert read(HOST, 8080).split()[1:] == said
    # A client outside of the host keeps its address. It can connect only to the port.
    assert read(HOST, 8080, *outside.words()).split() == [OUTSIDE, *said]
    outside.run("ip", "route", "add", "172.26.64.0/20", "via", HOST)
    assert read(address, 80, *outside.words()) == ""
    shown = await steward.get(f"/v1/allocation/{one['ID']}")
    assert shown["NetworkStatus"]["InterfaceName"] == "eth0"
    assert shown["NetworkStatus"]["Address"] == address
    (service,) = await steward.get("/v1/service/web")
    assert (service["Address"], service["Port"]) == (HOST, 8080)


async def test_tasks_share_loopback_and_reach_external_hosts(
    steward: Steward, outside: World
) -> None:
    (one,) = await steward.run_job(job())
    await until_it_answers("127.0.0.1", 8080)
    found = exec_in(steward, one["ID"], "perl", "-e", READ, "127.0.0.1", "80")
    assert found.split()[:2] == ["127.0.0.1", "80"]
    with listening(*outside.words(), OUTSIDE, "9000"):
        seen = exec_in(steward, one["ID"], "perl", "-e", READ, OUTSIDE, "9000")
    assert seen == HOST


async def test_traffic_of_a_group_is_measured(steward: Steward) -> None:
    (one,) = await steward.run_job(job())
    path, asked = f"/v1/allocation/{one['ID']}/history", {"from": "1m", "step": "1s"}
    seen: dict[str, Any] = {"Received": [], "Sent": []}
    with trio.fail_after(HAPPENS_WITHIN):
        while not all(any(seen[name]) for name in ("Received", "Sent")):
            read("127.0.0.1", 8080)
            found = await steward.get(path, **asked)
            seen = found["Series"][0]
    assert found["NoNetwork"] == ""
    stats = await steward.get(f"/v1/client/allocation/{one['ID']}/stats")
    rates = stats["ResourceUsage"]["NetworkStats"]
    assert rates["Received"] > 0 < rates["Sent"]


async def test_group_keeps_its_network_after_a_kill_of_the_daemon(steward: Steward) -> None:
    (one,) = await steward.run_job(job())
    before = await until_it_answers(HOST, 8080)
    pids = steward.processes(one["ID"])
    await steward.kill()
    assert read(HOST, 8080) == before
    await steward.start()
    await steward.allocations("web", "running")
    assert read(HOST, 8080) == before
    assert steward.processes(one["ID"]) == pids
    # A new attempt joins the network of the other task.
    await steward.post(f"/v1/client/allocation/{one['ID']}/restart", {"TaskName": "server"})
    await until_it_answers(HOST, 8080)
    assert len(interfaces("sw")) == 1
    # A second group gets another address.
    other = job(Value=8081)
    await steward.run_job({**other, "ID": "other"})
    assert (await until_it_answers(HOST, 8081)).split()[-1] == "172.26.64.3:80"


async def test_ended_group_leaves_no_network_objects(steward: Steward) -> None:
    await steward.run_job(job())
    await until_it_answers(HOST, 8080)
    await steward.delete("/v1/job/web")
    with trio.fail_after(HAPPENS_WITHIN):
        while interfaces("sw") or elements():
            await trio.lowlevel.checkpoint()
    assert read(HOST, 8080) == ""
    # The port is free for the next job.
    await steward.run_job({**job(), "ID": "next"})
    await until_it_answers(HOST, 8080)


async def test_rules_of_tasks_that_ended_without_a_daemon_are_removed_at_its_start(
    steward: Steward,
) -> None:
    (one,) = await steward.run_job(job())
    await until_it_answers(HOST, 8080)
    await steward.kill()
    for pid in steward.processes(one["ID"]):
        with suppress(ProcessLookupError):  # it may have ended together with another process
            os.kill(pid, signal.SIGKILL)
    with trio.fail_after(HAPPENS_WITHIN):
        while interfaces("sw"):
            await trio.lowlevel.checkpoint()
    await steward.start()
    with trio.fail_after(HAPPENS_WITHIN):
        while elements():
            await trio.lowlevel.checkpoint()


async def test_port_in_use_on_the_host_stays_with_its_process(steward: Steward) -> None:
    with listening("127.0.0.1", "8080"):
        await steward.register(job())
        shown = await steward.until(
            "/v1/job/web/allocations",
            lambda shown: shown and "port 8080 of the host" in str(shown[0]["TaskStates"]),
        )
        assert "Address already in use" in str(shown[0]["TaskStates"])
        assert read("127.0.0.1", 8080) == "127.0.0.1"


async def test_task_cannot_configure_its_network(steward: Steward) -> None:
    (one,) = await steward.run_job(job())
    await until_it_answers(HOST, 8080)
    status = exec_in(steward, one["ID"], "cat", "/proc/self/status")
    masks = [line.split()[1] for line in status.splitlines() if line.startswith("Cap")]
    assert {*masks} == {"0" * 16}
    socket = "socket(my $s, 2, 3, 1) ? print 'raw' : print $!"
    said = exec_in(steward, one["ID"], "perl", "-e", socket)
    assert said == "Operation not permitted"


async def test_plan_has_the_reason_of_a_missing_bridge(tmp_path: Path, outside: World) -> None:
    hide = 'mount --bind /dev/null "$(readlink -f "$(command -v nft)")" && exec "$@"'
    words = ("unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh")
    made = Hosted(outside, tmp_path)
    made.before += words
    try:
        await made.start()
        file = tmp_path / "web.hcl"
        file.write_text(
            'job "web" {\n group "web" {\n  network {\n   mode = "bridge"\n  }\n'
            '  task "a" {\n   driver = "raw_exec"\n   config {\n    command = "true"\n   }\n  }\n }\n}\n'
        )
        text = cli(made, "job", "plan", str(file))
        assert "the program nft is missing: install the package nftables" in text
        assert interfaces("steward") == []
    finally:
        with trio.CancelScope(shield=True):
            await made.close()


def with_egress(directory: Path, policy: str) -> tuple[str, ...]:
    flags = as_development(directory)
    with_lines(Path(flags[1]), f'task_egress = "{policy}"', "allow_plain_text = true")
    return (*flags, "--bind", EVERYWHERE)


@pytest.mark.parametrize("policy", ["open", "guarded"])
async def test_guarded_tasks_do_not_reach_the_daemon(
    tmp_path: Path, outside: World, policy: str
) -> None:
    made = Hosted(outside, tmp_path, with_egress(tmp_path, policy))
    try:
        await made.start()
        made.address = made.address.replace(EVERYWHERE, "127.0.0.1")
        (one,) = await made.run_job(job())
        await until_it_answers(HOST, 8080)
        port = int(made.address.rpartition(":")[2])
        pid = pid_of(made, one["ID"])
        for address in ("172.26.64.1", HOST):
            # As root in the network of the group, so that only the rules of the bridge hold.
            assert connects(address, port, *inside(pid)) is (policy == "open")
        assert connects("127.0.0.1", port)
    finally:
        with trio.CancelScope(shield=True):
            await made.close()


async def test_development_daemon_removes_its_groups_at_its_end(
    tmp_path: Path, outside: World
) -> None:
    made = Hosted(outside, tmp_path)
    try:
        await made.start()
        await made.run_job(job())
        await until_it_answers("127.0.0.1", 8080)
        assert read(HOST, 8080) == ""  # in development, ports are on loopback only
        await made.stop()
        assert interfaces("sw") == []
        assert elements() == ""
    finally:
        with trio.CancelScope(shield=True):
            await made.close()


@pytest.mark.skipif(not can_enter(), reason="a daemon of another user needs permission to mount")
async def test_unprivileged_daemon_runs_groups_on_the_bridge(outside: World) -> None:
    with tempfile.TemporaryDirectory(prefix="steward-bridge-") as name:
        place = Path(name)
        flags = as_development(place)
        with_lines(Path(flags[1]), f'user = "{UID}"')
        made = Hosted(outside, place, flags)
        made.before += (*entering(), "sh", "-c", 'umask 077 && exec "$@"', "sh")
        try:
            await made.start()
            given = job()
            (group,) = given["TaskGroups"]
            group["Networks"][0]["DNS"] = {"Servers": ["192.0.2.53"]}
            # A task of raw_exec is in the same network.
            raw = {"command": "/usr/bin/perl", "args": ["-e", "sleep 10000"]}
            group["Tasks"].append({"Name": "raw", "Driver": "raw_exec", "Config": raw})
            (one,) = await made.run_job(given)
            await until_it_answers(HOST, 8080)
            names = exec_in(made, one["ID"], "cat", "/etc/resolv.conf")
            assert names == "nameserver 192.0.2.53\n"
            shown = await made.get(f"/v1/allocation/{one['ID']}")
            assert shown["NetworkStatus"]["DNS"]["Servers"] == ["192.0.2.53"]
            words = ("alloc", "exec", "-task", "raw", one["ID"], "perl", "-e", READ)
            assert cli(made, *words, "127.0.0.1", "80").split()[:2] == ["127.0.0.1", "80"]
            await made.kill_and_restart()
            await made.allocations("web", "running")
            assert read(HOST, 8080)
            await made.delete("/v1/job/web")
            with trio.fail_after(HAPPENS_WITHIN):
                while interfaces("sw") or elements():
                    await trio.lowlevel.checkpoint()
        finally:
            with trio.CancelScope(shield=True):
                await made.close()


def with_lines(file: Path, *lines: str) -> None:
    file.write_text("\n".join([file.read_text(), *lines, ""]))
    file.chmod(0o644)
