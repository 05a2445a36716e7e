"""The driver `slurm` runs tasks as jobs of a cluster.

The cluster chooses the hosts, queues the jobs and enforces their limits.

An attempt is one job that runs Steward's wrapper (`wrapper.sh`), which claims the attempt and
downloads the task. Only one claim succeeds, even if the cluster runs the job twice. No attempt runs
twice (docs/drivers.md).
"""

import os
from collections.abc import Mapping, Sequence

import msgspec

from daemon.launcher.messages import Whose
from daemon.runner.core.driver import (
    Attempt,
    ExecStream,
    Fingerprint,
    InvalidConfig,
    StartFailed,
    TaskHandle,
)
from daemon.runner.core.launcher_policy import NOBODY
from daemon.runner.core.task_env import TaskDirectories
from daemon.runner.drivers import driver_config
from daemon.runner.drivers.local_exec import PassedSession
from daemon.runner.drivers.permitted_users import ANY_USER, TaskUsers
from daemon.runner.drivers.slurm.bundle import SlurmConfig, home_of, task_dirs_of
from daemon.runner.drivers.slurm.cluster import SlurmCluster
from daemon.runner.drivers.slurm.commands import SlurmCommandFailed
from daemon.runner.drivers.slurm.exec import SlurmExec
from daemon.runner.drivers.slurm.wrapper_api import WrapperApi
from storage.queries import cluster_runs
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.records.pool import SLURM
from storage.store import tolerate_disk_full
from storage.writer import Transaction

_SH = "/bin/sh"
_INSIDE = 'unset LC_ALL SLURM_TIME_FORMAT; . "$0/.steward/session"'  # executes the command
_LONGEST_TERM = 64
_WALLED = "exec"  # the driver name under which no task runs as root


class SlurmDriver:
    """The driver `slurm`, which a pool can also use in place of a driver such as `exec`."""

    file_owner_rule: Whose = "ours"
    is_prompt = False

    def __init__(
        self,
        cluster: SlurmCluster,
        wrapper_api: WrapperApi,
        name: str = SLURM,
        *,
        users: TaskUsers = ANY_USER,
    ) -> None:
        self.name = name
        self._cluster, self._desk, self._users = cluster, wrapper_api, users

    def fingerprint(self) -> Fingerprint:
        """Return the node attributes."""
        missing = [
            program
            for program in ("sbatch", "squeue", "scancel", "srun", "scontrol")
            if self._cluster.tools.find(program) is None
        ]
        if missing:
            return Fingerprint(
                trouble=f"{', '.join(missing)} cannot be found in {self._cluster.tools.path}: "
                "install the cluster's client programs"
            )
        return Fingerprint(attributes={f"driver.{self.name}": "true"})

    def task_dirs(self, directory: str, task: str) -> TaskDirectories:
        """Return the task directories on the host that runs the task."""
        return task_dirs_of(self._cluster.pool.directory, os.path.basename(directory), task)

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless the configuration has a command and no unknown setting."""
        driver_config.read(SlurmConfig, block)

    async def start(self, attempt: Attempt) -> TaskHandle:
        """Begin the submission of an attempt, or re-attach to a submission that began earlier."""
        self.check(attempt.config)
        attempt = self._as_somebody(attempt)
        if attempt.user and self._refuses(attempt.user):
            raise StartFailed(
                f'user "{attempt.user}" is the daemon\'s own user, and cannot run exec tasks'
                if self._is_walled
                else f'user "{attempt.user}" must not submit jobs: name another user, or set user = "root" '
                "in the agent's configuration"
            )
        if attempt.mounts:
            raise InvalidConfig(f"{self.name} cannot mount volumes on cluster hosts")

        def write(tx: Transaction) -> ClusterRun:
            key = attempt.alloc_id, attempt.task, attempt.number
            stored_run = cluster_runs.find(tx, *key)
            if stored_run is not None:
                return stored_run
            row = ClusterRun(
                allocation_id=key[0], task=key[1], number=key[2], pool=self._cluster.name
            )
            return cluster_runs.put(tx, row)

        row = await self._cluster.write(write)
        return self._desk.run(self._cluster, attempt, row)

    def _as_somebody(self, attempt: Attempt) -> Attempt:
        """Return the attempt with a user: its own or, if the launcher is root, the default user.

        If there is neither, return the attempt unchanged.
        """
        usual = NOBODY if self._is_walled else self._users.usual
        if attempt.user or not usual or not self._users.is_root:
            return attempt
        return msgspec.structs.replace(attempt, user=usual)

    def _refuses(self, user: str) -> bool:
        """Return whether `user` is the launcher's own user and must not run tasks of this driver.

        Raises `StartFailed` for an unknown or forbidden user.
        """
        is_refused = self._is_walled or self._users.is_separated
        return self._users.find(self.name, user) is None and is_refused

    @property
    def _is_walled(self) -> bool:
        """Return whether a task must not run as the daemon's own user."""
        return self.name == _WALLED and self._users.is_root

    async def adopt(self, attempt: Attempt, handle: bytes) -> TaskHandle | None:
        """Re-attach to an attempt; return None if it is unknown."""
        del handle  # the name is sufficient
        key = attempt.alloc_id, attempt.task, attempt.number
        row = self._cluster.store.read(lambda db: cluster_runs.find(db, *key))
        if row is None:
            return None
        run = self._desk.run(self._cluster, self._as_somebody(attempt), row)
        run.adopted()
        return run

    async def open_session(
        self, attempt: Attempt, command: Sequence[str], *, tty: bool
    ) -> ExecStream:
        """Run a command as a step of the attempt's job."""
        key = attempt.alloc_id, attempt.task, attempt.number
        row = self._cluster.store.read(lambda db: cluster_runs.find(db, *key))
        if row is None or row.status != RunStatus.RUNNING:
            raise StartFailed("failed to start command: the task is not running on a host")
        job_id = await self._checked_number(row)
        home = home_of(self._cluster.pool.directory, attempt)
        name = self._as_somebody(attempt).user
        user = self._cluster.users.find(self.name, name) if name else None
        words = [f"--jobid={job_id}", "--overlap", "-Q", "--chdir=/", *(["--pty"] * tty)]
        launcher = self._cluster.tools.launcher
        try:
            program_command = msgspec.structs.replace(
                self._cluster.tools.order("srun", *words, user=str(user.uid) if user else ""),
                command=[
                    os.fsencode(argument) for argument in (_SH, "-c", _INSIDE, home, *command)
                ],
                terminal=attempt.env.get("TERM", "")[:_LONGEST_TERM],
            )
            number, ends = await launcher.start_program(program_command, is_terminal=tty)
        except (OSError, ValueError, SlurmCommandFailed) as error:
            raise StartFailed(f"failed to start command: {error}") from error
        return SlurmExec(PassedSession(launcher, number, *ends))

    async def _checked_number(self, row: ClusterRun) -> str:
        """Return the job number for `srun`; query the cluster for the number of an array element.

        Raises `StartFailed` unless the cluster has the job with this ID and name.
        """
        try:
            listed = await self._cluster.listed(row.name)
            number = await self._cluster.number_of(row) if row.array else row.job_id
        except SlurmCommandFailed as error:
            raise StartFailed(f"failed to start command: {error}") from error
        if not number or not any(job.job_id == row.job_id and job.is_active for job in listed):
            raise StartFailed(
                f"failed to start command: the cluster has no job {row.job_id} named {row.name}"
            )
        return number

    async def destroy(self, alloc_id: str, directory: str) -> None:
        """Withdraw the attempts of an allocation and cancel their jobs."""

        def write(tx: Transaction) -> list[ClusterRun]:
            rows = cluster_runs.of_allocation(tx, alloc_id)
            return [
                cluster_runs.withdraw(tx, row) for row in rows if row.pool == self._cluster.name
            ]

        rows = self._cluster.store.read(lambda db: cluster_runs.of_allocation(db, alloc_id))
        if not rows:
            return
        async with tolerate_disk_full(f"cannot release the attempts of allocation {alloc_id}"):
            await self._cluster.store.write(write)
        for run in self._desk.of_allocation(alloc_id):
            run.reread()
        for row in rows:
            if row.status != RunStatus.ENDED and row.pool == self._cluster.name:
                await self._cluster.cancel_now(row.name, row.job_id)


def drivers_of(
    cluster: SlurmCluster, wrapper_api: WrapperApi, users: TaskUsers
) -> dict[str, SlurmDriver]:
    """Return the driver for each driver name that tasks of a pool may use."""
    names = dict.fromkeys([SLURM, *cluster.pool.drivers])
    return {name: SlurmDriver(cluster, wrapper_api, name, users=users) for name in names}
