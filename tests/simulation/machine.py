"""A host that runs simulated tasks and outlives the daemon, like a real host.

A task's configuration determines its behavior: its run time, its failure rate and its reaction to
signals. Every random draw depends on the seed and on the attempt, not on the time of the draw.
"""

import random
from collections.abc import Mapping, Sequence

import msgspec
import trio

from daemon.launcher.messages import Whose
from daemon.runner.core.driver import (
    Attempt,
    ExecStream,
    ExitResult,
    Fingerprint,
    StartFailed,
    TaskHandle,
)
from daemon.runner.core.resource_usage import ProcessSample
from daemon.runner.core.task_dir import directories
from daemon.runner.core.task_env import TaskDirectories
from daemon.runner.drivers import driver_config
from daemon.runner.drivers.process_group import ProcessGroup
from storage.records.base import SECOND
from storage.records.task import Resources
from tests.samples import NOW
from tests.simulation.order import turns

Name = tuple[str, str, int]  # allocation, task, number of the attempt

_FOREVER = float("inf")
_KILLED = ExitResult(code=137, signal=9)
_ASKED = ExitResult(code=130, signal=2)


class Block(msgspec.Struct, frozen=True):
    """The behavior of a task: seconds, and percentages of attempts."""

    run_for: int = 0  # 0: until it is stopped
    fails: int = 0  # exits with 1 instead of 0; an endless task exits at some time
    start_fails: int = 0  # another attempt can succeed
    start_breaks: int = 0  # no other attempt can succeed
    hangs: int = 0  # ignores the stop signal
    version: int = 0  # no meaning: makes two configurations differ


class Process:
    """One attempt of a task on the host. Times are Trio's, in seconds."""

    def __init__(self, name: Name, resources: Resources, end: float, exit: ExitResult) -> None:  # noqa: A002  # the name of the real parameter
        self.name, self.resources = name, resources
        self._end, self._exit = end, exit
        self._changed = trio.Event()

    @property
    def alive(self) -> bool:
        return trio.current_time() < self._end

    @property
    def lasts(self) -> bool:
        """Return whether the process runs until it is stopped."""
        return self._end == _FOREVER

    @property
    def outcome(self) -> ExitResult:
        """Return the exit result of the process, including the time of its end."""
        return msgspec.structs.replace(self._exit, at=NOW + round(self._end * SECOND))

    async def over(self) -> None:
        """Wait until the process has ended."""
        while self.alive:
            changed = self._changed
            with trio.move_on_at(self._end):
                await changed.wait()

    def end(self, outcome: ExitResult, after: float = 0) -> None:
        """Let the process end with this result within `after` seconds."""
        at = trio.current_time() + after
        if at < self._end:
            self._end, self._exit = at, outcome
            self._changed.set()
            self._changed = trio.Event()


class Machine:
    """Running and ended processes. `faults` lists events that must never happen."""

    def __init__(self, seed: int) -> None:
        self.bad_luck = 0  # how many more attempts may fail; failures come in clusters
        self.faults: list[str] = []
        self.processes: dict[Name, Process] = {}
        self.lost: set[Name] = set()  # processes known only by their control groups
        self._seed = seed

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive]

    def chance_of(self, name: Name) -> random.Random:
        """Return the random generator of one attempt."""
        return random.Random(f"machine {self._seed} {name}")

    def start(self, name: Name, block: Block, resources: Resources) -> Process:
        """Start an attempt. Raises `StartFailed`."""
        rng = self.chance_of(name)
        if self._strikes(rng, block.start_breaks):
            raise StartFailed("the program is broken")
        if self._strikes(rng, block.start_fails):
            raise StartFailed("the machine is busy", recoverable=True)
        for other in self.alive():
            if other.name[:2] == name[:2]:
                self.faults.append(f"{name} is started while {other.name} runs")
        fails = self._strikes(rng, block.fails)
        lasts = block.run_for or (rng.expovariate(1 / 600) if fails else _FOREVER)
        process = Process(
            name,
            resources,
            trio.current_time() + lasts,
            ExitResult(code=1) if fails else ExitResult(),
        )
        self.processes[name] = process
        return process

    def _strikes(self, rng: random.Random, percent: int) -> bool:
        strikes = rng.randrange(100) < percent and self.bad_luck > 0
        self.bad_luck -= strikes
        return strikes

    def kill_some(self, rng: random.Random) -> list[Name]:
        """Let some running processes fail; return their names."""
        alive = self.alive()
        chosen = rng.sample(alive, rng.randint(0, min(3, len(alive))))
        for item in chosen:
            item.end(_KILLED)
        return [item.name for item in chosen]

    def lose_some(self, rng: random.Random) -> list[Name]:
        """Remove the claims of some processes; only their control groups identify them."""
        alive = [item.name for item in self.alive()]
        chosen = rng.sample(alive, rng.randint(0, min(2, len(alive))))
        self.lost |= set(chosen)
        return chosen

    def end_lost(self) -> None:
        """End the processes that only their control groups identify."""
        for name in self.lost:
            self.processes[name].end(_KILLED)


class SimulatedDriver:
    """The driver of the simulated host, created again with each daemon."""

    name = "simulated"
    file_owner_rule: Whose = "ours"
    is_prompt = False

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(attributes={"driver.simulated": "true"})

    def task_dirs(self, directory: str, task: str) -> TaskDirectories:
        return directories(directory, task)

    def check(self, block: Mapping[str, object]) -> None:
        driver_config.read(Block, block)

    async def start(self, attempt: Attempt) -> TaskHandle:
        name = (attempt.alloc_id, attempt.task, attempt.number)
        block = driver_config.read(Block, attempt.config)
        rng = self._machine.chance_of((*name[:2], ~name[2]))
        await turns(rng.randrange(3))
        if rng.random() < 0.1:
            await trio.sleep(rng.uniform(0, 20))
        await self._empty_group(name, rng)
        process = self._machine.processes.get(name)
        if process is None:
            process = self._machine.start(name, block, attempt.resources)
            for log in attempt.logs.values():
                await log.writing()  # a real driver also creates the log file
        await turns(rng.randrange(3))  # the process runs before the daemon knows it
        return SimulatedTask(process, hangs=rng.randrange(100) < block.hangs, dice=rng)

    async def _empty_group(self, name: Name, rng: random.Random) -> None:
        """Kill unclaimed processes in a task's control group, as a real driver does.

        Raises `StartFailed` if they do not end immediately.
        """
        for other in self._machine.alive():
            if other.name[:2] == name[:2] and other.name in self._machine.lost:
                other.end(_KILLED, rng.choice((0, 0, 30)))
                if other.alive:
                    raise StartFailed("its group is populated", recoverable=True)

    async def adopt(self, attempt: Attempt, handle: bytes) -> TaskHandle | None:
        await trio.lowlevel.checkpoint()
        name = (attempt.alloc_id, attempt.task, attempt.number)
        process = self._machine.processes.get(name)
        if process is None or name in self._machine.lost:
            for (
                other
            ) in self._machine.alive():  # a real driver clears the control group of the task
                if other.name[:2] == name[:2]:
                    other.end(_KILLED)
            return None
        block = driver_config.read(Block, attempt.config)
        rng = self._machine.chance_of((*name[:2], ~name[2]))
        return SimulatedTask(process, hangs=rng.randrange(100) < block.hangs, dice=rng)

    async def open_session(
        self, attempt: Attempt, command: Sequence[str], *, tty: bool
    ) -> ExecStream:
        raise StartFailed("there is no process beside which another one could run")

    async def destroy(self, alloc_id: str, directory: str) -> None:
        await trio.lowlevel.checkpoint()
        for name, process in self._machine.processes.items():
            if name[0] == alloc_id:
                process.end(_KILLED)


class SimulatedTask:
    """The daemon's handle of a process."""

    handle = b"simulated"

    def __init__(self, process: Process, *, hangs: bool, dice: random.Random) -> None:
        self._process, self._hangs, self._dice = process, hangs, dice

    async def wait(self) -> ExitResult:
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

    async def processes(self) -> Mapping[int, ProcessSample]:
        return {}

    async def pause(self) -> None:
        """Do nothing; a simulated process cannot be paused."""

    async def resume(self) -> None:
        """Do nothing; a simulated process cannot be resumed."""

    def release(self) -> None:
        """Do nothing; the process keeps running."""


class NoGroups:
    """Process identification without control groups."""

    attributes: Mapping[str, str] = {}
    parent = ""

    def of(self, alloc_id: str, task: str) -> ProcessGroup:
        raise NotImplementedError

    def release(self) -> bool:
        return True
