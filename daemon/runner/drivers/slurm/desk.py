"""What wrappers may ask of us: the claim of an attempt, and then whatever concerns that one alone.

Who asks shows a secret: the claim of an attempt, once, and the secret that it got for it afterwards.
The store has only their hashes, and a guess is compared in constant time. What is asked says which
attempt it is about by that secret, so nobody can ask about another one.
"""

import hashlib
import hmac
import re
import tempfile
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import IO

import msgspec
import trio

from daemon.clock import Clock
from daemon.runner.drivers.driver import Attempt, Exit
from daemon.runner.drivers.slurm import bundle, states
from daemon.runner.drivers.slurm.cluster import Cluster
from daemon.runner.drivers.slurm.run import KINDS, Run
from storage.errors import Denied, StewardError
from storage.queries import cluster_runs
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.store import Store
from storage.writer import Transaction

_CHUNK = 256 * 1024  # bytes of a bundle that are sent at once
_PACKED = 2  # bundles that are made at the same time
_WORD = re.compile(r"[A-Za-z0-9_.-]{0,255}")
_JOB = re.compile(r"[0-9]{0,10}")
_SIGNALLED = 128
_WHY = {
    "time": "it ran for as long as it may",
    "bundle": "what it was to bring along could not be unpacked on its host",
    "missing": "its command was not found on its host",
    "cluster": states.SOMEHOW,
    "void": "nobody wanted it any more",
}


class TurnedAway(StewardError):
    """A wrapper may not do what it asked for; `status` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Desk:
    """The one place where wrappers are answered. `fresh` gives a secret that nobody can guess."""

    def __init__(self, store: Store, clock: Clock, fresh: Callable[[], str]) -> None:
        self._store, self._clock, self._fresh = store, clock, fresh
        self._runs: dict[str, Run] = {}
        self._packing = trio.CapacityLimiter(_PACKED)

    # ---- the driver's side ------------------------------------------------------------------------

    def run(self, cluster: Cluster, attempt: Attempt, row: ClusterRun) -> Run:
        """Return an attempt that can be asked about from now on."""
        made = Run(cluster, attempt, row, self._claims, self._forget)
        self._runs[row.comment] = made
        if row.status in {RunStatus.WAITING, RunStatus.RUNNING}:
            cluster.watch(made)
        return made

    def close(self) -> None:
        """Let no wrapper wait for an order any more: it asks again, and finds the next daemon."""
        for run in self._runs.values():
            run.dismiss()

    def of_allocation(self, alloc_id: str) -> list[Run]:
        """Return the attempts of an allocation."""
        return [one for one in self._runs.values() if one.row.allocation_id == alloc_id]

    def _forget(self, run: Run) -> None:
        if self._runs.get(run.row.comment) is run:
            del self._runs[run.row.comment]

    def _claims(self, row: ClusterRun) -> tuple[str, str]:
        """Return a new secret for an attempt, and its hash."""
        secret = f"{row.allocation_id}.{row.number}.{self._fresh()}"
        return secret, _hash(secret)

    # ---- the wrappers' side -----------------------------------------------------------------------

    def admit(self, secret: str) -> None:
        """Let everybody pass who shows a secret of an attempt, also of one that is forgotten. Raises `Denied`."""
        with suppress(TurnedAway):  # whoever answers says so
            try:
                self._known(secret, "claim_hash")
            except Denied:
                self._known(secret, "token_hash")

    async def claim(self, secret: str, *, nonce: str, job_id: str, host: str) -> IO[bytes]:
        """Give an attempt to whoever comes first with its claim; return the file with its bundle.

        The same wrapper, by its nonce, gets it again. Raises `Denied`, `TurnedAway`, `OSError`.
        """
        row = self._known(secret, "claim_hash")
        for name, text in (("nonce", nonce), ("host", host)):
            if not _WORD.fullmatch(text) or (name == "nonce" and not text):
                raise TurnedAway(400, f"{name} has letters, digits, '_', '.' and '-' only")
        if not _JOB.fullmatch(job_id):
            raise TurnedAway(400, "job is a number of at most 10 digits")
        if job_id and row.job_id not in {"", job_id}:
            raise TurnedAway(409, f"this attempt is job {row.job_id}, and not {job_id}")
        self._check(row, nonce)
        run = self._find(row)
        async with run.claiming:
            self._check(self._known(secret, "claim_hash"), nonce)
            return await self._claim(run, row, nonce, job_id, host)

    async def _claim(
        self, run: Run, row: ClusterRun, nonce: str, job_id: str, host: str
    ) -> IO[bytes]:
        token, hashed = self._claims(row)
        home = bundle.home_of(run.cluster.pool.directory, run.attempt)
        ends = {f"{kind}_base": run.intakes[kind].end() for kind in run.intakes}
        file = await self._packed(run, bundle.pack, run.attempt, home, token)

        def write(tx: Transaction) -> ClusterRun:
            now = cluster_runs.find(tx, *run.key) or row
            if now.claim_hash != row.claim_hash:
                raise Denied
            self._check(now, nonce)
            known: dict[str, object] = {"token_hash": hashed, "host": host}
            known["job_id"] = now.job_id or job_id
            if now.status != RunStatus.RUNNING:
                known |= {"status": RunStatus.RUNNING, "nonce": nonce, **ends}
                known["claimed_at"] = self._clock.now()
            return cluster_runs.put(tx, msgspec.structs.replace(now, **known))

        try:
            with trio.CancelScope(shield=True):  # who has it, and what we know of it, go together
                run.claimed(await self._store.write(write))
        except BaseException:
            file.close()
            raise
        return file

    async def _packed(self, run: Run, pack: Callable[..., None], *given: object) -> IO[bytes]:
        """Return a new file with what `pack` writes. It has no name, so nothing of it can be left."""

        def work() -> IO[bytes]:
            file = tempfile.TemporaryFile(dir=run.attempt.directory)  # noqa: SIM115  # given away
            try:
                pack(file, *given)
                file.seek(0)
            except BaseException:
                file.close()
                raise
            return file

        async with self._packing:
            return await trio.to_thread.run_sync(work)

    def _check(self, row: ClusterRun, nonce: str) -> None:
        if row.status in {RunStatus.ENDED, RunStatus.VOID}:
            raise TurnedAway(410, "nobody wants this attempt any more")
        if row.status == RunStatus.RUNNING and row.nonce != nonce:
            raise TurnedAway(409, "somebody else has claimed this attempt")

    async def files(self, secret: str) -> IO[bytes]:
        """Return a file with the files of an attempt as they are now."""
        run = self._running(secret)
        return await self._packed(run, bundle.pack_files, run.attempt)

    def pieces(self, file: IO[bytes]) -> AsyncIterator[bytes]:
        """Yield what is in a file that is not needed any more afterwards, also if nobody listens."""
        stream = _pieces(file)
        weakref.finalize(stream, file.close)
        return stream

    async def log(self, secret: str, kind: str, offset: int, data: bytes) -> int:
        """Take a piece of output; return the offset to go on from."""
        run = self._running(secret)
        intake = run.intakes.get(kind)
        if intake is None:
            raise TurnedAway(404, f"nobody keeps {kind!r} of this task; choose among {KINDS}")
        if gap := intake.gap(offset):
            await run.rebase(kind, intake.base - gap)
        return await intake.take(offset, data)

    async def orders(self, secret: str, seen: int, used: tuple[int, int, int], span: float) -> str:
        """Return the orders after one, as soon as there are any, or nothing after some seconds."""
        run = self._running(secret)
        run.uses(user=used[0], system=used[1], pages=used[2])
        with trio.move_on_after(span):
            return await run.orders(seen)
        return ""

    async def result(self, secret: str, code: int, why: str) -> None:
        """Take how a task ended."""
        row = self._known(secret, "token_hash")
        if row.status == RunStatus.ENDED:  # it did not hear that we know
            return
        run = self._running(secret)
        number = code - _SIGNALLED if _SIGNALLED < code <= _SIGNALLED + 64 else 0
        await run.finished(Exit(code=code, signal=number, message=_WHY.get(why, "")))

    def _running(self, secret: str) -> Run:
        """Return the attempt whose claimant shows this. Raises `Denied`, `TurnedAway`."""
        row = self._known(secret, "token_hash")
        if row.status != RunStatus.RUNNING:
            raise TurnedAway(410, "nobody wants this attempt any more")
        run = self._find(row)
        if run.row.status != RunStatus.RUNNING:
            run.claimed(row)
        run.heard()
        return run

    def _find(self, row: ClusterRun) -> Run:
        run = self._runs.get(row.comment)
        if run is None:
            raise TurnedAway(503, "the daemon has not come to this attempt yet: ask again")
        return run

    def _known(self, secret: str, field: str) -> ClusterRun:
        """Return the attempt that a secret is of. Raises `Denied`, and `TurnedAway` of one forgotten."""
        alloc_id, _, rest = secret.partition(".")
        rows = self._store.read(lambda db: cluster_runs.of_allocation(db, alloc_id))
        hashed = _hash(secret)
        for row in rows:
            if hmac.compare_digest(getattr(row, field), hashed):
                return row
        number = rest.partition(".")[0]
        if number and not any(str(row.number) == number for row in rows):
            raise TurnedAway(410, "nobody knows this attempt any more")
        raise Denied


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while data := await trio.to_thread.run_sync(file.read, _CHUNK):
            yield data


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
