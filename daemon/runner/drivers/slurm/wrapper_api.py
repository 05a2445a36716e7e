"""The API for wrappers: claim an attempt, then exchange files, output, commands and the result.

A wrapper authenticates with a secret: first the one-time claim of an attempt, then the secret
received in return. The store has only hashes of the secrets, and the API compares the hashes in
constant time. The secret also selects the attempt, so no wrapper can access another attempt.
"""

import hashlib
import hmac
import os
import re
import tempfile
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

import msgspec
import trio

from daemon.clock import Clock
from daemon.runner.core.driver import Attempt, DeliveredFiles, ExitResult
from daemon.runner.core.safe_open import PathEscape
from daemon.runner.drivers.slurm import bundle, job_states
from daemon.runner.drivers.slurm.attempt import KINDS, SlurmAttempt
from daemon.runner.drivers.slurm.attempt_states import OVER
from daemon.runner.drivers.slurm.cluster import SlurmCluster
from daemon.runner.drivers.slurm.kept_uploads import KeptUploads
from storage.errors import Denied, StewardError
from storage.queries import cluster_runs
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.store import Store
from storage.writer import Transaction

_CHUNK = 256 * 1024  # bytes of a bundle per chunk
_PACKED = 2  # concurrent creations of bundles
_WORD = re.compile(r"[A-Za-z0-9_.-]{0,255}")
_JOB = re.compile(r"(?:[0-9]{1,10}(?:_[0-9]{1,10})?)?")
_SIGNALLED = 128
_SENT = "sent"  # the body of the result is the outputs file
_NOT_SENT = "the task's host has not sent the files"
_NOT_KEPT = {
    "": "the task's host runs the wrapper of an earlier version, which keeps no files",
    "cluster": "the cluster ended the task's job before the files were sent",
}
_UNREADABLE = "the task's outputs cannot be read on its host"
_FAULTS = {
    "irregular": "the task's outputs cannot be read: their file is not a regular file",
    "unreadable": _UNREADABLE,
}
_WHY = {
    "time": "it reached its time limit",
    "bundle": "the task's files could not be unpacked on its host",
    "missing": "the task's command was not found on its host",
    "cluster": job_states.SOMEHOW,
    "void": "it was no longer needed",
}


class WrapperRejected(StewardError):
    """A request of a wrapper was rejected; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WrapperApi:
    """The API for wrappers. `fresh` returns a random secret."""

    def __init__(
        self, store: Store, clock: Clock, fresh: Callable[[], str], uploads: KeptUploads
    ) -> None:
        self._store, self._clock, self._fresh = store, clock, fresh
        self._uploads = uploads
        self._runs: dict[str, SlurmAttempt] = {}
        self._packing = trio.CapacityLimiter(_PACKED)

    # --- driver side ---

    def run(self, cluster: SlurmCluster, attempt: Attempt, row: ClusterRun) -> SlurmAttempt:
        """Register an attempt, so that the API answers its wrapper."""
        slurm_attempt = SlurmAttempt(cluster, attempt, row, self._claims, self._forget)
        self._runs[row.comment] = slurm_attempt
        if row.status in {RunStatus.WAITING, RunStatus.RUNNING}:
            cluster.watch(slurm_attempt)
        return slurm_attempt

    def close(self) -> None:
        """Answer all waiting requests; the wrappers retry and reach the next daemon."""
        for run in self._runs.values():
            run.end_waiting_requests()

    def of_allocation(self, alloc_id: str) -> list[SlurmAttempt]:
        """Return the registered attempts of an allocation."""
        return [run for run in self._runs.values() if run.row.allocation_id == alloc_id]

    def _forget(self, run: SlurmAttempt) -> None:
        if self._runs.get(run.row.comment) is run:
            del self._runs[run.row.comment]
            self._uploads.forget(run.row.comment)

    def _claims(self, row: ClusterRun, end: str = "") -> tuple[str, str]:
        """Return a secret for an attempt, and its hash.

        The secret ends in `end`, or in a new random text if `end` is empty.
        """
        secret = f"{row.allocation_id}.{row.number}.{end or self._fresh()}"
        return secret, _hash(secret)

    # --- wrapper side ---

    def admit(self, secret: str) -> None:
        """Raise `Denied` unless the secret belongs to an attempt, which may be withdrawn."""
        with suppress(WrapperRejected):  # the handler of the route reports this error
            try:
                self._known(secret, "claim_hash")
            except Denied:
                self._known(secret, "token_hash")

    async def claim(self, secret: str, *, nonce: str, job_id: str, host: str) -> IO[bytes]:
        """Assign an attempt to the first wrapper that claims it; return the file with its bundle.

        The same wrapper, identified by its nonce, gets the file again. Raises `Denied`,
        `WrapperRejected`, `OSError`.
        """
        row = self._known(secret, "claim_hash")
        for name, text in (("nonce", nonce), ("host", host)):
            if not _WORD.fullmatch(text) or (name == "nonce" and not text):
                raise WrapperRejected(
                    400, f"{name} must have only letters, digits, '_', '.' and '-'"
                )
        if not _JOB.fullmatch(job_id):
            raise WrapperRejected(
                400,
                "job is not valid: it must be NUMBER or ARRAY_ELEMENT, with at most 10 digits each",
            )
        if job_id and row.job_id not in {"", job_id}:
            raise WrapperRejected(409, f"this attempt is job {row.job_id}, not {job_id}")
        self._check(row, nonce)
        run = self._find(row)
        async with run.claiming:
            self._check(self._known(secret, "claim_hash"), nonce)
            return await self._claim(run, row, nonce, job_id, host)

    async def _claim(
        self, run: SlurmAttempt, row: ClusterRun, nonce: str, job_id: str, host: str
    ) -> IO[bytes]:
        token, hashed = self._claims(row)
        home = bundle.home_of(run.cluster.pool.directory, run.attempt)
        ends = {f"{kind}_base": await run.intakes[kind].end() for kind in run.intakes}
        file = await self._packed(run, bundle.pack, run.attempt, home, token)

        def write(tx: Transaction) -> ClusterRun:
            now = cluster_runs.find(tx, *run.key) or row
            if now.claim_hash != row.claim_hash:
                raise Denied
            self._check(now, nonce)
            changes: dict[str, object] = {"token_hash": hashed, "host": host}
            changes["job_id"] = now.job_id or job_id
            if now.status != RunStatus.RUNNING:
                changes |= {"status": RunStatus.RUNNING, "nonce": nonce, **ends}
                changes["claimed_at"] = self._clock.now()
            return cluster_runs.put(tx, msgspec.structs.replace(now, **changes))

        try:
            # The stored claim and the in-memory state must change together.
            with trio.CancelScope(shield=True):
                run.claimed(await self._store.write(write))
        except BaseException:  # also when cancelled: no caller has the file
            file.close()
            raise
        return file

    async def _packed(
        self, run: SlurmAttempt, pack: Callable[..., None], *arguments: object
    ) -> IO[bytes]:
        """Return a new file with the output of `pack`.

        The file has no name, so it disappears when it is closed.
        """

        def work() -> IO[bytes]:
            os.makedirs(run.attempt.beside, mode=0o700, exist_ok=True)
            # Closed by the caller.
            file = tempfile.TemporaryFile(dir=run.attempt.beside)  # noqa: SIM115
            try:
                pack(file, *arguments)
                file.seek(0)
            except BaseException:  # no caller has the file
                file.close()
                raise
            return file

        async with self._packing:
            return await trio.to_thread.run_sync(work)

    def _check(self, row: ClusterRun, nonce: str) -> None:
        if row.status in OVER:
            raise WrapperRejected(410, "this attempt was withdrawn")
        if row.status == RunStatus.RUNNING and row.nonce != nonce:
            raise WrapperRejected(409, "another wrapper has claimed this attempt")

    async def files(self, secret: str) -> IO[bytes]:
        """Return an archive with the current files of an attempt."""
        run = self._running(secret)
        return await self._packed(run, bundle.pack_files, run.attempt)

    def pieces(self, file: IO[bytes]) -> AsyncIterator[bytes]:
        """Yield the content of a file in chunks; close the file even if the client disconnects."""
        stream = _read_chunks(file)
        weakref.finalize(stream, file.close)
        return stream

    async def log(self, secret: str, kind: str, offset: int, data: bytes) -> int:
        """Store a chunk of output; return the offset of the chunk that is expected next."""
        run = self._running(secret)
        intake = run.intakes.get(kind)
        if intake is None:
            raise WrapperRejected(404, f"this task has no log {kind!r}; choose one of {KINDS}")
        if gap := await intake.gap(offset):
            await run.rebase(kind, intake.base - gap)
        return await intake.take(offset, data)

    async def orders(self, secret: str, seen: int, used: tuple[int, int, int], span: float) -> str:
        """Return the commands after number `seen`; wait up to `span` seconds for a command.

        `used` are the CPU ticks of the task in user and system mode, and its memory pages.
        """
        run = self._running(secret)
        run.uses(user=used[0], system=used[1], pages=used[2])
        with trio.move_on_after(span):
            return await run.orders(seen)
        return ""

    async def list_kept(self, secret: str, listing: bytes, *, is_root: bool, is_whole: bool) -> str:
        """Return the files to keep that a wrapper must send, chosen from its list.

        `is_root` and `is_whole` have the meaning that `KeptUploads.begin` describes.
        """
        run = self._running(secret)
        if not run.attempt.keep:
            raise WrapperRejected(404, "this task keeps no files")
        run.sends_files()
        return await self._uploads.begin(
            run.row.comment,
            listing,
            namespace=run.attempt.family[0],
            task=run.row.task,
            patterns=run.attempt.keep,
            is_root=is_root,
            is_whole=is_whole,
        )

    async def keep(
        self, secret: str, number: int, offset: int, data: bytes, *, is_end: bool
    ) -> None:
        """Store a chunk of a file to keep. Raises `OSError`; the wrapper then sends it again."""
        run = self._running(secret)
        await self._uploads.take(run.row.comment, number, offset, data, is_end=is_end)

    async def result(
        self,
        secret: str,
        code: int,
        why: str,
        outputs: str = "",
        kept_paths: str = "",
        content: bytes = b"",
    ) -> None:
        """Store the outputs file of a task, and then its exit result.

        `outputs` states whether `content` is the outputs file, or why the wrapper did not send the
        file. `kept_paths` states whether the files to keep were sent. Raises `OSError`, after which
        the wrapper sends the result again.
        """
        row = self._known(secret, "token_hash")
        if row.status == RunStatus.ENDED:  # a repeated report: the wrapper missed the response
            return
        run = self._running(secret)
        number = code - _SIGNALLED if _SIGNALLED < code <= _SIGNALLED + 64 else 0
        digests, not_kept = await self._kept(run, kept_paths)
        delivered = await self._delivered(run, outputs, content)
        end = ExitResult(
            code=code,
            signal=number,
            message=_WHY.get(why, ""),
            delivered=msgspec.structs.replace(delivered, not_kept=tuple(not_kept)),
        )
        await run.finished(end, digests)

    async def _kept(self, run: SlurmAttempt, word: str) -> tuple[Mapping[str, str], Sequence[str]]:
        """Return the digests of kept files by path, and the reasons why other files were not kept.

        `word` is the report of the wrapper about these files. Raises `WrapperRejected` if an
        earlier daemon received the files.
        """
        if not run.attempt.keep:
            return {}, ()
        uploaded = await self._uploads.report(run.row.comment)
        if uploaded is not None:
            return uploaded
        if word == _SENT:
            raise WrapperRejected(412, "the daemon was restarted: send the files again")
        return {}, (_NOT_KEPT.get(word, _NOT_SENT),)

    async def _delivered(self, run: SlurmAttempt, outputs: str, content: bytes) -> DeliveredFiles:
        """Store the outputs file that came with a result, if the step has outputs.

        Raises `OSError`.
        """
        if not run.attempt.outputs:
            return DeliveredFiles()
        if not outputs:
            run.outputs_ignored()
            return DeliveredFiles()
        if outputs != _SENT:
            return DeliveredFiles(fault=_FAULTS.get(outputs, _UNREADABLE))
        try:
            return await run.receive_outputs(content)
        except PathEscape as error:
            return DeliveredFiles(fault=f"the task's outputs cannot be stored: {error}")

    def _running(self, secret: str) -> SlurmAttempt:
        """Return the running attempt whose wrapper got this secret when it claimed the attempt.

        Raises `Denied` or `WrapperRejected`.
        """
        row = self._known(secret, "token_hash")
        if row.status != RunStatus.RUNNING:
            raise WrapperRejected(410, "this attempt was withdrawn")
        run = self._find(row)
        if run.row.status != RunStatus.RUNNING:
            run.claimed(row)
        run.record_contact()
        return run

    def _find(self, row: ClusterRun) -> SlurmAttempt:
        run = self._runs.get(row.comment)
        if run is None:
            raise WrapperRejected(503, "the daemon has not loaded this attempt yet: try again")
        return run

    def _known(self, secret: str, field: str) -> ClusterRun:
        """Return the attempt whose `field` has the hash of a secret.

        Raises `Denied`, or `WrapperRejected` if the attempt was withdrawn.
        """
        alloc_id, _, rest = secret.partition(".")
        rows = self._store.read(lambda db: cluster_runs.of_allocation(db, alloc_id))
        hashed = _hash(secret)
        for row in rows:
            if hmac.compare_digest(getattr(row, field), hashed):
                return row
        number = rest.partition(".")[0]
        if number and not any(str(row.number) == number for row in rows):
            raise WrapperRejected(410, "this attempt is unknown")
        raise Denied


async def _read_chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while data := await trio.to_thread.run_sync(file.read, _CHUNK):
            yield data


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
