"""A node with jobs on it, without a scheduler: tests place and stop allocations themselves."""

import base64
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import trio

from daemon.acl.seal import EnvelopeCipher
from daemon.acl.task_tokens import TaskTokens
from daemon.acl.tokens import TokenStore, open_tokens
from daemon.clock import SystemClock
from daemon.config.settings import Settings
from daemon.launcher import alloc_dir
from daemon.launcher.client import Launcher
from daemon.launcher.messages import AllocDirLayout, TaskDirLayout
from daemon.net import port_listeners
from daemon.runner.core.launcher_policy import NO_GROUPS, policy_of, subuids
from daemon.runner.drivers.process_driver import ProcessDriver
from daemon.runner.node import NodeRunner, RunnerDependencies, open_runner
from daemon.runner.task_containment import hold
from daemon.variables import change
from daemon.variables.task_reader import TaskVariableReader
from daemon.variables.task_secrets import TaskSecretStore
from storage.queries import allocations, job_status, jobs, nodes
from storage.queries.variables import VariableLock
from storage.records.allocation import (
    Allocation,
    DesiredStatus,
    StoredTaskEvent,
    TaskEvent,
    TaskState,
)
from storage.records.base import SECOND
from storage.records.job import Job
from storage.records.node import Node
from storage.records.task import LogConfig, RestartPolicy, Task
from storage.store import Store
from tests import launchers, samples
from tests.unit.runner.placements import placed

SEAL = EnvelopeCipher({1: bytes(32)})
NO_RESTARTS = RestartPolicy(attempts=0, interval=10 * SECOND, delay=SECOND, mode="fail")


def script(text: str, name: str = "main", **fields: Any) -> Task:
    """Return a task that runs a shell script."""
    given = {
        "config": {"command": "/bin/sh", "args": ["-c", text]},
        "kill_timeout": SECOND,
        "log_config": LogConfig(max_files=2, max_file_size_mb=1),
        "restart_policy": NO_RESTARTS,
        **fields,
    }
    return samples.task(name, **given)


def batch(*tasks: Task, job_id: str = "job", **fields: Any) -> Job:
    """Return a batch job of one group."""
    return samples.job(job_id, samples.group("web", *tasks), **{"type": "batch", **fields})


def service(*tasks: Task, job_id: str = "job", **group: Any) -> Job:
    """Return a service of one group."""
    return samples.job(job_id, samples.group("web", *tasks, **group), type="service")


def unique_ids() -> Iterator[str]:
    """Return ids that no other run of the tests has at the same time."""
    while True:
        yield str(uuid4())


async def purge_job(store: Store, job: Job) -> None:
    """Delete a job from the store."""

    def write(tx: Any) -> None:
        stored = jobs.current(tx, job.namespace, job.id)
        assert stored is not None
        jobs.purge(tx, stored)

    await store.write(write)


async def place_job(store: Store, job: Job, node_id: str, alloc_id: str, **fields: Any) -> None:
    """Store a job, unless it exists, and an allocation of it."""

    def write(tx: Any) -> None:
        stored = jobs.current(tx, job.namespace, job.id) or jobs.append_version(tx, job)
        allocation = placed(stored, node_id, alloc_id, **fields)
        allocations.add(tx, allocation, SystemClock().now())
        job_status.refresh_summary(tx, job.namespace, job.id)

    await store.write(write)


class World:
    """The store and the runner, with operations for tests."""

    def __init__(
        self, store: Store, runner: NodeRunner, config: Settings, tokens: TokenStore
    ) -> None:
        self.store, self.runner, self.config = store, runner, config
        self.tokens = tokens
        self.node_id = runner.node_id  # the node for allocations
        self.clock = SystemClock()
        self._ids = unique_ids()

    def node(self) -> Node:
        """Return the attributes of this host."""
        (found,) = self.store.read(nodes.list_all)
        return found

    def directory(self, alloc_id: str) -> Path:
        return self.config.alloc_dir / alloc_id

    async def place(self, job: Job, *, alloc_id: str = "", node_id: str = "", **fields: Any) -> str:
        """Store a job, unless it exists, and an allocation of it; return the ID of the
        allocation."""
        alloc_id = alloc_id or next(self._ids)
        await place_job(self.store, job, node_id or self.node_id, alloc_id, **fields)
        return alloc_id

    async def until_printed(self, alloc_id: str, text: str = "") -> None:
        """Wait until a task has printed a text; without `text`, until it has printed anything."""
        file = trio.Path(self.directory(alloc_id) / "alloc/logs/main.stdout.0")
        while True:
            found = await file.read_text() if await file.exists() else ""
            if found and text in found:
                return
            await trio.sleep(0.005)

    async def want(self, alloc_id: str, **fields: Any) -> None:
        """Change the part of an allocation that the scheduler owns."""

        def write(tx: Any) -> None:
            before = allocations.find(tx, alloc_id)
            assert before is not None
            after = msgspec.structs.replace(before, **fields)
            allocations.set_desired(tx, after, self.clock.now())

        await self.store.write(write)

    async def stop(self, alloc_id: str) -> None:
        await self.want(alloc_id, desired_status=DesiredStatus.STOP)

    async def purge(self, job: Job) -> None:
        await purge_job(self.store, job)

    def find(self, alloc_id: str) -> Allocation:
        found = self.store.read(lambda db: allocations.find(db, alloc_id))
        assert found is not None
        return found

    async def until(self, alloc_id: str, condition: Callable[[Allocation], object]) -> Allocation:
        """Return the allocation as soon as it meets a condition."""
        while True:
            with self.store.watch(f"allocations/{alloc_id}") as watch:
                if condition(found := self.find(alloc_id)):
                    return found
                await watch.wait()

    async def until_status(self, alloc_id: str, *statuses: str) -> Allocation:
        return await self.until(alloc_id, lambda item: item.client_status in statuses)

    async def until_done(self, alloc_id: str) -> Allocation:
        return await self.until_status(alloc_id, "complete", "failed")

    async def until_no_directory(self, alloc_id: str) -> None:
        """Poll until the directory of an allocation is removed."""
        directory = trio.Path(self.directory(alloc_id))
        while await directory.exists():  # noqa: ASYNC110  # no event reports it
            await trio.sleep(0.005)

    async def put_variable(self, path: str, **items: str) -> None:
        """Store a variable of the default namespace."""
        name = change.VariableKey("default", path)
        now = self.clock.now()
        await change.put(self.store, SEAL, name, items, expected=None, lock=VariableLock(), now=now)

    def events(self, alloc_id: str, task: str = "main") -> list[TaskEvent]:
        return self.store.read(lambda db: allocations.newest_events(db, alloc_id, task, 100))

    def stored_events(self, alloc_id: str) -> list[StoredTaskEvent]:
        """Return the events of the task `main`, including fields that the API does not show."""
        return self.store.read(lambda db: allocations.newest_stored_events(db, alloc_id, "main"))

    def told(self, alloc_id: str, task: str = "main") -> list[tuple[str, str]]:
        """Return type and text of the events of a task."""
        return [(event.type, event.display_message) for event in self.events(alloc_id, task)]

    def types(self, alloc_id: str, task: str = "main") -> list[str]:
        return [event.type for event in self.events(alloc_id, task)]

    async def secrets(self, alloc_id: str) -> list[str]:
        """Return the stored secrets that the tasks of an allocation received."""
        return await TaskSecretStore(self.store, SEAL).recall(alloc_id)

    def output(self, alloc_id: str, task: str = "main", kind: str = "stdout") -> str:
        return (self.directory(alloc_id) / f"alloc/logs/{task}.{kind}.0").read_text()


@asynccontextmanager
async def open_world(
    store: Store,
    data_dir: Path,
    *,
    drivers: Any = None,
    environment: Mapping[str, str] | None = None,
    pool_drivers: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[World]:
    """Open a runner on a store."""
    settings = {"raw_exec": True, "raw_exec_root": True, "task_users": ["*"], **settings}
    config = Settings(data_dir=data_dir, node_name="node-1", node_meta={"zone": "a"}, **settings)
    clock = SystemClock()
    holding = hold(config, (os.geteuid(), os.getegid())) if drivers is None else None
    async with (
        launchers.open_launcher(
            config.alloc_dir,
            policy_of(
                config,
                os.geteuid(),
                subuids(),
                holding.named(config) if holding else NO_GROUPS,
                path=(environment or {}).get("PATH", ""),
            ),
        )
        if drivers is None or config.pools
        else nullcontext(launcher_of(drivers, config)) as launcher,
        open_tokens(store, clock, SEAL, asks=True) as tokens,
        open_runner(
            RunnerDependencies(
                store=store,
                clock=clock,
                config=config,
                ids=unique_ids(),
                signer=Signer(),
                variables=TaskVariableReader(store, SEAL, asks=True),
                credentials=TaskTokens(store, tokens, clock),
                launcher=launcher,
                drivers=drivers,
                holding=holding,
                environment=environment or {},
                pool_drivers=pool_drivers or {},
                listeners=port_listeners.listeners_on,
                secret_keeper=TaskSecretStore(store, SEAL),
            )
        ) as runner,
    ):
        yield World(store, runner, config, tokens)


def launcher_of(drivers: Mapping[str, Any], config: Settings) -> Launcher:
    """Return the launcher that these drivers use, or else a launcher in this process.

    A launcher in this process cannot write for tasks of other users, because the user of all
    threads would change.
    """
    asked = [driver._launcher for driver in drivers.values() if isinstance(driver, ProcessDriver)]
    return asked[0] if asked else launchers.Direct(config.alloc_dir)


class Signer:
    """A signer of tokens without cryptography: the claims and the key ID are in clear text."""

    def sign(self, claims: Mapping[str, object], key_id: str = "") -> str:
        payload = base64.urlsafe_b64encode(msgspec.json.encode(claims)).rstrip(b"=").decode()
        return f"head.{payload}.{key_id}"


def made_for(root: Path, *tasks: str, previous: str | None = None, about: bytes = b"") -> None:
    """Create the directory of an allocation whose tasks run as the current user."""
    rooms = [TaskDirLayout(task=task, driver="ours", user="", is_seen=True) for task in tasks]
    layout = AllocDirLayout(rooms=rooms, about=about)
    owners = [None] * len(tasks)
    assert alloc_dir.lay_out(str(root.parent), root.name, previous, layout, owners) == {}


def state_of(allocation: Allocation, task: str = "main") -> TaskState:
    """Return the reports about a task."""
    return (allocation.client.task_states or {}).get(task, TaskState())


def alive(pid: int) -> bool:
    """Return whether a process runs or is stopped, but is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until_gone(pid: int) -> None:
    """Wait until a process has ended."""
    descriptor = pidfd(pid)
    if descriptor is not None:
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)


def pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def environment_of(pid: int) -> Mapping[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


class Pipe:
    """A named pipe through which a task signals a test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path, 0o666)
        path.chmod(0o666)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    async def line(self) -> str:
        """Return the next line that was written."""
        while b"\n" not in self._rest:
            await trio.lowlevel.wait_readable(self._descriptor)
            self._rest += os.read(self._descriptor, 65536)
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        os.close(self._descriptor)


def kill_quietly(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
