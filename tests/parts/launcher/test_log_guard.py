"""Logs while no daemon runs: the launcher limits them.

Such a launcher exits when the next daemon starts, or when the last task ends.
"""

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from daemon.launcher import log_guard
from daemon.launcher.channel import close, receive
from daemon.launcher.claims_and_logs import HolePunchUnsupported
from daemon.launcher.log_guard import LogGuard
from daemon.launcher.messages import NumberedReply, ProcessStarted, StartTask
from daemon.launcher.server import LOCK
from storage.records.task import LogConfig
from tests.parts.launcher.conftest import ALLOCATION, Place, Talk, payload
from tests.parts.launcher.test_processes import ended
from tests.task_logs import log_in, seen

MEGABYTE = 1024 * 1024
WRITTEN = 5_000_000
STEPS = 4
# Four steps: write a lot, wait, write a lot again, and wait. So after two steps, the task has
# written once.
TEXT = """
fill() { head -c 5000000 /dev/zero | tr '\\0' x; echo last words; }
read x <$PIPE.0; fill; read x <$PIPE.1; read x <$PIPE.2; fill; read x <$PIPE.3
"""


class Task:
    """A task that writes in steps. A step waits until the previous one is written."""

    def __init__(self, talk: Talk, directory: Path, keeps: int = MEGABYTE) -> None:
        self.pipe = directory / "pipe"
        for number in range(STEPS):
            os.mkfifo(f"{self.pipe}.{number}")
        start = StartTask(
            allocation=ALLOCATION, task="main", attempt=0, group="-", is_logged=True, keeps=keeps
        )
        order = payload("/bin/sh", "-c", TEXT, PIPE=str(self.pipe))
        talk.send(1, 1, start, descriptors=(order,))
        os.close(order)
        data, (self.watched,) = receive(talk.channel)
        assert isinstance(msgspec.msgpack.decode(data, type=NumberedReply).body, ProcessStarted)
        self.told = 0

    def tell(self) -> None:
        with open(f"{self.pipe}.{self.told}", "w"):  # waits for its reader
            self.told += 1

    def end(self) -> None:
        while self.told < STEPS:
            self.tell()
        assert ended(self.watched)
        close([self.watched])


@pytest.fixture(autouse=True)
def _keeps_its_signals() -> Iterator[None]:
    """Restore the signal mask that a guard changes, because later tests would inherit it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def task(greeted: Talk, place: Place, tmp_path: Path) -> Iterator[Task]:
    """A task that has not written yet, and whose launcher has a running daemon."""
    task = Task(greeted, tmp_path)
    yield task
    if task.told < STEPS:
        task.end()


def used(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_guard_preserves_the_end_of_a_log_and_its_offsets(
    task: Task, place: Place, tmp_path: Path
) -> None:
    guard = LogGuard(str(tmp_path))
    task.tell()
    task.tell()
    guard.look()
    assert place.out.stat().st_size >= WRITTEN
    task.end()
    guard.look()  # the attempt has ended, so nothing is left to guard
    guard.run(str(tmp_path / LOCK))
    size = place.out.stat().st_size
    assert size == 2 * (WRITTEN + 11)
    # One more log was written since the last pass that found the task.
    assert used(place.out) <= MEGABYTE + WRITTEN + 64 * 1024
    config = LogConfig(max_files=1, max_file_size_mb=1)
    shown = b"".join(chunk.data for chunk in seen(log_in(place.root, config=config)).chunks(0))
    assert shown.endswith(b"x" * 1000 + b"last words\n")
    assert b"\0" not in shown


def test_log_is_readable_after_its_limit_was_raised(
    task: Task, place: Place, tmp_path: Path
) -> None:
    guard = LogGuard(str(tmp_path))
    task.tell()
    task.tell()
    guard.look()
    present = log_in(place.root, config=LogConfig(max_files=10, max_file_size_mb=1))
    stream = seen(present)
    first, end = stream.span()
    assert end - first <= MEGABYTE + 4096
    assert b"\0" not in b"".join(chunk.data for chunk in stream.chunks(0))
    files = stream.files()
    assert files[0].start <= first < files[0].start + files[0].size
    assert sum(file.size for file in files) == end - files[0].start
    assert stream.locate("start", 0) == first


def test_next_launcher_stops_the_guard(task: Task, place: Place, tmp_path: Path) -> None:
    guard = LogGuard(str(tmp_path))
    task.tell()
    task.tell()
    guard.run(str(tmp_path / LOCK))  # the launcher of the task holds the lock
    assert used(place.out) >= WRITTEN
    free = tmp_path / "free"
    with open(free, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        guard.run(str(free))
    assert used(place.out) >= WRITTEN


def test_log_replaced_by_a_link_is_not_changed(task: Task, place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"y" * WRITTEN)
    place.out.unlink()
    place.out.symlink_to(other)
    LogGuard(str(tmp_path)).look()
    assert used(other) >= WRITTEN
    place.out.unlink()
    os.link(other, place.out)
    LogGuard(str(tmp_path)).look()
    assert used(other) >= WRITTEN


def test_open_log_is_trimmed_despite_a_redirected_name(
    task: Task, place: Place, tmp_path: Path
) -> None:
    guard = LogGuard(str(tmp_path))
    other, moved = tmp_path / "other", tmp_path / "moved"
    other.write_bytes(b"y" * WRITTEN)
    place.out.rename(moved)
    place.out.symlink_to(other)
    task.tell()
    task.tell()
    guard.look()
    assert used(other) >= WRITTEN
    assert used(moved) <= MEGABYTE + 8192


def test_file_system_without_hole_punching_keeps_its_logs(
    task: Task, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def punch(descriptor: int, start: int, end: int) -> None:
        raise HolePunchUnsupported

    monkeypatch.setattr(log_guard, "punch_hole", punch)
    guard = LogGuard(str(tmp_path))
    task.tell()
    task.tell()
    guard.look()
    guard.look()
    assert used(place.out) >= WRITTEN


def test_launcher_guards_the_logs_after_the_end_of_its_daemon(
    greeted: Talk, task: Task, place: Place, tmp_path: Path
) -> None:
    greeted.channel.close()
    task.tell()
    task.tell()
    while used(place.out) > MEGABYTE + 8192:  # the time limit of the test bounds it
        os.sched_yield()
    talk = Talk()
    talk.greet(tmp_path)  # waits for a pass of the guard at most
    with pytest.raises(BlockingIOError), open(tmp_path / LOCK) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    talk.channel.close()
