"""Output of containers, moved from the file of Podman's monitor into the logs of the task."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from daemon.runner.core.opened_files import OpenedFile
from daemon.runner.core.task_log import TaskLog
from daemon.runner.drivers.podman.logs import ContainerLogReader
from tests.task_logs import log_in, path_of


@pytest.fixture
def logs(tmp_path: Path) -> Mapping[str, TaskLog]:
    (tmp_path / "a1/alloc/logs").mkdir(parents=True)
    return {kind: log_in(tmp_path / "a1", kind=kind) for kind in ("stdout", "stderr")}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record each opening of a log."""
    names, writing = list[str](), TaskLog.writing

    async def record(log: TaskLog) -> OpenedFile:
        names.append(log.place[2])
        return await writing(log)

    monkeypatch.setattr(TaskLog, "writing", record)
    return names


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(lines)


def texts(logs: Mapping[str, TaskLog]) -> list[bytes]:
    return [path_of(log).read_bytes() for log in logs.values()]


async def test_complete_lines_are_moved_once(
    tmp_path: Path, logs: Mapping[str, TaskLog], opened: list[str]
) -> None:
    path = tmp_path / "output"
    reader = ContainerLogReader(str(path), logs)
    assert not await reader.move()
    append(path, "t stdout F a\n", "t stderr P b\n", "t stdout F c")
    assert await reader.move()
    assert texts(logs) == [b"a\n", b"b"]
    assert not await reader.move()
    append(path, "d\n")
    await reader.finish()
    assert texts(logs) == [b"a\ncd\n", b"b"]
    assert opened == ["stdout", "stderr"]
    append(path, "t stderr F e\n")
    await ContainerLogReader(str(path), logs).finish()  # as in another daemon
    assert texts(logs) == [b"a\ncd\n", b"be\n"]


async def test_deleted_log_is_opened_again(
    tmp_path: Path, logs: Mapping[str, TaskLog], opened: list[str]
) -> None:
    path = tmp_path / "output"
    reader = ContainerLogReader(str(path), logs)
    append(path, "t stdout F a\n")
    await reader.finish()
    path_of(logs["stdout"]).unlink()
    append(path, "t stdout F b\n")
    await reader.finish()
    assert texts(logs) == [b"b\n", b""]
    assert opened == ["stdout", "stderr", "stdout"]


@pytest.mark.parametrize(("size", "moves"), [(256 * 1024, True), (256 * 1024 - 1, False)])
async def test_line_without_an_end_is_moved_only_if_it_fills_a_chunk(
    tmp_path: Path, logs: Mapping[str, TaskLog], size: int, moves: bool
) -> None:
    path, start = tmp_path / "output", "t stdout F "
    append(path, start, "x" * (size - len(start)))
    assert await ContainerLogReader(str(path), logs).move() == moves


async def test_moved_output_is_deleted(tmp_path: Path, logs: Mapping[str, TaskLog]) -> None:
    path = tmp_path / "output"
    reader = ContainerLogReader(str(path), logs)
    append(path, "t stdout F a\n")
    await reader.finish()
    reader.remove()
    reader.remove()  # the files are deleted already
    assert os.listdir(tmp_path) == ["a1"]
