"""`steward top`: its requests, how rarely it sends them, and the program in a terminal."""

import fcntl
import os
import pty
import struct
import sys
import termios
from typing import Any

import pytest

from daemon.cli.commands.top import TopPoller
from daemon.cli.commands.top_view import AllocationUse, View
from daemon.cli.core.http_client import ApiClient, HttpConnection
from tests.parts.cli.conftest import FakeDaemon, Terminal, Told

ID = "6ff3f0a1-7d6e-4bd5-8a0b-0d6c34b4a1f2"
JOB = {
    "ID": "web",
    "Namespace": "default",
    "Type": "service",
    "GroupCountSum": 1,
    "StewardState": {"State": "failing", "Reason": "it fails"},
}
ALLOCATION = {
    "ID": ID,
    "Name": "web.g[0]",
    "Namespace": "default",
    "JobID": "web",
    "ClientStatus": "running",
    "DesiredStatus": "run",
    "CreateTime": 1,
    "ModifyIndex": 5,
}
USE = {"ID": ID, "CPUPercent": 12.5, "Memory": 1 << 20, "Restarts": 2}
MACHINE = {
    "Memory": {"Total": 1 << 30, "Available": 0, "Used": 1 << 29, "Free": 0},
    "CPU": [{"CPU": "0", "User": 0, "System": 0, "Idle": 0, "TotalPercent": 50.0, "TotalTicks": 0}],
    "CPUTicksConsumed": 0,
    "DiskStats": [],
    "AllocDirStats": {
        "Device": "",
        "Mountpoint": "/",
        "Size": 1,
        "Used": 1,
        "Available": 0,
        "UsedPercent": 7.0,
        "InodesUsedPercent": 0,
    },
    "Uptime": 1,
    "Timestamp": 1,
}


@pytest.fixture
def told(fake: FakeDaemon) -> FakeDaemon:
    """A daemon with one job and its allocation."""
    fake.tell("/v1/jobs/statuses", [JOB])
    fake.tell("/v1/allocations", [ALLOCATION])
    fake.tell("/v1/client/usage", [USE])
    fake.tell("/v1/client/stats", MACHINE)
    return fake


def looked(fake_daemon: FakeDaemon, *times: float, view: View | None = None) -> TopPoller:
    shown = view or View()
    with ApiClient(HttpConnection(address=fake_daemon.address)) as client:
        watch = TopPoller(client)
        for time in times:
            watch.poll(shown, 24, time)
            shown.arrange(watch.facts(), 0)
        return watch


def test_first_screen_shows_jobs_with_their_usage(told: FakeDaemon) -> None:
    facts = looked(told, 0.0).facts()
    assert [(job.id, job.state, job.reason) for job in facts.jobs] == [
        ("web", "failing", "it fails")
    ]
    assert facts.uses == {ID: AllocationUse(12.5, 1 << 20, 2)}
    assert facts.node == "steward top  CPU 50% of 1  memory 512/1024 MiB  disk 7%"
    assert facts.trouble == ""


@pytest.mark.parametrize("height", [24, 200])
def test_one_request_measures_at_most_sixty_allocations(told: FakeDaemon, height: int) -> None:
    told.tell("/v1/allocations", [{**ALLOCATION, "ID": f"{number:036}"} for number in range(300)])
    with ApiClient(HttpConnection(address=told.address)) as client:
        watch, view = TopPoller(client), View()
        for time in (0.0, 1.0, 2.0):
            watch.poll(view, height, time)
            view.arrange(watch.facts(), 0)
    asked = [seen.query.get("allocations", "") for seen in told.asked("/v1/client/usage")]
    assert max(len(ids.split(",")) for ids in asked) == 60


def test_lists_are_read_again_only_when_the_state_has_changed(told: FakeDaemon) -> None:
    looked(told, 0.0, 100.0, 200.0)
    assert len(told.asked("/v1/jobs/statuses")) == 1
    assert len(told.asked("/v1/client/usage")) == 4


def test_change_of_state_reloads_the_lists_after_a_delay(fake: FakeDaemon) -> None:
    fake.tell("/v1/jobs/statuses", [JOB])
    fake.tell("/v1/allocations", [ALLOCATION])
    fake.tell("/v1/client/stats", MACHINE)
    fake.tell("/v1/client/usage", *(Told(b"[]", index=index) for index in (7, 7, 8, 9)))
    looked(fake, 0.0, 0.5, 100.0)
    assert len(fake.asked("/v1/jobs/statuses")) == 2


def test_errors_are_requested_once_per_unchanged_allocation(
    told: FakeDaemon,
) -> None:
    error = {
        "AllocationID": ID,
        "TaskGroup": "g",
        "Task": "t",
        "Time": 1,
        "Kind": "Terminated",
        "Summary": "exited with code 3",
    }
    told.tell(f"/v1/allocation/{ID}/error", {"Error": error})
    view = View()
    view.press("tab", 24)
    facts = looked(told, 0.0, 1.0, 2.0, view=view).facts()
    assert facts.errors == {ID: "exited with code 3"}
    assert len(told.asked(f"/v1/allocation/{ID}/error")) == 1


def test_nodes_are_shown_with_state_and_requested_resources(told: FakeDaemon) -> None:
    held = {"CPU": 250, "MemoryMB": 160, "CPUTotal": 5192, "MemoryTotalMB": 24105}
    one = {"ID": "n1", "Name": "vm", "NodePool": "default", "Status": "ready", "Held": held}
    closed = {"Drain": False, "SchedulingEligibility": "ineligible"}
    pool = {**one, "ID": "n2", "Name": "hpc", "Status": "down", "StatusDescription": "no answer"}
    told.tell("/v1/nodes", [one, {**one, **closed}, {**one, "Drain": True}, pool])
    nodes = looked(told, 0.0).facts().nodes
    assert [node.state for node in nodes] == ["ready", "ineligible", "draining", "down"]
    asked = "250 of 5192 MHz, 160 of 24105 MiB requested"
    assert [node.about for node in nodes] == [asked, asked, asked, f"no answer; {asked}"]


def test_caller_without_access_to_nodes_sees_jobs(told: FakeDaemon) -> None:
    told.tell("/v1/client/stats", Told(b"Permission denied", 403))
    facts = looked(told, 0.0, 1.0).facts()
    assert (facts.node, facts.trouble) == ("", "")
    assert len(told.asked("/v1/client/stats")) == 1


@pytest.mark.parametrize("path", ["/v1/client/stats", "/v1/nodes"])
@pytest.mark.parametrize(
    ("status", "reason"),
    [(403, "the token lacks node:read"), (429, "too many requests")],
)
def test_title_has_the_reason_for_missing_nodes(
    told: FakeDaemon, path: str, status: int, reason: str
) -> None:
    told.tell("/v1/nodes", [])
    told.tell(path, Told(b"too many requests", status))
    view = View()
    view.press("o", 24)
    facts = looked(told, 0.0, 1.0, view=view).facts()
    title = view.lines(facts, 200, 24)[0]
    assert title.text.startswith("steward top  nodes are not shown: ")
    assert reason in title.text
    assert (facts.trouble, title.style) == ("", "bold")


def test_title_has_no_reason_when_nodes_are_visible(told: FakeDaemon) -> None:
    told.tell("/v1/nodes", [])
    view = View()
    view.press("o", 24)
    facts = looked(told, 0.0, 1.0, view=view).facts()
    assert view.lines(facts, 200, 24)[0].text == facts.node != ""


def test_unresponsive_daemon_is_named_and_the_last_values_remain(told: FakeDaemon) -> None:
    view = View()
    with ApiClient(HttpConnection(address=told.address)) as client:
        watch = TopPoller(client)
        watch.poll(view, 24, 0.0)
        told.tell("/v1/client/usage", Told(hang_up=True))
        watch.poll(view, 24, 1.0)
        assert "cannot reach the daemon" in watch.facts().trouble
        assert watch.facts().jobs
        told.tell("/v1/client/usage", [USE])
        watch.poll(view, 24, 2.0)
        assert watch.facts().trouble == ""


def test_top_needs_a_terminal(terminal: Terminal) -> None:
    result = terminal.type("top")
    assert result.exit_code == 1
    assert 'this command needs a terminal; in a script use "steward status -json"' in result.stderr


def test_top_draws_and_exits(told: FakeDaemon) -> None:
    pid, end = pty.fork()
    if not pid:
        os.environ["STEWARD_ADDR"] = told.address
        os.execv(sys.executable, [sys.executable, "-m", "daemon", "top"])  # noqa: S606  # as meant
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    until(end, b"1M    2")
    os.write(end, b"q")
    until(end, b"\x1b[?1049l")
    _, status = os.waitpid(pid, 0)
    os.close(end)
    assert os.waitstatus_to_exitcode(status) == 0


def until(end: int, text: bytes) -> Any:
    seen = b""
    while text not in seen:
        seen += os.read(end, 4096)
    return seen
