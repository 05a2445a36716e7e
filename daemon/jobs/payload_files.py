"""Input files of jobs and kept files of tasks: content-addressed, and deleted when unused.

The name of a file is the SHA-256 digest of its content. Each namespace has its own directory, so
that no caller learns which files other namespaces have. An interrupted upload continues at the
offset that the daemon reports. The content is verified at the end of the upload, and again when a
task gets the file. Chunks are small, so memory use does not grow with the size of the file. Kept
files are not uploaded: the daemon moves each complete file from another directory.
"""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

import msgspec
import trio

from daemon.config.data_directory import payload_dir
from daemon.config.settings import Settings
from storage.errors import Malformed, NotFound, StewardError, TooLarge, reporting_full_disk
from storage.queries import namespaces, payload_files
from storage.queries.payload_files import PayloadFile
from storage.read_pool import ReadSnapshot
from storage.records.base import HOUR
from storage.records.payload_file import UploadState
from storage.schema import fsync_path
from storage.store import Store
from storage.writer import Transaction

log = logging.getLogger("steward.jobs")

MAX_PIECE = 1024 * 1024  # bytes
MOST_FILES = 32  # input files of one job
MOST_IN_NAMESPACE = 10_000
_LARGEST = 2**62  # maximum size in bytes, below the largest integer of the store
_UNUSED_FOR = 24 * HOUR  # time since the upload, or since the deletion of the last job
_STEP = 64  # files collected in one write
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)
_MEGABYTE = 1024 * 1024
_PART = ".part"

A = TypeVarTuple("A")
T = TypeVar("T")

# Locks by path: uploads and the collection change a file one by one.
_LOCKS: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()


class OffsetConflict(StewardError):
    """A chunk does not begin where the previous chunk ended."""

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
        """Return the limits in the daemon's settings."""
        return cls(
            file=config.payload_max_mb * _MEGABYTE,
            namespace=config.payload_namespace_mb * _MEGABYTE,
        )


def check_digest(digest: str) -> None:
    """Raise `Malformed` if a text is not a SHA-256 digest."""
    if not _DIGEST.fullmatch(digest):
        raise Malformed(
            f"digest {digest[:80]!r} is not a SHA-256: write 64 hexadecimal digits in lower case"
        )


class PayloadFiles:
    """The files of all namespaces below `root`, a directory that only the daemon can access."""

    def __init__(self, store: Store, root: str, limits: PayloadLimits) -> None:
        self._store, self._root, self._limits = store, root, limits

    def state(self, db: ReadSnapshot, namespace: str, digest: str) -> UploadState:
        """Return the state of an upload. Raises `Malformed` or `NotFound`."""
        check_digest(digest)
        upload = self._find(db, namespace, digest)
        if upload is None:
            raise NotFound(f"namespace {namespace!r} has no file with digest {digest}")
        received = upload.size
        path = self._file_path(namespace, digest)
        if not upload.is_complete and not os.path.exists(path):
            received = _size(path + _PART)
        return UploadState(
            digest=digest, size=upload.size, received=received, is_complete=upload.is_complete
        )

    async def receive(
        self, namespace: str, digest: str, chunk: bytes, *, size: int, offset: int, now: int
    ) -> UploadState:
        """Store a chunk of a file of `size` bytes; return the new state.

        An empty chunk at the end of an upload repeats a verification that was interrupted. Raises
        `Malformed`, `NotFound` for the namespace, `TooLarge`, `OffsetConflict`, or `StorageFull`.
        """
        check_digest(digest)
        self._check(chunk, size, offset)
        async with _lock(self._file_path(namespace, digest)):
            return await self._receive(namespace, digest, chunk, size=size, offset=offset, now=now)

    async def _receive(
        self, namespace: str, digest: str, chunk: bytes, *, size: int, offset: int, now: int
    ) -> UploadState:
        path = self._file_path(namespace, digest)
        stored_file = self._store.read(partial(self._find, namespace=namespace, digest=digest))
        if stored_file is not None and not stored_file.is_complete and stored_file.size != size:
            stored_file = None
        if stored_file is None:  # content without a row does not count for the limits
            await _run(_delete, [path])
        if stored_file is None or now > stored_file.modify_time + HOUR:
            begin = partial(self._begin, namespace=namespace, digest=digest, size=size, now=now)
            await self._store.write(begin)
        if stored_file is not None and stored_file.is_complete:
            return UploadState(
                digest=digest, size=stored_file.size, received=stored_file.size, is_complete=True
            )
        received = await _run(_append, path, chunk, offset)
        if received == size:
            await self._finish(namespace, digest, size, now)
        return UploadState(
            digest=digest, size=size, received=received, is_complete=received == size
        )

    def _find(self, db: ReadSnapshot, namespace: str, digest: str) -> PayloadFile | None:
        """Return the record of a file, or None.

        The record is incomplete if the content is lost, as after the restore of a snapshot.
        """
        upload = payload_files.find(db, namespace, digest)
        if upload and upload.is_complete and not os.path.exists(self._file_path(namespace, digest)):
            return msgspec.structs.replace(upload, is_complete=False)
        return upload

    def _check(self, chunk: bytes, size: int, offset: int) -> None:
        if size >= _LARGEST:
            raise Malformed(
                f"size {size} is too large: give a number of bytes less than {_LARGEST}"
            )
        if len(chunk) > MAX_PIECE:
            raise TooLarge(
                f"the chunk has {len(chunk)} bytes: send at most {MAX_PIECE} bytes in one request"
            )
        if offset + len(chunk) > size:
            raise Malformed(
                f"offset {offset} and a chunk of {len(chunk)} bytes exceed size {size}: "
                "size is the size of the whole file"
            )
        if not chunk and offset < size:
            raise Malformed("the body is empty: send the next chunk of the file")
        if self._limits.file and size > self._limits.file:
            raise TooLarge(
                f"size {size} exceeds {self._limits.file} bytes, the limit of payload_max_mb"
            )

    def _begin(
        self,
        tx: Transaction,
        *,
        namespace: str,
        digest: str,
        size: int,
        now: int,
        holder: str = "",
    ) -> None:
        if not namespaces.exists(tx, namespace):
            raise NotFound(f"namespace {namespace!r} does not exist: create it, or name another")
        stored_file = self._find(tx, namespace, digest)
        if stored_file is not None and stored_file.is_complete:
            payload_files.touch(tx, namespace, digest, now)
            return
        number, total = payload_files.used(tx, namespace)
        if stored_file is None and number >= MOST_IN_NAMESPACE:
            raise TooLarge(
                f"namespace {namespace!r} has {number} files, which is the maximum: files that "
                "no job uses are deleted after 24 hours"
            )
        total += size - (stored_file.size if stored_file else 0)
        if self._limits.namespace and total > self._limits.namespace:
            raise TooLarge(
                f"the files of namespace {namespace!r} would have {total} bytes, more than "
                f"{self._limits.namespace}, the limit of payload_namespace_mb: files that no job "
                "uses are deleted after 24 hours"
            )
        payload_files.put(tx, namespace, digest, size, is_complete=False, now=now, holder=holder)

    async def _finish(self, namespace: str, digest: str, size: int, now: int) -> None:
        """Verify a file that has all its bytes, and mark it as complete. Raises `Malformed`."""
        path = self._file_path(namespace, digest)
        checksum = await _run(_verified, path)
        if checksum != digest:
            await self._store.write(
                partial(payload_files.remove, namespace=namespace, digest=digest)
            )
            raise Malformed(
                f"the content has the digest {checksum}, not {digest}: the upload was deleted, so "
                "upload the file again"
            )
        mark = partial(payload_files.put, namespace=namespace, digest=digest, size=size)
        await self._store.write(partial(mark, is_complete=True, now=now))

    async def take_in(
        self, namespace: str, digest: str, source: str, *, size: int, now: int, holder: str
    ) -> None:
        """Move the file at the path `source` into this directory; the caller has verified `digest`.

        The file stays for 24 hours, or for as long as it is used. `holder` is the task or attempt
        that owns the file. After a crash, `holder` stores its files again. Raises `NotFound`
        for the namespace, `TooLarge`, or `StorageFull`.
        """
        if self._limits.file and size > self._limits.file:
            raise TooLarge(
                f"size {size} exceeds {self._limits.file} bytes, the limit of payload_max_mb"
            )
        path = self._file_path(namespace, digest)
        async with _lock(path):
            begin = partial(self._begin, namespace=namespace, digest=digest, size=size)
            await self._store.write(partial(begin, now=now, holder=holder))
            if self._store.read(partial(self._is_complete, namespace=namespace, digest=digest)):
                await _run(os.unlink, source)
                return
            await _run(_move, source, path)
            mark = partial(payload_files.put, namespace=namespace, digest=digest, size=size)
            await self._store.write(partial(mark, is_complete=True, now=now, holder=holder))

    def _is_complete(self, db: ReadSnapshot, namespace: str, digest: str) -> bool:
        upload = self._find(db, namespace, digest)
        return upload is not None and upload.is_complete

    def content(self, db: ReadSnapshot, namespace: str, digest: str) -> str | None:
        """Return the path of a complete file; None if its content is lost."""
        is_complete = self._is_complete(db, namespace, digest)
        return self._file_path(namespace, digest) if is_complete else None

    @property
    def most_bytes(self) -> int:
        """Return the maximum size of a file in bytes."""
        return min(self._limits.file or _LARGEST, self._limits.namespace or _LARGEST)

    def room(self, db: ReadSnapshot, namespace: str, holder: str) -> int:
        """Return the number of bytes that all files of `holder` may have together.

        Files that `holder` stored before a crash do not count, because `holder` stores them again.
        """
        if not self._limits.namespace:
            return _LARGEST
        _, total = payload_files.used(db, namespace, holder)
        return max(0, self._limits.namespace - total)

    def _file_path(self, namespace: str, digest: str) -> str:
        return f"{payload_dir(self._root, namespace)}/{digest}"

    async def collect(self, now: int) -> int:
        """Delete files that no job uses, or that have no row in the store; return their number."""
        deleted, before = 0, now - _UNUSED_FOR
        unused = partial(payload_files.unused, before=before, most=_STEP)
        while unused_files := await self._store.read_long(unused):
            deletions = [
                await self._collect(namespace, digest, before) for namespace, digest in unused_files
            ]
            deleted += sum(deletions)
            if not any(deletions):  # all of them are used again
                break
        return deleted + await self._sweep()

    async def _collect(self, namespace: str, digest: str, before: int) -> bool:
        """Delete a file unless a job uses it or it has changed since `before`.

        Return whether the file was deleted.
        """
        path = self._file_path(namespace, digest)
        retire = partial(payload_files.retire, namespace=namespace, digest=digest, before=before)
        async with _lock(path):
            if not await self._store.write(retire):
                return False
            # The file is deleted first. A crash then leaves a row, and the next collection deletes
            # it.
            await _run(_delete, [path])
            remove = partial(payload_files.remove, namespace=namespace, digest=digest)
            await self._store.write(remove)
        return True

    async def _sweep(self) -> int:
        """Delete files without a row, which a snapshot restore can leave; return their number."""
        # The files are listed before the rows, because an upload stores its row first.
        paths = await _run(_file_paths, self._root)
        strays = paths - await self._store.read_long(self._known) if paths else set()
        deleted = 0
        for path in strays:
            digest = os.path.basename(path)
            async with _lock(path):  # an upload may have begun in the meantime
                owners = await self._store.read_long(
                    partial(payload_files.namespaces_with, digest=digest)
                )
                if path not in {self._file_path(owner, digest) for owner in owners}:
                    await _run(_delete, [path])
                    deleted += 1
        return deleted

    def _known(self, db: ReadSnapshot) -> set[str]:
        return {self._file_path(*payload_file) for payload_file in payload_files.list_all(db)}


def check_files(tx: ReadSnapshot, root: str, namespace: str, files: Mapping[str, str]) -> None:
    """Raise `Malformed` unless a dispatch may use the files. `files` maps names to digests."""
    if len(files) > MOST_FILES:
        raise Malformed(f"Files has {len(files)} files: a job has at most {MOST_FILES}")
    for name, digest in files.items():
        if not _NAME.fullmatch(name):
            raise Malformed(
                f"Files: {name[:80]!r} is not a name: use at most 64 letters, digits, and . _ -"
            )
        check_digest(digest)
        upload = payload_files.find(tx, namespace, digest)
        is_stored = os.path.exists(f"{payload_dir(root, namespace)}/{digest}")
        if upload is None or not upload.is_complete or not is_stored:
            raise Malformed(
                f"Files: {name} has the digest {digest}, which namespace {namespace!r} does not "
                "have: upload the file first, with PUT /v1/payload/DIGEST"
            )


def attach_files(
    tx: Transaction, namespace: str, job_id: str, files: Mapping[str, str], now: int
) -> None:
    """Assign files to a new job."""
    for name, digest in files.items():
        payload_files.attach(tx, namespace, job_id, name, digest)
        stored_file = payload_files.find(tx, namespace, digest)
        # A precision of one hour is enough: the time only protects the file from collection after
        # its job was deleted.
        if stored_file is not None and now > stored_file.modify_time + HOUR:
            payload_files.touch(tx, namespace, digest, now)


def replace_files(
    tx: Transaction, namespace: str, job_id: str, files: Mapping[str, str], now: int
) -> None:
    """Assign files to a registered job, and remove those that no version of the job uses.

    Raises `Malformed` if the job would have too many files.
    """
    payload_files.detach_unnamed(tx, namespace, job_id)
    attach_files(tx, namespace, job_id, files, now)
    if (number := payload_files.number_of_job(tx, namespace, job_id)) > MOST_FILES:
        raise Malformed(
            f"Files: the versions of job {job_id!r} would have {number} files, and a job has at most "
            f"{MOST_FILES}: purge the job, or register it under another ID"
        )


async def collect_files(store: Store, root: str, now: int) -> None:
    """Delete files below `root` that no job uses."""
    files = PayloadFiles(store, root, PayloadLimits(file=0, namespace=0))
    if number := await files.collect(now):
        log.info("deleted %d input files that no job uses", number)


def _lock(path: str) -> trio.Lock:
    """Return the lock of a file. The lock exists while a Trio task holds it or waits for it."""
    lock = _LOCKS.get(path)
    if lock is None:
        lock = _LOCKS[path] = trio.Lock()
    return lock


# --- work in threads ---


async def _run(work: Callable[[*A], T], *arguments: *A) -> T:
    """Run `work` in a thread, and return its result. Raises `StorageFull` for a full disk."""
    with reporting_full_disk("the input files"):
        return await trio.to_thread.run_sync(work, *arguments)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _append(path: str, chunk: bytes, offset: int) -> int:
    """Write a chunk at the end of an upload; return the new size. Raises `OffsetConflict`."""
    with suppress(FileNotFoundError):  # the usual case: the file is not verified yet
        return os.stat(path).st_size  # it was verified, but a crash prevented the mark
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    descriptor = os.open(
        path + _PART, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        received = os.fstat(descriptor).st_size
        if offset != received:
            raise OffsetConflict(offset, received)
        remaining = memoryview(chunk)
        try:
            while remaining:
                remaining = remaining[
                    os.pwrite(descriptor, remaining, offset + len(chunk) - len(remaining)) :
                ]
        except OSError:
            os.ftruncate(descriptor, received)
            raise
    finally:
        os.close(descriptor)
    return offset + len(chunk)


def _verified(final_path: str) -> str:
    """Verify an uploaded file, and return the digest of its content.

    If this is the expected digest, rename the file to `final_path`. Otherwise delete the file.
    """
    path = final_path if os.path.exists(final_path) else final_path + _PART
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if checksum != os.path.basename(final_path):
            os.unlink(path)
            return checksum
        os.fsync(file.fileno())
    os.rename(path, final_path)
    directory = Path(final_path).parent
    for folder in (directory, directory.parent):
        fsync_path(folder)
    return checksum


def _move(source: str, target: str) -> None:
    """Move a file to its final path, and sync the file and its directories to disk."""
    directory = Path(target).parent
    os.makedirs(directory, 0o700, exist_ok=True)
    fsync_path(Path(source))
    os.rename(source, target)
    with suppress(FileNotFoundError):  # there is no upload of this content
        os.unlink(target + _PART)
    for folder in (directory, directory.parent):
        fsync_path(folder)


def _file_paths(root: str) -> set[str]:
    """Return the paths of all files below `root`, without the suffix of incomplete files."""
    return set(_each_place(root))


def _each_place(root: str) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        for name in names:
            if _DIGEST.fullmatch(name.removesuffix(_PART)):
                yield f"{directory}/{name.removesuffix(_PART)}"


def _delete(paths: list[str]) -> None:
    for file in paths:
        for path in (file, file + _PART):
            with suppress(FileNotFoundError):  # a file has only one of the two names
                os.unlink(path)
