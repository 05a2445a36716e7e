"""Files to keep that wrappers send from the hosts of a cluster.

A wrapper lists possible matches. It sends the files that the daemon chooses, in chunks. The daemon
trusts neither the list nor the files: it checks the names, sizes and number of the files, and
computes the digests. Concurrent uploads together cannot exceed the free bytes of the namespace. A
complete file is moved to the content-addressed store. Its name is stored when the attempt ends.
After a crash of the daemon, the wrapper begins again.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count

import msgspec
import trio

from daemon.jobs.payload_files import PayloadFiles
from daemon.runner.drivers.slurm import kept_patterns
from daemon.runner.drivers.slurm.kept_patterns import MOST_LISTED, Entry, Found
from daemon.runner.setup.file_keeper import MOST_FILES, KeptPaths, user_path, why_unnamed
from storage.errors import StewardError
from storage.store import Store

_INCOMPLETE = "only {} of {} bytes arrived"


class SendAgain(StewardError):
    """The wrapper must restart its upload, either with the list or with one file."""

    status = 409


class TurnedAway(StewardError):
    """The wrapper must wait, because other wrappers are sending files in the same namespace."""

    status = 503


class FileRefused(StewardError):
    """The daemon refuses a file; the wrapper must continue with the next file."""

    status = 422


class _Chosen(msgspec.Struct):
    """An expected file. `size` is the announced size in bytes."""

    path: bytes
    size: int
    received: int = 0
    is_done: bool = False


class KeptUploads:
    """The uploads of all attempts. `staging` is a directory that only the daemon can access."""

    def __init__(
        self, store: Store, payloads: PayloadFiles, staging: str, now: Callable[[], int]
    ) -> None:
        self._store, self._payloads, self._staging, self._now = store, payloads, staging, now
        self._uploads: dict[str, KeptUpload] = {}
        self._numbers = count()

    async def begin(
        self,
        name: str,
        listing: bytes,
        *,
        namespace: str,
        task: str,
        patterns: Sequence[str],
        is_root: bool,
        is_whole: bool,
    ) -> str:
        """Return the files that a wrapper must send, one per line with its number.

        The call replaces an earlier upload of the same attempt. `is_root` means that the task ran
        as root. `is_whole` means that the host could list all files. Raises `TurnedAway`.
        """
        selected = await trio.to_thread.run_sync(
            kept_patterns.select, listing, task, patterns, MOST_FILES
        )
        free_space = partial(self._payloads.room, namespace=namespace, holder=name)
        free = await self._store.read_any(free_space)
        self.forget(name)
        reserved = sum(
            active_upload.pending
            for active_upload in self._uploads.values()
            if active_upload.namespace == namespace
        )
        # Each upload has its own file, because a chunk of an earlier upload may still arrive.
        digest = hashlib.sha256(name.encode()).hexdigest()
        path = f"{self._staging}/sent.{digest}.{next(self._numbers)}"
        upload = KeptUpload(self._payloads, namespace, name, path, self._now)
        choice = _Choice(upload, free=free, most=self._payloads.most_bytes, is_root=is_root)
        choice.choose(selected)
        if upload.pending > max(0, free - reserved):
            raise TurnedAway("other tasks of this namespace are sending files: retry")
        if not is_whole or len(listing) >= MOST_LISTED:
            upload.refuse(b"", "its host could not list all files")
        self._uploads[name] = upload
        return upload.wanted

    async def take(self, name: str, number: int, offset: int, data: bytes, *, is_end: bool) -> None:
        """Store a chunk of a file. Raises `SendAgain`, `FileRefused` or `OSError`."""
        upload = self._uploads.get(name)
        if upload is None:
            raise SendAgain("the daemon has been restarted: send the list again")
        async with upload.turn:
            if self._uploads.get(name) is not upload:
                raise SendAgain("the list was sent again: send the files that the daemon chose now")
            try:
                await upload.take(number, offset, data, is_end=is_end)
            finally:
                if self._uploads.get(name) is not upload:  # replaced in the meantime
                    upload.discard()

    async def report(self, name: str) -> tuple[Mapping[str, str], Sequence[str]] | None:
        """Return the digests of kept files by path, and the reasons why other files were not kept.

        Return None if the daemon does not know the upload.
        """
        upload = self._uploads.get(name)
        if upload is None:
            return None
        async with upload.turn:
            return upload.report()

    def forget(self, name: str) -> None:
        """Delete the files of an incomplete upload."""
        upload = self._uploads.pop(name, None)
        # A running `take` deletes the staged file itself when it ends.
        if upload is not None and not upload.turn.locked():
            upload.discard()


class _Choice:
    """Decides for each matching file whether it is kept. `free` bytes are left in the namespace."""

    def __init__(self, upload: "KeptUpload", *, free: int, most: int, is_root: bool) -> None:
        self._upload, self._is_root = upload, is_root
        self._free, self._most = free, most

    def choose(self, entries: Sequence[Found]) -> None:
        """Expect the permitted files, and record a reason for each other file."""
        for entry, reason in entries:
            if entry is None:
                self._upload.refuse(b"", reason)
            elif why := self._why_not(entry):
                self._upload.refuse(entry.path, why)
            else:
                self._free -= entry.size
                self._upload.expect(entry.path, entry.size)

    def _why_not(self, entry: Entry) -> str:
        """Return why a file is not kept, or an empty string."""
        if reason := entry.fault or why_unnamed(entry.path):
            return reason
        if entry.links > 1 and self._is_root:
            return "it has another hard link, which may be another user's file"
        if entry.size > self._most:
            return f"it has {entry.size} bytes, more than {self._most}"
        if entry.size > self._free:
            return (
                f"it has {entry.size} bytes, more than the {self._free} that are left in its "
                "namespace"
            )
        return ""


class KeptUpload:
    """The upload of one attempt. One file at a time is staged at the path `place`."""

    def __init__(
        self,
        payloads: PayloadFiles,
        namespace: str,
        name: str,
        path: str,
        now: Callable[[], int],
    ) -> None:
        self.namespace, self.turn = namespace, trio.Lock()
        self._payloads, self._name, self._place, self._now = payloads, name, path, now
        self._chosen: list[_Chosen] = []
        self._current, self._digest = -1, hashlib.sha256()
        self._kept = KeptPaths()

    @property
    def pending(self) -> int:
        """Return the number of bytes that may still arrive."""
        return sum(file.size for file in self._chosen if not file.is_done)

    @property
    def wanted(self) -> str:
        """Return one line for each chosen file.

        Each line ends in a slash, because paths may end in spaces.
        """
        lines = enumerate(file.path.decode() for file in self._chosen)
        return "".join(f"{number} ./{path}/\n" for number, path in lines)

    def refuse(self, path: bytes, reason: str) -> None:
        """Record why a file is not kept."""
        self._kept.refuse(user_path(path), reason)

    def expect(self, path: bytes, size: int) -> None:
        """Add a file to the expected files."""
        self._chosen.append(_Chosen(path=path, size=size))

    async def take(self, number: int, offset: int, data: bytes, *, is_end: bool) -> None:
        """Store a chunk of a file. Raises `SendAgain`, `FileRefused` or `OSError`."""
        if number >= len(self._chosen):
            raise FileRefused(f"file {number} is not one of the files to keep")
        file = self._chosen[number]
        if file.is_done:
            return
        if self._current != number:
            self._current, self._digest, file.received = number, hashlib.sha256(), 0
            await trio.to_thread.run_sync(self.discard)
        if offset != file.received:
            if data and offset + len(data) == file.received:  # a repeated piece
                return
            self._current = -1
            raise SendAgain(f"offset is {offset}, but {file.received} bytes were received")
        if file.received + len(data) > file.size:
            file.is_done = True
            self.refuse(file.path, f"it grew to more than {file.size} bytes")
            raise FileRefused("the file is larger than announced")
        await trio.to_thread.run_sync(_append, self._place, data, offset)
        self._digest.update(data)
        file.received += len(data)
        if is_end:
            await self._finish(file)

    async def _finish(self, file: _Chosen) -> None:
        """Move a complete file into the store; record a reason if the task has changed it."""
        if file.received != file.size:
            self.refuse(file.path, _INCOMPLETE.format(file.received, file.size))
        else:
            digest = self._digest.hexdigest()
            try:
                await self._payloads.take_in(
                    self.namespace,
                    digest,
                    self._place,
                    size=file.size,
                    now=self._now(),
                    holder=self._name,
                )
            except StewardError as error:
                self.refuse(file.path, str(error))
            else:
                self._kept.entries[user_path(file.path)] = digest, file.size
        file.is_done = True

    def report(self) -> tuple[Mapping[str, str], Sequence[str]]:
        """Return the digests of kept files by path, and why other files were not kept."""
        for file in self._chosen:
            if not file.is_done:
                file.is_done = True
                self.refuse(file.path, _INCOMPLETE.format(file.received, file.size))
        digests = {path: digest for path, (digest, _) in self._kept.entries.items()}
        return digests, tuple(self._kept.reasons)

    def discard(self) -> None:
        """Delete the staged file."""
        with suppress(FileNotFoundError):  # nothing was received
            os.unlink(self._place)


def _append(path: str, data: bytes, offset: int) -> None:
    """Write a chunk at its offset. Raises `OSError`."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[
                os.pwrite(descriptor, remaining, offset + len(data) - len(remaining)) :
            ]
    finally:
        os.close(descriptor)
