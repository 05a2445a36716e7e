"""An attempt that is a job of a cluster, from its submission to its end.

What its wrapper says is the truth: the claim is its beginning, the result its end. The cluster is the
witness, heard where the wrapper is silent: a job that is over, whose wrapper has said nothing for ten
seconds, has ended as the cluster says; and why a signal has ended a task may be the cluster's to say.
A job that the cluster lost before anybody claimed it is submitted again, with a new claim; the old
one lets nobody in.
"""

import logging
import os
import signal as signals
from collections.abc import Callable
from contextlib import suppress

import msgspec
import trio

from daemon.runner.changes import Changes
from daemon.runner.drivers.driver import Attempt, Exit, StartFailed
from daemon.runner.drivers.slurm import states, submission
from daemon.runner.drivers.slurm.bundle import home_of
from daemon.runner.drivers.slurm.cluster import Cluster
from daemon.runner.drivers.slurm.intake import Intake
from daemon.runner.drivers.slurm.orders import Orders
from daemon.runner.drivers.slurm.states import Sighting
from daemon.runner.drivers.slurm.tools import ToolFailed
from daemon.runner.drivers.users import find_user
from daemon.runner.logs import TaskLog
from daemon.runner.usage import Account, Use
from storage.queries import cluster_runs
from storage.records.base import SECOND
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.records.usage import MemoryUsage
from storage.writer import Transaction

LATE = 10.0  # seconds of silence after which the witness is heard
_AGAIN = 2.0  # seconds until the cluster is asked again that did not answer
_SOON = 0.5  # seconds until it is asked again what it may know in a moment
_RENEWALS = 3  # submissions of which nothing ran until that counts as a failure
_DELIVERY = 60.0  # seconds that files may take to their task
_TICK = SECOND // 100  # of the clock of `/proc`, on every Linux
_PAGE = 4096
# States of a job of which its wrapper tells better.
_EXPECTED = frozenset({"RUNNING", "COMPLETING", "COMPLETED", "FAILED"})
# Signals with which a cluster ends jobs.
_OF_CLUSTERS = frozenset({signals.SIGTERM, signals.SIGKILL})
KINDS = ("stdout", "stderr")
_NEVER = Exit(code=137, signal=9, message="it was stopped before it began")

_log = logging.getLogger("steward.runner")

# A new claim: what a wrapper shows, and its hash.
Claims = Callable[[ClusterRun], tuple[str, str]]


class Run:
    """The attempt. `row` is what the store has of it."""

    def __init__(
        self,
        cluster: Cluster,
        attempt: Attempt,
        row: ClusterRun,
        claims: Claims,
        release: Callable[["Run"], None],
    ) -> None:
        self.row, self.attempt, self.cluster = row, attempt, cluster
        self._claims, self._release = claims, release
        self._user = _number_of(attempt.user)
        self._changes = Changes()
        self._seen: list[Sighting] | None = None  # None: nobody has looked yet
        self._asked_since = trio.current_time()  # looks from before say nothing
        self._over_since: float | None = None  # since when the witness takes it for over
        self._has_asked = False  # the witness how it ended, and
        self._word: Exit | None = None  # what it said
        self._is_stuck = False
        self._renewals = 0  # of what ran nothing,
        self._vanished = 0  # and of what nobody knew any more
        self._heard = trio.current_time()
        # Held by who is about to claim it: nothing is concluded meanwhile.
        self.claiming = trio.Lock()
        self._orders = Orders(self._changes, cluster.clock)
        self._used = Use()
        self._ended = trio.Event()
        self._asking = trio.CancelScope()  # why it ended; who stops it does not wait for that
        self._note: Callable[[str], None] = _say_nothing
        self._said = ""
        logs = () if attempt.log.disabled else KINDS
        self.intakes = {
            kind: Intake(
                TaskLog(attempt.directory, attempt.task, kind, attempt.log),
                getattr(row, f"{kind}_base"),
            )
            for kind in logs
        }

    # ---- the driver's side ------------------------------------------------------------------------

    @property
    def handle(self) -> bytes:
        """Return by what it is found again."""
        said = {"pool": self.row.pool, "job": self.row.job_id, "run": self.row.comment}
        return msgspec.json.encode(said)

    async def begun(self, note: Callable[[str], None]) -> int | None:
        """Return when it was claimed; None: it ended without. Raises `StartFailed`."""
        self._note, tell = note, self._tell
        while self.row.status in {RunStatus.SUBMITTING, RunStatus.WAITING}:
            if self.row.status == RunStatus.SUBMITTING:
                await self._submit(tell)
                continue
            if standing := self._standing():
                tell(standing)
            if self._is_settled() and not self.claiming.locked():
                await self._conclude_unclaimed(tell)
            else:
                await self._next()
        if self.row.status == RunStatus.RUNNING:
            tell(self._place)
        return self.row.claimed_at or None

    @property
    def _place(self) -> str:
        return f"job {self.row.job_id} runs on {self.row.host or 'a host'}"

    def adopted(self) -> None:
        """Go on with what an earlier daemon has told of."""
        if self.row.status == RunStatus.RUNNING:
            self._said = self._place

    def _tell(self, text: str) -> None:
        """Say where it stands, unless that was said last."""
        if text != self._said:
            self._said = text
            self._note(text)

    async def _next(self) -> None:
        """Return when something has changed; ask how a job ended as long as the cluster remembers."""
        if self._over_since is None or not self._seen or self._has_asked:
            await self._changes.wait()
            return
        self._has_asked = True
        with suppress(ToolFailed):
            shown = await self.cluster.shown(self.row.job_id)
            self._word = states.end_of(shown, self.row.name)

    def _standing(self) -> str:
        """Return where it stands, in plain words; nothing while that is not known."""
        if not self.cluster.is_reachable:
            return f"the cluster does not answer, and nothing is concluded: {self.cluster.trouble}"
        if not self._seen or (self._seen[0].state in _EXPECTED and self.row.claimed_at):
            return ""
        return self._seen[0].said

    async def _conclude_unclaimed(self, note: Callable[[str], None]) -> None:
        """Submit anew what nobody has run; end what cannot be run. Raises `StartFailed`."""
        end = self._word
        if end is None:
            note(f"the cluster does not know job {self.row.job_id} any more: it is submitted again")
            self._vanished += 1
        elif not self._may_go_better(end):
            await self._finish(end)
            return
        elif self._renewals < _RENEWALS:
            note(f"job {self.row.job_id} has run nothing: it is submitted again; {end.message}")
            self._renewals += 1
        else:
            await self._change(status=RunStatus.ENDED)
            if self.row.status == RunStatus.RUNNING:
                return
            raise StartFailed(end.message, recoverable=True)
        lost = self.row.job_id
        self._word = self._over_since = self._seen = None
        self._has_asked = self._is_stuck = False
        await self._change(status=RunStatus.SUBMITTING, job_id="", claim_hash="")
        if self.row.status != RunStatus.RUNNING:
            self.cluster.cancel(self.row.name, lost)
        with trio.move_on_after(submission.pause(self._vanished)):
            while self.row.status == RunStatus.SUBMITTING:
                await self._changes.wait()

    def _may_go_better(self, end: Exit) -> bool:
        """Tell whether what ended without running anything may run when it is submitted again."""
        hosts = any(one.lost_its_host for one in self._seen or ())
        return self._is_stuck or hosts or end.code in {states.UNHEARD, states.NO_DIRECTORY}

    async def _submit(self, note: Callable[[str], None]) -> None:
        """Submit it, unless it was; return when the cluster has it. Raises `StartFailed`."""
        if self.row.claim_hash and await self._was_submitted(note):
            return
        claim, hashed = self._claims(self.row)
        await self._change(claim_hash=hashed, submitted_at=self.cluster.clock.now())
        if self.row.status != RunStatus.SUBMITTING or self.row.claim_hash != hashed:
            return
        attempt, pool, is_root = self.attempt, self.cluster.pool, os.geteuid() == 0
        env = submission.environment_of(
            claim=claim,
            url=self.cluster.url,
            directory=home_of(pool.directory, attempt),
            ca=self.cluster.ca,
        )
        try:
            user = find_user(attempt.user) if attempt.user else None
            words = submission.words(attempt, self.row, pool, user, is_root=is_root)
        except StartFailed:
            await self._change(status=RunStatus.ENDED)
            raise
        try:
            job_id = submission.job_number(await self.cluster.submit(words, env))
        except ToolFailed as error:
            if error.unsure or states.says_nothing(str(error)):
                note(f"the cluster did not answer: {error}")
                return  # and is asked next time whether it has it
            await self._change(status=RunStatus.ENDED)
            passes = states.may_pass(str(error))
            raise StartFailed(f"the cluster refused it: {error}", recoverable=passes) from error
        await self._accept(job_id)
        if job_id:
            note(f"job {job_id} was submitted to partition {pool.partition or self.row.pool}")

    async def _was_submitted(self, note: Callable[[str], None]) -> bool:
        """Tell whether the cluster has it; not, when it was absent twice, ten seconds apart."""
        absent = 0
        while self.row.status == RunStatus.SUBMITTING:
            try:
                active = await self.cluster.find(self.row)
            except ToolFailed as error:
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
        """Note that the cluster has it; it may have been claimed already."""
        if not job_id:
            return
        self._asked_since = trio.current_time()

        def write(tx: Transaction) -> ClusterRun:
            row = cluster_runs.find(tx, *self.key) or self.row
            if row.status == RunStatus.SUBMITTING:
                row = msgspec.structs.replace(row, status=RunStatus.WAITING)
            return cluster_runs.put(tx, msgspec.structs.replace(row, job_id=row.job_id or job_id))

        self._take(await self.cluster.write(write))
        self.cluster.watch(self)

    async def wait(self) -> Exit:
        """Return how it ended."""
        while self.row.status not in {RunStatus.ENDED, RunStatus.VOID}:
            if self.row.status != RunStatus.RUNNING:  # it is about to be withdrawn
                await self._changes.wait()
            elif self._is_settled() and not self._is_alive():
                await self._finish(self._word or states.GONE)
            else:
                await self._next()
        self._ended.set()
        self.cluster.forget(self)
        self._release(self)
        if not self.row.result:
            return _NEVER
        return await self._explained(msgspec.json.decode(self.row.result, type=Exit))

    async def _explained(self, end: Exit) -> Exit:
        """Add why the cluster ended it, if it did; the cluster says so when the wrapper has gone.

        A wrapper that was signalled with its task may say no more than that, or nothing at all.
        """
        is_open = end.signal in _OF_CLUSTERS if not end.message else end.message == states.SOMEHOW
        if not is_open or self._orders.may_have_ended_it or not self.cluster.is_reachable:
            return end
        pause = _SOON
        with self._asking, trio.move_on_after(LATE), suppress(ToolFailed):
            while self.row.job_id and (shown := await self.cluster.shown(self.row.job_id)):
                if (word := states.end_of(shown, self.row.name)) is None:
                    await trio.sleep(pause)
                    pause *= 2
                elif states.is_its_doing(shown):
                    said = {"message": word.message, "oom_killed": word.oom_killed}
                    return msgspec.structs.replace(end, **said)
                else:
                    break
        return end

    async def stop(self, signal: str, grace: float) -> str:
        """Have the wrapper signal it, and end it after `grace` seconds; else the cluster."""
        if self.row.status in {RunStatus.SUBMITTING, RunStatus.WAITING}:
            await self._withdraw()
        if self.row.status != RunStatus.RUNNING:
            self._asking.cancel()
            return ""
        self._orders.stop(signal, grace)
        with trio.move_on_after(grace + LATE):
            await self._ended.wait()
            return ""
        while not self._ended.is_set():
            self.cluster.cancel(self.row.name, self.row.job_id)
            with trio.move_on_after(LATE):
                await self._ended.wait()
        return ""

    async def _withdraw(self) -> None:
        """Let nobody claim it, unless it was claimed just now; the cluster forgets it in time."""

        def write(tx: Transaction) -> ClusterRun:
            row = cluster_runs.find(tx, *self.key) or self.row
            if row.status in {RunStatus.SUBMITTING, RunStatus.WAITING}:
                row = msgspec.structs.replace(row, status=RunStatus.VOID)
            return cluster_runs.put(tx, row)

        self._take(await self.cluster.write(write))
        if self.row.status == RunStatus.VOID:
            self.cluster.cancel(self.row.name, self.row.job_id)

    async def signal(self, name: str) -> None:
        """Have the wrapper send a signal to its main process."""
        self._orders.signal(name)

    async def refresh(self) -> None:
        """Have the wrapper fetch the files anew; return when it has, or will not."""
        if self.row.status != RunStatus.RUNNING:
            return
        order = self._orders.fetch_files()
        with trio.move_on_after(_DELIVERY):
            while not (self._orders.is_taken(order) or self._ended.is_set()):
                await self._changes.wait()

    async def usage(self) -> Use:
        """Return what its wrapper said last."""
        return self._used

    async def pause(self) -> None:
        """Let nothing be written to its logs for a moment."""
        try:
            for intake in self.intakes.values():
                await intake.pause()
        except BaseException:  # of a cancellation: the first is not left behind
            await self.resume()
            raise

    async def resume(self) -> None:
        """Let it be written again."""
        for intake in self.intakes.values():
            await intake.resume()

    def release(self) -> None:
        """Let go of it: the cluster runs it, and its wrapper waits for us."""
        self.cluster.forget(self)
        self._release(self)

    # ---- the witness ------------------------------------------------------------------------------

    def sight(self, found: list[Sighting], asked_at: float) -> None:
        """Take note of what the cluster lists."""
        looked = {RunStatus.WAITING, RunStatus.RUNNING}
        if asked_at < self._asked_since or self.row.status not in looked:
            return
        # The daemon's own: before the settings named others, tasks without a user ran as it.
        found = [one for one in found if one.user in {self._user, os.geteuid()}]
        ours = [one for one in found if self.row.job_id in {one.job_id, ""}]
        copies = [one.job_id for one in found if one.is_active and one not in ours]
        self.cluster.cancel(self.row.name, *copies)
        if any(one.is_stuck for one in ours):
            _log.warning(
                "pool %s: the cluster failed to launch job %s and holds it: it is cancelled; look "
                "whether its host was drained",
                *(self.row.pool, self.row.job_id),
            )
            self.cluster.cancel(self.row.name, self.row.job_id)
            self._is_stuck = True
        active = any(one.is_active for one in ours)
        if active:
            self._over_since, self._has_asked = None, False
        elif self._over_since is None:
            self._over_since = trio.current_time()
        if ours != self._seen or not active:
            self._seen = ours
            self._say_how_it_goes()
            self._changes.announce()

    def _say_how_it_goes(self) -> None:
        """Tell of what people should know while it runs."""
        if self.row.status == RunStatus.RUNNING and (standing := self._standing()):
            self._tell(standing)

    def lose_sight(self) -> None:
        """Conclude nothing until the cluster answers again."""
        self._over_since = None
        self._say_how_it_goes()
        self._changes.announce()

    def _is_settled(self) -> bool:
        """Tell whether the witness has taken it for over for long enough."""
        since = self._over_since
        return since is not None and trio.current_time() >= since + LATE

    def _is_alive(self) -> bool:
        """Tell whether its wrapper was heard a moment ago, or listens."""
        return self._orders.is_heard or trio.current_time() < self._heard + LATE

    # ---- the wrapper's side -----------------------------------------------------------------------

    @property
    def key(self) -> tuple[str, str, int]:
        """Return what the store calls it by."""
        return self.row.allocation_id, self.row.task, self.row.number

    def claimed(self, row: ClusterRun) -> None:
        """Go on as what was claimed."""
        self.heard()
        self._take(row)
        self.cluster.watch(self)

    def reread(self) -> None:
        """Go on as the store has it: somebody else has changed that."""
        key = self.key
        row = self.cluster.store.read(lambda db: cluster_runs.find(db, *key))
        self._take(row or msgspec.structs.replace(self.row, status=RunStatus.VOID))

    def heard(self) -> None:
        """Note a sign of life."""
        self._heard = trio.current_time()

    async def orders(self, seen: int) -> str:
        """Return what the wrapper does not know yet, one order a line, as soon as there is something."""
        try:
            return await self._orders.after(seen, lambda: self.row.status == RunStatus.RUNNING)
        finally:
            self.heard()

    def dismiss(self) -> None:
        """Let nobody wait for orders: the daemon ends."""
        self._orders.close()

    def uses(self, *, user: int, system: int, pages: int) -> None:
        """Take note of what it uses: ticks of the clock, pages of memory."""
        memory = MemoryUsage(measured=("RSS",), rss=pages * _PAGE)
        self._used = Use(account=Account(user=user * _TICK, system=system * _TICK, memory=memory))

    async def rebase(self, kind: str, base: int) -> None:
        """Go on in the log where bytes are missing that the machine has lost."""
        await self._change(**{f"{kind}_base": base})

    async def finished(self, end: Exit) -> None:
        """Take the result."""
        await self._finish(end)

    # ---- ----------------------------------------------------------------------------------------

    async def _finish(self, end: Exit) -> None:
        end = msgspec.structs.replace(end, at=end.at or self.cluster.clock.now())
        await self._change(status=RunStatus.ENDED, result=msgspec.json.encode(end).decode())

    async def _change(self, **fields: object) -> None:
        """Store changes, unless somebody was faster: it was claimed, or is not wanted any more."""
        known = self.row

        def write(tx: Transaction) -> ClusterRun:
            row = cluster_runs.find(tx, *self.key) or known
            is_as_known = (row.status, row.claim_hash) == (known.status, known.claim_hash)
            if row.status in {RunStatus.ENDED, RunStatus.VOID} or not is_as_known:
                return row
            return cluster_runs.put(tx, msgspec.structs.replace(row, **fields))

        self._take(await self.cluster.write(write))

    def _take(self, row: ClusterRun) -> None:
        self.row = row
        for kind, intake in self.intakes.items():
            intake.base = getattr(row, f"{kind}_base")
        self._changes.announce()


def _number_of(user: str) -> int:
    """Return the number of whom a task runs as; the daemon's own where there is none."""
    try:
        found = find_user(user) if user else None
    except StartFailed:  # said when it is submitted
        found = None
    return found.uid if found else os.geteuid()


def _say_nothing(text: str) -> None:
    del text
