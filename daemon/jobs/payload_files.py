"""Input files of dispatched jobs: content-addressed, uploaded in pieces, and collected when unused.

The name of a file is the SHA-256 of its content, in the namespace of the upload. Each namespace has
its own directory, so that no caller learns which files other namespaces have. An interrupted upload
continues at the offset that the daemon reports. The content is verified before the file is complete,
and again when a task gets it. Pieces are small, so memory use does not grow with the file.
"""

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import msgspec
import trio

from daemon.config.data_directory import payload_dir
from daemon.config.settings import Settings
from storage.errors import Malformed, NotFound, StewardError, TooLarge
from storage.queries import payload_files
from storage.queries.payload_files import PayloadFile
from storage.read_pool import ReadSnapshot
from storage.records.base import HOUR
from storage.records.payload_file import UploadState
from storage.store import Store
from storage.writer import Transaction

log = logging.getLogger("steward.jobs")

MAX_PIECE = 1024 * 1024  # bytes
MOST_FILES = 32  # of one job
_UNUSED_FOR = 24 * HOUR  # between an upload and its dispatch, or since the last job was deleted
_STEP = 64  # files collected in one write
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)
_MEGABYTE = 1024 * 1024
_PART = ".part"


class OffsetConflict(StewardError):
    """A piece does not begin where the previous one ended."""

    def __init__(self, offset: int, received: int) -> None:
        super().__init__(
            f"offset is {offset}, but {received} bytes were received: continue at {received}"
        )


class PayloadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits for one file, and for all files of a namespace, in bytes; 0 means no limit."""

    file: int
    namespace: int

    @classmethod
    def of(cls, config: Settings) -> "PayloadLimits":
        """Return the limits of the settings."""
        return cls(
            file=config.payload_max_mb * _MEGABYTE,
            namespace=config.payload_namespace_mb * _MEGABYTE,
        )


def check_digest(digest: str) -> None:
    """Raise `Malformed` unless a text is a SHA-256 digest."""
    if not _DIGEST.fullmatch(digest):
        raise Malformed(
            f"digest {digest[:80]!r} is not a SHA-256: write 64 digits from 0 to 9 and a to f"
        )


class PayloadFiles:
    """The files of all namespaces below `root`, a directory that only the daemon can access."""

    def __init__(self, store: Store, root: str, limits: PayloadLimits) -> None:
        self._store, self._root, self._limits = store, root, limits

    def state(self, db: ReadSnapshot, namespace: str, digest: str) -> UploadState:
        """Return the state of an upload. Raises `Malformed` or `NotFound`."""
        check_digest(digest)
        found = self._find(db, namespace, digest)
        if found is None:
            raise NotFound(f"namespace {namespace!r} has no file with digest {digest}")
        received = found.size
        if not found.is_complete:
            received = _size(self._place(namespace, digest) + _PART)
        return UploadState(
            digest=digest, size=found.size, received=received, is_complete=found.is_complete
        )

    async def receive(
        self, namespace: str, digest: str, piece: bytes, *, size: int, offset: int, now: int
    ) -> UploadState:
        """Store a piece of a file of `size` bytes; return the state afterwards.

        Raises `Malformed`, `TooLarge`, or `OffsetConflict`.
        """
        check_digest(digest)
        self._check(piece, size, offset)
        known = self._store.read(partial(self._find, namespace=namespace, digest=digest))
        if known is None or (not known.is_complete and (offset == 0 or known.size != size)):
            begin = partial(self._begin, namespace=namespace, digest=digest, size=size, now=now)
            await self._store.write(begin)
        elif known.is_complete:
            return UploadState(
                digest=digest, size=known.size, received=known.size, is_complete=True
            )
        place = self._place(namespace, digest)
        received = await trio.to_thread.run_sync(_append, place + _PART, piece, offset)
        if received == size:
            await self._finish(namespace, digest, size, now)
        return UploadState(
            digest=digest, size=size, received=received, is_complete=received == size
        )

    def _find(self, db: ReadSnapshot, namespace: str, digest: str) -> PayloadFile | None:
        """Return a file. It is incomplete if its content is lost, as after the restore of a snapshot."""
        found = payload_files.find(db, namespace, digest)
        if found and found.is_complete and not os.path.exists(self._place(namespace, digest)):
            return msgspec.structs.replace(found, is_complete=False)
        return found

    def _check(self, piece: bytes, size: int, offset: int) -> None:
        if len(piece) > MAX_PIECE:
            raise TooLarge(f"the piece has {len(piece)} bytes: send at most {MAX_PIECE} at once")
        if offset + len(piece) > size:
            raise Malformed(
                f"offset {offset} and a piece of {len(piece)} bytes exceed size {size}: "
                "size is the size of the whole file"
            )
        if not piece and size:
            raise Malformed("the body is empty: send the next piece of the file")
        if self._limits.file and size > self._limits.file:
            raise TooLarge(
                f"size {size} exceeds {self._limits.file} bytes, the limit of payload_max_mb"
            )

    def _begin(self, tx: Transaction, *, namespace: str, digest: str, size: int, now: int) -> None:
        known = self._find(tx, namespace, digest)
        if known is not None and known.is_complete:
            return
        total = payload_files.total_size(tx, namespace) - (known.size if known else 0) + size
        if self._limits.namespace and total > self._limits.namespace:
            raise TooLarge(
                f"the files of namespace {namespace!r} would have {total} bytes, more than "
                f"{self._limits.namespace}, the limit of payload_namespace_mb: files that no job "
                "uses are deleted after 24 hours"
            )
        payload_files.put(tx, namespace, digest, size, is_complete=False, now=now)

    async def _finish(self, namespace: str, digest: str, size: int, now: int) -> None:
        """Verify a file that has all its bytes, and mark it as complete. Raises `Malformed`."""
        place = self._place(namespace, digest)
        found = await trio.to_thread.run_sync(_verified, place)
        if found != digest:
            await self._store.write(
                partial(payload_files.remove, namespace=namespace, digest=digest)
            )
            raise Malformed(
                f"the content has the digest {found}, not {digest}: the upload was deleted, start "
                "it again"
            )
        mark = partial(payload_files.put, namespace=namespace, digest=digest, size=size)
        await self._store.write(partial(mark, is_complete=True, now=now))

    def _place(self, namespace: str, digest: str) -> str:
        return f"{payload_dir(self._root, namespace)}/{digest}"

    async def collect(self, now: int) -> int:
        """Delete files that no job uses; return their number."""
        deleted = 0
        while found := await self._store.read_long(
            partial(payload_files.unused, before=now - _UNUSED_FOR, most=_STEP)
        ):

            def write(tx: Transaction, some: list[tuple[str, str]] = found) -> None:
                for namespace, digest in some:
                    payload_files.remove(tx, namespace, digest)

            # First the files: a row without a file is collected again, a file without a row not.
            places = [self._place(*one) for one in found]
            await trio.to_thread.run_sync(_delete, places)
            await self._store.write(write)
            deleted += len(found)
        return deleted


def check_files(tx: ReadSnapshot, namespace: str, files: Mapping[str, str]) -> None:
    """Raise `Malformed` unless a dispatch may use these files, by name."""
    if len(files) > MOST_FILES:
        raise Malformed(f"Files has {len(files)} files: a job has at most {MOST_FILES}")
    for name, digest in files.items():
        if not _NAME.fullmatch(name):
            raise Malformed(
                f"Files: {name[:80]!r} is not a name: use at most 64 letters, digits, and . _ -"
            )
        check_digest(digest)
        found = payload_files.find(tx, namespace, digest)
        if found is None or not found.is_complete:
            raise Malformed(
                f"Files: {name} has the digest {digest}, which namespace {namespace!r} does not "
                "have: upload the file first, with PUT /v1/payload/DIGEST"
            )


def attach_files(
    tx: Transaction, namespace: str, job_id: str, files: Mapping[str, str], now: int
) -> None:
    """Give files to a new job."""
    for name, digest in files.items():
        payload_files.attach(tx, namespace, job_id, name, digest)
        known = payload_files.find(tx, namespace, digest)
        # An hour is enough: this only protects a file from collection after the job.
        if known is not None and now > known.modify_time + HOUR:
            payload_files.put(tx, namespace, digest, known.size, is_complete=True, now=now)


async def collect_files(store: Store, root: str, now: int) -> None:
    """Delete files below `root` that no job uses."""
    files = PayloadFiles(store, root, PayloadLimits(file=0, namespace=0))
    if number := await files.collect(now):
        log.info("deleted %d input files that no job uses", number)


# --- work in threads ---


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _append(path: str, piece: bytes, offset: int) -> int:
    """Write a piece at the end of a file; return its new size. Raises `OffsetConflict`."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        received = os.fstat(descriptor).st_size
        if offset != received:
            raise OffsetConflict(offset, received)
        file.seek(offset)
        file.write(piece)
    return offset + len(piece)


def _verified(place: str) -> str:
    """Return the digest of an upload, and give it its name if that is right; else delete it."""
    part = place + _PART
    try:
        with open(part, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if found == os.path.basename(place):
                os.fsync(file.fileno())
                os.rename(part, place)
                return found
    except FileNotFoundError:
        if os.path.exists(place):  # another request has completed it
            return os.path.basename(place)
        raise
    os.unlink(part)
    return found


def _delete(places: list[str]) -> None:
    for place in places:
        for path in (place, place + _PART):
            with suppress(FileNotFoundError):
                os.unlink(path)
