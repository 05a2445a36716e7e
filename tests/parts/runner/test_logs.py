"""A task's output as numbered files, and their limits (golden: log-rotation, client-files-logs)."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.runner.holes import NoHoles
from daemon.runner.logs import Chunk, TaskLog
from daemon.runner.rotation import Sweeper, finish_move, recover
from storage.records.task import LogConfig
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.world import Pipe, World, batch, made_for, script

MEGABYTE = 1024 * 1024


class Writers:
    """Processes that could be held still."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.while_held: Callable[[], None] = lambda: None
        self.when_let_go: Callable[[], None] = lambda: None

    async def pause(self) -> None:
        self.calls.append("pause")
        self.while_held()

    async def resume(self) -> None:
        self.calls.append("resume")
        self.when_let_go()


def no_holes(descriptor: int, start: int, end: int) -> None:
    raise NoHoles


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made_for(tmp_path / "a", "main")
    return tmp_path / "a"


@pytest.fixture
def log(directory: Path) -> TaskLog:
    """A log of two files of one megabyte."""
    return TaskLog(str(directory), "main", "stdout", LogConfig(max_files=2, max_file_size_mb=1))


def write(log: TaskLog, data: bytes) -> None:
    descriptor = log.open()
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def numbered(first: int, last: int) -> bytes:
    """Return lines of eight bytes that say where they are."""
    return b"".join(b"%07d\n" % number for number in range(first, last))


def text_of(chunks: list[Chunk]) -> bytes:
    return b"".join(chunk.data for chunk in chunks)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def swept(log: TaskLog, sweeper: Sweeper, writers: Writers | None = None) -> None:
    sweeper.add(log, writers or Writers())
    sweeper.remove(log)
    await sweeper.look()


# ---- reading ------------------------------------------------------------------------------------


def test_a_log_that_was_never_written_has_no_files(log: TaskLog) -> None:
    assert log.files() == []
    assert log.read(0) is None


def test_output_is_shown_as_a_numbered_file(log: TaskLog) -> None:
    write(log, b"out-line\n")
    assert [(file.name, file.size) for file in log.files()] == [("alloc/logs/main.stdout.0", 9)]
    assert log.chunks(0) == [Chunk("alloc/logs/main.stdout.0", 9, b"out-line\n", 9)]


@pytest.mark.parametrize(
    ("origin", "offset", "expected"),
    [
        ("start", 0, b"out-line\n"),
        ("start", 4, b"line\n"),
        ("start", 99, b""),
        ("end", 5, b"line\n"),
        ("end", 0, b""),
        ("end", 99, b"out-line\n"),
    ],
)
def test_reading_begins_where_one_wants(
    log: TaskLog, origin: str, offset: int, expected: bytes
) -> None:
    write(log, b"out-line\n")
    assert text_of(log.chunks(log.locate(origin, offset))) == expected


def test_only_the_newest_files_are_shown_whatever_the_disk_holds(log: TaskLog) -> None:
    write(log, b"x" * (3 * MEGABYTE + 500))
    assert [(file.name, file.start, file.size) for file in log.files()] == [
        ("alloc/logs/main.stdout.2", 2 * MEGABYTE, MEGABYTE),
        ("alloc/logs/main.stdout.3", 3 * MEGABYTE, 500),
    ]


def test_a_file_that_is_just_full_is_still_the_last_one(log: TaskLog) -> None:
    write(log, b"x" * MEGABYTE)
    assert [file.name for file in log.files()] == ["alloc/logs/main.stdout.0"]


def test_a_chunk_does_not_cross_from_one_file_to_the_next(log: TaskLog) -> None:
    write(log, b"x" * (MEGABYTE + 10))
    chunk = log.read(MEGABYTE - 5)
    assert chunk == Chunk("alloc/logs/main.stdout.0", MEGABYTE, b"xxxxx", MEGABYTE)
    assert log.read(MEGABYTE) == Chunk("alloc/logs/main.stdout.1", 10, b"x" * 10, MEGABYTE + 10)


def test_a_position_that_was_dropped_means_the_first_that_is_kept(log: TaskLog) -> None:
    write(log, b"x" * (3 * MEGABYTE))
    chunk = log.read(0, 10)
    assert chunk is not None
    assert (chunk.file, chunk.end) == ("alloc/logs/main.stdout.1", MEGABYTE + 10)


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path)]
)
def test_what_a_task_puts_in_the_place_of_its_log_is_neither_read_nor_written(
    log: TaskLog, make: Callable[[str], None], tmp_path: Path
) -> None:
    make(log.path)
    assert log.chunks(0) == []
    assert log.span() == (0, 0)


def test_a_link_in_the_place_of_a_log_gives_way_to_a_new_file(log: TaskLog, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("keep")
    os.symlink(target, log.path)
    write(log, b"mine")
    assert target.read_text() == "keep"
    assert text_of(log.chunks(0)) == b"mine"


async def test_a_follower_gets_everything_until_the_task_has_ended(log: TaskLog) -> None:
    write(log, b"one ")
    ended = trio.Event()
    got: list[bytes] = []

    async def follow() -> None:
        async for chunk in log.follow(0, ended.is_set):
            got.append(chunk.data if chunk else b"")  # noqa: PERF401

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked(0.02)
        write(log, b"two ")
        await trio.testing.wait_all_tasks_blocked(0.02)
        write(log, b"three")
        ended.set()
    assert b"".join(got) == b"one two three"


async def test_follower_gets_a_beat_for_each_second_without_output(
    log: TaskLog, autojump_clock: trio.testing.MockClock
) -> None:
    write(log, b"one")
    began = trio.current_time()
    found = [
        (one and one.data, int(trio.current_time() - began))
        async for one in log.follow(0, lambda: trio.current_time() >= began + 3.5)
    ]
    assert found == [(b"one", 0), (None, 1), (None, 2), (None, 3)]


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 0), (3, 0), (MEGABYTE, 0), (MEGABYTE + 1, MEGABYTE)]
)
def test_last_file_begins_at_a_multiple_of_its_limit(
    log: TaskLog, size: int, expected: int
) -> None:
    write(log, b"x" * size)
    assert log.last_file() == expected


async def test_the_log_of_a_task_is_followed_while_it_runs(world: World, pipe: Pipe) -> None:
    task = script(f"for i in 1 2 3; do echo line $i; read x <{pipe.path}; done")
    alloc_id = await world.place(batch(task))
    log = world.runner.log(alloc_id, task, "stdout")
    lines = []
    async for chunk in log.follow(0, lambda: world.runner.has_ended(alloc_id, "main")):
        lines.append(chunk.data if chunk else b"")
        os.write(os.open(pipe.path, os.O_WRONLY | os.O_NONBLOCK), b"go\n")
    assert b"".join(lines) == b"line 1\nline 2\nline 3\n"


async def test_a_task_may_have_no_logs(world: World) -> None:
    task = script("echo lost; echo lost >&2", log_config=LogConfig(disabled=True))
    alloc_id = await world.place(batch(task))
    await world.until_done(alloc_id)
    assert world.runner.log(alloc_id, task, "stdout").files() == []
    assert not (world.directory(alloc_id) / "alloc/logs/main.stdout.0").exists()


async def test_another_attempt_goes_on_in_the_same_log(world: World, pipe: Pipe) -> None:
    task = script(f"echo out; echo err >&2; echo x >{pipe.path}; exec sleep 600")
    alloc_id = await world.place(batch(task))
    await pipe.line()
    await world.until_status(alloc_id, "running")
    await world.runner.restart(alloc_id)
    await pipe.line()
    assert world.output(alloc_id) == "out\nout\n"
    assert world.output(alloc_id, kind="stderr") == "err\nerr\n"


# ---- limits -------------------------------------------------------------------------------------


async def test_what_no_file_shows_is_taken_from_the_disk(log: TaskLog) -> None:
    write(log, b"x" * (5 * MEGABYTE + 10))
    await swept(log, Sweeper())
    found = os.stat(log.path)
    assert found.st_size == 5 * MEGABYTE + 10
    assert found.st_blocks * 512 < 2 * MEGABYTE
    assert text_of(log.chunks(0)) == b"x" * (MEGABYTE + 10)


async def test_what_is_kept_follows_a_definition_that_changes_meanwhile(
    log: TaskLog, directory: Path
) -> None:
    sweeper = Sweeper()
    sweeper.add(log, Writers())
    write(log, b"x" * 5 * MEGABYTE)
    more = LogConfig(max_files=4, max_file_size_mb=1)
    sweeper.update(TaskLog(str(directory), "main", "stdout", more))
    await sweeper.look()
    assert os.stat(log.path).st_blocks * 512 >= 4 * MEGABYTE
    sweeper.update(log)
    await sweeper.look()
    assert os.stat(log.path).st_blocks * 512 < 3 * MEGABYTE


async def test_the_logs_of_a_task_that_writes_fast_are_kept_small(world: World, pipe: Pipe) -> None:
    task = script(f"head -c 50000000 /dev/zero; echo x >{pipe.path}; exec sleep 600")
    alloc_id = await world.place(batch(task))
    await pipe.line()
    path = world.directory(alloc_id) / "alloc/logs/main.stdout.0"
    while path.stat().st_blocks * 512 > 3 * MEGABYTE:  # noqa: ASYNC110  # nobody tells
        await trio.sleep(0.05)
    names = [file.name for file in world.runner.log(alloc_id, task, "stdout").files()]
    assert names == ["alloc/logs/main.stdout.46", "alloc/logs/main.stdout.47"]


async def test_without_holes_what_is_kept_is_moved_and_no_byte_is_lost(log: TaskLog) -> None:
    sweeper, writers = Sweeper(no_holes), Writers()
    lines = numbered(0, 5 * MEGABYTE // 8)
    write(log, lines)
    await swept(log, sweeper, writers)
    assert os.stat(log.path).st_size == 0
    write(log, b"after")
    assert text_of(log.chunks(0)) == lines[4 * MEGABYTE :] + b"after"
    assert [file.name for file in log.files()] == [
        "alloc/logs/main.stdout.4",
        "alloc/logs/main.stdout.5",
    ]
    assert writers.calls == ["pause", "resume"]


async def test_what_is_written_while_the_log_is_copied_is_not_lost(log: TaskLog) -> None:
    writers = Writers()
    writers.while_held = lambda: write(log, b"in the meantime")
    write(log, b"x" * (3 * MEGABYTE))
    await swept(log, Sweeper(no_holes), writers)
    write(log, b", and after")
    assert text_of(log.chunks(log.locate("end", 26))) == b"in the meantime, and after"


async def test_what_was_moved_is_given_back_when_more_is_written_as_soon_as_a_move_is_over(
    log: TaskLog, directory: Path
) -> None:
    sweeper, writers = Sweeper(no_holes), Writers()
    writers.when_let_go = lambda: write(log, b"x" * (2 * MEGABYTE))
    write(log, b"x" * (3 * MEGABYTE))
    sweeper.add(log, writers)
    await sweeper.look()
    writers.when_let_go = lambda: None
    await sweeper.look()
    assert log.span() == (3 * MEGABYTE, 5 * MEGABYTE)
    assert size_of(directory) == 2 * MEGABYTE


async def test_without_holes_the_disk_is_given_back_too(log: TaskLog, directory: Path) -> None:
    sweeper = Sweeper(no_holes)
    for _ in range(8):
        write(log, b"x" * (2 * MEGABYTE))
        await swept(log, sweeper)
    assert size_of(directory) <= 4 * MEGABYTE
    assert log.span() == (14 * MEGABYTE, 16 * MEGABYTE)


async def test_a_move_that_was_interrupted_before_the_log_was_emptied_is_undone(
    log: TaskLog, directory: Path
) -> None:
    lines = numbered(0, 3 * MEGABYTE // 8)
    write(log, lines)
    (directory / ".logs").mkdir()
    (directory / f".logs/main.stdout.{MEGABYTE}.copy").write_bytes(lines[MEGABYTE : 2 * MEGABYTE])
    recover(log)
    assert text_of(log.chunks(0)) == lines[MEGABYTE:]
    assert list((directory / ".logs").iterdir()) == []


async def test_a_move_that_was_interrupted_after_the_log_was_emptied_is_finished(
    log: TaskLog, directory: Path
) -> None:
    lines = numbered(0, 3 * MEGABYTE // 8)
    (directory / ".logs").mkdir()
    (directory / f".logs/main.stdout.{MEGABYTE}.copy").write_bytes(lines[MEGABYTE:])
    write(log, b"after")
    recover(log)
    assert text_of(log.chunks(0)) == lines[2 * MEGABYTE :] + b"after"


async def test_a_task_that_was_left_held_still_goes_on(log: TaskLog, directory: Path) -> None:
    writers = Writers()
    (directory / ".logs").mkdir()
    (directory / ".logs/main.stdout.held").touch()
    await finish_move(log, writers)
    await finish_move(log, writers)
    assert writers.calls == ["resume"]


async def test_a_real_task_loses_nothing_without_holes(
    held_world: World, pipe: Pipe, directory: Path
) -> None:
    held_world.runner._host.sweeper._punch = no_holes
    text = f"seq -f %015.0f 1 400000; echo x >{pipe.path}; exec sleep 600"
    task = script(text, log_config=LogConfig(max_files=3, max_file_size_mb=1))
    alloc_id = await held_world.place(batch(task))
    await pipe.line()
    log = held_world.runner.log(alloc_id, task, "stdout")
    # How much is moved, and whether twice, depends on when the sweeper has looked meanwhile.
    while not log.pieces()[:-1]:  # noqa: ASYNC110  # nobody tells
        await trio.sleep(0.05)
    text = text_of(log.chunks(0)).decode()
    numbers = [int(line) for line in text.splitlines()[1:]]
    assert numbers == list(range(numbers[0], 400_001))
    assert len(text) > 2 * MEGABYTE


def test_the_name_of_one_task_may_begin_like_another_ones(directory: Path) -> None:
    config = LogConfig(max_files=1, max_file_size_mb=1)
    other = TaskLog(str(directory), "main.stdout", "stdout", config)
    (directory / ".logs").mkdir()
    Path(other.moved_path(5)).write_text("x")
    assert len(TaskLog(str(directory), "main", "stdout", config).pieces()) == 1
    shutil.rmtree(directory)


def test_a_log_is_not_written_to_a_file_that_has_another_name(tmp_path: Path) -> None:
    made_for(tmp_path / "a")
    other = tmp_path / "other"
    other.write_text("kept")
    log = TaskLog(str(tmp_path / "a"), "main", "stdout", LogConfig())
    os.link(other, log.path)
    descriptor = log.open()
    os.write(descriptor, b"new")
    os.close(descriptor)
    assert (other.read_text(), Path(log.path).read_text()) == ("kept", "new")


@needs_root
def test_a_log_is_not_written_to_a_file_of_somebody_else(tmp_path: Path) -> None:
    made_for(tmp_path / "a")
    log = TaskLog(str(tmp_path / "a"), "main", "stdout", LogConfig())
    Path(log.path).write_text("planted")
    os.chown(log.path, 65534, 65534)
    os.close(log.open())
    assert Path(log.path).stat().st_uid == os.geteuid()
