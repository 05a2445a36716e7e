"""Removal of an ended allocation's directory, for any contents and any caller."""

import errno
import fcntl
import itertools
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from daemon.launcher import alloc_removal
from daemon.launcher.channel import close, receive
from daemon.launcher.messages import (
    MOST_ERRANDS,
    DirectoryUsage,
    Done,
    ListAllocations,
    MeasureDirectory,
    NumberedReply,
    OperationFailed,
    RemoveDirectory,
    RetainLogs,
    StartTask,
)
from tests.parts.launcher.conftest import ALLOCATION, Talk, payload
from tests.parts.launcher.test_directories import facts, laid_out, room, swapping

REMOVE = RemoveDirectory(allocation=ALLOCATION, is_kept=False)
KEEP = RetainLogs(allocation=ALLOCATION)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return tmp_path / "tasks"


@pytest.fixture
def root(talk: Talk, tasks: Path) -> Path:
    """The directory of an allocation with a task, below the directory that a launcher serves."""
    (tasks / "alloc").mkdir(parents=True)
    talk.greet(tasks / "alloc")
    laid_out(talk, room())
    return tasks / "alloc" / ALLOCATION


@contextmanager
def at_work(root: Path) -> Iterator[None]:
    """Hold the claim of a task."""
    with (root / ".claim.main.0").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def deep(folder: Path, depth: int) -> None:
    """Create nested folders, deeper than a path can be."""
    above = os.open(folder, os.O_PATH)
    for _ in range(depth):
        os.mkdir("d", dir_fd=above)
        below = os.open("d", os.O_PATH, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)


def test_directory_is_removed_completely(talk: Talk, root: Path) -> None:
    for number in range(50):
        (root / f"main/local/{number % 7}/{number}").mkdir(parents=True)
        (root / f"main/local/{number % 7}/{number}/f").touch()
    os.mkfifo(root / "main/local/pipe")
    assert talk.ask(REMOVE).body == Done()
    assert os.listdir(root.parent) == [".launcher"]
    assert talk.ask(REMOVE).body == Done()


def test_directories_without_permissions_are_removed(talk: Talk, root: Path) -> None:
    (root / "main/local/a/b/c").mkdir(parents=True)
    for place in ("a/b/c", "a/b", "a", ""):
        (root / "main/local" / place).chmod(0)
    assert talk.ask(REMOVE).body == Done()
    assert not root.exists()


def test_very_deep_directory_of_a_task_is_removed(talk: Talk, root: Path) -> None:
    deep(root / "main/local", 3 * sys.getrecursionlimit())
    assert talk.ask(REMOVE).body == Done()
    assert os.listdir(root.parent) == [".launcher"]


def test_link_targets_are_not_removed(talk: Talk, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep/file").touch()
    for place in ("main/local/link", "main/link", "alloc/data/link", "link"):
        (root / place).symlink_to(outside)
    os.link(outside / "deep/file", root / "main/local/other")
    before = facts(outside / "deep")
    assert talk.ask(REMOVE).body == Done()
    assert facts(outside / "deep") == before


def test_running_allocation_is_not_removed(talk: Talk, root: Path) -> None:
    with at_work(root):
        for request in (REMOVE, KEEP):
            answer = talk.ask(request).body
            assert isinstance(answer, OperationFailed)
            assert answer.number == errno.EBUSY
    assert (root / "main/local").is_dir()


def test_partly_removed_directory_is_removed_with_its_successor(talk: Talk, root: Path) -> None:
    root.rename(f"{root}.removed")
    laid_out(talk, room())
    _, received = asked(talk, ListAllocations(is_kept=False))
    assert sorted(received) == [ALLOCATION, f"{ALLOCATION}.removed"]
    assert talk.ask(REMOVE).body == Done()
    assert asked(talk, ListAllocations(is_kept=False)) == (Done(), [""])


def asked(talk: Talk, request: object) -> tuple[object, list[str]]:
    """Return the answer to a request, and the lines of the file that comes with it."""
    talk.send(7, 0, request)
    data, descriptors = receive(talk.channel)
    text = os.pread(descriptors[0], 65536, 0).decode()
    close(descriptors)
    return msgspec.msgpack.decode(data, type=NumberedReply).body, text.split("\n")


def test_logs_are_moved_once_and_completely(talk: Talk, root: Path, tasks: Path) -> None:
    (root / "alloc/logs/main.stdout.0").write_text("out\n")
    (root / ".logs").mkdir()
    (tasks / "logs" / ALLOCATION / "alloc").mkdir(parents=True)  # as after an interrupted move
    for _ in range(2):
        assert talk.ask(KEEP).body == Done()
    assert talk.ask(REMOVE).body == Done()
    kept = tasks / "logs" / ALLOCATION
    assert (kept / "alloc/logs/main.stdout.0").read_text() == "out\n"
    assert sorted(os.listdir(kept)) == [".about", ".logs", "alloc"]
    assert asked(talk, ListAllocations(is_kept=True)) == (Done(), [ALLOCATION])
    assert talk.ask(RemoveDirectory(allocation=ALLOCATION, is_kept=True)).body == Done()
    assert os.listdir(tasks / "logs") == []


def test_allocation_without_output_has_no_moved_logs(talk: Talk, root: Path, tasks: Path) -> None:
    assert talk.ask(KEEP).body == Done()
    assert os.listdir(tasks) == ["alloc"]
    assert root.is_dir()


@pytest.mark.parametrize("name", ["alloc/logs", "alloc", ".about"])
def test_link_instead_of_a_log_directory_reveals_nothing(
    talk: Talk, root: Path, tasks: Path, tmp_path: Path, name: str
) -> None:
    (root / "alloc/logs/main.stdout.0").write_text("out\n")
    outside = (root / name).rename(tmp_path / "outside")
    (root / name).symlink_to(outside)
    before = facts(outside)
    talk.ask(KEEP)
    assert facts(outside) == before


def test_size_of_a_directory_is_reported(talk: Talk, root: Path) -> None:
    (root / "main/local/f").write_bytes(b"x" * 100_000)
    os.utime(root / "main/local/f", (5e9, 5e9))
    answer = talk.ask(MeasureDirectory(allocation=ALLOCATION, is_kept=False)).body
    assert isinstance(answer, DirectoryUsage)
    assert 100_000 < answer.used < 300_000
    assert answer.written == 5 * 10**18
    answer = talk.ask(MeasureDirectory(allocation=str(uuid4()), is_kept=False)).body
    assert isinstance(answer, OperationFailed)
    assert answer.number == errno.ENOENT


# --- requests during a removal ---


def fill(folder: Path, files: int) -> None:
    """Create empty files, a thousand in each folder."""
    for number in range(0, files, 1000):
        (folder / str(number)).mkdir()
        above = os.open(folder / str(number), os.O_PATH)
        for item in range(1000):
            os.mknod(str(item), dir_fd=above)
        os.close(above)


def test_other_requests_are_answered_during_a_removal(talk: Talk, root: Path) -> None:
    fill(root / "main/local", 50_000)  # takes longer than the starts, even on a busy host
    other = str(uuid4())
    laid_out(talk, room(), allocation=other)
    talk.send(99, 0, REMOVE)
    waits: list[float] = []
    numbers = []
    for attempt in range(20):
        began = time.monotonic()
        start = StartTask(allocation=other, task="main", attempt=attempt, group="-", is_logged=True)
        words = payload("/bin/true")
        talk.send(attempt, 1, start, descriptors=(words,))
        os.close(words)
        while not numbers or numbers[-1] != attempt:
            data, descriptors = receive(talk.channel)
            close(descriptors)
            numbers.append(msgspec.msgpack.decode(data, type=NumberedReply).number)
        waits.append(time.monotonic() - began)
    assert 99 not in numbers  # the removal is not finished
    assert sorted(waits)[10] < 0.1  # seconds; a removal takes many times as long
    while 99 not in numbers:
        data, _ = receive(talk.channel)
        numbers.append(msgspec.msgpack.decode(data, type=NumberedReply).number)
    assert os.listdir(root.parent / other)


def test_too_many_background_requests_are_refused(talk: Talk, root: Path) -> None:
    fill(root / "main/local", 4000)  # the measurement takes two steps, with a pause
    measure = MeasureDirectory(allocation=ALLOCATION, is_kept=False)
    for number in range(MOST_ERRANDS):
        talk.send(number, 0, measure)
    answer = talk.ask(measure, number=50).body
    assert isinstance(answer, OperationFailed)
    assert answer.number == errno.EAGAIN
    assert {number_of(talk) for _ in range(MOST_ERRANDS)} == {*range(MOST_ERRANDS)}
    assert isinstance(talk.ask(measure).body, DirectoryUsage)


def number_of(talk: Talk) -> int:
    return msgspec.msgpack.decode(receive(talk.channel)[0], type=NumberedReply).number


def launcher_of(talk: Talk) -> int:
    """Return the process ID of the launcher: the parent of a shim that the launcher starts."""
    other = str(uuid4())
    laid_out(talk, room(), allocation=other)
    start = StartTask(allocation=other, task="main", attempt=0, group="-", is_logged=False)
    shim = talk.ask(start, payload("/bin/sleep", "600")).body.pid
    launcher = int(Path(f"/proc/{shim}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (*children(shim), shim):
        with suppress(ProcessLookupError):  # the end of one also ends the other
            os.kill(pid, signal.SIGKILL)
    while shim in children(launcher):
        os.sched_yield()
    return launcher


def children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def measuring_child(talk: Talk, launcher: int) -> int:
    """Return a child that has begun to measure.

    If a child ends before the test sees it, another child is started.
    """
    while True:
        talk.send(1, 0, MeasureDirectory(allocation=ALLOCATION, is_kept=False))
        while not has_reply(talk):
            for child in children(launcher):
                if is_measuring(child):
                    return child
        receive(talk.channel)


def has_reply(talk: Talk) -> bool:
    return bool(select.select([talk.channel], [], [], 0)[0])


def is_measuring(pid: int) -> bool:
    """Return whether a child has opened a directory of the task."""
    with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        return any("/main/local/" in os.readlink(at) for at in Path(f"/proc/{pid}/fd").iterdir())
    return False


def open_child(talk: Talk, launcher: int) -> int:
    """Return a pidfd of a child that measures."""
    while True:
        with suppress(ProcessLookupError):  # the child has ended in the meantime
            return os.pidfd_open(measuring_child(talk, launcher))


def test_children_end_with_their_launcher(talk: Talk, root: Path) -> None:
    fill(root / "main/local", 4000)
    pid = launcher_of(talk)
    child = open_child(talk, pid)
    os.kill(pid, signal.SIGKILL)
    waiting = select.poll()
    waiting.register(child, select.POLLIN)
    assert waiting.poll(10_000)
    os.close(child)


def test_killed_child_is_an_error(talk: Talk, root: Path) -> None:
    fill(root / "main/local", 4000)
    pid = launcher_of(talk)
    body: object = None
    while not isinstance(body, OperationFailed):  # a child may end before its signal
        os.kill(measuring_child(talk, pid), signal.SIGALRM)  # as when its time limit is exceeded
        body = msgspec.msgpack.decode(receive(talk.channel)[0], type=NumberedReply).body
    assert body.number == errno.ETIMEDOUT


@pytest.mark.parametrize("name", ["main/local/a", "main/local", "main", "alloc/data", ""])
def test_link_swapped_in_during_a_removal_is_not_followed(
    talk: Talk, root: Path, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    for inner in ("local/a", "a", "data"):
        (outside / inner).mkdir(parents=True)
        (outside / inner / "file").touch()
    before = facts(outside)
    (root / "main/local/a").mkdir()
    with swapping(root / name, outside):
        for _ in range(60):
            talk.ask(REMOVE)
            laid_out(talk, room())
    assert facts(outside) == before


def test_removal_extended_by_a_task_is_aborted_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each removed file, the task creates another one."""
    folder = tmp_path / ALLOCATION / "main"
    folder.mkdir(parents=True)
    (folder / "0").touch()
    number, unlink = itertools.count(1), os.unlink

    def unlink_and_write(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        os.close(os.open(str(next(number)), os.O_CREAT | os.O_WRONLY, dir_fd=dir_fd))

    monkeypatch.setattr(os, "unlink", unlink_and_write)
    with pytest.raises(OSError, match="a process may still create files there") as told:
        alloc_removal.remove(str(tmp_path), ALLOCATION, seconds=0.1)
    assert told.value.errno == errno.ETIMEDOUT
    monkeypatch.setattr(os, "unlink", unlink)
    alloc_removal.remove(str(tmp_path), ALLOCATION)
    assert [*tmp_path.iterdir()] == []
