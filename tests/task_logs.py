"""Task logs, read in the test process."""

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from daemon.config.data_directory import alloc_dir, output_dir
from daemon.runner.core.task_log import Logs, Stream, TaskLog
from storage.records.task import LogConfig
from tests.launchers import Direct

T = TypeVar("T")
DEFAULTS = LogConfig()


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    raise AssertionError("it waits")


def logs_below(directory: Path) -> Logs:
    """Return the logs of all allocations in a directory, including retained logs."""
    return Logs(Direct(directory), directory / "output")


def log_of(data_dir: Path, alloc_id: str, task: str, kind: str) -> TaskLog:
    """Return a log of an allocation below the data directory of a daemon."""
    logs = Logs(Direct(alloc_dir(data_dir)), output_dir(data_dir))
    return logs.log(alloc_id, task, kind, DEFAULTS)


def log_in(
    root: Path, task: str = "main", kind: str = "stdout", config: LogConfig = DEFAULTS
) -> TaskLog:
    """Return a log of the allocation with this directory."""
    return logs_below(root.parent).log(root.name, task, kind, config)


def seen(log: TaskLog) -> Stream:
    """Return the contents of a log."""
    return now(log.current())


def path_of(log: TaskLog) -> Path:
    """Return the file that the task writes to, through a launcher in this process."""
    server: Any = log._logs.launcher
    alloc_id, task, kind = log.place
    return Path(server._server._directory, alloc_id, "alloc/logs", f"{task}.{kind}.0")


def add(log: TaskLog, data: bytes) -> None:
    """Append to a log."""
    now(log.writing()).write(data)
