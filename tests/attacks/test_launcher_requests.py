"""A compromised daemon requests forbidden programs, or hides a second command in a request."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher.messages import (
    AllowedVolume,
    DnsSettings,
    Done,
    EndSession,
    GetSessionExit,
    MountedVolume,
    OperationFailed,
    ProbeSandbox,
    ProcessStarted,
    RefusedReply,
    SandboxSupport,
    SessionExit,
    SessionOpened,
    StartSession,
    StartTask,
)
from tests.attacks.test_compromised import outside
from tests.launchers import EVERYTHING
from tests.parts.launcher.conftest import ALLOCATION, Place, Talk, ordered, passed, place, talk
from tests.parts.runner.conftest import needs_root

__all__ = ["outside", "place", "talk"]
START = StartTask(allocation=ALLOCATION, task="main", attempt=0, group="-", is_logged=True)
SESSION = StartSession(allocation=ALLOCATION, task="main", attempt=0, is_terminal=False)
CLOSED = msgspec.structs.replace(
    EVERYTHING,
    users=["nobody"],
    usual="nobody",
    permits_root=False,
    opens_filters=False,
    owner=1,
)


def family(pid: int) -> list[int]:
    """Return the IDs of a process and of all its descendants, descendants first."""
    below = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [*(number for child in below for number in family(child)), pid]


@pytest.fixture
def closed(talk: Talk, tmp_path: Path, place: Place) -> Iterator[Talk]:
    """A launcher with restrictive settings, in a directory that an allocation's user can reach."""
    for item in (tmp_path, place.root):
        item.chmod(0o711)
    for item in (place.root / "main", place.root / "main/local"):
        item.mkdir(exist_ok=True)
        os.chown(item, 65534, 65534)
    for item in ("secrets", "tmp"):
        (place.root / "main" / item).mkdir()
    talk.greet(tmp_path, CLOSED)
    return talk


def ended(talk: Talk, place: Place, **order: Any) -> str:
    """Start a task by a request to the launcher; return its output when it has ended."""
    words = order.pop("words", ("/bin/echo", "ran"))
    answer = talk.ask(START, passed(ordered(*words, **order))).body
    assert isinstance(answer, ProcessStarted), answer
    while Path(f"/proc/{answer.pid}").exists():
        os.sched_yield()
    return place.out.read_text(errors="surrogateescape")


@pytest.fixture(params=[START, SESSION], ids=["start", "session"])
def asking(request: pytest.FixtureRequest, place: Place) -> Iterator[StartTask | StartSession]:
    """Return a request that starts a command; for a session, the attempt has a claim in use."""
    if request.param is START:
        yield request.param
        return
    with place.claim.open("w") as claim:
        claim.write(f"group -\nshim {os.getpid()}\n")
        claim.flush()
        fcntl.flock(claim, fcntl.LOCK_EX)
        yield request.param


def refusal(talk: Talk, place: Place, asking: Any, **order: Any) -> str:
    """Return the reason why a command is refused; check that nothing was started or changed."""
    before = sorted(place.root.iterdir())
    answer = talk.ask(asking, passed(ordered("/bin/echo", "ran", **order))).body
    assert isinstance(answer, RefusedReply), answer
    assert sorted(place.root.iterdir()) == before
    assert not any(place.logs.iterdir())
    return answer.text


@needs_root
@pytest.mark.parametrize("driver", ["raw_exec", "exec"])
@pytest.mark.parametrize(
    "user", ["root", "0", "00", "daemon", "1", "bin", "nosuchuser", "a:b", "x" * 300]
)
def test_only_listed_commands_run(
    closed: Talk, place: Place, asking: Any, user: str, driver: Any
) -> None:
    assert user in refusal(closed, place, asking, user=user, driver=driver)


@needs_root
@pytest.mark.parametrize("driver", ["raw_exec", "exec"])
@pytest.mark.parametrize("listed", ["*", "root", "0", "@root"])
def test_no_list_of_users_permits_root(
    talk: Talk, tmp_path: Path, place: Place, asking: Any, listed: str, driver: Any
) -> None:
    talk.greet(tmp_path, msgspec.structs.replace(CLOSED, users=[listed]))
    assert "raw_exec_root" in refusal(talk, place, asking, user="root", driver=driver)


@needs_root
def test_task_without_a_user_runs_as_the_default_user(closed: Talk, place: Place) -> None:
    assert ended(closed, place, words=("/usr/bin/id", "-u")) == "65534\n"


def test_disabled_raw_exec_runs_no_command(
    talk: Talk, tmp_path: Path, place: Place, asking: Any
) -> None:
    talk.greet(tmp_path, msgspec.structs.replace(EVERYTHING, runs_raw_exec=False))
    assert "raw_exec is off" in refusal(talk, place, asking)


@pytest.mark.parametrize("kind", ["namespaces", "off"])
def test_filter_is_not_opened_as_a_file(closed: Talk, place: Place, asking: Any, kind: Any) -> None:
    assert "filter" in refusal(closed, place, asking, driver="exec", filter=kind)


@pytest.mark.parametrize(
    ("volume", "destination"),
    [
        ("other", "/data"),
        ("/etc", "/data"),
        ("../data", "/data"),
        ("", "/data"),
        ("data", "/usr/bin"),
        ("data", "/local/x"),
        ("data", "/"),
        ("data", "/x/../etc"),
        ("data", "/a\0b"),
    ],
)
def test_volume_must_be_configured_and_have_its_own_path(
    talk: Talk, tmp_path: Path, place: Place, volume: str, destination: str
) -> None:
    allowed_volume = AllowedVolume(name="data", path=str(tmp_path), read_only=False)
    talk.greet(tmp_path, msgspec.structs.replace(EVERYTHING, volumes=[allowed_volume]))
    mounted_volume = MountedVolume(
        name="v", volume=volume, path="/etc", destination=destination, read_only=False
    )
    order = ordered("/bin/echo", driver="exec", user="nobody", volumes=[mounted_volume])
    (place.root / "main/local").mkdir()
    assert isinstance(talk.ask(START, passed(order)).body, RefusedReply)
    assert not place.claim.exists()


@pytest.mark.parametrize(
    "entry",
    [
        "/etc/passwd",
        "/sys/fs/cgroup/../../../etc/cgroup.procs",
        f"/sys/fs/cgroup/x/{ALLOCATION}.main/memory.max",
        f"/sys/fs/cgroup/x/{ALLOCATION}.other/cgroup.procs",
        "/sys/fs/cgroup/cgroup.procs",
        "cgroup.procs",
        "/etc/cgroup.procs",
    ],
)
def test_exec_shell_enters_only_groups(closed: Talk, place: Place, entry: str) -> None:
    answer = closed.ask(START, passed(ordered("/bin/echo", entries=["", entry]))).body
    assert isinstance(answer, RefusedReply)
    assert place.is_untouched


def test_task_name_cannot_create_a_second_entry(talk: Talk, tmp_path: Path, place: Place) -> None:
    # A shell that runs as root reads one entry from each line. A second entry in a name would make
    # it write to a file of the task.
    above = str(tmp_path / "groups")
    talk.greet(tmp_path, msgspec.structs.replace(EVERYTHING, groups=[above]))
    (place.root / "a\nmain").mkdir()
    request = msgspec.structs.replace(START, task="a\nmain")
    entry = f"{above}/{ALLOCATION}.a\nmain/cgroup.procs"
    answer = talk.ask(request, passed(ordered("/bin/echo", entries=["", entry]))).body
    assert isinstance(answer, RefusedReply)
    assert "is not the process list" in answer.text


class Held:
    """An attempt in two control groups: one of cgroup version 1, and one through which its
    processes are killed.
    """

    def __init__(self, talk: Talk, directory: Path) -> None:
        self.talk, self.above = talk, [directory / "ends", directory / "bounds"]
        self.own = self.above[0] / f"{ALLOCATION}.main"
        (self.own).mkdir(parents=True)
        (self.above[1] / "shared").mkdir(parents=True)
        self.lists = [self.own / "cgroup.procs", self.above[1] / "shared/tasks"]
        for transaction in self.lists:  # the kernel creates these files in a real group
            transaction.touch()
        above = [*map(str, self.above)]
        policy = {"groups": above, "raw_exec_groups": above, "exec_groups": above}
        talk.greet(directory, msgspec.structs.replace(EVERYTHING, **policy))

    def ask(self, request: StartTask | StartSession, *entries: str | Path, **order: Any) -> Any:
        changed = {"entries": [*map(str, entries)], **order}
        return self.talk.ask(request, passed(ordered("/bin/sleep", "60", **changed))).body

    def start(self, *entries: str | Path, group: str | Path = "-", **order: Any) -> Any:
        return self.ask(msgspec.structs.replace(START, group=str(group)), *entries, **order)


@pytest.fixture
def held(talk: Talk, tmp_path: Path, place: Place) -> Held:
    return Held(talk, tmp_path)


@pytest.fixture
def begun(held: Held) -> Iterator[Held]:
    """Return the fixture `held` with a running attempt."""
    started = held.start(*held.lists, group=held.own)
    assert isinstance(started, ProcessStarted), started
    while not held.lists[1].read_text():
        os.sched_yield()
    yield held
    for pid in family(started.pid):
        with suppress(ProcessLookupError):  # the process ended with its parent
            os.kill(pid, 9)


@pytest.mark.parametrize("driver", ["raw_exec", "exec"])
@pytest.mark.parametrize("left_out", [(0,), (1,), (0, 1)])
def test_task_always_runs_in_its_limiting_cgroup(
    held: Held, place: Place, left_out: tuple[int, ...], driver: Any
) -> None:
    entries = ["" if number in left_out else one for number, one in enumerate(held.lists)]
    group = held.own if 0 not in left_out else "-"
    answer = held.start(*entries, group=group, driver=driver)
    assert isinstance(answer, RefusedReply)
    assert "would not enter its cgroup" in answer.text
    assert place.is_untouched


def test_cgroup_in_the_claim_is_the_entered_cgroup(held: Held, place: Place) -> None:
    for group in ("-", held.above[1] / f"{ALLOCATION}.main"):
        answer = held.start(*held.lists, group=group)
        assert isinstance(answer, RefusedReply)
        assert "first cgroup of the task" in answer.text
    assert place.is_untouched


def test_only_cgroup_v1_groups_are_shared_by_tasks(held: Held, place: Place) -> None:
    shared = held.above[1] / "shared/cgroup.procs"
    assert isinstance(held.start(held.lists[0], shared, group=held.own), RefusedReply)
    assert place.is_untouched


@pytest.mark.parametrize("left_out", [(0,), (1,), (0, 1)])
def test_exec_session_always_enters_the_cgroups_of_its_task(
    begun: Held, left_out: tuple[int, ...]
) -> None:
    entries = ["" if number in left_out else one for number, one in enumerate(begun.lists)]
    answer = begun.ask(SESSION, *entries)
    assert isinstance(answer, RefusedReply)
    assert "would not enter its cgroup" in answer.text


def test_session_enters_the_groups_of_its_task(begun: Held) -> None:
    for path in begun.lists:
        path.write_text("")
    opened = begun.ask(SESSION, *begun.lists)
    assert isinstance(opened, SessionOpened)
    while not begun.lists[1].read_text():
        os.sched_yield()
    assert begun.talk.ask(EndSession(session=opened.session, hang_up=False)).body == Done()
    assert [path.read_text() for path in begun.lists] == ["0\n", "0\n"]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("servers", "1.1.1.1\n* * * * * root sh"),
        ("servers", "localhost"),
        ("servers", ""),
        ("searches", "a b"),
        ("searches", "a\n"),
        ("options", "ndots:1\nx"),
        ("options", "A"),
    ],
)
def test_name_server_text_is_one_word(closed: Talk, place: Place, field: str, text: str) -> None:
    texts: dict[str, Any] = {"servers": [], "searches": [], "options": [], field: [text]}
    order = ordered("/bin/echo", driver="exec", dns=DnsSettings(**texts))
    closed.send(1, 1, START, descriptors=(passed(order),))
    assert closed.has_ended()
    assert place.is_untouched


@needs_root
@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "LD_AUDIT", "STEWARD_SHIM_GROUPS", "STEWARD_SHIM_PLACE", "ENV", "BASH_ENV"],
)
def test_variable_has_no_effect_before_the_user_is_changed(
    closed: Talk, place: Place, outside: Path, name: str
) -> None:
    env = {name.encode(): os.fsencode(outside / "victim"), b"PATH": os.fsencode(outside)}
    words = ("/bin/sh", "-c", f"echo ${name}")
    assert ended(closed, place, words=words, env=env).strip() == str(outside / "victim")
    assert [line.split()[0] for line in place.claim.read_text().splitlines()] == [
        "group",
        "shim",
        "main",
        "exit",
    ]


@needs_root
@pytest.mark.parametrize("driver", ["raw_exec", "exec"])
def test_argument_is_not_interpreted_by_a_shell_or_the_sandbox_programs(
    closed: Talk, place: Place, outside: Path, driver: Any
) -> None:
    found = closed.ask(ProbeSandbox()).body
    if driver == "exec" and (not isinstance(found, SandboxSupport) or found.walls):
        pytest.skip(f"exec: {found}")
    odd = [
        f"$(rm {outside}/victim)",
        f"`rm {outside}/victim`",
        f"'; rm {outside}/victim; '",
        "--reuid=0",
        "--bind / /",
        "--",
        "\n",
        "\udcff",
    ]
    words = ("/usr/bin/printf", "%s\n", *odd)
    (place.root / "alloc/data").mkdir()
    assert ended(closed, place, words=words, driver=driver).count("rm") == 3
    assert (outside / "victim").exists()


@needs_root
def test_directory_closed_to_the_user_is_not_entered(
    closed: Talk, place: Place, tmp_path: Path
) -> None:
    inner = tmp_path / "closed" / "open"
    inner.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    (inner / "tool").write_text("#!/bin/sh\n")
    (inner / "tool").chmod(0o755)
    for order in (ordered("/bin/echo", work_dir=str(inner)), ordered(str(inner / "tool"))):
        answer = closed.ask(START, passed(order)).body
        assert isinstance(answer, RefusedReply)
        assert not place.claim.exists()


@pytest.mark.parametrize(
    "changed", [{"command": b"/bin/e\0cho"}, {"args": [b"a\0b"]}, {"env": {b"a=b\0": b""}}]
)
def test_zero_byte_is_refused(closed: Talk, place: Place, changed: dict[str, Any]) -> None:
    answer = closed.ask(START, passed(ordered("/bin/echo", **changed))).body
    assert isinstance(answer, RefusedReply | OperationFailed)


def test_missing_session_affects_no_process(closed: Talk) -> None:
    for number in (0, 1, os.getpid(), 2**32 - 1):
        for hang_up in (False, True):
            assert closed.ask(EndSession(session=number, hang_up=hang_up)).body == Done()
        assert closed.ask(GetSessionExit(session=number)).body == SessionExit(status=-1)
