"""A sample of the crash matrix for every test run; `bench/crash_matrix.py` runs all of it.

The tests are in several files, because parallel test runners distribute whole files.
"""

import random
from collections.abc import Iterable
from pathlib import Path

from tests.crash.daemon_runs import open_daemon_runs
from tests.crash.matrix import Matrix, Row, carry_out, kill_victim, way_of

SEED = 20261122


async def kill_at(directory: Path, scenes: Iterable[str], **kinds: int) -> list[Row]:
    """Execute scenes and kill the daemon at this many points of each kind."""
    chance = random.Random(SEED)  # repeatable, not secret
    async with open_daemon_runs(directory, ["main"]) as (daemon_run,):
        await daemon_run.open()
        matrix = Matrix([await way_of(daemon_run, scene) for scene in scenes], SEED)
        turns = [turn for kind, count in kinds.items() for turn in matrix.turns_of(kind)[:count]]
        return [await carry_out(daemon_run, matrix.choose(chance, *turn)[0]) for turn in turns]


async def kill_victims(directory: Path, victim: Iterable[str]) -> list[Row]:
    """Kill processes of tasks, one after another."""
    chance = random.Random(SEED)  # repeatable, not secret
    async with open_daemon_runs(directory, ["main"]) as (daemon_run,):
        await daemon_run.open()
        return [await kill_victim(daemon_run, chance, item) for item in victim]


async def kill_launcher(directory: Path, scenes: Iterable[str], count: int) -> list[Row]:
    """Kill the launcher at `count` crash points in its own code.

    Each kill also stops the daemon; then both are restarted.
    """
    chance = random.Random(SEED)  # repeatable, not secret
    async with open_daemon_runs(directory, ["main"]) as (daemon_run,):
        await daemon_run.open()
        matrix = Matrix([await way_of(daemon_run, scene) for scene in scenes], SEED)
        turns = [turn for turn in matrix.turns if turn[0].startswith("daemon/launcher/")]
        return [
            await carry_out(daemon_run, matrix.choose(chance, *turn)[0]) for turn in turns[:count]
        ]
