"""One daemon on a simulated machine: what is opened of it, and how it ends, is killed and returns.

Opened are the real parts that decide and run: store, runner, evaluations, clocks and children, in the
order of `daemon/main.py`. The web is left out, and with it who may ask.
"""

import hashlib
import random
import sqlite3
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import trio

from daemon.config import Config
from daemon.evals.gc import Retention
from daemon.evals.worker import open_evals
from daemon.fences import Fences
from daemon.jobs.children import open_children
from daemon.jobs.periodic import open_periodic
from daemon.runner.node import Runner, open_runner
from storage.mark import MARK_NAME
from storage.readers import Snapshot
from storage.records.base import HOUR
from storage.store import FILE_NAME, Store, open_store
from tests.launchers import Direct
from tests.parts.runner.world import Signer
from tests.simulation.machine import Machine, NoGroups, SimulatedDriver
from tests.simulation.order import SimulatedClock

CPU, MEMORY, DISK = 2000, 4000, 20_000  # MHz, MiB and MiB of the node
RETENTION = Retention(jobs_for=30 * HOUR, allocations_for=20 * HOUR, evaluations=20)

_PAGES = 4294967294  # of a file, at most


def ids(seed: int) -> Iterator[str]:
    """Return identifiers without end, in no order."""
    dice = random.Random(f"ids {seed}")
    while True:
        text = f"{dice.getrandbits(128):032x}"
        yield f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"


class World:
    """The machine, and the daemon on it while there is one."""

    def __init__(self, directory: Path, seed: int, nursery: trio.Nursery) -> None:
        self.machine = Machine(seed)
        self.clock = SimulatedClock()
        self.ids = ids(seed)
        self.config = Config(
            data_dir=directory,
            node_name="node-1",
            cpu_total_mhz=CPU,
            memory_total_mb=MEMORY,
            disk_total_mb=DISK,
            gc_interval_seconds=3600,
            alloc_disk_seconds=3600,
            gc_max_allocs=20,
            gc_disk_usage_threshold=100,
            gc_inode_usage_threshold=100,
        )
        self.store: Store
        self.runner: Runner
        self._chance = random.Random(f"chance {seed}")
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._over = trio.Event()

    async def begin(self) -> None:
        """Start the daemon."""
        await self._nursery.start(self._live)

    async def _live(self, *, task_status: trio.TaskStatus[None]) -> None:
        self._scope, self._over = trio.CancelScope(), trio.Event()
        nobody: object = None  # whom tasks without templates and tokens do not ask
        with self._scope:
            async with AsyncExitStack() as parts:
                opened = open_store(
                    self.config.data_dir, cluster_id=next(self.ids), now=self.clock.now()
                )
                self.store = await parts.enter_async_context(opened)
                runner = open_runner(
                    self.store,
                    self.clock,
                    self.config,
                    self.ids,
                    Signer(),
                    nobody,  # type: ignore[arg-type]
                    nobody,  # type: ignore[arg-type]
                    launcher=Direct(self.config.alloc_dir),
                    drivers={SimulatedDriver.name: SimulatedDriver(self.machine)},
                    groups=NoGroups(),
                    environment={},
                    chance=self._chance.random,
                )
                self.runner = await parts.enter_async_context(runner)
                fences = Fences(self.clock)
                for part in (
                    open_evals(self.store, self.clock, self.ids, RETENTION, fences),
                    open_periodic(self.store, self.clock, self.ids, fences),
                    open_children(self.store, self.clock, self.ids, fences),
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
        """Kill the daemon: of what it has written the file holds what was committed, and no more."""
        left = self._files()
        await self.end()
        for path, content in left.items():
            _put(path, content)

    def _files(self) -> dict[Path, bytes | None]:
        """Return what the files of the store hold at this moment; the index of the log is no part."""
        names = (FILE_NAME, f"{FILE_NAME}-wal", MARK_NAME)
        paths = [self.config.data_dir / name for name in names]
        held = {path: path.read_bytes() if path.exists() else None for path in paths}
        return {**held, self.config.data_dir / f"{FILE_NAME}-shm": None}

    def digest(self) -> str:
        """Return what stands for all that the store holds, but for what it says of this machine."""
        found = hashlib.blake2b(digest_size=16)

        def look(db: Snapshot) -> None:
            for row in db.all("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"):
                others = {"nodes": "0", "events": "topic <> 'Node'"}.get(row["name"], "1")
                for held in db.each(f"SELECT * FROM {row['name']} WHERE {others}"):  # noqa: S608
                    found.update(repr(tuple(held)).encode())

        self.store.read(look)
        return found.hexdigest()

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Let the file not grow while the block runs, as if the disk was full."""
        connection = self.store._writer._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        try:
            yield
        finally:
            with suppress(sqlite3.ProgrammingError):  # the daemon has failed, and closed it
                connection.execute(f"PRAGMA max_page_count = {_PAGES}")


def _put(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)
