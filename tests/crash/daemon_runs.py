"""Daemon runs: sequences of scenes and restarts on the same data."""

import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import msgspec

from daemon.config.data_directory import store_dir
from daemon.runner.logs import rotation
from storage import schema
from storage.store import FILE_NAME
from tests.crash import data_scenes, job_scenes, pool_scenes, secret_scenes
from tests.crash.fork_server import BARE
from tests.crash.killable_daemon import KillableDaemon
from tests.crash.ledger import job
from tests.crash.world import World, open_world
from tests.fakes.slurm.world import fake_slurm
from tests.task_logs import log_of

_FIRST_FORM = Path(__file__).parent.parent / "parts/storage/forms/0001.sql"


class DaemonRun:
    """A daemon that executes scene after scene on the same data."""

    name = "main"
    played: tuple[job_scenes.Scene, ...] = (
        *job_scenes.SCENES,
        *data_scenes.SCENES,
        *secret_scenes.SCENES,
    )

    def __init__(self, world: World) -> None:
        self.world = world
        self.steward: KillableDaemon = world.steward
        self._by_name = {scene.__name__: scene for scene in self.played}

    @property
    def names(self) -> list[str]:
        """Return the names of the run's scenes, including `begin` and `end`."""
        return [*self._by_name, "begin", "end"]

    async def open(self) -> None:
        await self.steward.start()
        answer = await self.steward.post("/v1/acl/bootstrap")
        self.steward.token = answer["SecretID"]

    async def play(self, scene: str) -> None:
        """Execute a scene.

        The daemon is ready before the scene, and also after it, unless the scene kills the daemon.
        """
        match scene:
            case "begin":
                await self.steward.kill()
                await self.steward.start_or_die()
            case "end":
                await self.world.register(job_scenes.long(self.world, "web"))
                await self.steward.stop()
                await self.steward.start_or_die()
            case _:
                await self._by_name[scene](self.world)
        if self.steward.is_running:
            await self.world.settled()

    async def rise(self) -> None:
        """Restart the daemon, and check every promise."""
        if not self.steward.is_running:
            await self.steward.start()
        await self.world.examine()
        await self.world.clear()


class Bare(DaemonRun):
    """The same run on a host without control groups and without support for sparse files."""

    name = "bare"
    played = (job_scenes.versions, job_scenes.files, job_scenes.logs, job_scenes.isolated)

    @property
    def names(self) -> list[str]:
        return [*super().names, "begin in a move"]

    async def play(self, scene: str) -> None:
        if scene == "begin in a move":
            marks = await _leave_a_move(self.world)
            await self.steward.start_or_die()
            if self.steward.is_running:
                await self.world.until_gone(*marks)
        else:
            await super().play(scene)


class Clustered(DaemonRun):
    """The same run with a pool that is a partition of a fake cluster."""

    name = "clustered"
    played = pool_scenes.SCENES

    async def rise(self) -> None:
        self.steward.flags = self.steward.all_flags  # even if a scene has removed the pool
        await super().rise()


class First(DaemonRun):
    """The first start on an empty directory, and the start on a store of an older version."""

    name = "first"
    played = ()

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._number = 0

    @property
    def names(self) -> list[str]:
        return ["new", "new with a small cloud", "half made", "of an older form"]

    async def open(self) -> None:
        """Do nothing: each scene is a separate start."""

    async def play(self, scene: str) -> None:
        self._number += 1
        self.steward.token = ""
        self.steward.data_dir = self.steward.directory / f"data-{self._number}"
        self.steward.flags = (
            ("--dev", "--acl", "--dev-cloud", *self.steward.config)
            if scene.endswith("cloud")
            else self.steward.config
        )
        store_dir(self.steward.data_dir).mkdir(mode=0o700, parents=True)
        if scene == "of an older form":
            _make_old(store_dir(self.steward.data_dir) / FILE_NAME)
        if scene == "half made":
            (store_dir(self.steward.data_dir) / f"{FILE_NAME}.new").touch()
        await self.steward.start_or_die()

    async def rise(self) -> None:
        if not self.steward.is_running:
            await self.steward.start()
        if "--dev" in self.steward.flags:
            answer = await self.steward.post("/v1/acl/bootstrap")
            self.steward.token = answer["SecretID"]
        own = await self.steward.get("/v1/acl/token/self")
        assert own["Type"] == "management"
        if "--dev-cloud" in self.steward.flags:
            assert await self.steward.get("/v1/auth/cloudid/role/dev")
            assert await self.steward.get("/v1/auth/cloudid/config")
        await self.world.examine()
        await self.steward.kill()


async def _leave_a_move(world: World) -> list[Path]:
    """Kill the daemon, and leave one log rotation to undo and one to finish.

    Return the markers of both.
    """
    definition = job(
        "moved", "service", f"echo hello; {job_scenes.RUNS_ON.format(starts=world.starts.path)}"
    )
    await world.register(definition)
    (found, *_) = await world.steward.allocations("moved", "running")
    await world.until_started(found["ID"])
    await world.steward.kill()
    return _half_move(world.steward.data_dir, found["ID"])


def _half_move(data_dir: Path, alloc_id: str) -> list[Path]:
    marks = []
    for kind in ("stdout", "stderr"):
        log = log_of(data_dir, alloc_id, "t", kind)
        copy = Path(rotation._copy_path(log, 0))
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("hello")
        marks.append(rotation._mark(log))
        marks[-1].touch()
    return marks


def _make_old(path: Path) -> None:
    """Create a store with the schema of the first version."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_FIRST_FORM.read_text())
        connection.execute(schema._FIRST_ROW, {"cluster_id": "old", "now": 1})
        document = msgspec.json.encode(schema._DEFAULT).decode()
        connection.execute(schema._ADD_NAMESPACE, {"name": "default", "document": document})
        connection.execute("INSERT INTO table_indexes (name, last_index) VALUES ('namespaces', 1)")
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")


DAEMON_RUNS: dict[str, type[DaemonRun]] = {
    item.name: item for item in (DaemonRun, Bare, Clustered, First)
}


@asynccontextmanager
async def open_daemon_runs(
    directory: Path, names: Iterable[str] = DAEMON_RUNS
) -> AsyncIterator[list[DaemonRun]]:
    """Create runs, each in its own directory; none has started."""
    async with AsyncExitStack() as stack:
        found = []
        for name in names:
            place = directory / name
            variables = {BARE: "yes"} if name == "bare" else {}
            slurm = (
                stack.enter_context(fake_slurm(place / "slurm")) if name == "clustered" else None
            )
            world = await stack.enter_async_context(open_world(place, slurm, **variables))
            found.append(DAEMON_RUNS[name](world))
        yield found
