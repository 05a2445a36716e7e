"""An allocation on its own: no store, no processes, and a clock that jumps."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from daemon.fences import Fences
from daemon.net.http_client import allow_all
from daemon.runner.alloc.alloc_runner import AllocRunner
from daemon.runner.core.lifecycle import client_status
from daemon.runner.core.status_report import AllocReport, AllocStatus
from daemon.runner.core.task_log import Logs
from daemon.runner.drivers.mock import MockDriver
from daemon.runner.logs.rotation import LogRotator
from daemon.runner.setup.artifacts.fetch import ArtifactFetcher
from daemon.runner.setup.runtime import RuntimeContext
from daemon.runner.setup.secrets_tmpfs import SecretsTmpfs
from storage.errors import StorageFull, StorageUnavailable
from storage.records.allocation import Allocation, TaskEvent, TaskState
from storage.records.base import SECOND
from storage.records.job import Job
from storage.records.task import RestartPolicy, Task
from tests import samples
from tests.launchers import Direct
from tests.parts.runner.world import Signer
from tests.unit.runner.placements import placed

NO_RESTARTS = RestartPolicy(attempts=0, interval=10 * SECOND, delay=SECOND, mode="fail")


class JumpingClock:
    """A wall clock that starts at a fixed time and advances like Trio's clock."""

    def __init__(self) -> None:
        self._began = trio.current_time()

    def now(self) -> int:
        return samples.NOW + int((trio.current_time() - self._began) * SECOND)


class Book:
    """Recorded reports, instead of a store."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str, TaskEvent]] = []
        self.states: dict[str, TaskState] = {}
        self.healthy: list[tuple[float, bool]] = []
        self.is_full = False
        self.fault: StorageUnavailable | None = StorageFull("the disk is full")
        self.ended_for = ""

    def add(self, report: AllocReport, *, within: float = 0.0) -> None:
        if self.is_full:
            return
        self._keep(report.take(0, ""))
        report.was_stored()

    def _keep(self, snapshot: AllocStatus) -> None:
        now = trio.current_time()
        for task, events in snapshot.events.items():
            self.events += [(now, task, event) for event in events]
        self.states, self.ended_for = snapshot.states, snapshot.ended_for
        if snapshot.healthy is not None and not self.healthy:
            self.healthy.append((now, snapshot.healthy))


class Stage:
    """The allocation and its recorded states."""

    def __init__(self, runner: AllocRunner, book: Book, allocation: Allocation, job: Job) -> None:
        self.runner, self.book = runner, book
        self._allocation, self._job = allocation, job
        self._began = trio.current_time()

    def want(self, **fields: Any) -> None:
        """Change the desired state of the allocation."""
        self._allocation = msgspec.structs.replace(self._allocation, **fields)
        self.runner.update(self._allocation, self._job)

    def told(self, task: str = "main") -> list[tuple[int, str, str]]:
        """Return time in seconds, type and text of the events of a task."""
        return [
            (round(moment - self._began), event.type, event.display_message)
            for moment, name, event in self.book.events
            if name == task
        ]

    def types(self, task: str = "main") -> list[str]:
        return [kind for _, kind, _ in self.told(task)]

    @property
    def status(self) -> str:
        return client_status(self.book.states.values())[0]

    @property
    def health(self) -> list[tuple[int, bool]]:
        return [(round(moment - self._began), healthy) for moment, healthy in self.book.healthy]


class NoRuns:
    """A store without a run of a workflow."""

    def read(self, _: object) -> None:
        """Return None, because there is no run."""


@asynccontextmanager
async def on_stage(
    job: Job, directory: Path, *, disk_is_limit: bool = False, **fields: Any
) -> AsyncIterator[Stage]:
    """Run an allocation of a job's only group until it ends, or until the block cancels it."""
    book = Book()
    no_runs: Any = NoRuns()
    nobody: Any = None  # used only by tasks with templates or tokens
    launcher = Direct(directory)
    host = RuntimeContext(
        node_id="n",
        capacity=None,
        alloc_dir=directory,
        logs_dir=directory,
        logs=Logs(launcher, directory / "output"),
        store=no_runs,
        variables=nobody,
        credentials=nobody,
        launcher=launcher,
        secret_dirs=SecretsTmpfs(str(directory), launcher),
        rendering=nobody,
        volumes={},
        clock=JumpingClock(),
        fences=Fences(JumpingClock()),
        drivers={"mock_driver": MockDriver()},
        reports=book,
        sweeper=LogRotator(),
        fetcher=no_fetcher,
        permit=allow_all,
        values={},
        environment={},
        parent_cgroup="",
        mhz=1000.0,
        signer=Signer(),
        issuer="http://issuer",
        claims={},
        disk_is_limit=disk_is_limit,
        task_socket=directory / "tasks.sock",
        listeners=lambda _: [],
        chance=lambda: 0.0,
    )
    allocation = placed(job, "n", "a", **fields)
    runner = AllocRunner(host, allocation, job, {})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        yield Stage(runner, book, allocation, job)


def no_fetcher() -> ArtifactFetcher:
    """Fail, because no task on the stage has artifacts."""
    raise AssertionError("no task has artifacts")


def mock(name: str = "main", config: dict[str, object] | None = None, **fields: Any) -> Task:
    """Return a task of the mock driver that behaves as `config` specifies."""
    given = {"restart_policy": NO_RESTARTS, "kill_timeout": SECOND, **fields}
    return samples.task(name, driver="mock_driver", config=config or {}, **given)


def batch(*tasks: Task) -> Job:
    return samples.job("job", samples.group("web", *tasks), type="batch")


def service(*tasks: Task, **group: Any) -> Job:
    return samples.job("job", samples.group("web", *tasks, **group), type="service")
