"""Keep files of ended tasks: copy them into the content-addressed store of input files.

The launcher reads the files with the rights of the task and sends them in a stream. The keeper
trusts nothing in the stream: it checks the names, limits the sizes and the number of files, and
computes the digests itself. The files of one collection cannot exceed the bytes that are left in
the namespace, so a task cannot fill the disk. For each namespace, the keeper collects the files of
one task at a time. Collections run in threads that nothing else uses. Therefore, many or large
files of one namespace do not delay the tasks of other namespaces.

One write records all kept files of a task. If the daemon crashes before this write, the task is not
yet recorded as dead, and the next daemon collects its files again.
"""

import hashlib
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import BinaryIO, ClassVar
from weakref import WeakValueDictionary

import msgspec
import trio

from daemon.jobs.payload_files import PayloadFiles
from daemon.launcher.file_collector import LENGTH
from daemon.launcher.messages import MOST_TEXT, FilePart
from daemon.runner.core.task_files import TaskFiles
from storage.errors import StewardError
from storage.queries import kept_files, payload_files
from storage.store import Store
from storage.writer import Transaction

MOST_FILES = 100  # files of one task
_MOST_REASONS = 20
_MOST_REASON = 1000  # characters
_MOST_PART = 1024 * 1024  # more bytes than the launcher sends in one message
_AT_ONCE = 32  # concurrent collections, each of another namespace; each occupies a thread
_part = msgspec.msgpack.Decoder(FilePart)


class KeptFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The number of kept files, their total bytes, and the reasons for files that were not kept."""

    number: int = 0
    size: int = 0
    reasons: tuple[str, ...] = ()


class _FaultyStream(Exception):
    """The stream violates its format."""


class _StreamEnded(_FaultyStream):
    """The stream ended before its end mark; the launcher's answer has the reason."""


class FileKeeper:
    """Keeps files of ended tasks. `staging` is a directory that only the daemon can access."""

    _threads = trio.CapacityLimiter(_AT_ONCE)
    _turns: ClassVar[WeakValueDictionary[str, trio.Lock]] = WeakValueDictionary()  # by namespace

    def __init__(self, store: Store, payloads: PayloadFiles, staging: str) -> None:
        self._store, self._payloads, self._staging = store, payloads, staging

    async def keep(
        self, files: TaskFiles, namespace: str, patterns: Sequence[str], now: int
    ) -> KeptFiles:
        """Keep the files that match `patterns`; they replace the task's earlier kept files."""
        async with self._turns.setdefault(namespace, trio.Lock()):
            holder = f"{files.allocation}/{files.task}"
            available = partial(self._payloads.room, namespace=namespace, holder=holder)
            left = await self._store.read_any(available)
            workshop = f"{self._staging}/kept.{files.staging_name}"
            take_in = partial(self._payloads.take_in, namespace, now=now, holder=holder)
            intake = _Intake(take_in, self._payloads.most_bytes, workshop, left)
            try:
                await self._collect(intake, files, patterns)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(partial(shutil.rmtree, workshop, True))
            digests = {path: digest for path, (digest, _) in intake.entries.items()}

            def write(tx: Transaction) -> None:
                kept_files.replace(tx, files.allocation, files.task, digests)
                payload_files.release(tx, holder)

            await self._store.write(write)
        return KeptFiles(
            number=len(digests),
            size=sum(size for _, size in intake.entries.values()),
            reasons=tuple(intake.reasons),
        )

    async def _collect(self, intake: "_Intake", files: TaskFiles, patterns: Sequence[str]) -> None:
        source, end = os.pipe()
        problem = fault = ""

        async def request() -> None:
            nonlocal problem
            try:
                await files.collect(
                    patterns,
                    end,
                    size=self._payloads.most_bytes,
                    total=intake.left,
                    count=MOST_FILES,
                )
            except (OSError, ValueError) as error:
                problem = str(error)
            finally:
                os.close(end)  # closes the stream, even if the launcher's child failed

        async with trio.open_nursery() as nursery:
            nursery.start_soon(request)
            try:
                await trio.to_thread.run_sync(intake.run, source, limiter=self._threads)
            except _StreamEnded as error:
                fault = str(error)
            except (_FaultyStream, OSError) as error:
                intake.refuse("", f"the files cannot be kept: {error}")
            finally:
                os.close(source)  # ends the launcher's child, if it still writes
        if fault:
            intake.refuse("", f"the files cannot be kept: {problem or fault}")


class KeptPaths:
    """The result of a collection. `entries` has the digest and the size of each file by path."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[str, int]] = {}
        self.reasons: list[str] = []

    def refuse(self, path: str, reason: str) -> None:
        """Record why a file is not stored."""
        if len(self.reasons) == _MOST_REASONS:
            self.reasons.append("more files were not kept")
        elif len(self.reasons) < _MOST_REASONS:
            self.reasons.append((f"{path}: {reason}" if path else reason)[:_MOST_REASON])


class _Intake(KeptPaths):
    """Receives one stream.

    Each file may have at most `most` bytes. All files together may have at most `bytes_left` bytes.
    """

    def __init__(
        self, take_in: Callable[..., Awaitable[None]], most: int, workshop: str, bytes_left: int
    ) -> None:
        super().__init__()
        self._take_in, self._most = take_in, most
        self._workshop, self.left = workshop, bytes_left

    def run(self, source: int) -> None:
        """Store the files of a stream, in a thread. Raises `_FaultyStream` or `OSError`."""
        shutil.rmtree(self._workshop, ignore_errors=True)
        os.makedirs(self._workshop, 0o700)
        with open(source, "rb", closefd=False) as stream:
            parts = _parts(stream)
            for first in parts:
                self._take(first, parts)

    def _take(self, first: FilePart, parts: Iterator[FilePart]) -> None:
        """Store a file, or the reason why it was refused."""
        path = user_path(first.path)
        if not first.path:
            return self.refuse("", first.reason or "a part has no path")
        staged, digest, size = f"{self._workshop}/file", hashlib.sha256(), 0
        part = first
        with open(staged, "wb") as file:
            while True:
                size += len(part.data)
                self.left -= len(part.data)
                if size > self._most or self.left < 0:
                    raise _FaultyStream(f"{path} is larger than announced")
                digest.update(part.data)
                file.write(part.data)
                if part.is_end:
                    break
                part = next(parts, FilePart(path=b"", data=b"", is_end=True, reason=""))
                if part.path != first.path:
                    raise _FaultyStream(f"{path} is incomplete")
        if part.reason:
            return self.refuse(path, part.reason)
        if reason := self._why_not(first.path):
            return self.refuse(path, reason)
        checksum = digest.hexdigest()
        try:
            trio.from_thread.run(partial(self._take_in, checksum, staged, size=size))
        except StewardError as error:
            return self.refuse(path, str(error))
        self.entries[path] = checksum, size
        return None

    def _why_not(self, path: bytes) -> str:
        """Return why a file with this path is not kept, or an empty string."""
        if len(self.entries) == MOST_FILES:
            return f"more than {MOST_FILES} files match"
        return why_unnamed(path)


def why_unnamed(path: bytes) -> str:
    """Return why a path cannot name a kept file, or an empty string."""
    try:
        text = path.decode()
    except UnicodeDecodeError:
        return "its name is not UTF-8"
    if any(name in ("", ".", "..") for name in text.split("/")):
        return "its path has an empty, '.' or '..' component"
    if len(path) > MOST_TEXT or not text.isprintable():
        return "its name has unprintable characters"
    return ""


def user_path(path: bytes) -> str:
    """Return the path of a file as users write it: without the name of the task directory.

    A path in the shared directory `alloc` stays unchanged.
    """
    text = path.decode(errors="replace")
    first, _, remaining = text.partition("/")
    return text if first == "alloc" else remaining


def _parts(stream: BinaryIO) -> Iterator[FilePart]:
    """Yield the parts of a stream up to its end. Raises `_FaultyStream` or `OSError`."""
    while length := int.from_bytes(_exactly(stream, LENGTH)):
        trio.from_thread.check_cancelled()
        if length > _MOST_PART:
            raise _FaultyStream(f"a part of the stream has {length} bytes, more than {_MOST_PART}")
        try:
            yield _part.decode(_exactly(stream, length))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _FaultyStream(f"a part of the stream is invalid: {error}") from None


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise _StreamEnded("the launcher ended the stream early")
    return data
