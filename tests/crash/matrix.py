"""The crash matrix: SIGKILL before and after everything that the daemon does that stays.

First each scene of each life is lived once without a kill: that shows which points it comes to, and how
often. Then run after run: the next point and side, a scene that comes there, and one of its times, by the
seed. The daemon ends there, is started again on the same data, and everything promised is looked for.
"""

import os
import random
import signal
import sqlite3
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import msgspec

from daemon.runner import rotation
from daemon.runner.drivers import claim
from daemon.runner.logs import TaskLog
from daemon.runner.taskdir import CLAIM
from storage import schema
from storage.records.task import LogConfig
from storage.store import FILE_NAME
from tests.crash import accounts, scenes
from tests.crash.launcher import BARE
from tests.crash.ledger import job
from tests.crash.mortal import Mortal
from tests.crash.tally import AFTER, SIDES
from tests.crash.world import World, open_world

Way = tuple[str, str]  # a life, and a scene of it
_FIRST_FORM = Path(__file__).parent.parent / "parts/storage/forms/0001.sql"
_MOST_TIMES = 5  # at which of its visits to a point the daemon ends
_EVERY = 10  # one run in so many kills something else than the daemon
_SHOWN = 4000  # characters of the log
PREY = ("shim", "task", "shim, no daemon", "task, no daemon")


class Broken(Exception):
    """A promise that did not outlive a kill."""


class Row(msgspec.Struct, frozen=True):
    """One run: what was killed where, and in which scene."""

    point: str
    side: int
    scene: str
    is_exact: bool  # whether it ended at that point; otherwise at the scene's end


class Life:
    """A daemon that lives through scene after scene on the same data."""

    name = "main"
    played: tuple[scenes.Scene, ...] = (*scenes.SCENES, *accounts.SCENES)

    def __init__(self, world: World) -> None:
        self.world = world
        self.steward: Mortal = world.steward
        self._by_name = {one.__name__: one for one in self.played}

    @property
    def names(self) -> list[str]:
        """The scenes of this life, and its own beginning and end."""
        return [*self._by_name, "begin", "end"]

    async def open(self) -> None:
        await self.steward.start()
        answer = await self.steward.post("/v1/acl/bootstrap")
        self.steward.token = answer["SecretID"]

    async def play(self, scene: str) -> None:
        """Live through a scene, with a daemon that is ready before and, unless it is killed, after."""
        match scene:
            case "begin":
                await self.steward.kill()
                await self.steward.start_or_die()
            case "end":
                await self.world.register(scenes.long(self.world, "web"))
                await self.steward.stop()
                await self.steward.start_or_die()
            case _:
                await self._by_name[scene](self.world)

    async def rise(self) -> None:
        """Start again, and look for everything that was promised."""
        if not self.steward.is_running:
            await self.steward.start()
        await self.world.examine()
        await self.world.clear()


class Bare(Life):
    """The same on a machine without control groups and without holes in files."""

    name = "bare"
    played = (scenes.versions, scenes.files, scenes.logs, scenes.isolated)

    @property
    def names(self) -> list[str]:
        return [*super().names, "begin in a move"]

    async def play(self, scene: str) -> None:
        if scene == "begin in a move":
            await _leave_a_move(self.world)
            await self.steward.start_or_die()
        else:
            await super().play(scene)


class First(Life):
    """The first start on an empty directory, and the start on a store of an older form."""

    name = "first"
    played = ()

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._number = 0

    @property
    def names(self) -> list[str]:
        return ["new", "new with a small cloud", "half made", "of an older form"]

    async def open(self) -> None:
        """Nothing: each scene is a start of its own."""

    async def play(self, scene: str) -> None:
        self._number += 1
        self.steward.token = ""
        self.steward.data_dir = self.steward.directory / f"data-{self._number}"
        self.steward.flags = (
            ("--dev", "--acl", "--dev-cloud", *self.steward.config)
            if scene.endswith("cloud")
            else self.steward.config
        )
        self.steward.data_dir.mkdir(mode=0o700)
        if scene == "of an older form":
            _make_old(self.steward.data_dir / FILE_NAME)
        if scene == "half made":
            (self.steward.data_dir / f"{FILE_NAME}.new").touch()
        await self.steward.start_or_die()

    async def rise(self) -> None:
        if not self.steward.is_running:
            await self.steward.start()
        if "--dev" in self.steward.flags:
            answer = await self.steward.post("/v1/acl/bootstrap")
            self.steward.token = answer["SecretID"]
        own = await self.steward.get("/v1/acl/token/self")
        assert own["Type"] == "management"
        await self.world.examine()
        await self.steward.kill()


def _make_old(path: Path) -> None:
    """Make a store as the first version did."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_FIRST_FORM.read_text())
        connection.execute(schema._FIRST_ROW, {"cluster_id": "old", "now": 1})
        document = msgspec.json.encode(schema._DEFAULT).decode()
        connection.execute(schema._ADD_NAMESPACE, {"name": "default", "document": document})
        connection.execute("INSERT INTO table_indexes (name, last_index) VALUES ('namespaces', 1)")
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")


class Matrix:
    """The lives, what each scene comes to, and what was done so far."""

    def __init__(self, lives: list[Life], seed: int) -> None:
        self._lives = {one.name: one for one in lives}
        self._chance = random.Random(seed)  # repeatable, not secret
        self.reached: dict[tuple[str, int], Counter[Way]] = defaultdict(Counter)
        self.rows: list[Row] = []

    @property
    def points(self) -> tuple[str, ...]:
        return next(iter(self._lives.values())).steward.tally.names

    async def rehearse(self) -> None:
        """Live through everything once, and see where it leads."""
        for life in self._lives.values():
            await life.open()
            for scene in life.names:
                before = life.steward.tally.counts()
                await life.play(scene)
                if life.name != "first":
                    await self._settled(life)
                after = life.steward.tally.counts()
                for side, count in after.items():
                    if count > before[side]:
                        self.reached[side][life.name, scene] = count - before[side]
                await life.rise()

    async def _settled(self, life: Life) -> None:
        await life.steward.until(
            "/v1/evaluations", lambda shown: all(one["Status"] != "pending" for one in shown)
        )

    def missed(self) -> list[str]:
        """Return the points that no scene has come to."""
        return [name for name in self.points if not any(self.reached[name, side] for side in SIDES)]

    async def run(self, runs: int, each: Callable[[Row], object]) -> None:
        """Kill so many times. Raises `Broken` when a promise did not hold."""
        turns = [(name, side) for name in self.points for side in SIDES if self.reached[name, side]]
        self._chance.shuffle(turns)
        for number in range(runs):
            if number % _EVERY == _EVERY - 1:
                row = await self._hunt(PREY[number // _EVERY % len(PREY)])
            else:
                point, side = turns[(number - number // _EVERY) % len(turns)]
                row = await self._kill_at(point, side)
            self.rows.append(row)
            each(row)

    async def _kill_at(self, point: str, side: int) -> Row:
        ways = self.reached[point, side]
        way = self._chance.choice(sorted(ways))
        life, scene = self._lives[way[0]], way[1]
        times = self._chance.randint(1, min(ways[way], _MOST_TIMES))
        tally = life.steward.tally
        what = f"{point}, {('before', 'after')[side]}, time {times}, in {life.name}: {scene}"
        with _explained(what, life.steward):
            tally.arm(point, side, times)
            await _until_fired(life, scene)
            is_exact = tally.has_fired
            tally.disarm()
            if life.steward.is_running:
                await (life.steward.bury() if is_exact else life.steward.kill())
            await life.rise()
        return Row(point, side, f"{life.name}: {scene}", is_exact)

    async def _hunt(self, prey: str) -> Row:
        life = self._lives["main"]
        with _explained(prey, life.steward):
            await _kill_processes(life.world, self._chance, prey)
            await life.rise()
        return Row(prey, AFTER, "main: processes", is_exact=True)


@contextmanager
def _explained(what: str, steward: Mortal) -> Iterator[None]:
    """Say of a promise that is broken where the daemon was killed."""
    try:
        yield
    except Exception as error:
        log = steward.log.read_text()[-_SHOWN:]
        raise Broken(f"killed at {what}: {error!r}\n{log}") from error


async def _until_fired(life: Life, scene: str) -> None:
    """Live through a scene until the daemon ends, or the scene does."""
    try:
        await life.play(scene)
        if life.steward.is_running:
            await life.steward.get("/v1/agent/health")
    except Exception:  # whatever a client makes of a daemon that is gone
        if not life.steward.tally.has_fired:
            raise


@asynccontextmanager
async def open_matrix(directory: Path, seed: int) -> AsyncIterator[Matrix]:
    """Make all lives, each in a directory of its own."""
    async with (
        open_world(directory / "main") as main,
        open_world(directory / "bare", **{BARE: "yes"}) as bare,
        open_world(directory / "first") as first,
    ):
        yield Matrix([Life(main), Bare(bare), First(first)], seed)


async def _kill_processes(world: World, chance: random.Random, prey: str) -> None:
    """Kill the shim or the task of one allocation of several, perhaps while there is no daemon."""
    jobs = [f"prey-{number}" for number in range(3)]
    for name in jobs:
        await world.register(scenes.long(world, name))
    found, started = {}, {}
    for name in jobs:
        (one,) = await world.steward.allocations(name, "running")
        found[name], started[name] = one["ID"], await world.until_started(one["ID"])
    name = chance.choice(jobs)
    pid = _shim(world, found[name]) if prey.startswith("shim") else started[name]
    if prey.endswith("no daemon"):
        await world.steward.kill()
    os.kill(pid, signal.SIGKILL)
    if prey.endswith("no daemon"):
        await world.steward.start()
    await world.steward.allocations(name, "failed")
    for other in jobs:
        if other != name:
            await world.steward.allocations(other, "running")


async def _leave_a_move(world: World) -> None:
    """Kill the daemon, and leave its logs as in the midst of a move: one to be undone, one to be finished."""
    definition = job(
        "moved", "service", f"echo hello; {scenes.RUNS_ON.format(starts=world.starts.path)}"
    )
    await world.register(definition)
    (found, *_) = await world.steward.allocations("moved", "running")
    await world.until_started(found["ID"])
    await world.steward.kill()
    _half_move(f"{world.steward.data_dir}/alloc/{found['ID']}")


def _half_move(directory: str) -> None:
    for kind in ("stdout", "stderr"):
        log = TaskLog(directory, "t", kind, LogConfig())
        copy = Path(rotation._copy_path(log, 0))
        copy.parent.mkdir(exist_ok=True)
        copy.write_text("hello")
        rotation._mark(log).touch()


def _shim(world: World, alloc_id: str) -> int:
    return claim.read(f"{world.steward.data_dir}/alloc/{alloc_id}/{CLAIM}t.0").shim
