"""A task's output as numbered files, and their limits (recorded: log-rotation, client-files-logs)."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.launcher.claims_and_logs import HolePunchUnsupported
from daemon.runner.core.task_log import LogChunk, Logs, TaskLog
from daemon.runner.logs.rotation import LogRotator, recover_all_rotations, recover_rotation
from storage.records.task import LogConfig
from tests.launchers import Direct
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.world import Pipe, World, batch, made_for, script
from tests.task_logs import add as write
from tests.task_logs import log_in, now, path_of, seen

MEGABYTE = 1024 * 1024


class Writers:
    """Processes that can be frozen."""

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
    raise HolePunchUnsupported


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made_for(tmp_path / "a", "main")
    return tmp_path / "a"


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The directory of rotated log data."""
    found = tmp_path / "output/a"
    found.mkdir(parents=True)
    return found


@pytest.fixture
def log(directory: Path) -> TaskLog:
    """A log of two files of one megabyte."""
    return log_in(directory, "main", "stdout", LogConfig(max_files=2, max_file_size_mb=1))


def numbered(first: int, last: int) -> bytes:
    """Return lines of eight bytes that contain their positions."""
    return b"".join(b"%07d\n" % number for number in range(first, last))


def text_of(chunks: list[LogChunk]) -> bytes:
    return b"".join(chunk.data for chunk in chunks)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def swept(log: TaskLog, sweeper: LogRotator, writers: Writers | None = None) -> None:
    sweeper.add(log, writers or Writers())
    sweeper.remove(log)
    await sweeper.trim_all()


async def test_short_log_with_a_known_end_needs_no_final_pass(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeper, asked = LogRotator(now=lambda: 7), list[object]()
    monkeypatch.setattr(log._logs.launcher, "open_log", asked.append)
    sweeper.add(log, Writers())
    sweeper.remove(log, 9)
    await sweeper.trim_all()
    assert asked == []
    assert [*log.marks.times] == [7]
    assert [*log.marks.ends] == [9]


async def test_long_log_with_a_known_end_gets_a_final_pass(log: TaskLog) -> None:
    write(log, bytes(3 * MEGABYTE))
    sweeper = LogRotator()
    sweeper.add(log, Writers())
    sweeper.remove(log, 3 * MEGABYTE)
    await sweeper.trim_all()
    assert path_of(log).stat().st_blocks * 512 <= 2 * MEGABYTE


# ---- reading ------------------------------------------------------------------------------------


def test_empty_log_has_no_files(log: TaskLog) -> None:
    assert seen(log).files() == []
    assert seen(log).read(0) is None


def test_output_is_shown_as_a_numbered_file(log: TaskLog) -> None:
    write(log, b"out-line\n")
    assert [(file.name, file.size) for file in seen(log).files()] == [
        ("alloc/logs/main.stdout.0", 9)
    ]
    assert seen(log).chunks(0) == [LogChunk("alloc/logs/main.stdout.0", 9, b"out-line\n", 9)]


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
def test_log_read_starts_at_the_requested_offset(
    log: TaskLog, origin: str, offset: int, expected: bytes
) -> None:
    write(log, b"out-line\n")
    assert text_of(seen(log).chunks(seen(log).locate(origin, offset))) == expected


def test_only_the_newest_log_files_are_shown(log: TaskLog) -> None:
    write(log, b"x" * (3 * MEGABYTE + 500))
    assert [(file.name, file.start, file.size) for file in seen(log).files()] == [
        ("alloc/logs/main.stdout.2", 2 * MEGABYTE, MEGABYTE),
        ("alloc/logs/main.stdout.3", 3 * MEGABYTE, 500),
    ]


def test_full_log_file_remains_the_last_until_the_next_byte(log: TaskLog) -> None:
    write(log, b"x" * MEGABYTE)
    assert [file.name for file in seen(log).files()] == ["alloc/logs/main.stdout.0"]


def test_chunk_does_not_cross_a_file_boundary(log: TaskLog) -> None:
    write(log, b"x" * (MEGABYTE + 10))
    chunk = seen(log).read(MEGABYTE - 5)
    assert chunk == LogChunk("alloc/logs/main.stdout.0", MEGABYTE, b"xxxxx", MEGABYTE)
    assert seen(log).read(MEGABYTE) == LogChunk(
        "alloc/logs/main.stdout.1", 10, b"x" * 10, MEGABYTE + 10
    )


def test_dropped_offset_means_the_first_retained_offset(log: TaskLog) -> None:
    write(log, b"x" * (3 * MEGABYTE))
    chunk = seen(log).read(0, 10)
    assert chunk is not None
    assert (chunk.file, chunk.end) == ("alloc/logs/main.stdout.1", MEGABYTE + 10)


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path)]
)
def test_replaced_log_file_is_neither_read_nor_written(
    log: TaskLog, make: Callable[[str], None], tmp_path: Path
) -> None:
    make(path_of(log))
    assert seen(log).chunks(0) == []
    assert seen(log).span() == (0, 0)


def test_link_instead_of_a_log_is_replaced_by_a_file(log: TaskLog, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("keep")
    os.symlink(target, path_of(log))
    write(log, b"mine")
    assert target.read_text() == "keep"
    assert text_of(seen(log).chunks(0)) == b"mine"


async def test_follower_gets_all_output_until_the_task_ends(log: TaskLog) -> None:
    write(log, b"one ")
    ended = trio.Event()
    got: list[bytes] = []

    async def follow() -> None:
        async for chunk in log.follow(0, ended.is_set):
            got.append(chunk.data if chunk else b"")  # noqa: PERF401  # visible before the end

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked(0.02)
        write(log, b"two ")
        await trio.testing.wait_all_tasks_blocked(0.02)
        write(log, b"three")
        ended.set()
    assert b"".join(got) == b"one two three"


async def test_follower_gets_a_heartbeat_for_each_second_without_output(
    log: TaskLog, autojump_clock: trio.testing.MockClock
) -> None:
    write(log, b"one")
    began = trio.current_time()
    found = [
        (item and item.data, int(trio.current_time() - began))
        async for item in log.follow(0, lambda: trio.current_time() >= began + 3.5)
    ]
    assert found == [(b"one", 0), (None, 1), (None, 2), (None, 3)]


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 0), (3, 0), (MEGABYTE, 0), (MEGABYTE + 1, MEGABYTE)]
)
def test_last_file_starts_at_a_multiple_of_its_limit(
    log: TaskLog, size: int, expected: int
) -> None:
    write(log, b"x" * size)
    assert seen(log).last_file() == expected


async def test_log_of_a_running_task_is_followed(world: World, pipe: Pipe) -> None:
    task = script(f"for i in 1 2 3; do echo line $i; read x <{pipe.path}; done")
    alloc_id = await world.place(batch(task))
    log = world.runner.log(alloc_id, task, "stdout")
    lines = []
    async for chunk in log.follow(0, lambda: world.runner.has_ended(alloc_id, "main")):
        lines.append(chunk.data if chunk else b"")
        os.write(os.open(pipe.path, os.O_WRONLY | os.O_NONBLOCK), b"go\n")
    assert b"".join(lines) == b"line 1\nline 2\nline 3\n"


async def test_task_can_disable_its_logs(world: World) -> None:
    task = script("echo lost; echo lost >&2", log_config=LogConfig(disabled=True))
    alloc_id = await world.place(batch(task))
    await world.until_done(alloc_id)
    assert (await world.runner.log(alloc_id, task, "stdout").current()).files() == []
    assert not (world.directory(alloc_id) / "alloc/logs/main.stdout.0").exists()


async def test_next_attempt_appends_to_the_same_log(world: World, pipe: Pipe) -> None:
    task = script(f"echo out; echo err >&2; echo x >{pipe.path}; exec sleep 600")
    alloc_id = await world.place(batch(task))
    await pipe.line()
    await world.until_status(alloc_id, "running")
    await world.runner.restart(alloc_id)
    await pipe.line()
    assert world.output(alloc_id) == "out\nout\n"
    assert world.output(alloc_id, kind="stderr") == "err\nerr\n"


async def test_log_is_open_only_while_its_task_runs(log: TaskLog) -> None:
    def is_open() -> bool:
        present = path_of(log)
        return any(
            os.path.realpath(f"/proc/self/fd/{item}") == str(present)
            for item in os.listdir("/proc/self/fd")
        )

    sweeper = LogRotator()
    write(log, b"text")
    await log.current()
    assert not is_open()
    sweeper.add(log, Writers())
    await log.current()
    assert is_open()
    sweeper.remove(log)
    await sweeper.trim_all()
    assert not is_open()


async def test_number_of_open_logs_is_limited(directory: Path) -> None:
    logs = Logs(Direct(directory.parent), directory.parent / "output", most=2)
    found = [logs.log("a", name, "stdout", LogConfig()) for name in "vwxyz"]
    for log in found:
        write(log, log.stem.encode())
        log.grow(grows=True)
        await log.current()
    assert len(logs._open) == 2
    for log in found:
        assert text_of((await log.current()).chunks(0)) == log.stem.encode()


# ---- limits -------------------------------------------------------------------------------------


async def test_deleted_log_data_is_freed_on_disk(log: TaskLog) -> None:
    write(log, b"x" * (5 * MEGABYTE + 10))
    await swept(log, LogRotator())
    found = os.stat(path_of(log))
    assert found.st_size == 5 * MEGABYTE + 10
    assert found.st_blocks * 512 < 2 * MEGABYTE
    assert text_of(seen(log).chunks(0)) == b"x" * (MEGABYTE + 10)


async def test_log_retention_follows_a_changed_definition(log: TaskLog, directory: Path) -> None:
    sweeper = LogRotator()
    sweeper.add(log, Writers())
    write(log, b"x" * 5 * MEGABYTE)
    more = LogConfig(max_files=4, max_file_size_mb=1)
    sweeper.update(log_in(directory, "main", "stdout", more))
    await sweeper.trim_all()
    assert os.stat(path_of(log)).st_blocks * 512 >= 4 * MEGABYTE
    sweeper.update(log)
    await sweeper.trim_all()
    assert os.stat(path_of(log)).st_blocks * 512 < 3 * MEGABYTE


async def test_logs_of_a_fast_writer_stay_within_their_limit(world: World, pipe: Pipe) -> None:
    task = script(f"head -c 50000000 /dev/zero; echo x >{pipe.path}; exec sleep 600")
    alloc_id = await world.place(batch(task))
    await pipe.line()
    path = world.directory(alloc_id) / "alloc/logs/main.stdout.0"
    while path.stat().st_blocks * 512 > 3 * MEGABYTE:  # noqa: ASYNC110  # no event reports this
        await trio.sleep(0.05)
    names = [
        file.name for file in (await world.runner.log(alloc_id, task, "stdout").current()).files()
    ]
    assert names == ["alloc/logs/main.stdout.46", "alloc/logs/main.stdout.47"]


async def test_without_hole_punching_retained_output_is_moved_without_a_loss(log: TaskLog) -> None:
    sweeper, writers = LogRotator(no_holes), Writers()
    lines = numbered(0, 5 * MEGABYTE // 8)
    write(log, lines)
    await swept(log, sweeper, writers)
    assert os.stat(path_of(log)).st_size == 0
    write(log, b"after")
    assert text_of(seen(log).chunks(0)) == lines[4 * MEGABYTE :] + b"after"
    assert [file.name for file in seen(log).files()] == [
        "alloc/logs/main.stdout.4",
        "alloc/logs/main.stdout.5",
    ]
    assert writers.calls == ["pause", "resume"]


async def test_line_written_during_a_log_copy_is_not_lost(log: TaskLog) -> None:
    writers = Writers()
    writers.while_held = lambda: write(log, b"in the meantime")
    write(log, b"x" * (3 * MEGABYTE))
    await swept(log, LogRotator(no_holes), writers)
    write(log, b", and after")
    assert text_of(seen(log).chunks(seen(log).locate("end", 26))) == b"in the meantime, and after"


async def test_space_of_a_moved_log_is_freed_by_later_writes(log: TaskLog, directory: Path) -> None:
    sweeper, writers = LogRotator(no_holes), Writers()
    writers.when_let_go = lambda: write(log, b"x" * (2 * MEGABYTE))
    write(log, b"x" * (3 * MEGABYTE))
    sweeper.add(log, writers)
    await sweeper.trim_all()
    writers.when_let_go = lambda: None
    await sweeper.trim_all()
    assert seen(log).span() == (3 * MEGABYTE, 5 * MEGABYTE)
    assert size_of(directory.parent) == 2 * MEGABYTE


async def test_without_hole_punching_disk_space_is_freed(log: TaskLog, directory: Path) -> None:
    sweeper = LogRotator(no_holes)
    for _ in range(8):
        write(log, b"x" * (2 * MEGABYTE))
        await swept(log, sweeper)
    assert size_of(directory.parent) <= 4 * MEGABYTE
    assert seen(log).span() == (14 * MEGABYTE, 16 * MEGABYTE)


async def test_move_interrupted_before_truncation_is_undone(log: TaskLog, beside: Path) -> None:
    lines = numbered(0, 3 * MEGABYTE // 8)
    write(log, lines)
    (beside / f"main.stdout.{MEGABYTE}.copy").write_bytes(lines[MEGABYTE : 2 * MEGABYTE])
    recover_rotation(log, seen(log))
    assert text_of(seen(log).chunks(0)) == lines[MEGABYTE:]
    assert os.listdir(beside) == []


async def test_move_interrupted_after_truncation_is_completed(log: TaskLog, beside: Path) -> None:
    lines = numbered(0, 3 * MEGABYTE // 8)
    (beside / f"main.stdout.{MEGABYTE}.copy").write_bytes(lines[MEGABYTE:])
    write(log, b"after")
    recover_rotation(log, seen(log))
    assert text_of(seen(log).chunks(0)) == lines[2 * MEGABYTE :] + b"after"


async def test_task_left_paused_is_resumed(log: TaskLog, beside: Path) -> None:
    writers = Writers()
    (beside / "main.stdout.held").touch()
    await recover_all_rotations(log, writers)
    await recover_all_rotations(log, writers)
    assert writers.calls == ["resume"]


async def test_running_task_loses_no_output_without_hole_punching(
    held_world: World, pipe: Pipe, directory: Path
) -> None:
    held_world.runner._host.sweeper._punch = no_holes
    text = f"seq -f %015.0f 1 400000; echo x >{pipe.path}; exec sleep 600"
    task = script(text, log_config=LogConfig(max_files=3, max_file_size_mb=1))
    alloc_id = await held_world.place(batch(task))
    await pipe.line()
    log = held_world.runner.log(alloc_id, task, "stdout")
    # The sweeper may have run once or several times, so the amount of moved data varies.
    while not (await log.current()).pieces()[:-1]:  # noqa: ASYNC110  # no event reports this
        await trio.sleep(0.05)
    text = text_of((await log.current()).chunks(0)).decode()
    numbers = [int(line) for line in text.splitlines()[1:]]
    assert numbers == list(range(numbers[0], 400_001))
    assert len(text) > 2 * MEGABYTE


@pytest.mark.usefixtures("beside")
def test_task_names_can_share_a_prefix(directory: Path) -> None:
    config = LogConfig(max_files=1, max_file_size_mb=1)
    other = log_in(directory, "main.stdout", "stdout", config)
    Path(other.moved_path(5)).write_text("x")
    assert len(seen(log_in(directory, "main", "stdout", config)).pieces()) == 1
    shutil.rmtree(directory)


def test_log_file_with_a_second_name_is_not_written(tmp_path: Path) -> None:
    made_for(tmp_path / "a")
    other = tmp_path / "other"
    other.write_text("kept")
    log = log_in(tmp_path / "a")
    os.link(other, path_of(log))
    opened = now(log.writing())
    opened.write(b"new")
    assert (other.read_text(), path_of(log).read_text()) == ("kept", "new")


@needs_root
def test_log_file_of_another_user_is_not_written(tmp_path: Path) -> None:
    made_for(tmp_path / "a")
    log = log_in(tmp_path / "a")
    path_of(log).write_text("planted")
    os.chown(path_of(log), 65534, 65534)
    now(log.writing())
    assert path_of(log).stat().st_uid == os.geteuid()
