"""The crash matrix: SIGKILL before and after every persistent effect of the daemon.

First each scene of each run runs once without a kill. This records which points it reaches, and
how often. Each run then takes the next point and side of the plan. The seed selects a scene that
reaches the point, and the visit. The daemon is killed there and restarted on the same data. Then
all promises are checked.
"""

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from daemon.config.data_directory import alloc_dir
from daemon.runner.core.task_dir import CLAIM
from tests import claim_files
from tests.crash import job_scenes
from tests.crash.daemon_runs import DAEMON_RUNS, DaemonRun, open_daemon_runs
from tests.crash.point_counters import AFTER, SIDES
from tests.crash.points import kind_of
from tests.crash.world import World

_MOST_TIMES = 5  # highest visit to a point at which the daemon is killed
_MOST_TRIES = 3  # scenes in which one run tries to kill at its point
_EVERY = 10  # one run in this many kills a process other than the daemon
_SHOWN = 4000  # characters of the log
_SIDES = "before", "after"
VICTIMS = ("shim", "task", "shim, no daemon", "task, no daemon")


class Way(msgspec.Struct, frozen=True):
    """A scene, with the sides of the points that it reaches."""

    daemon_run: str
    scene: str
    seconds: float  # duration
    visits: dict[str, tuple[int, int]]  # by point: before and after


class Kill(msgspec.Struct, frozen=True):
    """The place of a kill: a side of a point, the visit to it, and the scene."""

    way: Way
    point: str
    side: int
    times: int


class Row(msgspec.Struct, frozen=True):
    """A run: its kill, its scene, and the broken promises."""

    number: int
    point: str
    side: int
    scene: str
    seconds: float
    is_exact: bool  # whether the kill happened at that point; otherwise when the scene was over
    broken: str = ""

    @property
    def kind(self) -> str:
        return self.point.partition(",")[0] if self.point in VICTIMS else kind_of(self.point)


class Matrix:
    """The points that scenes reach, and the plan derived from them and a seed."""

    def __init__(self, ways: Iterable[Way], seed: int) -> None:
        self._seed = seed
        self._ways: dict[tuple[str, int], list[Way]] = defaultdict(list)
        for way in ways:
            for name, visits in way.visits.items():
                for side in SIDES:
                    if visits[side]:
                        self._ways[name, side].append(way)
        self.turns = sorted(self._ways)
        random.Random(seed).shuffle(self.turns)  # repeatable, not secret

    def missed(self, points: Iterable[str]) -> list[str]:
        """Return the points that no scene reaches."""
        return [name for name in points if not any((name, side) in self._ways for side in SIDES)]

    def turns_of(self, kind: str) -> list[tuple[str, int]]:
        """Return (point, side) for all points of one kind, in the order of the plan."""
        return [turn for turn in self.turns if kind_of(turn[0]) == kind]

    async def run(self, daemon_runs: dict[str, DaemonRun], number: int) -> Row:
        """Execute one run. After a row with a broken promise, the caller must discard the run."""
        began = time.perf_counter()
        chance = random.Random(f"{self._seed}:{number}")
        if number % _EVERY == _EVERY - 1:
            row = await kill_victim(
                daemon_runs["main"], chance, VICTIMS[number // _EVERY % len(VICTIMS)]
            )
        else:
            turn = self.turns[(number - number // _EVERY) % len(self.turns)]
            for kill in self.choose(chance, *turn):
                row = await carry_out(daemon_runs[kill.way.daemon_run], kill)
                if row.is_exact or row.broken:
                    break
        seconds = round(time.perf_counter() - began, 2)
        return msgspec.structs.replace(row, number=number, seconds=seconds)

    def choose(self, rng: random.Random, point: str, side: int) -> list[Kill]:
        """Return a kill at a side of a point, with alternatives in case its scene ends earlier."""
        ways, kills = [*self._ways[point, side]], []
        while ways and len(kills) < _MOST_TRIES:
            # Prefer other scenes to slow ones if both reach the point.
            (way,) = rng.choices(ways, [1 / item.seconds for item in ways])
            ways.remove(way)
            times = rng.randint(1, min(way.visits[point][side], _MOST_TIMES))
            kills.append(Kill(way, point, side, times))
        return kills


async def carry_out(daemon_run: DaemonRun, kill: Kill) -> Row:
    """Kill the daemon, and check the promises."""
    counters, is_exact, broken = daemon_run.steward.counters, False, ""
    counters.arm(kill.point, kill.side, kill.times)
    try:
        await _until_fired(daemon_run, kill.way.scene)
        is_exact = counters.has_fired
        counters.disarm()
        if daemon_run.steward.is_running:
            await (daemon_run.steward.bury() if is_exact else daemon_run.steward.kill())
        await daemon_run.rise()
    except Exception as error:
        broken = _told(f"{_SIDES[kill.side]} {kill.point}, time {kill.times}", daemon_run, error)
    scene = f"{daemon_run.name}: {kill.way.scene}"
    return Row(0, kill.point, kill.side, scene, 0.0, is_exact, broken)


async def rehearse(daemon_runs: Iterable[DaemonRun], scenes: Collection[str] = ()) -> list[Way]:
    """Execute these scenes, or all if none are given, once each; record the reached points."""
    ways = []

    async def live(daemon_run: DaemonRun) -> None:
        await daemon_run.open()
        for scene in [name for name in daemon_run.names if not scenes or name in scenes]:
            ways.append(await way_of(daemon_run, scene))  # noqa: PERF401  # so do the others

    async with trio.open_nursery() as nursery:
        for daemon_run in daemon_runs:
            nursery.start_soon(live, daemon_run)
    return sorted(ways, key=lambda way: (way.daemon_run, way.scene))


async def way_of(daemon_run: DaemonRun, scene: str) -> Way:
    """Execute a scene, and record the reached points."""
    counters, began = daemon_run.steward.counters, time.perf_counter()
    before = counters.counts()
    await daemon_run.play(scene)
    grown = {turn: count - before[turn] for turn, count in counters.counts().items()}
    seconds = time.perf_counter() - began
    await daemon_run.rise()
    visits = {name: (grown[name, 0], grown[name, 1]) for name in counters.names}
    visited = {name: both for name, both in visits.items() if any(both)}
    return Way(daemon_run.name, scene, seconds, visited)


@asynccontextmanager
async def begun(
    directory: Path, names: Iterable[str] = DAEMON_RUNS
) -> AsyncIterator[dict[str, DaemonRun]]:
    """Start runs that have not executed a scene yet."""
    async with open_daemon_runs(directory, names) as daemon_runs:
        async with trio.open_nursery() as nursery:
            for daemon_run in daemon_runs:
                nursery.start_soon(daemon_run.open)
        yield {daemon_run.name: daemon_run for daemon_run in daemon_runs}


def _told(what: str, daemon_run: DaemonRun, error: Exception) -> str:
    """Describe a broken promise: the place of the kill, and the daemon's output."""
    log = daemon_run.steward.log.read_text(errors="replace")[-_SHOWN:]
    return f"killed at {what}: {error!r}\n{log}"


async def _until_fired(daemon_run: DaemonRun, scene: str) -> None:
    """Execute a scene until the daemon is killed or the scene ends."""
    try:
        await daemon_run.play(scene)
        if daemon_run.steward.is_running:
            await daemon_run.steward.get("/v1/agent/health")
    except Exception:  # any error that a client raises when the daemon is gone
        if not daemon_run.steward.counters.has_fired:
            raise


async def kill_victim(daemon_run: DaemonRun, rng: random.Random, victim: str) -> Row:
    """Kill a process of a task, and check the promises."""
    broken = ""
    try:
        await _kill_processes(daemon_run.world, rng, victim)
        await daemon_run.rise()
    except Exception as error:
        broken = _told(victim, daemon_run, error)
    return Row(0, victim, AFTER, "main: processes", 0.0, is_exact=True, broken=broken)


async def _kill_processes(world: World, rng: random.Random, victim: str) -> None:
    """Kill the shim or the task of one of several allocations, in some runs without a daemon."""
    jobs = [f"victim-{number}" for number in range(3)]
    for name in jobs:
        await world.register(job_scenes.long(world, name))
    found, started = {}, {}
    for name in jobs:
        (one,) = await world.steward.allocations(name, "running")
        found[name], started[name] = one["ID"], await world.until_started(one["ID"])
    name = rng.choice(jobs)
    pid = _shim(world, found[name]) if victim.startswith("shim") else started[name]
    if victim.endswith("no daemon"):
        await world.steward.kill()
    os.kill(pid, signal.SIGKILL)
    if victim.endswith("no daemon"):
        await world.steward.start()
    await world.steward.allocations(name, "failed")
    for other in jobs:
        if other != name:
            await world.steward.allocations(other, "running")


def _shim(world: World, alloc_id: str) -> int:
    return claim_files.read(f"{alloc_dir(world.steward.data_dir)}/{alloc_id}/{CLAIM}t.0").shim


def hits(rows: Iterable[Row]) -> Counter[tuple[str, int]]:
    """Return the number of kills at each side of each point."""
    return Counter((row.point, row.side) for row in rows if row.is_exact)
