"""Submit attempts. Equal attempts that arrive together become one job array of the cluster.

The first attempt waits until no more attempts arrive, and submits the array for all of them. Like a
single job, each element of an array has its own claim. Therefore no element runs twice
(decision 31).
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import msgspec
import trio

from daemon.runner.core.driver import Attempt
from daemon.runner.drivers.slurm import job_states, submission
from daemon.runner.drivers.slurm.commands import SlurmCommandFailed
from storage.queries import cluster_runs
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.records.pool import Pool
from storage.writer import Transaction

MOST = 500  # elements of an array; the default limit of Slurm is 1000
_PAUSE = 0.02  # seconds without another attempt after which an array is complete
_LONGEST = 0.25  # maximum seconds that the first attempt waits

Written = TypeVar("Written")
# Returns a new claim secret and its hash. The second argument, if not empty, is the end of the
# secret.
Claims = Callable[[ClusterRun, str], tuple[str, str]]


class PendingSubmission(msgspec.Struct, eq=False, kw_only=True):
    """An attempt that waits for submission. `apply` receives its changed record.

    `words` are the arguments of `sbatch`, and `env` has the variables that all wrappers get.
    """

    attempt: Attempt
    row: ClusterRun
    words: list[str]
    user: str
    env: Mapping[str, str]
    claims: Claims
    apply: Callable[[ClusterRun], None]
    is_done: bool = False
    job_id: str = ""  # ID in the cluster; empty if no job is needed any more
    error: SlurmCommandFailed | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Return the values that all elements of an array have in common."""
        return (*self.attempt.family, self.row.task, self.user, *self.words)

    def finish(self, job_id: str = "", error: SlurmCommandFailed | None = None) -> None:
        """Record the result of the submission: the job's ID, or the error."""
        self.is_done, self.job_id, self.error = True, job_id, error


class Sbatch(Protocol):
    """The parts of `SlurmCluster` that submissions use."""

    pool: Pool

    async def submit(self, words: list[str], env: Mapping[str, str], user: str) -> str:
        """Submit a wrapper as a user; return the output of `sbatch`."""
        ...

    async def write(self, work: Callable[[Transaction], Written]) -> Written:
        """Store a change, as `SlurmCluster.write` does."""
        ...


class _Line:
    """A queue of equal attempts. Only the attempt that holds `turn` submits an array."""

    def __init__(self) -> None:
        self.turn = trio.Lock()
        self.is_full = trio.Event()
        self.waiting: dict[PendingSubmission, None] = {}


class Submissions:
    """Submits the attempts of one cluster, in arrays if possible."""

    def __init__(self, cluster: Sbatch, now: Callable[[], int]) -> None:
        self._cluster, self._now = cluster, now
        self._lines: dict[tuple[str, ...], _Line] = {}

    async def submit(self, pending: PendingSubmission) -> str:
        """Submit an attempt; return the ID of its job, or an empty string if it needs no job.

        Raises `SlurmCommandFailed`.
        """
        line = self._lines.setdefault(pending.key, _Line())
        line.waiting[pending] = None
        if len(line.waiting) >= MOST:
            line.is_full.set()
        try:
            async with line.turn:
                if not pending.is_done:
                    await self._submit_first(line)
        finally:
            line.waiting.pop(pending, None)
            if not line.waiting and not line.turn.locked():
                self._lines.pop(pending.key, None)
        if pending.error is not None:
            raise pending.error
        return pending.job_id

    async def _submit_first(self, line: _Line) -> None:
        """Wait a short time for more attempts; then submit the oldest waiting attempts together."""
        number_before = 0
        with trio.move_on_after(_LONGEST):
            while number_before < len(line.waiting) < MOST:
                number_before = len(line.waiting)
                with trio.move_on_after(_PAUSE):
                    await line.is_full.wait()
        batch = list(line.waiting)[:MOST]
        for pending in batch:
            del line.waiting[pending]
        if len(line.waiting) < MOST:
            line.is_full = trio.Event()
        try:
            await self._send(batch)
        finally:  # this attempt may be cancelled, but not the others
            for pending in batch:
                if not pending.is_done:
                    pending.finish(error=SlurmCommandFailed("sbatch was interrupted", unsure=True))

    async def _send(self, batch: list[PendingSubmission]) -> None:
        """Submit attempts together, or one by one if the cluster refuses their array."""
        batch_to_send, claims = await self._prepare(batch)
        if not batch_to_send:
            return
        try:
            number = submission.job_number(await self._call(batch_to_send, claims))
        except SlurmCommandFailed as error:
            if len(batch_to_send) == 1 or error.unsure or job_states.may_have_succeeded(str(error)):
                for pending in batch_to_send:
                    pending.finish(error=error)
            else:
                await self._send_singly(batch_to_send)
            return
        is_array = bool(number) and len(batch_to_send) > 1
        for element, pending in enumerate(batch_to_send):
            pending.finish(f"{number}_{element}" if is_array else number)

    async def _send_singly(self, batch: list[PendingSubmission]) -> None:
        """Submit attempts without an array. After one refusal, do not submit the others."""
        refusal: SlurmCommandFailed | None = None
        for pending in batch:
            if refusal is None:
                await self._send([pending])
                refusal = pending.error
            else:
                pending.finish(error=refusal)

    async def _prepare(
        self, batch: list[PendingSubmission]
    ) -> tuple[list[PendingSubmission], list[str]]:
        """Store new claims; return the attempts that still need a job, and their claims."""

        def write(tx: Transaction) -> list[ClusterRun]:
            rows = [_stored(tx, pending.row) for pending in batch]
            count = sum(row.status == RunStatus.SUBMITTING for row in rows)
            end = array = ""
            claims.clear()  # claims of an earlier try
            for position, row in enumerate(rows):
                if row.status != RunStatus.SUBMITTING:
                    continue
                claim, hashed = batch[position].claims(row, end)
                if count > 1:
                    end, array = claim.rpartition(".")[2], array or f"array-{hashed[:32]}"
                fields = {"array": array, "element": len(claims) if array else -1}
                changed = msgspec.structs.replace(
                    row, claim_hash=hashed, submitted_at=self._now(), **fields
                )
                rows[position] = cluster_runs.put(tx, changed)
                claims.append(claim)
            return rows

        claims: list[str] = []
        to_send: list[PendingSubmission] = []
        for pending, row in zip(batch, await self._cluster.write(write), strict=True):
            pending.row = row
            pending.apply(row)
            if row.status == RunStatus.SUBMITTING:
                to_send.append(pending)
            else:
                pending.finish()
        return to_send, claims

    async def _call(self, batch: list[PendingSubmission], claims: list[str]) -> str:
        """Return the output of `sbatch`. Raises `SlurmCommandFailed`."""
        first, folder = batch[0], self._cluster.pool.directory
        own = submission.claim_variables(claims, folder, first.row.task)
        words = [*first.words, *submission.identity(first.row, len(batch))]
        return await self._cluster.submit(words, {**first.env, **own}, first.user)


def _stored(tx: Transaction, row: ClusterRun) -> ClusterRun:
    """Return the stored record of an attempt; a deleted record counts as withdrawn."""
    stored_run = cluster_runs.find(tx, row.allocation_id, row.task, row.number)
    return stored_run or msgspec.structs.replace(row, status=RunStatus.VOID)
