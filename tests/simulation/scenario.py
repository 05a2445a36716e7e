"""A simulated run by a seed: random operations, and then a quiet phase until the state settles."""

import random
import traceback
from pathlib import Path

import trio
from trio.testing import MockClock

from storage.errors import StewardError, leaf_errors
from storage.records.base import HOUR, MINUTE, SECOND
from tests.simulation.operations import Operations
from tests.simulation.order import one_order, turns
from tests.simulation.promises import always, at_rest, live
from tests.simulation.world import World

STEPS = 60
_BAD_LUCK = 8  # maximum number of failures until the next operation
# Seconds between two operations, mostly few so that the operations overlap.
_PAUSES = (0, 0, 0, 0.01, 1, 5, 20, 60, 60, 300, 3600)
_REST, _LOOKS = 6 * HOUR // SECOND, 20  # seconds between checks for a settled state; checks


class Broken(Exception):
    """A violated promise; the trace shows the history."""

    def __init__(self, seed: int, faults: list[str], trace: list[str]) -> None:
        super().__init__(f"seed {seed}: {faults[0]}")
        self.seed, self.faults, self.trace = seed, faults, trace


class Scenario:
    """The operations on one daemon, and the trace."""

    def __init__(self, seed: int, steps: int) -> None:
        self.trace: list[str] = []
        self._seed, self._steps = seed, steps
        self._dice = random.Random(f"scenario {seed}")
        self._acknowledged = 0

    async def run(self, directory: Path) -> None:
        """Run the scenario. Raises `Broken`."""
        async with trio.open_nursery() as nursery:
            world = World(directory, self._seed, nursery)
            operations = Operations(world, self._dice)
            with world.poisoning():
                await world.begin()
                for _ in range(self._steps):
                    await self._step(world, operations)
                    self._expect(always(world, self._acknowledged))
                await self._rest(world, operations)
                self._say(world, f"the store holds {world.digest()}")
                await world.end()

    async def _step(self, world: World, operations: Operations) -> None:
        world.machine.bad_luck = _BAD_LUCK
        drawn = self._dice.random()
        if drawn < 0.04:
            await self._kill(world, operations)
        elif drawn < 0.07:
            self._say(world, "the daemon is stopped")
            await world.end()
            await self._stay_away(world)
        elif drawn < 0.09:
            await self._fill_disk(world, operations)
        elif drawn < 0.11:
            await self._hold_file(world, operations)
        else:
            await self._do(world, operations)
        await self._pause()

    async def _try(self, world: World, operations: Operations) -> None:
        """Execute an operation, unless the daemon is killed before."""
        await trio.lowlevel.checkpoint()
        await self._do(world, operations)

    async def _do(self, world: World, operations: Operations) -> None:
        try:
            done = await operations.any()
            self._acknowledged = world.store.read(lambda db: db.last_index())
        except StewardError as error:
            done = f"{type(error).__name__}: {error}"
        self._say(world, done)

    async def _pause(self) -> None:
        if self._dice.random() < 0.3:
            await turns(self._dice.randrange(60))
        else:
            await trio.sleep(self._dice.choice(_PAUSES))

    async def _kill(self, world: World, operations: Operations) -> None:
        """Kill the daemon in the middle of an operation."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._try, world, operations)
            await turns(self._dice.randrange(80))
            self._say(world, "the daemon is killed")
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await world.kill()
        await self._stay_away(world)

    async def _stay_away(self, world: World) -> None:
        await trio.sleep(self._dice.choice((0, 1, 60, 3600, 20_000)))
        await world.begin()
        self._say(world, "a daemon begins")

    async def _fill_disk(self, world: World, operations: Operations) -> None:
        with world.full_disk():
            self._say(world, "the disk is full")
            for _ in range(3):
                await self._do(world, operations)
                await trio.sleep(self._dice.choice((0, 1, 10)))
        self._say(world, "the disk has room")

    async def _hold_file(self, world: World, operations: Operations) -> None:
        with world.busy_file():
            self._say(world, "another program holds the file")
            for _ in range(2):
                await self._do(world, operations)
                await trio.sleep(self._dice.choice((0, 1, 10)))
        self._say(world, "nobody else holds the file")

    async def _rest(self, world: World, operations: Operations) -> None:
        """Wait until the state no longer changes; then a restart must not change it."""
        await operations.settle()
        self._say(world, "left alone")
        await self._until_at_rest(world)
        before = live(world)
        await world.kill()
        await world.begin()
        await trio.sleep(MINUTE // SECOND)
        self._expect(always(world, self._acknowledged))
        if live(world) != before:
            self._expect([f"a new daemon changed what runs: {before}, {live(world)}"])
        await self._until_at_rest(world)

    async def _until_at_rest(self, world: World) -> None:
        for _ in range(_LOOKS):
            await trio.sleep(_REST)
            self._expect(always(world, self._acknowledged))
            if not (faults := at_rest(world)):
                break
        else:
            self._expect(faults)
        self._say(world, "at rest")

    def _say(self, world: World, text: str) -> None:
        index = world.store.read(lambda db: db.last_index())
        line = " ".join(text.split())
        self.trace.append(f"{trio.current_time():.6f} {index} {line}")

    def _expect(self, faults: list[str]) -> None:
        if faults:
            raise Broken(self._seed, faults, self.trace)


def run(seed: int, directory: Path, steps: int = STEPS) -> list[str]:
    """Run the scenario of a seed in an empty directory; return its trace. Raises `Broken`."""
    scenario = Scenario(seed, steps)
    with one_order(seed):
        try:
            trio.run(scenario.run, directory, clock=MockClock(autojump_threshold=0))
        except Exception as error:
            for leaf in leaf_errors(error):
                if isinstance(leaf, Broken):
                    raise leaf from None
            text = "".join(traceback.format_exception(error))
            raise Broken(seed, [f"the daemon failed:\n{text}"], scenario.trace) from error
    return scenario.trace
