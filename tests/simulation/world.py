"""A daemon on a simulated host: its open parts, stop, kill and restart.

The parts that decide and run are real: store, runner, evaluations, schedules and children, in the
order of `daemon/process/main.py`. HTTP and access control are omitted.
"""

import hashlib
import random
import sqlite3
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from daemon.config.settings import Settings
from daemon.evals import worker
from daemon.evals.gc import RetentionLimits
from daemon.evals.worker import open_evals
from daemon.fences import Fences, open_fences
from daemon.jobs import periodic as clocks
from daemon.jobs.child_limits import open_children
from daemon.jobs.periodic import open_periodic
from daemon.runner.drivers import limits
from daemon.runner.node import NodeRunner, RunnerDependencies, open_runner
from daemon.runner.task_containment import TaskCgroups
from storage import writer
from storage.read_pool import ReadSnapshot
from storage.records.base import HOUR
from storage.store import FILE_NAME, Store, open_store
from storage.wal_watermark import HAND_NAME, MARK_NAME
from tests.launchers import Direct
from tests.parts.runner.world import Signer
from tests.simulation.machine import Machine, NoGroups, SimulatedDriver
from tests.simulation.order import SimulatedClock

CPU, MEMORY, DISK = 2000, 4000, 20_000  # MHz, MiB and MiB of the node
RETENTION = RetentionLimits(jobs_for=30 * HOUR, allocations_for=20 * HOUR, evaluations=20)

_UNBOUNDED = limits.RlimitEnforcer(limits.with_rlimits({}), {})
_PAGES = 4294967294  # maximum bytes of a file


def ids(seed: int) -> Iterator[str]:
    """Return an endless iterator of unordered identifiers."""
    dice = random.Random(f"ids {seed}")
    while True:
        text = f"{dice.getrandbits(128):032x}"
        yield f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"


class World:
    """The host, and the daemon on it while one runs."""

    def __init__(self, directory: Path, seed: int, nursery: trio.Nursery) -> None:
        self.machine = Machine(seed)
        self.clock = SimulatedClock()
        self.ids = ids(seed)
        self.config = Settings(
            data_dir=directory,
            node_name="node-1",
            cpu_total_mhz=CPU,
            memory_total_mb=MEMORY,
            disk_total_mb=DISK,
            gc_interval_seconds=3600,
            alloc_disk_seconds=3600,
            usage_history=False,  # the recorder would read the usage of the real host
            gc_max_allocs=20,
            gc_disk_usage_threshold=100,
            gc_inode_usage_threshold=100,
        )
        self.store: Store
        self.runner: NodeRunner
        self.fences: Fences
        self.poisoned: set[str] = set()  # jobs whose evaluations fail
        self._chance = random.Random(f"chance {seed}")
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._over = trio.Event()

    async def begin(self) -> None:
        """Start the daemon."""
        await self._nursery.start(self._live)

    async def _live(self, *, task_status: trio.TaskStatus[None]) -> None:
        self._scope, self._over = trio.CancelScope(), trio.Event()
        nobody: object = None  # not used by tasks without templates and tokens
        with self._scope:
            async with AsyncExitStack() as parts:
                opened = open_store(
                    self.config.data_dir, cluster_id=next(self.ids), now=self.clock.now()
                )
                self.store = await parts.enter_async_context(opened)
                fences = open_fences(self.store, self.clock, self.config.data_dir)
                self.fences = await parts.enter_async_context(fences)
                runner = open_runner(
                    RunnerDependencies(
                        store=self.store,
                        clock=self.clock,
                        config=self.config,
                        ids=self.ids,
                        signer=Signer(),
                        variables=nobody,
                        credentials=nobody,
                        launcher=Direct(self.config.alloc_dir),
                        drivers={SimulatedDriver.name: SimulatedDriver(self.machine)},
                        holding=TaskCgroups(NoGroups(), NoGroups(), _UNBOUNDED),
                        environment={},
                        chance=self._chance.random,
                        fences=self.fences,
                    )
                )
                self.runner = await parts.enter_async_context(runner)
                for part in (
                    open_evals(self.store, self.clock, self.ids, RETENTION, self.fences),
                    open_periodic(self.store, self.clock, self.ids, self.fences),
                    open_children(self.store, self.clock, self.ids, self.fences),
                ):
                    await parts.enter_async_context(part)
                task_status.started()
                await trio.sleep_forever()
        self._over.set()

    async def end(self) -> None:
        """Stop the daemon as the service manager does."""
        self._scope.cancel()
        await self._over.wait()

    async def kill(self) -> None:
        """Kill the daemon: the files contain only committed writes."""
        left = self._files()
        await self.end()
        for path, content in left.items():
            _put(path, content)

    def _files(self) -> dict[Path, bytes | None]:
        """Return the present contents of the store's files, without the index of the WAL."""
        names = (FILE_NAME, f"{FILE_NAME}-wal", MARK_NAME, HAND_NAME)
        paths = [self.config.data_dir / name for name in names]
        held = {path: path.read_bytes() if path.exists() else None for path in paths}
        return {**held, self.config.data_dir / f"{FILE_NAME}-shm": None}

    def digest(self) -> str:
        """Return a digest of the store's contents, without data about the real host."""
        found = hashlib.blake2b(digest_size=16)

        def look(db: ReadSnapshot) -> None:
            for row in db.all("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"):
                others = {"nodes": "0", "events": "topic <> 'Node'"}.get(row["name"], "1")
                for held in db.each(f"SELECT * FROM {row['name']} WHERE {others}"):  # noqa: S608  # names of tables of the schema
                    found.update(repr(tuple(held)).encode())

        self.store.read(look)
        return found.hexdigest()

    @contextmanager
    def poisoning(self) -> Iterator[None]:
        """Make evaluations of poisoned jobs fail with an internal error while the block runs."""
        load, decide = worker.load_cluster_state, clocks.decide_slot

        def poisoned_load(db: Any, evaluation: Any, *rest: Any) -> Any:
            self._check(evaluation.job_id)
            return load(db, evaluation, *rest)

        def poisoned_decide(tx: Any, namespace: str, job_id: str, *rest: Any, **more: Any) -> None:
            self._check(job_id)
            decide(tx, namespace, job_id, *rest, **more)

        worker.load_cluster_state, clocks.decide_slot = poisoned_load, poisoned_decide
        try:
            yield
        finally:
            worker.load_cluster_state, clocks.decide_slot = load, decide

    def _check(self, job_id: str) -> None:
        if job_id in self.poisoned:
            raise KeyError(job_id)

    @contextmanager
    def busy_file(self) -> Iterator[None]:
        """Hold the database's write lock from another connection while the block runs."""
        patience, writer.BUSY_WAIT = writer.BUSY_WAIT, 0  # only the simulated clock advances
        other = sqlite3.connect(self.config.data_dir / FILE_NAME, isolation_level=None, timeout=0)
        try:
            with suppress(sqlite3.OperationalError):  # the daemon holds the lock now
                other.execute("BEGIN IMMEDIATE")
            yield
        finally:
            other.close()
            writer.BUSY_WAIT = patience

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Prevent the file from growing while the block runs, like a full disk."""
        connection = self.store._writer._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        try:
            yield
        finally:
            with suppress(sqlite3.ProgrammingError):  # the daemon has failed and closed it
                connection.execute(f"PRAGMA max_page_count = {_PAGES}")


def _put(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)
