"""One cluster: requests to it, and the loop that polls the state of Steward's jobs.

The polled state only supplements the wrappers' reports (see `attempt.py`). Only one call runs at a
time. After three consecutive failed calls the cluster counts as unreachable, and no conclusions are
drawn from missing jobs.
"""

import logging
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources
from typing import Protocol, TypeVar

import trio

from daemon.clock import Clock
from daemon.runner.drivers.permitted_users import ANY_USER, TaskUsers
from daemon.runner.drivers.slurm import job_states
from daemon.runner.drivers.slurm.commands import SlurmCommandFailed, SlurmCommands
from daemon.runner.drivers.slurm.job_states import SlurmJobState
from daemon.runner.drivers.slurm.submissions import Submissions
from storage.queries import cluster_runs
from storage.records.cluster_run import ClusterRun
from storage.records.pool import Pool
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

_LOOK = 2.0  # seconds between two polls
_JOBS_PER_SECOND = 100  # limits the poll rate: a poll of 500 jobs takes some 20 ms
_TRIES = 3  # failed polls before the cluster counts as unreachable
_MOST_NAMES = 2000  # names that fit into one argument
_MOST_SUBMISSIONS = 4  # concurrent submissions; more are not faster (measured)

_MOST_ELEMENTS = 500  # jobs that one call of scancel cancels

_ALL = ("-h", "-r", "--states=all")  # arguments of squeue

Written = TypeVar("Written")

_log = logging.getLogger("steward.runner")


class WatchedJob(Protocol):
    """An attempt that the poll loop watches."""

    row: ClusterRun

    def update_jobs(
        self, jobs: list[SlurmJobState], asked_at: float, *, is_array_known: bool = False
    ) -> None:
        """Handle the list of this attempt's jobs from the poll that began at `asked_at`.

        `is_array_known` means that the poll has listed the array of the attempt.
        """
        ...

    def cluster_unreachable(self) -> None:
        """Handle the loss of contact with the cluster."""
        ...


class SlurmCluster:
    """The cluster of a pool.

    `url` is the daemon's address for wrappers, `ca` its CA certificate. `users` decides which users
    may run tasks; by default, all users of this host.
    """

    def __init__(
        self,
        name: str,
        pool: Pool,
        tools: SlurmCommands,
        store: Store,
        clock: Clock,
        *,
        url: str,
        ca: str,
        users: TaskUsers = ANY_USER,
    ) -> None:
        self.name, self.pool, self.tools = name, pool, tools
        self.store, self.clock = store, clock
        self.url, self.ca, self.users = url, ca, users
        self.is_reachable = True
        self.trouble = ""  # the error of the last failed call
        self._watched: dict[str, WatchedJob] = {}
        self._unwanted: set[tuple[str, str]] = set()  # IDs and names of jobs to cancel
        self._failed = 0
        self._arrived = trio.Event()
        self._turn = trio.Lock()
        self._submitting = trio.CapacityLimiter(_MOST_SUBMISSIONS)
        self._finding = trio.Lock()
        self.submissions = Submissions(self, clock.now)
        self._arrays: dict[str, tuple[float, dict[int, list[str]]]] = {}  # cached results of `find`

    def watch(self, run: WatchedJob) -> None:
        """Start watching an attempt."""
        self._watched[run.row.comment] = run
        self._arrived.set()

    def forget(self, run: WatchedJob) -> None:
        """Stop watching an attempt."""
        if self._watched.get(run.row.comment) is run:
            del self._watched[run.row.comment]

    def cancel(self, name: str, *job_ids: str) -> None:
        """Cancel jobs as soon as the cluster answers, unless they have another name by then."""
        self._unwanted.update((job_id, name) for job_id in job_ids if job_id)
        self._arrived.set()

    async def submit(self, words: list[str], env: Mapping[str, str], user: str) -> str:
        """Submit a wrapper as `user`; return the output of `sbatch`.

        Raises `SlurmCommandFailed`.
        """
        script = resources.files(__package__).joinpath("wrapper.sh").read_bytes()
        async with self._submitting:
            return await self.tools.run("sbatch", *words, user=user, stdin=script, env=env)

    async def cancel_now(self, name: str, job_id: str) -> None:
        """Cancel a job now, or as soon as the cluster answers."""
        self.cancel(name, job_id)
        if job_id:
            with suppress(SlurmCommandFailed):  # the next poll cancels it, from `_unwanted`
                await self._cancel(name, [job_id])
                self._unwanted.discard((job_id, name))

    async def _cancel(self, name: str, job_ids: list[str]) -> None:
        """Cancel jobs whose name matches, because a cluster reuses the IDs of deleted jobs.

        Each job is cancelled as its user, because only that user and operators of the cluster may
        cancel it. With `--name`, `scancel` would cancel the whole array of a pending element.
        Therefore the names of elements are checked in the job list instead.
        """
        elements = [job_id for job_id in job_ids if "_" in job_id]
        listed = await self.listed(name) if elements or self.users.is_root else []
        users = {job.job_id: "" if job.user == os.geteuid() else str(job.user) for job in listed}
        for job_id in job_ids:
            if job_id not in elements:
                async with self._turn:
                    user = users.get(job_id, "")
                    await self.tools.run("scancel", f"--name={name}", job_id, user=user)
        active = {job.job_id for job in listed if job.is_active}
        for user in sorted({users[job_id] for job_id in elements if job_id in active}):
            chunk = [
                element for element in elements if element in active and users[element] == user
            ]
            for first in range(0, len(chunk), _MOST_ELEMENTS):
                async with self._turn:
                    await self.tools.run(
                        "scancel", *chunk[first : first + _MOST_ELEMENTS], user=user
                    )

    async def shown(self, job_id: str) -> str:
        """Return the output of `scontrol show job`; empty for an unknown job.

        Raises `SlurmCommandFailed`.
        """
        async with self._turn:
            try:
                return await self.tools.run("scontrol", "-o", "show", "job", job_id)
            except SlurmCommandFailed as error:
                if error.unsure or job_states.may_have_succeeded(str(error)):
                    raise
                return ""

    async def number_of(self, row: ClusterRun) -> str:
        """Return the job number of a running array element; empty if the element is not running.

        Raises `SlurmCommandFailed`.
        """
        return job_states.number_of(await self.shown(row.job_id), row.name)

    async def find(self, row: ClusterRun) -> list[str]:
        """Return the IDs of an attempt's jobs that are running or may run later.

        A job outside an array is identified by its comment. After a restart, all elements of an
        array call this at the same time. They share one query with the array's name, which is
        unique. Raises `SlurmCommandFailed`.
        """
        if not row.array:
            active = [job.job_id for job in await self.listed(row.name) if job.is_active]
            return [job_id for job_id in active if await self._is_of(job_id, row)]
        async with self._finding:
            now = trio.current_time()
            self._arrays = {
                name: listed for name, listed in self._arrays.items() if now < listed[0] + _LOOK
            }
            if row.array not in self._arrays:
                jobs_by_element: dict[int, list[str]] = {}
                for job in await self.listed(row.array):
                    if job.is_active:
                        jobs_by_element.setdefault(job.element, []).append(job.job_id)
                self._arrays[row.array] = now, jobs_by_element
            return self._arrays[row.array][1].get(row.element, [])

    async def _is_of(self, job_id: str, row: ClusterRun) -> bool:
        """Return whether a job belongs to an attempt.

        The check makes one call for this job alone. A comment is free text, so a list with the
        comments of several jobs could not be parsed safely.
        """
        async with self._turn:
            try:
                output = await self.tools.run("squeue", *_ALL, f"--jobs={job_id}", "--format=%k")
            except SlurmCommandFailed as error:
                if error.unsure or job_states.may_have_succeeded(str(error)):
                    raise
                return False
        return output.removesuffix("\n") == row.job_comment

    async def write(self, work: Callable[[Transaction], Written]) -> Written:
        """Store a change of an attempt; retry while the disk is full."""
        while True:
            async with tolerate_disk_full(f"cannot store an attempt of pool {self.name}"):
                return await self.store.write(work)

    async def run(self) -> None:
        """Poll the watched attempts until cancelled."""
        async with tolerate_disk_full(f"cannot delete old attempts of pool {self.name}"):
            await self.store.write(lambda tx: cluster_runs.prune(tx, self.name))
        while True:
            void = self.store.read(lambda db: cluster_runs.pending_cancellation(db, self.name))
            if not (void or self._watched or self._unwanted):
                await self._arrived.wait()
                self._arrived = trio.Event()
                continue
            await self._cancel_unwanted()
            await self._poll(void)
            await trio.sleep(max(_LOOK, len(self._watched) / _JOBS_PER_SECOND))

    async def _poll(self, void: list[ClusterRun]) -> None:
        watched, asked_at = dict(self._watched), trio.current_time()
        names = {attempt.row.name for attempt in watched.values()} | {
            cluster_run.name for cluster_run in void
        }
        if not names:
            return
        try:
            listed = await self.listed(*sorted(names))
        except SlurmCommandFailed as error:
            self._record_failure(str(error))
            return
        self._record_answer()
        jobs_by_key: dict[tuple[str, int], list[SlurmJobState]] = {}
        for job_state in listed:
            jobs_by_key.setdefault((job_state.name, job_state.element), []).append(job_state)
        arrays = {(listed_job.name, listed_job.array_id) for listed_job in listed}
        for run in watched.values():
            row = run.row
            is_array_known = bool(row.array) and (row.name, row.job_id.partition("_")[0]) in arrays
            jobs = jobs_by_key.get((row.name, row.element), [])
            run.update_jobs(jobs, asked_at, is_array_known=is_array_known)
        for row in void:
            await self._clear(row, jobs_by_key.get((row.name, row.element), []))

    async def _clear(self, row: ClusterRun, jobs: list[SlurmJobState]) -> None:
        """Cancel the jobs of a withdrawn attempt, and delete its record when no job is left.

        Other jobs with the same name are not cancelled. They belong to later attempts, or the
        daemon will reject their claims.
        """
        try:
            active = [
                job.job_id
                for job in jobs
                if job.is_active
                and (
                    job.job_id == row.job_id
                    or (not row.job_id and await self._is_of(job.job_id, row))
                )
            ]
        except SlurmCommandFailed:
            return
        if active:
            self.cancel(row.name, *active)
        elif row.comment not in self._watched:
            async with tolerate_disk_full(f"cannot delete attempt {row.comment}"):
                await self.store.write(lambda tx: cluster_runs.remove(tx, row))

    async def _cancel_unwanted(self) -> None:
        jobs, self._unwanted = self._unwanted, set()
        by_name: dict[str, list[str]] = {}
        for job_id, name in sorted(jobs):
            by_name.setdefault(name, []).append(job_id)
        for name, job_ids in by_name.items():
            try:
                await self._cancel(name, job_ids)
            except SlurmCommandFailed as error:
                self.trouble = str(error)
                if error.unsure or job_states.may_have_succeeded(str(error)):
                    self._unwanted.update(jobs)
                    return

    async def listed(self, *names: str) -> list[SlurmJobState]:
        """Return the jobs with these names, of all users that Steward may submit as.

        Raises `SlurmCommandFailed`.
        """
        words = [*_ALL, f"--format={job_states.FORMAT}"]
        if not self.users.is_root:
            words.append(f"--user={os.geteuid()}")
        job_list: list[SlurmJobState] = []
        for first in range(0, len(names), _MOST_NAMES):
            chunk = names[first : first + _MOST_NAMES]
            async with self._turn:
                text = await self.tools.run("squeue", *words, f"--name={','.join(chunk)}")
            job_list += [
                job_state
                for job_state in job_states.parse_job_list(text)
                if job_state.name in chunk
            ]
        return job_list

    def _record_failure(self, problem: str) -> None:
        self.trouble, self._failed = problem, min(self._failed + 1, _TRIES)
        if self._failed == _TRIES and self.is_reachable:
            self.is_reachable = False
            _log.warning("pool %s: its cluster cannot be reached: %s", self.name, problem)
            for run in list(self._watched.values()):
                run.cluster_unreachable()

    def _record_answer(self) -> None:
        if not self.is_reachable:
            _log.info("pool %s: its cluster answers again", self.name)
        self.trouble, self._failed, self.is_reachable = "", 0, True


def seconds(grace: float) -> str:
    """Format a duration for a shell's `sleep`."""
    return str(math.ceil(grace))
