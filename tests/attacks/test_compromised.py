"""A compromised daemon sends any message to its launcher. Each kind of message is tried.

A message without a line in `SAMPLES` fails the first test, so every message is attacked.
"""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from daemon.launcher import messages
from daemon.launcher.channel import close, receive, sealed
from daemon.launcher.messages import (
    VERSION,
    AllocDirLayout,
    CollectFiles,
    ConnectNetwork,
    ConnectPodman,
    CreateAllocDir,
    EndSession,
    FindAttempt,
    FinishAttempt,
    GetProcessInfo,
    GetSessionExit,
    Hello,
    KillAttempt,
    LauncherPolicy,
    ListAllocations,
    ListClaims,
    ListDirectory,
    MakeVolume,
    MeasureDirectory,
    MountSecrets,
    OpenFile,
    OpenLog,
    ProbeBridge,
    ProbeSandbox,
    ProcessStarted,
    ReadFile,
    ReadNote,
    ReadOwn,
    RefusedReply,
    ReleaseNetwork,
    RemoveDirectory,
    RemoveVolume,
    RetainLogs,
    ScanProcesses,
    ScanTarget,
    SendSignal,
    StartProgram,
    StartSession,
    StartTask,
    TaskDirLayout,
    UnmountSecrets,
    UnpackStream,
    WriteFile,
    WriteNote,
)
from tests import launchers
from tests.parts.launcher.conftest import (
    ALLOCATION,
    Place,
    Talk,
    asked,
    greeted,
    ordered,
    passed,
    payload,
    place,
    policed,
    talk,
)
from tests.parts.runner.conftest import needs_root

__all__ = ["greeted", "place", "talk"]

LAYOUT = AllocDirLayout(
    rooms=[TaskDirLayout(task="main", driver="exec", user="", is_seen=True)], about=b"{}"
)
# For each kind of message: a function that returns a valid message, and a function that opens the
# descriptors to send with it.
SAMPLES: dict[type, tuple[Callable[[Path], Any], Callable[[], tuple[int, ...]]]] = {
    Hello: (
        lambda directory: Hello(version=VERSION, directory=str(directory)),
        lambda: (policed(),),
    ),
    StartTask: (
        lambda _: StartTask(
            allocation=ALLOCATION, task="main", attempt=0, group="-", is_logged=True
        ),
        lambda: (payload("/bin/echo", "ran"),),
    ),
    SendSignal: (
        lambda _: SendSignal(
            allocation=ALLOCATION,
            task="main",
            attempt=0,
            signal="SIGKILL",
            is_walled=False,
            to_shim=False,
        ),
        lambda: (),
    ),
    StartSession: (
        lambda _: StartSession(allocation=ALLOCATION, task="main", attempt=0, is_terminal=False),
        lambda: (payload("/bin/echo", "ran"),),
    ),
    StartProgram: (
        lambda _: StartProgram(is_terminal=False),
        lambda: (asked("sinfo", "--version"), sealed(b"")),
    ),
    EndSession: (lambda _: EndSession(session=1, hang_up=False), lambda: ()),
    GetSessionExit: (lambda _: GetSessionExit(session=1), lambda: ()),
    ProbeSandbox: (lambda _: ProbeSandbox(), lambda: ()),
    FinishAttempt: (
        lambda _: FinishAttempt(allocation=ALLOCATION, task="main", attempt=0),
        lambda: (),
    ),
    WriteFile: (
        lambda _: WriteFile(
            allocation=ALLOCATION,
            task="main",
            path="main/local/f",
            mode=0o644,
            is_new=False,
            owner=None,
        ),
        lambda: (sealed(b"text"),),
    ),
    ReadFile: (
        lambda _: ReadFile(allocation=ALLOCATION, task="main", path="main/local/f", most=9),
        lambda: (),
    ),
    WriteNote: (
        lambda _: WriteNote(allocation=ALLOCATION, task="main", kind="token", text="x"),
        lambda: (),
    ),
    OpenFile: (
        lambda _: OpenFile(allocation=ALLOCATION, path="main/local/f", sees_secrets=False),
        lambda: (),
    ),
    ListDirectory: (
        lambda _: ListDirectory(
            allocation=ALLOCATION, path="main/local", sees_secrets=False, position=0
        ),
        lambda: (),
    ),
    ReadOwn: (lambda _: ReadOwn(path="/etc/shadow"), lambda: ()),
    OpenLog: (
        lambda _: OpenLog(allocation=ALLOCATION, task="main", kind="stdout", purpose="rotate"),
        lambda: (),
    ),
    FindAttempt: (lambda _: FindAttempt(allocation=ALLOCATION, task="main", attempt=0), lambda: ()),
    ListClaims: (lambda _: ListClaims(allocation=ALLOCATION), lambda: ()),
    KillAttempt: (lambda _: KillAttempt(allocation=ALLOCATION, task="main", attempt=0), lambda: ()),
    GetProcessInfo: (
        lambda _: GetProcessInfo(allocation=ALLOCATION, task="main", attempt=0),
        lambda: (),
    ),
    ScanProcesses: (
        lambda _: ScanProcesses(
            marks=[ScanTarget(allocation=ALLOCATION, task="main", attempt=0, action="end")],
        ),
        lambda: (),
    ),
    ConnectPodman: (lambda _: ConnectPodman(), lambda: ()),
    MakeVolume: (
        lambda _: MakeVolume(volume=ALLOCATION, mode=0o700, owner=(65534, 65534)),
        lambda: (),
    ),
    RemoveVolume: (lambda _: RemoveVolume(volume=ALLOCATION), lambda: ()),
    ReadNote: (lambda _: ReadNote(allocation=ALLOCATION, task="main", kind="token"), lambda: ()),
    RetainLogs: (lambda _: RetainLogs(allocation=ALLOCATION), lambda: ()),
    RemoveDirectory: (lambda _: RemoveDirectory(allocation=ALLOCATION, is_kept=False), lambda: ()),
    MeasureDirectory: (
        lambda _: MeasureDirectory(allocation=ALLOCATION, is_kept=False),
        lambda: (),
    ),
    MountSecrets: (
        lambda _: MountSecrets(allocation=ALLOCATION, task="main", megabytes=1),
        lambda: (),
    ),
    UnmountSecrets: (lambda _: UnmountSecrets(allocation=ALLOCATION), lambda: ()),
    UnpackStream: (
        lambda _: UnpackStream(
            allocation=ALLOCATION, task="main", path="main/local", most_bytes=9, most_members=9
        ),
        lambda: (sealed(bytes(4)),),
    ),
    CollectFiles: (
        lambda _: CollectFiles(
            allocation=ALLOCATION,
            task="main",
            patterns=["main/local/*"],
            most_bytes=9,
            most_total=9,
            most_files=9,
        ),
        lambda: (sealed(b""),),
    ),
    ListAllocations: (lambda _: ListAllocations(is_kept=False), lambda: ()),
    ProbeBridge: (lambda _: ProbeBridge(), lambda: ()),
    ConnectNetwork: (lambda _: ConnectNetwork(allocation=ALLOCATION, ports=[]), lambda: ()),
    ReleaseNetwork: (lambda _: ReleaseNetwork(allocation=ALLOCATION), lambda: ()),
    CreateAllocDir: (
        lambda _: CreateAllocDir(allocation=ALLOCATION, previous=None),
        lambda: (sealed(msgspec.msgpack.encode(LAYOUT)),),
    ),
}
NAMES = ("", ".", "..", "../..", "/", "/etc", "a/../../b", "a\0b", "x" * 300, "..\n")
MESSAGES = sorted(SAMPLES, key=lambda sample: sample.__name__)


def fields_of(kind: type) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind)]


def named(kind: type) -> Iterator[str]:
    """Yield the fields of a message that are parts of a path."""
    hints = get_type_hints(kind, include_extras=True)
    for item in fields_of(kind):
        if {messages.Id, messages.Name} & {hints[item], *get_args(hints[item])}:
            yield item


def wire(message: Any, **changed: Any) -> list[Any]:
    """Return an encoded message, with some fields changed."""
    given = msgspec.structs.asdict(message) | changed
    return [message.__struct_config__.tag, *given.values()]


def tree(directory: Path) -> list[str]:
    return sorted(str(path) for path in directory.rglob("*"))


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory outside of the launcher's directory; nothing may change in it."""
    found = tmp_path.parent / f"{tmp_path.name}-outside"
    found.mkdir()
    (found / "victim").write_text("root's\n")
    own = {"volumes"}  # host volumes are in this directory
    before = {*os.listdir(tmp_path.parent)} - own
    yield found
    assert {*os.listdir(tmp_path.parent)} - own == before
    assert tree(found) == [str(found / "victim")]
    assert (found / "victim").read_text() == "root's\n"


def test_every_message_is_attacked() -> None:
    assert isinstance(messages.Request, types.UnionType)
    assert set(SAMPLES) == set(messages.Request.__args__)


@pytest.mark.parametrize("kind", [message for message in MESSAGES if message is not Hello])
@pytest.mark.usefixtures("place", "outside")
def test_requests_before_the_greeting_are_ignored(talk: Talk, kind: type, tmp_path: Path) -> None:
    make, bring = SAMPLES[kind]
    descriptors = bring()
    before = tree(tmp_path)
    talk.send(1, len(descriptors), make(tmp_path), descriptors=descriptors)
    assert talk.has_ended()
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("place", "outside")
def test_second_greeting_cannot_change_the_directory(greeted: Talk, tmp_path: Path) -> None:
    hello = Hello(version=VERSION, directory=str(tmp_path.parent))
    greeted.send(2, 1, hello, descriptors=(policed(),))
    assert greeted.has_ended()


@pytest.mark.parametrize("field", fields_of(LauncherPolicy))
@pytest.mark.usefixtures("place", "outside")
def test_malformed_policy_stops_the_launcher(talk: Talk, field: str, tmp_path: Path) -> None:
    given = msgspec.structs.asdict(launchers.EVERYTHING) | {field: 1.5}
    hello = Hello(version=VERSION, directory=str(tmp_path))
    talk.send(1, 1, hello, descriptors=(sealed(msgspec.msgpack.encode([*given.values()])),))
    assert talk.has_ended()


@pytest.mark.usefixtures("place", "outside")
def test_greeting_without_a_policy_stops_the_launcher(talk: Talk, tmp_path: Path) -> None:
    talk.send(1, 0, Hello(version=VERSION, directory=str(tmp_path)))
    assert talk.has_ended()


@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind in MESSAGES for field in fields_of(kind)]
)
@pytest.mark.usefixtures("place", "outside")
def test_field_of_a_wrong_type_stops_the_launcher(
    talk: Talk, kind: type, field: str, tmp_path: Path
) -> None:
    make, bring = SAMPLES[kind]
    if kind is not Hello:
        talk.greet(tmp_path)
    descriptors, sample = bring(), make(tmp_path)
    wrong: Any = 5 if isinstance(getattr(sample, field), dict) else {}
    before = tree(tmp_path)
    talk.send(2, len(descriptors), wire(sample, **{field: wrong}), descriptors=descriptors)
    assert talk.has_ended()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind in MESSAGES for field in named(kind)]
)
@pytest.mark.usefixtures("place", "outside")
def test_name_that_escapes_the_directory_is_refused(
    greeted: Talk, kind: type, field: str, name: str, tmp_path: Path
) -> None:
    make, bring = SAMPLES[kind]
    descriptors, sample = bring(), make(tmp_path)
    before = tree(tmp_path)
    greeted.send(2, len(descriptors), wire(sample, **{field: name}), descriptors=descriptors)
    assert greeted.has_ended()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.usefixtures("place", "outside")
def test_missing_descriptors_stop_the_launcher(talk: Talk, kind: type, tmp_path: Path) -> None:
    make, bring = SAMPLES[kind]
    if kind is not Hello:
        talk.greet(tmp_path)
    descriptors = bring()
    before = tree(tmp_path)
    talk.send(2, len(descriptors) + 1, make(tmp_path), descriptors=descriptors)
    assert talk.has_ended()
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("kind", [message for message in MESSAGES if [*named(message)]])
def test_symlink_instead_of_an_allocation_is_not_entered(
    greeted: Talk, kind: type, outside: Path, tmp_path: Path
) -> None:
    (outside / "alloc/logs").mkdir(parents=True)
    (tmp_path / ALLOCATION).symlink_to(outside)
    make, bring = SAMPLES[kind]
    before = tree(outside)
    greeted.ask(make(tmp_path), *bring())
    assert tree(outside) == before
    (outside / "alloc/logs").rmdir()
    (outside / "alloc").rmdir()


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("field", ["allocation", "task"])
@pytest.mark.usefixtures("place", "outside")
def test_marker_name_that_escapes_the_directory_is_refused(
    greeted: Talk, field: str, name: str
) -> None:
    mark = {"allocation": ALLOCATION, "task": "main", "attempt": 0, "action": "end"} | {field: name}
    greeted.send(2, 0, [33, [[*mark.values()]]])
    assert greeted.has_ended()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "group",
    [
        "/etc/passwd",
        f"/sys/fs/cgroup/{ALLOCATION}.main",
        "/none/above/other.main",
        f"/none/above/../{ALLOCATION}.main",
        f"/none/above/deeper/{ALLOCATION}.main",
    ],
)
def test_start_accepts_only_the_cgroup_of_its_task(
    talk: Talk, place: Place, group: str, tmp_path: Path
) -> None:
    talk.greet(tmp_path, msgspec.structs.replace(launchers.EVERYTHING, groups=["/none/above"]))
    sample = msgspec.structs.replace(SAMPLES[StartTask][0](tmp_path), group=group)
    answer = talk.ask(sample, payload("/bin/true")).body
    assert isinstance(answer, RefusedReply)
    assert group in answer.text
    assert not place.claim.exists()


@pytest.mark.parametrize("sees_secrets", [True, False])
@pytest.mark.parametrize(
    "path",
    [
        *("main/secrets/token", "main/private/p", "main/local/to-secret", "main/local/to-claim"),
        *("main/local/to-shadow", "main/local/to-kernel", "main/local/pipe", ".claim.main.0"),
        *("main/local/../secrets/token", "../x", "main/local", "alloc/logs"),
    ],
)
def test_only_open_files_of_a_task_are_returned_as_descriptors(
    greeted: Talk, tmp_path: Path, path: str, sees_secrets: bool
) -> None:
    greeted.ask(*_sample(CreateAllocDir, tmp_path))
    home = tmp_path / ALLOCATION
    for name in ("main/secrets/token", "main/private/p", ".claim.main.0"):
        (home / name).write_text("secret")
    local = home / "main/local"
    (local / "to-secret").symlink_to("../secrets/token")
    (local / "to-claim").symlink_to("../../.claim.main.0")
    (local / "to-shadow").symlink_to("/etc/shadow")
    (local / "to-kernel").symlink_to("/proc/self/root/etc/shadow")
    os.mkfifo(local / "pipe")
    greeted.send(1, 0, OpenFile(allocation=ALLOCATION, path=path, sees_secrets=sees_secrets))
    data, received = receive(greeted.channel)
    close(received)
    assert received == []
    assert b"secret" not in data


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "fields",
    [
        *(["main/local/f", "stdout", "rotate"], ["../../main", "stdout", "rotate"]),
        *(["main", "stdout.0/../../../main/local/f", "rotate"], ["main", "stdout", "write"]),
        ["", "stdout", "rotate"],
    ],
)
def test_only_logs_can_be_opened_for_truncation(greeted: Talk, fields: list[str]) -> None:
    greeted.send(1, 0, [OpenLog.__struct_config__.tag, ALLOCATION, *fields])
    assert greeted.has_ended()


def _sample(kind: type, directory: Path) -> tuple[Any, ...]:
    make, bring = SAMPLES[kind]
    return make(directory), *bring()


@needs_root
def test_no_allocation_gets_the_user_of_another_allocation(talk: Talk, tmp_path: Path) -> None:
    policy = msgspec.structs.replace(launchers.EVERYTHING, own_uids=(80_000, 80_002))
    directory = tmp_path / "alloc"
    talk.greet(directory, policy)
    ids = [f"{ALLOCATION[:-1]}{number}" for number in range(4)]

    def lay_out(item: str, previous: str | None = None) -> Any:
        record = sealed(msgspec.msgpack.encode(LAYOUT))
        try:
            return talk.ask(CreateAllocDir(allocation=item, previous=previous), record).body
        finally:
            os.close(record)

    def owner(item: str) -> int:
        return (directory / item / "main/local").stat().st_uid

    lay_out(ids[0])
    with (directory / ids[0] / ".claim.main.0").open("w") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        assert lay_out(ids[1], ids[0]).number == errno.EBUSY
        # Removing the directory does not free the user ID while a task is running.
        assert (
            talk.ask(RemoveDirectory(allocation=ids[0], is_kept=False)).body.number == errno.EBUSY
        )
    lay_out(ids[1], ids[0])
    lay_out(ids[2], ids[0])
    assert [owner(identifier) for identifier in ids[1:3]] == [80_000, 80_001]
    start = msgspec.structs.replace(SAMPLES[StartTask][0](directory), allocation=ids[0])
    answer = talk.ask(start, passed(ordered("/bin/true", driver="exec"))).body
    assert isinstance(answer, RefusedReply)
    assert "taken over" in answer.text
    lay_out(ids[3])
    assert owner(ids[3]) == 80_002
    full = lay_out(ALLOCATION)
    assert (full.number, "task_uids" in full.text) == (errno.EUSERS, True)
    assert not (directory / ALLOCATION).exists()
    talk.ask(RemoveDirectory(allocation=ids[1], is_kept=False))
    assert lay_out(ALLOCATION).number == errno.EUSERS  # files of `ids[0]` still belong to this UID
    talk.ask(RemoveDirectory(allocation=ids[2], is_kept=False))
    lay_out(ALLOCATION)
    assert owner(ALLOCATION) == 80_001
    assert {path.name: os.readlink(path) for path in (tmp_path / "uids").iterdir()} == {
        ids[0]: "80000 handed on",
        ids[3]: "80002",
        ALLOCATION: "80001",
    }


@needs_root
@pytest.mark.parametrize("owner", [(0, 0), (0, -1), (7, 7), (1234, 1234), (-1, 4321)])
@pytest.mark.parametrize("kind", [WriteFile, MakeVolume])
def test_file_owner_must_be_a_user_that_tasks_can_have(
    talk: Talk, place: Place, kind: type, owner: tuple[int, int], tmp_path: Path
) -> None:
    policy = msgspec.structs.replace(
        launchers.EVERYTHING,
        owner=7,
        permits_root=False,
        denied_uids=[(1000, 1999)],
        denied_gids=[(4321, 4321)],
    )
    talk.greet(tmp_path, policy)
    make, bring = SAMPLES[kind]
    before = tree(tmp_path)
    answer = talk.ask(msgspec.structs.replace(make(tmp_path), owner=owner), *bring()).body
    assert isinstance(answer, RefusedReply)
    assert tree(tmp_path) == before
    assert not (tmp_path.parent / "volumes" / ALLOCATION).exists()


def end(shim: int) -> None:
    """Kill a shim and its task."""
    os.kill(shim, signal.SIGSTOP)  # it starts no process from now on
    children = Path(f"/proc/{shim}/task/{shim}/children").read_text().split()
    for pid in (*map(int, children), shim):
        os.kill(pid, signal.SIGKILL)


@needs_root
@pytest.mark.usefixtures("place")
def test_no_attempt_number_hides_a_running_task(greeted: Talk, tmp_path: Path) -> None:
    start = msgspec.structs.replace(SAMPLES[StartTask][0](tmp_path), attempt=2**32 - 1)
    answer = greeted.ask(start, payload("/bin/sleep", "600")).body
    assert isinstance(answer, ProcessStarted)
    try:
        found = greeted.ask(ListClaims(allocation=ALLOCATION)).body
        removed = greeted.ask(RemoveDirectory(allocation=ALLOCATION, is_kept=False)).body
    finally:
        end(answer.pid)
    assert found.found == [("main", 2**32 - 1)]
    assert removed.number == errno.EBUSY
    assert (tmp_path / ALLOCATION / "main").is_dir()


ASSAULT = """\
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
def tell(action):
    try:
        action()
        print("done")
    except OSError as error:
        print(type(error).__name__)
def trace():
    if libc.ptrace(16, pid, 0, 0) < 0:
        raise PermissionError(ctypes.get_errno())
tell(lambda: os.kill(pid, signal.SIGTERM))
tell(trace)
tell(lambda: open(f"/proc/{pid}/mem", "rb"))
tell(lambda: os.listdir(f"/proc/{pid}/fd"))
tell(lambda: open(f"/proc/{pid}/environ", "rb"))
"""


@needs_root
def test_unprivileged_daemon_cannot_control_its_launcher(greeted: Talk, place: Place) -> None:
    sample = SAMPLES[StartTask][0](place.root)
    answer = greeted.ask(sample, payload("/bin/sleep", "600")).body
    assert isinstance(answer, ProcessStarted)
    try:
        status = Path(f"/proc/{answer.pid}/status").read_text()
        (launcher,) = (line.split()[1] for line in status.splitlines() if line.startswith("PPid"))
        done = subprocess.run(
            [sys.executable, "-c", ASSAULT, launcher], capture_output=True, text=True, check=True
        )
    finally:
        end(answer.pid)
    assert done.stdout.split() == ["PermissionError"] * 5
