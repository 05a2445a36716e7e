"""Processes of attempts: the launcher finds, freezes and kills these, and no others."""

import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher import process_scan, shims
from daemon.launcher.channel import read_sealed, receive
from daemon.launcher.messages import (
    ClaimList,
    ClaimText,
    Done,
    FindAttempt,
    GetProcessInfo,
    KillAttempt,
    ListClaims,
    NumberedReply,
    ScanProcesses,
    ScanResult,
    ScanTarget,
    StartTask,
)
from daemon.launcher.shim_script import CARRIER
from daemon.runner.core.resource_usage import sample_of
from daemon.runner.drivers import cgroup_v2
from tests import launchers
from tests.parts.launcher.conftest import ALLOCATION, Place, Talk, payload
from tests.parts.runner.conftest import needs_root

OTHER = ALLOCATION.replace("0", "1")
ADOPT = FindAttempt(allocation=ALLOCATION, task="main", attempt=0)
LINGER = "trap 'exit 0' TERM; while :; do sleep 600 & echo; wait $!; done"


def ended(watched: int, within: int | None = None) -> bool:
    """Wait for the end of a process; return false after the timeout.

    `poll` accepts descriptors beyond 1,023.
    """
    waits = select.poll()
    waits.register(watched, select.POLLIN)
    return bool(waits.poll(within))


class Lingering(subprocess.Popen[bytes]):
    """A waiting process of `nobody` in a separate session, with some environment variables."""

    def __init__(self, text: str = LINGER, **env: str) -> None:
        words = ["/bin/sh", "-c", text]
        path = {"PATH": "/usr/bin:/bin"}
        super().__init__(words, env=path | env, stdout=subprocess.PIPE, start_new_session=True)
        assert self.stdout is not None
        self.stdout.readline()  # the process has started

    @property
    def state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    @property
    def children(self) -> list[int]:
        return [*map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())]


@pytest.fixture
def lingering(tmp_path: Path) -> Iterator[Any]:
    """Yield a function that starts waiting processes; kill them at the end of the test."""
    every: list[Lingering] = []

    def start(text: str = LINGER, **env: str) -> Lingering:
        every.append(Lingering(text, **env))
        return every[-1]

    yield start
    for item in every:
        with item, suppress(ProcessLookupError):  # the launcher may have reaped it
            os.killpg(item.pid, signal.SIGKILL)


def of_task(directory: Path, allocation: str = ALLOCATION, task: str = "main") -> dict[str, str]:
    """Return the variables by which a process belongs to a task."""
    return {
        "NOMAD_ALLOC_ID": allocation,
        "NOMAD_TASK_NAME": task,
        "NOMAD_ALLOC_DIR": f"{directory}/{allocation}/alloc",
    }


def sweep(talk: Talk, action: str, task: str | None = "main", attempt: int | None = 0) -> list[int]:
    mark = ScanTarget(allocation=ALLOCATION, task=task, attempt=attempt, action=action)
    answer = talk.ask(ScanProcesses(marks=[mark])).body
    assert isinstance(answer, ScanResult)
    return answer.found[0]


# ---- claims --------------------------------------------------------------------------------------


def adopted(talk: Talk) -> tuple[ClaimText, list[int]]:
    talk.send(1, 0, ADOPT)
    data, descriptors = receive(talk.channel)
    body = msgspec.msgpack.decode(data, type=NumberedReply).body
    assert isinstance(body, ClaimText)
    return body, descriptors


def test_claim_released_before_its_process_is_opened_returns_no_shim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        holders = iter([other.pid, None])
        monkeypatch.setattr(shims, "shim_of", lambda *_: next(holders))
        with shims.Shims(lambda *_: None).opened(0, (ALLOCATION, "main", 0)) as shim:
            assert shim is None


def test_shim_of_an_earlier_launcher_is_returned(
    greeted: Talk, place: Place, tmp_path: Path
) -> None:
    text = "echo shim $$ >&2; read x <$PIPE"
    os.mkfifo(tmp_path / "pipe")
    start = StartTask(allocation=ALLOCATION, task="main", attempt=0, group="-", is_logged=True)
    greeted.ask(start, payload("/bin/sh", "-c", text, PIPE=f"{tmp_path}/pipe"))
    with open(tmp_path / "pipe", "w"):  # the task waits for the pipe
        greeted.channel.close()
        talk = Talk()
        talk.greet(tmp_path)
        claimed, (watched,) = adopted(talk)
        assert claimed.is_held
        assert claimed.text == place.claim.read_bytes()
        assert claimed.at == place.claim.stat().st_mtime_ns
        assert not ended(watched, within=0)
    assert ended(watched)
    os.close(watched)
    claimed, descriptors = adopted(talk)
    assert (claimed.is_held, descriptors) == (False, [])
    talk.channel.close()


def test_missing_claim_is_empty(greeted: Talk, place: Place) -> None:
    assert adopted(greeted) == (ClaimText(text=b"", at=0, is_held=False), [])
    place.claim.write_text("group -\nshim 1\nexit 0\n")
    claimed, descriptors = adopted(greeted)
    assert (claimed.text, claimed.is_held) == (b"group -\nshim 1\nexit 0\n", False)
    assert not descriptors


def test_claims_of_an_allocation_are_listed(greeted: Talk, place: Place) -> None:
    for name in (".claim.main.0", ".claim.a.b.12", ".claim.main.x", ".note", "main.0"):
        (place.root / name).write_text("")
    answer = greeted.ask(ListClaims(allocation=ALLOCATION)).body
    assert isinstance(answer, ClaimList)
    assert sorted(answer.found) == [("a.b", 12), ("main", 0)]
    assert greeted.ask(ListClaims(allocation=OTHER)).body == ClaimList(found=[])


# ---- scans of all processes ----------------------------------------------------------------------


def test_task_processes_are_paused_resumed_and_killed(
    greeted: Talk, place: Place, lingering: Any, tmp_path: Path
) -> None:
    one = lingering(**of_task(tmp_path))
    assert sweep(greeted, "hold") == sweep(greeted, "find") == [one.pid, *one.children]
    while one.state != "T":  # the kernel has not stopped it yet
        os.sched_yield()
    sweep(greeted, "let_go")
    while one.state == "T":
        os.sched_yield()
    while sweep(greeted, "end"):
        one.poll()
    assert one.wait() == -signal.SIGKILL


def test_missing_task_name_means_every_task_of_an_allocation(
    greeted: Talk, place: Place, lingering: Any, tmp_path: Path
) -> None:
    both = [lingering(**of_task(tmp_path, task=name)) for name in ("a", "b")]
    pids = {item.pid for item in both}
    assert pids <= {*sweep(greeted, "find", task=None, attempt=None)}
    assert not pids & {*sweep(greeted, "find", task="c")}


def test_tasks_of_another_program_are_unreachable(
    greeted: Talk, place: Place, lingering: Any, tmp_path: Path
) -> None:
    theirs = of_task(tmp_path / "other")
    nameless = {key: value for key, value in theirs.items() if key != "NOMAD_ALLOC_DIR"}
    walled = {**nameless, "NOMAD_ALLOC_DIR": "/alloc"}  # the process has no mounts of Steward
    every = [lingering(**env) for env in (theirs, nameless, walled)]
    assert sweep(greeted, "end") == sweep(greeted, "end", task=None, attempt=None) == []
    assert [top_poller.poll() for top_poller in every] == [None] * 3


@pytest.mark.parametrize("end", ["", "exit 0\n"])
def test_session_now_led_by_another_process_is_not_killed(
    greeted: Talk, place: Place, lingering: Any, end: str
) -> None:
    other = lingering()
    place.claim.write_text(f"group -\nshim 1\nmain {other.pid}\n{end}")
    assert sweep(greeted, "end") == []
    assert other.poll() is None


REPLACED = 'echo; LOOP=\'exec /bin/sh -c "$LOOP"\'; export LOOP; exec /bin/sh -c "$LOOP"'


def test_process_that_repeatedly_executes_programs_is_found(
    greeted: Talk, place: Place, lingering: Any, tmp_path: Path
) -> None:
    one = lingering(REPLACED, **of_task(tmp_path))
    assert [sweep(greeted, "find") for _ in range(200)] == [[one.pid]] * 200
    while sweep(greeted, "end"):
        one.poll()
    assert one.wait() == -signal.SIGKILL


@pytest.mark.parametrize("user", [os.getuid(), 12345])
def test_undecided_process_is_skipped_only_for_its_own_user(
    place: Place, lingering: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    one = lingering("echo; exec sleep 600", **of_task(tmp_path))
    seen = process_scan._environment
    monkeypatch.setattr(
        process_scan, "_environment", lambda pid, at: None if pid == one.pid else seen(pid, at)
    )
    monkeypatch.setattr(process_scan, "_user", lambda _: user)
    mark = ScanTarget(allocation=ALLOCATION, task="main", attempt=0, action="end")
    left = [one.pid] if user == os.getuid() else []
    assert process_scan.sweep(str(tmp_path), [mark]) == [left]
    find = msgspec.structs.replace(mark, action="find")
    assert process_scan.sweep(str(tmp_path), [find]) == [[]]
    assert one.poll() is None


@needs_root
@pytest.mark.parametrize("user", [12345, 12346])
def test_variables_count_only_for_processes_of_the_tasks_user(
    greeted: Talk, place: Place, lingering: Any, tmp_path: Path, user: int
) -> None:
    os.chown(place.root / "main", 12345, 12345)
    text = f"exec setpriv --reuid={user} sh -c {shlex.quote(LINGER)}"
    one = lingering(text, **of_task(tmp_path))
    found = [one.pid, *one.children] if user == 12345 else []
    assert sweep(greeted, "find") == sweep(greeted, "hold") == found
    while sweep(greeted, "end"):
        one.poll()
    assert found == [] or one.wait() == -signal.SIGKILL
    assert found or one.poll() is None


def test_process_without_variables_is_decided(lingering: Any) -> None:
    one = lingering("echo; exec env -i sleep 600")
    while Path(f"/proc/{one.pid}/comm").read_text() != "sleep\n":
        os.sched_yield()
    assert process_scan._environment(one.pid, f"/proc/{one.pid}") == b""


def test_process_during_an_exec_call_is_undecided(
    lingering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During exec, the environment looks empty until the kernel sets the start of the code."""
    one = lingering("echo; exec env -i sleep 600")
    while Path(f"/proc/{one.pid}/comm").read_text() != "sleep\n":
        os.sched_yield()
    said = [*process_scan.fields(one.pid)]
    said[process_scan._CODE] = b"0"
    monkeypatch.setattr(process_scan, "fields", lambda _: said)
    assert process_scan._environment(one.pid, f"/proc/{one.pid}") is None


FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_process_without_its_first_thread_has_ended(
    greeted: Talk, place: Place, lingering: Any, tmp_path: Path
) -> None:
    text = f"exec {sys.executable} -c '{FIRST_THREAD_ENDS}'"
    one = lingering(text, **of_task(tmp_path))
    while one.state != "Z":
        os.sched_yield()
    while sweep(greeted, "end"):
        one.poll()
    assert one.wait() == -signal.SIGKILL


def test_process_with_carried_variables_is_found(
    greeted: Talk, place: Place, lingering: Any, tmp_path: Path
) -> None:
    words = [f"{name}={value}" for name, value in of_task(tmp_path).items()]
    one = lingering(**{f"{CARRIER}{number}": word for number, word in enumerate(words)})
    assert sweep(greeted, "find") == [one.pid, *one.children]


def test_very_many_processes_are_reported_only_in_part(
    greeted: Talk, place: Place, lingering: Any, tmp_path: Path
) -> None:
    one = lingering(**of_task(tmp_path))
    mark = ScanTarget(allocation=ALLOCATION, task="main", attempt=None, action="find")
    found = greeted.ask(ScanProcesses(marks=[mark] * 128)).body
    assert isinstance(found, ScanResult)
    assert found.found == [[one.pid, *one.children]] * 128


def test_processes_of_an_attempt_are_reported_for_usage(
    greeted: Talk, place: Place, lingering: Any, tmp_path: Path
) -> None:
    one = lingering(**of_task(tmp_path))
    greeted.send(1, 0, GetProcessInfo(allocation=ALLOCATION, task="main", attempt=0))
    _, (descriptor,) = receive(greeted.channel)
    status, stat, *more = read_sealed(descriptor, 100_000).decode().split("\0")
    os.close(descriptor)
    assert [*sample_of(status, stat)] == [one.pid]
    assert len(more) == 2 * len(one.children)


# ---- groups --------------------------------------------------------------------------------------


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[cgroup_v2.CgroupV2Groups]:
    """Return groups below a group that belongs to the test."""
    found = cgroup_v2.find(tmp_path)
    if found is None:
        pytest.skip("this host permits no new control groups")
    found.delegate((os.geteuid(), os.getegid()))
    yield found
    while not found.release():
        os.sched_yield()


def inside(group: cgroup_v2.CgroupV2, lingering: Any) -> Lingering:
    """Start a process in a group."""
    group.prepare()
    started: Lingering = lingering(f"echo 0 >{group.entry}; {LINGER}")
    return started


def gone(group: cgroup_v2.CgroupV2, lingering: Lingering) -> None:
    """Remove a group whose process has ended."""
    assert lingering.wait() == -signal.SIGKILL
    while group.is_populated():
        os.sched_yield()
    os.rmdir(group.label)


def bounded(talk: Talk, directory: Path, groups: cgroup_v2.CgroupV2Groups) -> Talk:
    (place,) = cgroup_v2.mount_points(groups.parent)
    talk.greet(directory, msgspec.structs.replace(launchers.EVERYTHING, groups=[str(place)]))
    return talk


def end(talk: Talk, attempt: int | None) -> None:
    request = KillAttempt(allocation=ALLOCATION, task="main", attempt=attempt)
    assert talk.ask(request).body == Done()


def test_only_the_cgroup_of_a_task_is_killed(
    talk: Talk, place: Place, groups: cgroup_v2.CgroupV2Groups, lingering: Any, tmp_path: Path
) -> None:
    own, other = groups.of(ALLOCATION, "main"), groups.of(ALLOCATION, "other")
    one, beside = inside(own, lingering), inside(other, lingering)
    bounded(talk, tmp_path, groups)
    end(talk, None)
    gone(own, one)
    assert beside.poll() is None
    os.killpg(beside.pid, signal.SIGKILL)
    gone(other, beside)


def test_other_cgroup_is_killed_only_if_named_by_the_claim(
    talk: Talk, place: Place, groups: cgroup_v2.CgroupV2Groups, lingering: Any, tmp_path: Path
) -> None:
    own, other = groups.of(ALLOCATION, "main"), groups.of(OTHER, "main")
    one, beside = inside(own, lingering), inside(other, lingering)
    talk.greet(tmp_path)
    end(talk, 0)
    place.claim.write_text(f"group {other.label}\nshim 1\n")
    end(talk, 0)
    assert (one.poll(), beside.poll()) == (None, None)
    place.claim.write_text(f"group {own.label}\nshim 1\n")
    end(talk, 0)
    gone(own, one)
    assert beside.poll() is None
    os.killpg(beside.pid, signal.SIGKILL)
    gone(other, beside)
