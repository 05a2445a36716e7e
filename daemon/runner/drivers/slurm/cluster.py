"""One cluster: what is asked of it, and the one loop that looks what became of our jobs.

The loop is a witness only (`run.py` says of what). It makes one call at a time. Where three in a
row fail, the cluster counts as unreachable: nothing is concluded from what it does not say.
"""

import logging
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources
from typing import Protocol

import trio

from daemon.clock import Clock
from daemon.runner.drivers.slurm import states
from daemon.runner.drivers.slurm.states import Sighting
from daemon.runner.drivers.slurm.tools import ToolFailed, Tools
from storage.queries import cluster_runs
from storage.records.cluster_run import ClusterRun
from storage.records.pool import Pool
from storage.store import Store, unless_full
from storage.writer import Transaction

_LOOK = 2.0  # seconds from one look to the next
_JOBS_PER_SECOND = 100  # that may be looked at: a look at 500 takes some 20 ms
_TRIES = 3  # looks that fail until the cluster counts as unreachable
_MOST_NAMES = 2000  # that fit into one argument
_MOST_SUBMISSIONS = 4  # at a time: more of them are no faster (facts, Slurm, section 3)

_log = logging.getLogger("steward.runner")


class Watched(Protocol):
    """An attempt that the loop looks for."""

    row: ClusterRun

    def sight(self, found: list[Sighting], asked_at: float) -> None:
        """Take note of the jobs that have its name, as they were when it was asked."""
        ...

    def lose_sight(self) -> None:
        """Take note that the cluster cannot be reached."""
        ...


class Cluster:
    """The cluster that a pool is a partition of. `url` is where wrappers find us, `ca` whom to trust."""

    def __init__(
        self, name: str, pool: Pool, tools: Tools, store: Store, clock: Clock, *, url: str, ca: str
    ) -> None:
        self.name, self.pool, self.tools = name, pool, tools
        self.store, self.clock = store, clock
        self.url, self.ca = url, ca
        self.is_reachable = True
        self.trouble = ""  # what its programs said when they last failed
        self._watched: dict[str, Watched] = {}
        self._unwanted: set[tuple[str, str]] = set()  # numbers and names of jobs to be cancelled
        self._failed = 0
        self._arrived = trio.Event()
        self._turn = trio.Lock()
        self._submitting = trio.CapacityLimiter(_MOST_SUBMISSIONS)

    def watch(self, run: Watched) -> None:
        """Look for an attempt from now on."""
        self._watched[run.row.comment] = run
        self._arrived.set()

    def forget(self, run: Watched) -> None:
        """Look for it no more."""
        if self._watched.get(run.row.comment) is run:
            del self._watched[run.row.comment]

    def cancel(self, name: str, *job_ids: str) -> None:
        """Have jobs of a name cancelled, as soon as the cluster answers."""
        self._unwanted.update((one, name) for one in job_ids if one)
        self._arrived.set()

    async def submit(self, words: list[str], env: Mapping[str, str]) -> str:
        """Submit a wrapper; return what `sbatch` printed. Raises `ToolFailed`."""
        script = resources.files(__package__).joinpath("wrapper.sh").read_bytes()
        async with self._submitting:
            return await self.tools.run("sbatch", *words, stdin=script, env=env)

    async def cancel_now(self, name: str, job_id: str) -> None:
        """Cancel a job at once if the cluster answers, else as soon as it does."""
        self.cancel(name, job_id)
        if job_id:
            with suppress(ToolFailed):
                await self._cancel(job_id, name)
                self._unwanted.discard((job_id, name))

    async def _cancel(self, job_id: str, name: str) -> None:
        """Cancel a job if it has the name: a cluster that forgot it gives its number to others."""
        async with self._turn:
            await self.tools.run("scancel", f"--name={name}", job_id)

    async def shown(self, job_id: str) -> str:
        """Return what `scontrol` shows of a job; nothing where it knows none. Raises `ToolFailed`."""
        async with self._turn:
            try:
                return await self.tools.run("scontrol", "-o", "show", "job", job_id)
            except ToolFailed as error:
                if error.unsure or states.says_nothing(str(error)):
                    raise
                return ""

    async def find(self, row: ClusterRun) -> list[str]:
        """Return the jobs of an attempt that may still run, by what they say of themselves.

        Raises `ToolFailed`.
        """
        active = [one.job_id for one in await self.listed(row.name) if one.is_active]
        return [job_id for job_id in active if await self._is_of(job_id, row)]

    async def _is_of(self, job_id: str, row: ClusterRun) -> bool:
        """Tell whether a job says that it is of an attempt; asked alone, because it is free text."""
        async with self._turn:
            try:
                said = await self.tools.run("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%k")
            except ToolFailed as error:
                if error.unsure or states.says_nothing(str(error)):
                    raise
                return False
        return said.removesuffix("\n") == row.comment

    async def write(self, work: Callable[[Transaction], ClusterRun]) -> ClusterRun:
        """Write what became of an attempt; while the disk is full, that waits."""
        while True:
            async with unless_full(f"what becomes of an attempt in pool {self.name}"):
                return await self.store.write(work)

    async def run(self) -> None:
        """Look at what is under way, for ever."""
        async with unless_full(f"that old attempts of pool {self.name} are forgotten"):
            await self.store.write(lambda tx: cluster_runs.prune(tx, self.name))
        while True:
            void = self.store.read(lambda db: cluster_runs.void(db, self.name))
            if not (void or self._watched or self._unwanted):
                await self._arrived.wait()
                self._arrived = trio.Event()
                continue
            await self._cancel_unwanted()
            await self._look(void)
            await trio.sleep(max(_LOOK, len(self._watched) / _JOBS_PER_SECOND))

    async def _look(self, void: list[ClusterRun]) -> None:
        watched, asked_at = dict(self._watched), trio.current_time()
        names = {one.row.name for one in watched.values()} | {one.name for one in void}
        if not names:
            return
        try:
            listed = await self.listed(*sorted(names))
        except ToolFailed as error:
            self._note_failure(str(error))
            return
        self._note_answer()
        found: dict[str, list[Sighting]] = {}
        for one in listed:
            found.setdefault(one.name, []).append(one)
        for run in watched.values():
            run.sight(found.get(run.row.name, []), asked_at)
        for row in void:
            await self._clear(row, found.get(row.name, []))

    async def _clear(self, row: ClusterRun, found: list[Sighting]) -> None:
        """Cancel what nobody may claim any more; forget it when there is nothing left of it.

        Others of its name are of later attempts, or are turned away when they claim it.
        """
        try:
            active = [
                one.job_id
                for one in found
                if one.is_active
                and (
                    one.job_id == row.job_id
                    or (not row.job_id and await self._is_of(one.job_id, row))
                )
            ]
        except ToolFailed:
            return
        if active:
            self.cancel(row.name, *active)
        elif row.comment not in self._watched:
            async with unless_full(f"that attempt {row.comment} is forgotten"):
                await self.store.write(lambda tx: cluster_runs.remove(tx, row))

    async def _cancel_unwanted(self) -> None:
        jobs, self._unwanted = self._unwanted, set()
        for job_id, name in sorted(jobs):
            try:
                await self._cancel(job_id, name)
            except ToolFailed as error:
                self.trouble = str(error)
                if error.unsure or states.says_nothing(str(error)):
                    self._unwanted.update(jobs)
                    return

    async def listed(self, *names: str) -> list[Sighting]:
        """Return the jobs of these names, of the users we may submit as. Raises `ToolFailed`."""
        words = ["-h", "-t", "all", "-o", states.FORMAT]
        if os.geteuid() != 0:
            words += ["-u", str(os.geteuid())]
        found: list[Sighting] = []
        for first in range(0, len(names), _MOST_NAMES):
            some = names[first : first + _MOST_NAMES]
            async with self._turn:
                text = await self.tools.run("squeue", *words, "-n", ",".join(some))
            found += [one for one in states.sightings(text) if one.name in some]
        return found

    def _note_failure(self, trouble: str) -> None:
        self.trouble, self._failed = trouble, min(self._failed + 1, _TRIES)
        if self._failed == _TRIES and self.is_reachable:
            self.is_reachable = False
            _log.warning("pool %s: its cluster cannot be reached: %s", self.name, trouble)
            for run in list(self._watched.values()):
                run.lose_sight()

    def _note_answer(self) -> None:
        if not self.is_reachable:
            _log.info("pool %s: its cluster answers again", self.name)
        self.trouble, self._failed, self.is_reachable = "", 0, True


def seconds(grace: float) -> str:
    """Return a span as a shell's `sleep` takes it."""
    return str(math.ceil(grace))
