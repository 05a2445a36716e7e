"""The driver `slurm`: tasks as jobs of a cluster that chooses their hosts, queues and limits them.

An attempt is one job that runs our wrapper (`wrapper.sh`), which claims the attempt and brings the
task there. Whatever the cluster repeats, one claim wins: so nothing runs twice (docs/drivers.md).
"""

import os
from collections.abc import Mapping, Sequence

import msgspec

from daemon.launcher.messages import Owner
from daemon.runner.drivers import config
from daemon.runner.drivers import session as sessions
from daemon.runner.drivers.driver import (
    Attempt,
    Fingerprint,
    InvalidConfig,
    Running,
    Session,
    StartFailed,
)
from daemon.runner.drivers.permitted import EVERYBODY, NOBODY, TaskUsers
from daemon.runner.drivers.slurm.bundle import Settings, home_of, places_of
from daemon.runner.drivers.slurm.cluster import Cluster
from daemon.runner.drivers.slurm.desk import Desk
from daemon.runner.drivers.slurm.session import StepSession
from daemon.runner.drivers.slurm.submission import as_user
from daemon.runner.drivers.slurm.tools import ToolFailed
from daemon.runner.drivers.users import find_user
from daemon.runner.env import Directories
from storage.queries import cluster_runs
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.records.pool import SLURM
from storage.store import unless_full
from storage.writer import Transaction

_SH = "/bin/sh"
_INSIDE = 'unset LC_ALL SLURM_TIME_FORMAT; . "$0/.steward/session"'  # which becomes the command
_TERMINAL = "xterm"
_WALLED = "exec"  # the name under which no task runs as root


class SlurmDriver:
    """The driver, under its own name or one by which tasks ask for processes of a machine."""

    is_prompt = False

    def __init__(
        self, cluster: Cluster, desk: Desk, name: str = SLURM, *, users: TaskUsers = EVERYBODY
    ) -> None:
        self.name = name
        self._cluster, self._desk, self._users = cluster, desk, users

    def fingerprint(self) -> Fingerprint:
        """Return what a node says of it."""
        missing = [
            one
            for one in ("sbatch", "squeue", "scancel", "srun", "scontrol")
            if self._cluster.tools.find(one) is None
        ]
        if missing:
            return Fingerprint(
                trouble=f"{', '.join(missing)} cannot be found in {self._cluster.tools.path}: "
                "install the cluster's client programs"
            )
        return Fingerprint(attributes={f"driver.{self.name}": "true"})

    def places(self, directory: str, task: str) -> Directories:
        """Return where a task finds its directories, on its host."""
        return places_of(self._cluster.pool.directory, os.path.basename(directory), task)

    def owner(self, user: str, alloc_id: str) -> Owner | None:
        """Return nobody: files belong to who unpacks them."""
        return None

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless the block names a command, and nothing unknown."""
        config.read(Settings, block)

    async def start(self, attempt: Attempt) -> Running:
        """Begin to submit an attempt, or find it where it was."""
        self.check(attempt.config)
        attempt = self._as_somebody(attempt)
        if attempt.user and self._refuses(attempt.user):
            raise StartFailed(
                f'user "{attempt.user}" is the daemon\'s own, and may run no task of exec'
            )
        if attempt.mounts:
            raise InvalidConfig(f"{self.name} mounts no volumes on hosts of a cluster")

        def write(tx: Transaction) -> ClusterRun:
            key = attempt.alloc_id, attempt.task, attempt.number
            known = cluster_runs.find(tx, *key)
            if known is not None:
                return known
            row = ClusterRun(
                allocation_id=key[0], task=key[1], number=key[2], pool=self._cluster.name
            )
            return cluster_runs.put(tx, row)

        row = await self._cluster.write(write)
        return self._desk.run(self._cluster, attempt, row)

    def _as_somebody(self, attempt: Attempt) -> Attempt:
        """Return an attempt with the user that it runs as: where the daemon is root, the usual one."""
        usual = NOBODY if self._is_walled else self._users.usual
        if attempt.user or not usual or os.geteuid() != 0:
            return attempt
        return msgspec.structs.replace(attempt, user=usual)

    def _refuses(self, user: str) -> bool:
        """Return whether no task of this driver may run as a user. Raises `StartFailed`."""
        return self._users.find(self.name, user) is None and self._is_walled

    @property
    def _is_walled(self) -> bool:
        """Tell whether a task must not run as the daemon itself does."""
        return self.name == _WALLED and os.geteuid() == 0

    async def adopt(self, attempt: Attempt, handle: bytes) -> Running | None:
        """Find an attempt by its name; None when nothing is known of it."""
        del handle  # the name says it all
        key = attempt.alloc_id, attempt.task, attempt.number
        row = self._cluster.store.read(lambda db: cluster_runs.find(db, *key))
        if row is None:
            return None
        run = self._desk.run(self._cluster, self._as_somebody(attempt), row)
        run.adopted()
        return run

    async def open_session(self, attempt: Attempt, command: Sequence[str], *, tty: bool) -> Session:
        """Run a command as a step of the attempt's job."""
        key = attempt.alloc_id, attempt.task, attempt.number
        row = self._cluster.store.read(lambda db: cluster_runs.find(db, *key))
        srun = self._cluster.tools.find("srun")
        if row is None or row.status != RunStatus.RUNNING or srun is None:
            raise StartFailed("failed to start command: the task does not run on a host")
        await self._check_job(row)
        home = home_of(self._cluster.pool.directory, attempt)
        name = self._as_somebody(attempt).user
        user = as_user(find_user(name) if name else None)
        words = [srun, f"--jobid={row.job_id}", "--overlap", "-Q", "--chdir=/", *user]
        line = [*words, *(["--pty"] if tty else []), _SH, "-c", _INSIDE, home, *command]
        env = self._cluster.tools.environment()
        try:
            if tty:
                env["TERM"] = attempt.env.get("TERM", _TERMINAL)
                return StepSession(sessions.start_with_terminal(line, env, os.geteuid()))
            return StepSession(sessions.start(line, env))
        except (OSError, ValueError) as error:
            raise StartFailed(f"failed to start command: {error}") from error

    async def _check_job(self, row: ClusterRun) -> None:
        """Raise `StartFailed` unless the cluster lists the job under its number and its name."""
        try:
            listed = await self._cluster.listed(row.name)
        except ToolFailed as error:
            raise StartFailed(f"failed to start command: {error}") from error
        if not any(one.job_id == row.job_id and one.is_active for one in listed):
            raise StartFailed(
                f"failed to start command: the cluster knows no job {row.job_id} named {row.name}"
            )

    async def destroy(self, alloc_id: str, directory: str) -> None:
        """Let nobody claim what is left of an allocation, and have its jobs cancelled."""

        def write(tx: Transaction) -> list[ClusterRun]:
            rows = cluster_runs.of_allocation(tx, alloc_id)
            return [
                cluster_runs.withdraw(tx, row) for row in rows if row.pool == self._cluster.name
            ]

        rows = self._cluster.store.read(lambda db: cluster_runs.of_allocation(db, alloc_id))
        if not rows:
            return
        async with unless_full(f"that nobody claims what is left of allocation {alloc_id}"):
            await self._cluster.store.write(write)
        for run in self._desk.of_allocation(alloc_id):
            run.reread()
        for row in rows:
            if row.status != RunStatus.ENDED and row.pool == self._cluster.name:
                await self._cluster.cancel_now(row.name, row.job_id)


def drivers_of(cluster: Cluster, desk: Desk, users: TaskUsers) -> dict[str, SlurmDriver]:
    """Return the driver under each name by which the tasks of a pool may ask for it."""
    names = dict.fromkeys([SLURM, *cluster.pool.drivers])
    return {name: SlurmDriver(cluster, desk, name, users=users) for name in names}
