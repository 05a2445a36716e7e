"""A sandboxed task attempts to reach the host's network and to bypass its filter."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from daemon.confinement import bpf
from storage.records.job import Job
from storage.records.task import Network
from tests.attacks.test_raw_exec import steward_with
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.world import World, batch, script

pytestmark = pytest.mark.usefixtures("walls")
PERL = Path("/usr/bin/perl")
needs_perl = pytest.mark.skipif(not PERL.exists(), reason="tasks cannot access /usr/bin/perl")
# System calls that the filter must refuse, because they are dangerous or would undo the filter or
# the namespaces.
CALLS = (
    *("bpf", "io_uring_setup", "keyctl", "add_key", "request_key", "userfaultfd"),
    *("perf_event_open", "unshare", "setns", "mount", "move_mount", "open_by_handle_at", "ptrace"),
    *("process_vm_writev", "pidfd_getfd", "kexec_load", "init_module", "reboot", "chroot"),
)
ASKING = """\
use Errno;
for my $call (split(" ", $ENV{CALLS})) {
  my ($name, $number) = split("=", $call);
  my $flags = $name eq "unshare" ? 0x10000000 : 0;
  my $done = syscall($number + 0, $flags, 0, 0, 0, 0);
  print "$name ", ($done < 0 ? ($!{EPERM} ? "refused" : "errno " . ($! + 0)) : "done"), "\\n";
}
"""
CONNECTING = """\
use Socket;
socket(A, AF_UNIX, SOCK_STREAM, 0);
print "abstract ", (connect(A, pack_sockaddr_un("\\0$ENV{ABSTRACT}")) ? "reached" : "no"), "\\n";
socket(B, AF_INET, SOCK_STREAM, 0);
print "loopback ", (connect(B, pack_sockaddr_in($ENV{THEIRS}, INADDR_LOOPBACK)) ? "reached" : "no"), "\\n";
socket(C, AF_INET, SOCK_STREAM, 0); bind(C, pack_sockaddr_in(0, INADDR_LOOPBACK)); listen(C, 1);
socket(D, AF_INET, SOCK_STREAM, 0);
print "its own ", (connect(D, getsockname(C)) ? "reached" : "no"), "\\n";
"""


@pytest.fixture
def listeners() -> Iterator[dict[str, str]]:
    """Listen on two sockets of the host that a task could find: abstract and on loopback."""
    with ExitStack() as held:
        abstract = held.enter_context(socket.socket(socket.AF_UNIX))
        name = f"steward-attack-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        loopback = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        yield {"ABSTRACT": name, "THEIRS": str(loopback.getsockname()[1])}


def within(job: Job, mode: str) -> Job:
    assert job.task_groups is not None
    group = msgspec.structs.replace(job.task_groups[0], networks=[Network(mode=mode)])
    return msgspec.structs.replace(job, task_groups=[group])


async def printed(node: World, text: str, env: dict[str, str], mode: str = "") -> list[str]:
    config = {"command": str(PERL), "args": ["-e", text]}
    job = batch(script("", driver="exec", config=config, env=env))
    alloc_id = await node.place(within(job, mode) if mode else job)
    await node.until_done(alloc_id)
    return node.output(alloc_id).splitlines()


@needs_perl
@pytest.mark.parametrize(("mode", "found"), [("none", "no"), ("host", "reached")])
async def test_task_without_a_network_reaches_no_socket_of_the_host(
    node: World, listeners: dict[str, str], mode: str, found: str
) -> None:
    """A task in the host's network reaches both sockets, which proves that the sockets exist."""
    lines = await printed(node, CONNECTING, listeners, mode)
    assert lines == [f"abstract {found}", f"loopback {found}", "its own reached"]


@needs_perl
async def test_kernel_refuses_each_sandbox_escape(node: World) -> None:
    known = bpf.numbers(bpf.host_architecture())
    asked = " ".join(f"{name}={known[name]}" for name in CALLS)
    lines = await printed(node, ASKING, {"CALLS": asked})
    assert lines == [f"{name} refused" for name in CALLS]


@needs_root
async def test_no_service_offers_the_test_driver(tmp_path: Path) -> None:
    async with steward_with(tmp_path, "") as steward:
        (node,) = await steward.get("/v1/nodes")
    assert "mock_driver" not in node["Drivers"]


@needs_root
async def test_tasks_of_a_group_without_a_network_share_a_private_network(node: World) -> None:
    tell = "readlink /proc/self/ns/net"
    tasks = [script(tell, item, driver=item) for item in ("exec", "raw_exec")]
    alloc_ids = [
        await node.place(within(batch(*tasks, job_id=name), "none")) for name in ("one", "other")
    ]
    for alloc_id in alloc_ids:
        await node.until_done(alloc_id)
    found = [{node.output(alloc_id, task.name) for task in tasks} for alloc_id in alloc_ids]
    assert [len(item) for item in found] == [1, 1]
    assert found[0] != found[1]
    assert {f"{os.readlink('/proc/self/ns/net')}\n"} not in found
