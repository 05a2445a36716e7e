"""An attempt as a cluster job, from submission to exit.

The wrapper's reports are authoritative: the claim marks the start, the result marks the end. The
polled job state is used when the wrapper is silent. If a job is over and its wrapper is silent for
ten seconds, the result is the one that the cluster reports. The cluster may also explain why a
signal ended a task. A job that the cluster lost before the claim is submitted again with a new
claim; the old claim is invalid.
"""

import hashlib
import logging
import os
import signal as signals
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec
import trio

from daemon.runner.core.driver import Attempt, DeliveredFiles, ExitResult, StartFailed
from daemon.runner.core.notifier import Notifier
from daemon.runner.core.resource_usage import CpuAccount, UsageReading
from daemon.runner.core.state_machine import StateMachine
from daemon.runner.core.task_dir import directories
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.drivers.permitted_users import TaskUsers
from daemon.runner.drivers.slurm import job_states, submission
from daemon.runner.drivers.slurm.attempt_states import BEFORE_CLAIM, OVER, TABLE
from daemon.runner.drivers.slurm.cluster import SlurmCluster
from daemon.runner.drivers.slurm.commands import SlurmCommandFailed
from daemon.runner.drivers.slurm.job_states import SlurmJobState
from daemon.runner.drivers.slurm.log_receiver import LogReceiver
from daemon.runner.drivers.slurm.submissions import Claims, PendingSubmission
from daemon.runner.drivers.slurm.wrapper_commands import WrapperCommandQueue
from storage.queries import cluster_runs, kept_files
from storage.records.base import SECOND
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.records.pool import SLURM
from storage.records.usage import MemoryUsage
from storage.writer import Transaction

LATE = 10.0  # seconds of silence before the cluster's report is used
_AGAIN = 2.0  # seconds between retries when the cluster does not answer
_SOON = 0.5  # seconds before a state that is about to change is queried again
_SENDING = 600.0  # seconds after a stop that a wrapper has to send files to keep
_RENEWALS = 3  # failed submissions before the attempt fails
_DELIVERY = 60.0  # seconds for the delivery of current files to the task
_TICK = SECOND // 100  # clock tick of /proc, the same on every Linux
_PAGE = 4096
# Job states that the wrapper reports more precisely.
_EXPECTED = frozenset({"RUNNING", "COMPLETING", "COMPLETED", "FAILED"})
# Signals after which the cluster may have ended a job. A task gets SIGPIPE if the process that
# reads its output ends first.
_OF_CLUSTERS = frozenset({signals.SIGTERM, signals.SIGKILL, signals.SIGPIPE})
KINDS = ("stdout", "stderr")
_NEVER = ExitResult(code=137, signal=9, message="the task was stopped before it started")

_log = logging.getLogger("steward.runner")


class SlurmAttempt:
    """The state machine of an attempt. Its states and their changes are in `attempt_states.py`.

    `row` is the stored record of the attempt, including the current state.
    """

    def __init__(
        self,
        cluster: SlurmCluster,
        attempt: Attempt,
        row: ClusterRun,
        claims: Claims,
        release: Callable[["SlurmAttempt"], None],
    ) -> None:
        self.row, self.attempt, self.cluster = row, attempt, cluster
        self._claims, self._release = claims, release
        self._machine = StateMachine(f"attempt {row.comment}", TABLE, row.status)
        self._user = _number_of(attempt.user, cluster.users)
        self._changes = Notifier()
        self._seen: list[SlurmJobState] | None = None  # None before the first poll
        self._asked_since = trio.current_time()  # earlier polls are ignored
        self._over_since: float | None = None  # since when the job is over, as the cluster reports
        self._has_asked = False  # whether the cluster was queried for the reason for the end
        self._word: ExitResult | None = None  # the cluster's answer to that query
        self._is_stuck = False
        self._is_sending = False  # whether the wrapper sends files of the ended task
        self._may_poll_once = False  # whether the last poll may arrive after the list of files
        self._renewals = 0  # submissions without a started job
        self._vanished = 0  # submissions that the cluster no longer knew
        self._heard = trio.current_time()
        # Held during a claim, so that the attempt is not resubmitted or finished at the same time.
        self.claiming = trio.Lock()
        self._orders = WrapperCommandQueue(self._changes, cluster.clock)
        self._used = UsageReading()
        self._ended = trio.Event()
        self._asking = trio.CancelScope()  # scope of the query for the reason, which a stop cancels
        self._note: Callable[[str], None] = _discard_message
        self._said = ""
        self.intakes = {
            kind: LogReceiver(log, getattr(row, f"{kind}_base"))
            for kind, log in attempt.logs.items()
        }

    # --- driver side ---

    @property
    def handle(self) -> bytes:
        """Return the name of the attempt, with which a restarted daemon finds it."""
        handle = {"pool": self.row.pool, "job": self.row.job_id, "run": self.row.comment}
        return msgspec.json.encode(handle)

    async def wait_for_start(self, note: Callable[[str], None]) -> int | None:
        """Wait until a wrapper claims the attempt; return the time of the claim in nanoseconds.

        `note` receives the state of the job while the job waits. Return None if the attempt ended
        before it was claimed. Raises `StartFailed`.
        """
        self._note, tell = note, self._report_queue_state
        while self.row.status in BEFORE_CLAIM:
            if self.row.status == RunStatus.SUBMITTING:
                await self._submit(tell)
                continue
            if standing := self._queue_description():
                tell(standing)
            if self._is_settled() and not self.claiming.locked():
                await self._conclude_unclaimed(tell)
            else:
                await self._next()
        if self.row.status == RunStatus.RUNNING:
            tell(self._location)
        return self.row.claimed_at or None

    @property
    def _location(self) -> str:
        return f"job {self.row.job_id} runs on {self.row.host or 'a host'}"

    def adopted(self) -> None:
        """Mark the start as reported, because an earlier daemon reported it."""
        if self.row.status == RunStatus.RUNNING:
            self._said = self._location

    def _report_queue_state(self, text: str) -> None:
        """Report the queue state if it differs from the last reported one."""
        if text != self._said:
            self._said = text
            self._note(text)

    async def _next(self) -> None:
        """Wait for a change, or query the cluster for the reason why the job is over.

        The query is made as soon as the job is over, because the cluster soon removes the job.
        """
        if self._over_since is None or not self._seen or self._has_asked:
            await self._changes.wait()
            return
        self._has_asked = True
        with suppress(SlurmCommandFailed):  # the exit result then has no reason
            output = await self.cluster.shown(self.row.job_id)
            self._word = job_states.end_of(output, self.row.name) or self._word

    def _queue_description(self) -> str:
        """Return a description of the queue state; empty while it is unknown."""
        if not self.cluster.is_reachable:
            return f"the cluster does not answer, so the state of the task is unknown: {self.cluster.trouble}"
        if not self._seen or (self._seen[0].state in _EXPECTED and self.row.claimed_at):
            return ""
        return self._seen[0].description

    async def _conclude_unclaimed(self, note: Callable[[str], None]) -> None:
        """Resubmit an unclaimed attempt if it may still succeed; otherwise finish the attempt.

        Raises `StartFailed`.
        """
        end = self._word
        if end is None:
            note(f"the cluster no longer knows job {self.row.job_id}: submitting it again")
            self._vanished += 1
        elif not self._may_succeed_again(end):
            await self._finish(end)
            return
        elif self._renewals < _RENEWALS:
            note(
                f"job {self.row.job_id} did not start the task: submitting it again; {end.message}"
            )
            self._renewals += 1
        else:
            await self._change(status=RunStatus.ENDED)
            if self.row.status == RunStatus.RUNNING:
                return
            raise StartFailed(end.message, recoverable=True)
        name, lost = self.row.name, self.row.job_id
        self._word = self._over_since = self._seen = None
        self._has_asked = self._is_stuck = False
        nothing = {"job_id": "", "claim_hash": "", "array": "", "element": -1}
        await self._change(status=RunStatus.SUBMITTING, **nothing)
        if self.row.status != RunStatus.RUNNING:
            self.cluster.cancel(name, lost)
        with trio.move_on_after(submission.submit_delay(self._vanished)):
            while self.row.status == RunStatus.SUBMITTING:
                await self._changes.wait()

    def _may_succeed_again(self, end: ExitResult) -> bool:
        """Return whether an attempt that never started may succeed when resubmitted."""
        hosts = any(job.lost_its_host for job in self._seen or ())
        return self._is_stuck or hosts or end.code in {job_states.UNHEARD, job_states.NO_DIRECTORY}

    async def _submit(self, note: Callable[[str], None]) -> None:
        """Submit the attempt, unless it was already submitted. Raises `StartFailed`."""
        if self.row.claim_hash and await self._was_submitted(note):
            return
        attempt, pool = self.attempt, self.cluster.pool
        try:
            user = self.cluster.users.find(SLURM, attempt.user) if attempt.user else None
            is_root = user is None and os.geteuid() == 0
            words = submission.sbatch_arguments(attempt, self.row, pool, is_root=is_root)
        except StartFailed:
            await self._change(status=RunStatus.ENDED)
            raise
        try:
            job_id = await self.cluster.submissions.submit(
                PendingSubmission(
                    attempt=attempt,
                    row=self.row,
                    words=words,
                    user=str(user.uid) if user else "",
                    env=submission.environment_of(url=self.cluster.url, ca=self.cluster.ca),
                    claims=self._claims,
                    apply=self._apply,
                )
            )
        except SlurmCommandFailed as error:
            if error.unsure or job_states.may_have_succeeded(str(error)):
                note(f"the cluster did not answer: {error}")
                return  # the next call checks whether the cluster has the job
            await self._change(status=RunStatus.ENDED)
            passes = job_states.may_recover(str(error))
            raise StartFailed(
                f"the cluster refused the job: {error}", recoverable=passes
            ) from error
        await self._accept(job_id)
        if job_id:
            note(f"job {job_id} was submitted to partition {pool.partition or self.row.pool}")

    async def _was_submitted(self, note: Callable[[str], None]) -> bool:
        """Return whether the cluster already has a job of the attempt.

        Return false if the job was missing in two polls, ten seconds apart. `note` is called with a
        message if the cluster does not answer.
        """
        absent = 0
        while self.row.status == RunStatus.SUBMITTING:
            try:
                active = await self.cluster.find(self.row)
            except SlurmCommandFailed as error:
                note(f"the cluster does not answer: {error}")
                await trio.sleep(_AGAIN)
                continue
            if active:
                await self._accept(active[-1])
                return True
            absent += 1
            if absent > 1:
                return False
            with trio.move_on_after(LATE):
                while self.row.status == RunStatus.SUBMITTING:
                    await self._changes.wait()
        return True

    async def _accept(self, job_id: str) -> None:
        """Record the ID of the submitted job, which a wrapper may have claimed already."""
        if not job_id:
            return
        self._asked_since = trio.current_time()

        def write(tx: Transaction) -> ClusterRun:
            row = cluster_runs.find(tx, *self.key) or self.row
            if row.status == RunStatus.SUBMITTING:
                row = msgspec.structs.replace(row, status=RunStatus.WAITING)
            return cluster_runs.put(tx, msgspec.structs.replace(row, job_id=row.job_id or job_id))

        self._apply(await self.cluster.write(write))
        self.cluster.watch(self)

    async def wait(self) -> ExitResult:
        """Wait until the attempt has ended; return the exit result."""
        while self.row.status not in OVER:
            if self.row.status != RunStatus.RUNNING:  # a withdrawal is in progress
                await self._changes.wait()
            elif self._is_settled() and not self._is_alive():
                await self._finish(self._word or job_states.GONE)
            else:
                await self._next()
        self._ended.set()
        self.cluster.forget(self)
        self._release(self)
        if not self.row.result:
            return _NEVER
        return await self._explained(msgspec.json.decode(self.row.result, type=ExitResult))

    async def _explained(self, end: ExitResult) -> ExitResult:
        """Return `end`, with the cluster's reason added if the cluster ended the task.

        Slurm reports the reason after the wrapper exits. If the wrapper was signalled together with
        its task, it may report only the signal, or nothing.
        """
        is_open = (
            end.signal in _OF_CLUSTERS if not end.message else end.message == job_states.SOMEHOW
        )
        if not is_open or self._orders.may_have_ended_it or not self.cluster.is_reachable:
            return end
        pause = _SOON
        # Without an answer in time, the report of the wrapper stands.
        with self._asking, trio.move_on_after(LATE), suppress(SlurmCommandFailed):
            while self.row.job_id and (output := await self.cluster.shown(self.row.job_id)):
                if (word := job_states.end_of(output, self.row.name)) is None:
                    await trio.sleep(pause)
                    pause *= 2
                elif job_states.ended_by_cluster(output):
                    fields = {"message": word.message, "oom_killed": word.oom_killed}
                    return msgspec.structs.replace(end, **fields)
                else:
                    break
        return end

    async def stop(self, signal: str, grace: float) -> str:
        """Stop the task through the wrapper, or through the cluster if the wrapper is silent.

        The task is killed after `grace` seconds.
        """
        if self.row.status in BEFORE_CLAIM:
            await self._withdraw()
        if self.row.status != RunStatus.RUNNING:
            self._asking.cancel()
            return ""
        self._orders.stop(signal, grace)
        with trio.move_on_after(grace + LATE):
            await self._ended.wait()
            return ""
        with trio.move_on_after(_SENDING):
            while self._is_sending and self._is_alive() and not self._ended.is_set():
                with trio.move_on_after(LATE):
                    await self._ended.wait()
        while not self._ended.is_set():
            self.cluster.cancel(self.row.name, self.row.job_id)
            with trio.move_on_after(LATE):
                await self._ended.wait()
        return ""

    async def _withdraw(self) -> None:
        """Withdraw the attempt unless a wrapper claimed it; its jobs are cancelled later."""

        def write(tx: Transaction) -> ClusterRun:
            row = cluster_runs.find(tx, *self.key) or self.row
            if row.status in BEFORE_CLAIM:
                row = msgspec.structs.replace(row, status=RunStatus.VOID)
            return cluster_runs.put(tx, row)

        self._apply(await self.cluster.write(write))
        if self.row.status == RunStatus.VOID:
            self.cluster.cancel(self.row.name, self.row.job_id)

    async def signal(self, name: str) -> None:
        """Send a signal to the main process through the wrapper."""
        self._orders.signal(name)

    async def refresh(self) -> None:
        """Make the wrapper download the files again, and wait until the download has ended."""
        if self.row.status != RunStatus.RUNNING:
            return
        command = self._orders.fetch_files()
        with trio.move_on_after(_DELIVERY):
            while not (self._orders.is_acknowledged(command) or self._ended.is_set()):
                await self._changes.wait()

    async def usage(self) -> UsageReading:
        """Return the usage that the wrapper reported last."""
        return self._used

    async def pause(self) -> None:
        """Pause writing to the logs."""
        try:
            for intake in self.intakes.values():
                await intake.pause()
        except BaseException:  # on cancellation, release the first log
            await self.resume()
            raise

    async def resume(self) -> None:
        """Resume writing to the logs."""
        for intake in self.intakes.values():
            await intake.resume()

    def release(self) -> None:
        """Stop watching; the job continues and its wrapper reconnects."""
        self.cluster.forget(self)
        self._release(self)

    # --- polled state ---

    def update_jobs(
        self,
        job_states_found: list[SlurmJobState],
        asked_at: float,
        *,
        is_array_known: bool = False,
    ) -> None:
        """Handle the list of this attempt's jobs from the poll that began at `asked_at`.

        `is_array_known` means that the poll has listed the attempt's array, possibly without this
        element.
        """
        open_statuses = {RunStatus.WAITING, RunStatus.RUNNING}
        if asked_at < self._asked_since or self.row.status not in open_statuses:
            return
        # Jobs of the daemon's user and of root are included, because tasks ran as these users
        # before the settings named another user.
        job_states_found = [
            job for job in job_states_found if job.user in {self._user, *self.cluster.users.own}
        ]
        own_jobs = [job for job in job_states_found if self.row.job_id in {job.job_id, ""}]
        copies = [job.job_id for job in job_states_found if job.is_active and job not in own_jobs]
        self.cluster.cancel(self.row.name, *copies)
        if any(job.is_stuck for job in own_jobs):
            _log.warning(
                "pool %s: the cluster failed to launch job %s and holds it: Steward cancels the job; "
                "check whether its host was drained",
                *(self.row.pool, self.row.job_id),
            )
            self.cluster.cancel(self.row.name, self.row.job_id)
            self._is_stuck = True
        active = any(job.is_active for job in own_jobs)
        if active:
            self._over_since, self._has_asked, self._word = None, False, None
        elif self._over_since is None:
            self._over_since = trio.current_time()
        if is_array_known and not own_jobs and self.row.status == RunStatus.WAITING:
            self._word = job_states.CANCELLED
        if own_jobs != self._seen or not active:
            self._seen = own_jobs
            self._report_progress()
            self._changes.announce()

    def _report_progress(self) -> None:
        """Report notable states of the job while the task runs."""
        if self.row.status == RunStatus.RUNNING and (standing := self._queue_description()):
            self._report_queue_state(standing)

    def cluster_unreachable(self) -> None:
        """Discard the report that the job is over; the cluster must report it again."""
        self._over_since = None
        self._report_progress()
        self._changes.announce()

    def _is_settled(self) -> bool:
        """Return whether the cluster has reported the job as over for at least `LATE` seconds."""
        since = self._over_since
        return since is not None and trio.current_time() >= since + LATE

    def _is_alive(self) -> bool:
        """Return whether the wrapper is connected, or was connected recently."""
        return self._orders.is_waiting or trio.current_time() < self._heard + LATE

    # --- wrapper side ---

    @property
    def key(self) -> tuple[str, str, int]:
        """Return the key of the record in the store."""
        return self.row.allocation_id, self.row.task, self.row.number

    def claimed(self, row: ClusterRun) -> None:
        """Handle the claim by a wrapper; `row` is the record that the claim has changed."""
        self.record_contact()
        self._apply(row)
        self.cluster.watch(self)

    def reread(self) -> None:
        """Reload the record after another part of the daemon changed it."""
        self._apply(self._stored())

    def _stored(self) -> ClusterRun:
        """Return the record in the store; a deleted record counts as withdrawn."""
        key = self.key
        row = self.cluster.store.read(lambda db: cluster_runs.find(db, *key))
        return row or msgspec.structs.replace(self.row, status=RunStatus.VOID)

    def record_contact(self) -> None:
        """Record contact with the wrapper."""
        self._heard = trio.current_time()

    async def orders(self, seen: int) -> str:
        """Wait for commands with numbers above `seen`; return them, one per line."""
        # A wrapper polls only before it sends files, but its last poll may arrive after the list.
        self._is_sending, self._may_poll_once = self._is_sending and self._may_poll_once, False
        try:
            return await self._orders.after(seen, lambda: self.row.status == RunStatus.RUNNING)
        finally:
            self.record_contact()

    def end_waiting_requests(self) -> None:
        """End waiting requests, because the daemon exits."""
        self._orders.close()

    def uses(self, *, user: int, system: int, pages: int) -> None:
        """Record the usage that the wrapper reports: CPU ticks and memory pages."""
        memory = MemoryUsage(measured=("RSS",), rss=pages * _PAGE)
        self._used = UsageReading(
            account=CpuAccount(user=user * _TICK, system=system * _TICK, memory=memory)
        )

    async def rebase(self, kind: str, base: int) -> None:
        """Change the base offset of the log `kind`, because bytes were lost in a power failure."""
        await self._change(**{f"{kind}_base": base})

    def sends_files(self) -> None:
        """Record that the task has ended and its wrapper is sending the files to keep."""
        self._is_sending = self._may_poll_once = True

    async def receive_outputs(self, content: bytes) -> DeliveredFiles:
        """Write the outputs file to the task's directory; return its digest. Raises `OSError`."""
        files = TaskFiles(
            launcher=self.cluster.tools.launcher,
            allocation=self.row.allocation_id,
            task=self.row.task,
            places=directories(self.attempt.directory, self.row.task),
        )
        await files.write(self.attempt.outputs, content)
        return DeliveredFiles(outputs=hashlib.sha256(content).hexdigest())

    def outputs_ignored(self) -> None:
        """Record that the wrapper is from an earlier version, which sends no outputs."""
        self._report_queue_state(
            "the task's host runs the wrapper of an earlier version, which sends no outputs"
        )

    async def finished(self, end: ExitResult, kept_by_path: Mapping[str, str]) -> None:
        """Record the exit result, with the digests of the kept files by path."""
        await self._finish(end, kept_by_path)

    # --- records ---

    async def _finish(self, end: ExitResult, kept_by_path: Mapping[str, str] | None = None) -> None:
        end = msgspec.structs.replace(end, at=end.at or self.cluster.clock.now())
        result = msgspec.json.encode(end).decode()
        await self._change(kept_by_path or {}, status=RunStatus.ENDED, result=result)

    async def _change(
        self, kept_by_path: Mapping[str, str] | None = None, /, **fields: object
    ) -> None:
        """Store a change, unless the attempt was claimed or withdrawn in the meantime.

        `kept_by_path` has the kept files of an ended task. They replace the files of earlier
        attempts.
        """
        row_before, keeps = self.row, kept_by_path is not None and bool(self.attempt.keep)

        def write(tx: Transaction) -> ClusterRun:
            row = cluster_runs.find(tx, *self.key) or row_before
            is_as_known = (row.status, row.claim_hash) == (row_before.status, row_before.claim_hash)
            if row.status in OVER or not is_as_known:
                return row
            if keeps:
                kept_files.replace(tx, row.allocation_id, row.task, kept_by_path or {})
            return cluster_runs.put(tx, msgspec.structs.replace(row, **fields))

        self._apply(await self.cluster.write(write))

    def _apply(self, row: ClusterRun) -> None:
        """Continue with a changed record. Only this method changes the state."""
        if not self._machine.allows(row.status):
            # Two writes shared a commit, and the caller of the later write resumed first.
            row = self._stored()
        self._machine.enter(row.status)
        self.row = row
        for kind, intake in self.intakes.items():
            intake.base = getattr(row, f"{kind}_base")
        self._changes.announce()


def _number_of(user: str, users: TaskUsers) -> int:
    """Return the ID of the task's user, or of the daemon's user if the task names no user."""
    try:
        task_user = users.find(SLURM, user) if user else None
    except StartFailed:  # reported at submission
        task_user = None
    return task_user.uid if task_user else os.geteuid()


def _discard_message(text: str) -> None:
    del text
