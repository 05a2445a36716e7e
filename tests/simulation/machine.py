"""A machine that runs tasks without processes, and outlives the daemon as a real one does.

What the block of a task says is what befalls it: how long it runs, how often it fails, whether it
minds being asked to end. Every draw depends on the seed and on the attempt, not on when it is made.
"""

import random
from collections.abc import Mapping, Sequence

import msgspec
import trio

from daemon.runner.drivers import config
from daemon.runner.drivers.driver import (
    Attempt,
    Exit,
    Fingerprint,
    Owner,
    Running,
    Session,
    StartFailed,
)
from daemon.runner.drivers.group import Group
from daemon.runner.env import Directories
from daemon.runner.taskdir import directories
from daemon.runner.usage import Sample
from storage.records.base import SECOND
from storage.records.task import Resources
from tests.samples import NOW
from tests.simulation.order import turns

Name = tuple[str, str, int]  # allocation, task, number of the attempt

_FOREVER = float("inf")
_KILLED = Exit(code=137, signal=9)
_ASKED = Exit(code=130, signal=2)


class Block(msgspec.Struct, frozen=True):
    """What is to befall a task: seconds, and how often in a hundred attempts."""

    run_for: int = 0  # 0: until it is ended
    fails: int = 0  # it exits with 1 instead of 0; one that runs for ever does so at some time
    start_fails: int = 0  # another attempt may go better
    start_breaks: int = 0  # no other attempt would
    hangs: int = 0  # it takes no notice of the request to end
    version: int = 0  # says nothing: two blocks that differ


class Process:
    """One attempt at a task, as the machine knows it. Times are Trio's, in seconds."""

    def __init__(self, name: Name, resources: Resources, end: float, exit: Exit) -> None:  # noqa: A002
        self.name, self.resources = name, resources
        self._end, self._exit = end, exit
        self._changed = trio.Event()

    @property
    def alive(self) -> bool:
        return trio.current_time() < self._end

    @property
    def lasts(self) -> bool:
        """Whether it goes on until somebody ends it."""
        return self._end == _FOREVER

    @property
    def outcome(self) -> Exit:
        """How it has ended, and when."""
        return msgspec.structs.replace(self._exit, at=NOW + round(self._end * SECOND))

    async def over(self) -> None:
        """Return when it has ended."""
        while self.alive:
            changed = self._changed
            with trio.move_on_at(self._end):
                await changed.wait()

    def end(self, outcome: Exit, after: float = 0) -> None:
        """Let it end in so many seconds, if it would not have by then."""
        at = trio.current_time() + after
        if at < self._end:
            self._end, self._exit = at, outcome
            self._changed.set()
            self._changed = trio.Event()


class Machine:
    """What runs, and what ran. `faults` is what must never have happened on it."""

    def __init__(self, seed: int) -> None:
        self.bad_luck = (
            0  # how much of what is started may still go wrong: misfortune comes in spells
        )
        self.faults: list[str] = []
        self.processes: dict[Name, Process] = {}
        self._seed = seed

    def alive(self) -> list[Process]:
        return [one for one in self.processes.values() if one.alive]

    def chance_of(self, name: Name) -> random.Random:
        """Return the dice of one attempt."""
        return random.Random(f"machine {self._seed} {name}")

    def start(self, name: Name, block: Block, resources: Resources) -> Process:
        """Start an attempt. Raises `StartFailed`."""
        dice = self.chance_of(name)
        if self._strikes(dice, block.start_breaks):
            raise StartFailed("the program is broken")
        if self._strikes(dice, block.start_fails):
            raise StartFailed("the machine is busy", recoverable=True)
        for other in self.alive():
            if other.name[:2] == name[:2]:
                self.faults.append(f"{name} is started while {other.name} runs")
        fails = self._strikes(dice, block.fails)
        lasts = block.run_for or (dice.expovariate(1 / 600) if fails else _FOREVER)
        process = Process(
            name, resources, trio.current_time() + lasts, Exit(code=1) if fails else Exit()
        )
        self.processes[name] = process
        return process

    def _strikes(self, dice: random.Random, percent: int) -> bool:
        strikes = dice.randrange(100) < percent and self.bad_luck > 0
        self.bad_luck -= strikes
        return strikes

    def kill_some(self, dice: random.Random) -> list[Name]:
        """Let some of what runs end by itself, badly."""
        alive = self.alive()
        chosen = dice.sample(alive, dice.randint(0, min(3, len(alive))))
        for one in chosen:
            one.end(_KILLED)
        return [one.name for one in chosen]


class SimulatedDriver:
    """The driver of such a machine, made anew with each daemon."""

    name = "simulated"
    is_prompt = False

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(attributes={"driver.simulated": "true"})

    def places(self, directory: str, task: str) -> Directories:
        return directories(directory, task)

    def owner(self, user: str, alloc_id: str) -> Owner | None:
        return None

    def check(self, block: Mapping[str, object]) -> None:
        config.read(Block, block)

    async def start(self, attempt: Attempt) -> Running:
        name = (attempt.alloc_id, attempt.task, attempt.number)
        block = config.read(Block, attempt.config)
        dice = self._machine.chance_of((*name[:2], ~name[2]))
        await turns(dice.randrange(3))
        if dice.random() < 0.1:
            await trio.sleep(dice.uniform(0, 20))
        process = self._machine.processes.get(name)
        if process is None:
            process = self._machine.start(name, block, attempt.resources)
        await turns(dice.randrange(3))  # it runs, and the daemon does not know it yet
        return SimulatedTask(process, hangs=dice.randrange(100) < block.hangs, dice=dice)

    async def adopt(self, attempt: Attempt, handle: bytes) -> Running | None:
        await trio.lowlevel.checkpoint()
        name = (attempt.alloc_id, attempt.task, attempt.number)
        process = self._machine.processes.get(name)
        if process is None:
            return None
        block = config.read(Block, attempt.config)
        dice = self._machine.chance_of((*name[:2], ~name[2]))
        return SimulatedTask(process, hangs=dice.randrange(100) < block.hangs, dice=dice)

    async def open_session(self, attempt: Attempt, command: Sequence[str], *, tty: bool) -> Session:
        raise StartFailed("there is no process beside which another one could run")

    async def destroy(self, alloc_id: str, directory: str) -> None:
        await trio.lowlevel.checkpoint()
        for name, process in self._machine.processes.items():
            if name[0] == alloc_id:
                process.end(_KILLED)


class SimulatedTask:
    """What a daemon holds of a process."""

    handle = b"simulated"

    def __init__(self, process: Process, *, hangs: bool, dice: random.Random) -> None:
        self._process, self._hangs, self._dice = process, hangs, dice

    async def wait(self) -> Exit:
        await trio.lowlevel.checkpoint()
        await self._process.over()
        return self._process.outcome

    async def signal(self, name: str) -> None:
        if name == "SIGKILL":
            self._process.end(_KILLED)

    async def stop(self, signal: str, grace: float) -> str:
        if not self._hangs:
            self._process.end(_ASKED, self._dice.choice((0, 0.1, 3)))
        with trio.move_on_after(grace):
            await self._process.over()
        self._process.end(_KILLED)
        await trio.lowlevel.checkpoint()
        return ""

    async def processes(self) -> Mapping[int, Sample]:
        return {}

    async def pause(self) -> None:
        """Nothing to hold."""

    async def resume(self) -> None:
        """Nothing was held."""

    def release(self) -> None:
        """It runs on."""


class NoGroups:
    """How such a machine tells processes apart: it has none."""

    attributes: Mapping[str, str] = {}
    parent = ""

    def of(self, alloc_id: str, task: str) -> Group:
        raise NotImplementedError

    def release(self) -> bool:
        return True
