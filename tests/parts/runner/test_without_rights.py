"""Operations on files of tasks by a daemon whose user has no permission to access the files."""

import os
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from daemon.config.data_directory import alloc_dir, output_dir
from daemon.launcher.claims_and_logs import HolePunchUnsupported
from daemon.launcher.client import Launcher
from daemon.launcher.messages import AllocDirLayout, TaskDirLayout
from daemon.runner.core.task_env import TaskDirectories
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.core.task_log import Logs, TaskLog
from daemon.runner.logs import retained_logs
from daemon.runner.logs.alloc_files import AllocFiles, FileAccessDenied
from daemon.runner.logs.rotation import LogRotator
from storage.records.task import LogConfig
from tests.parts.launcher.conftest import ALLOCATION
from tests.parts.runner.conftest import needs_root
from tests.unprivileged import Work, run

MEGABYTE = 1024 * 1024
OTHER = "daemon"  # the user of a task
ABOUT = b'{"namespace":"default","job_id":"job","tasks":{"main":{}}}'
SMALL = LogConfig(max_files=2, max_file_size_mb=1)


class Still:
    """Processes that can be paused."""

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...


async def laid_out(launcher: Launcher, data_dir: Path) -> tuple[TaskFiles, TaskLog]:
    """Create an allocation whose task has its own user; return its files and its log."""
    rooms = [TaskDirLayout(task="main", driver="raw_exec", user=OTHER, is_seen=True)]
    assert await launcher.lay_out(ALLOCATION, AllocDirLayout(rooms=rooms, about=ABOUT)) == {}
    with pytest.raises(PermissionError):
        os.listdir(alloc_dir(data_dir) / ALLOCATION)
    places = TaskDirectories(shared="/alloc", local="/local", secrets="/secrets")
    files = TaskFiles(launcher=launcher, allocation=ALLOCATION, task="main", places=places)
    return files, Logs(launcher, output_dir(data_dir)).log(ALLOCATION, "main", "stdout", SMALL)


async def look_at_files(launcher: Launcher, data_dir: Path) -> None:
    written, log = await laid_out(launcher, data_dir)
    await written.write("main/local/a/f", b"text")
    await written.write("main/secrets/token", b"secret")
    (await log.writing()).write(b"printed")
    files = AllocFiles(launcher, ALLOCATION, "/shown", {"main.stdout": log})
    seeing = AllocFiles(launcher, ALLOCATION, "/shown", {}, sees_secrets=True)
    assert [entry.name for entry in await files.entries("/")] == ["alloc", "main"]
    assert [entry.name for entry in await files.entries("main")] == ["local", "tmp"]
    assert [entry.name for entry in await files.entries("alloc/logs")] == ["main.stdout.0"]
    assert (await files.open("main/local/a/f")).read(0, 9) == b"text"
    assert (await files.open("alloc/logs/main.stdout.0")).read(3, 9) == b"nted"
    with pytest.raises(FileAccessDenied):
        await files.open("main/secrets/token")
    secret = await seeing.open("main/secrets/token")
    assert secret.info.size == 6
    with pytest.raises(FileAccessDenied):
        secret.read(0, 9)
    assert await written.read("main/local/a/f", 9) == b"text"
    log_manifest = await retained_logs.read_manifest(launcher, ALLOCATION)
    assert log_manifest is not None
    assert log_manifest.job_id == "job"


async def follow_a_log(launcher: Launcher, data_dir: Path) -> None:
    _, log = await laid_out(launcher, data_dir)
    printed = await log.writing()
    ended = trio.Event()
    got = b""
    async with trio.open_nursery() as nursery:

        async def follow() -> None:
            nonlocal got
            async for chunk in log.follow(0, ended.is_set):
                got += chunk.data if chunk else b""

        nursery.start_soon(follow)
        for number in range(50):
            printed.write(b"%d\n" % number)
            await trio.lowlevel.checkpoint()
        ended.set()
    assert got == b"".join(b"%d\n" % number for number in range(50))


async def trim_a_log(launcher: Launcher, data_dir: Path) -> None:
    await _trim(launcher, data_dir, LogRotator())


async def move_a_log(launcher: Launcher, data_dir: Path) -> None:
    def no_holes(descriptor: int, start: int, end: int) -> None:
        raise HolePunchUnsupported

    await _trim(launcher, data_dir, LogRotator(no_holes))
    assert os.listdir(output_dir(data_dir) / ALLOCATION)


async def _trim(launcher: Launcher, data_dir: Path, sweeper: LogRotator) -> None:
    _, log = await laid_out(launcher, data_dir)
    (await log.writing()).write(b"x" * (4 * MEGABYTE) + b"y" * MEGABYTE)
    sweeper.add(log, Still())
    await sweeper.trim_all()
    stream = await log.current()
    facts = stream.facts
    assert facts is not None
    assert facts.st_blocks * 512 < 3 * MEGABYTE
    assert b"".join(chunk.data for chunk in stream.chunks(0))[-2:] == b"yy"
    assert stream.span() == (3 * MEGABYTE, 5 * MEGABYTE)


async def read_on_when_logs_are_put_aside(launcher: Launcher, data_dir: Path) -> None:
    _, log = await laid_out(launcher, data_dir)
    (await log.writing()).write(b"last words")
    before = await log.current()
    await launcher.retain_logs(ALLOCATION)
    await launcher.remove(ALLOCATION)
    for stream in (before, await log.current()):
        assert [chunk.data for chunk in stream.chunks(0)] == [b"last words"]
    files = AllocFiles(launcher, ALLOCATION, "/shown", {"main.stdout": log})
    assert [entry.name for entry in await files.entries("/")] == ["alloc"]
    assert await retained_logs.read_manifest(launcher, ALLOCATION) is not None


async def have_directories_of_its_own(launcher: Launcher, data_dir: Path) -> None:
    """The directories of containers of the daemon's own podman, and of cluster jobs."""
    home = alloc_dir(data_dir) / ALLOCATION
    rooms = [
        TaskDirLayout(task="box", driver="anybody", user="", is_seen=False),
        TaskDirLayout(task="job", driver="ours", user="", is_seen=True),
    ]
    assert await launcher.lay_out(ALLOCATION, AllocDirLayout(rooms=rooms, about=ABOUT)) == {}
    places = TaskDirectories(shared="/alloc", local="/local", secrets="/secrets")
    for task in ("box", "job"):
        files = TaskFiles(launcher=launcher, allocation=ALLOCATION, task=task, places=places)
        await files.write(f"{task}/secrets/token", b"secret")
        assert (home / task / "secrets/token").read_bytes() == b"secret"
        assert (home / task / "secrets/token").stat().st_uid == os.geteuid()
        (home / task / "local/own").touch()
        with pytest.raises(PermissionError):
            os.listdir(home / task / "private")
    assert (home / "alloc/data").stat().st_mode & 0o777 == 0o777
    assert os.listdir(home / "alloc/logs") == []


@needs_root
@pytest.mark.parametrize(
    "work",
    [
        look_at_files,
        follow_a_log,
        trim_a_log,
        move_a_log,
        read_on_when_logs_are_put_aside,
        have_directories_of_its_own,
    ],
)
def test_files_and_logs_work_with_an_unprivileged_daemon(work: Work) -> None:
    run(work)
