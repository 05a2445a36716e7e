"""One cluster: what is asked of it, and the one loop that looks what became of our jobs.

The loop is a witness only (`run.py` says of what). It makes one call at a time. Where three in a
row fail, the cluster counts as unreachable: nothing is concluded from what it does not say.
"""

import logging
import math
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
        """Take note of the jobs that carry its name, as they were when it was asked."""
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
        self._unwanted: set[str] = set()  # jobs that are to be cancelled
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

    def cancel(self, *job_ids: str) -> None:
        """Have jobs cancelled, as soon as the cluster answers."""
        self._unwanted.update(one for one in job_ids if one)
        self._arrived.set()

    async def submit(self, words: list[str], env: Mapping[str, str]) -> str:
        """Submit a wrapper; return what `sbatch` printed. Raises `ToolFailed`."""
        script = resources.files(__package__).joinpath("wrapper.sh").read_bytes()
        async with self._submitting:
            return await self.tools.run("sbatch", *words, stdin=script, env=env)

    async def cancel_now(self, job_id: str) -> None:
        """Cancel a job at once if the cluster answers, else as soon as it does."""
        self.cancel(job_id)
        if job_id:
            with suppress(ToolFailed):
                await self._cancel(job_id)
                self._unwanted.discard(job_id)

    async def _cancel(self, job_id: str) -> None:
        async with self._turn:
            await self.tools.run("scancel", job_id)

    async def shown(self, job_id: str) -> str:
        """Return what `scontrol` shows of a job; nothing where it knows none. Raises `ToolFailed`."""
        async with self._turn:
            try:
                return await self.tools.run("scontrol", "-o", "show", "job", job_id)
            except ToolFailed as error:
                if error.unsure or states.says_nothing(str(error)):
                    raise
                return ""

    async def find(self, comment: str, name: str) -> list[Sighting]:
        """Return the jobs of an attempt. Raises `ToolFailed`."""
        return [one for one in await self._listed([name]) if one.comment == comment]

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
            listed = await self._listed(sorted(names))
        except ToolFailed as error:
            self._note_failure(str(error))
            return
        self._note_answer()
        found: dict[str, list[Sighting]] = {}
        for one in listed:
            found.setdefault(one.comment, []).append(one)
        for comment, run in watched.items():
            run.sight(found.get(comment, []), asked_at)
        for row in void:
            await self._clear(row, found.get(row.comment, []))

    async def _clear(self, row: ClusterRun, found: list[Sighting]) -> None:
        """Cancel what nobody may claim any more; forget it when there is nothing left of it."""
        active = [one.job_id for one in found if one.is_active]
        if active:
            self.cancel(*active)
        elif row.comment not in self._watched:
            async with unless_full(f"that attempt {row.comment} is forgotten"):
                await self.store.write(lambda tx: cluster_runs.remove(tx, row))

    async def _cancel_unwanted(self) -> None:
        jobs, self._unwanted = self._unwanted, set()
        for job_id in sorted(jobs):
            try:
                await self._cancel(job_id)
            except ToolFailed as error:
                self.trouble = str(error)
                if error.unsure or states.says_nothing(str(error)):
                    self._unwanted.update(jobs)
                    return

    async def _listed(self, names: list[str]) -> list[Sighting]:
        words = ["-h", "-t", "all", "-o", states.FORMAT]
        if len(names) <= _MOST_NAMES:
            words += ["-n", ",".join(names)]
        async with self._turn:
            return states.sightings(await self.tools.run("squeue", *words))

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
