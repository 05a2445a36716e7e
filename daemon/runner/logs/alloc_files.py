"""Read access to the files of an allocation: names, metadata and contents.

The launcher opens and lists files, so no path can leave the allocation directory. Internal files of
the daemon are hidden. Task logs appear as the numbered files that clients expect. The contents of
secrets directories are never readable. Only callers with permission for secrets see names, sizes
and times there, or whether a file exists.
"""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import msgspec

from daemon.launcher.client import Launcher
from daemon.launcher.messages import (
    MOST_TEXT,
    SECRET,
    DirectoryEntry,
    FileStatus,
    ListDirectory,
    OpenFile,
)
from daemon.launcher.task_files import found_of
from daemon.runner.core.opened_files import OpenedFile
from daemon.runner.core.safe_open import PathEscape, relative_path
from daemon.runner.core.task_dir import SHARED
from daemon.runner.core.task_log import LogFile, Stream, TaskLog
from storage import garbage
from storage.errors import Refused

_OWN = "."  # names of internal files begin with this
_LOGS = f"{SHARED}/logs"
_LONGEST = 255  # bytes of a file name
MOST_ENTRIES = 100_000  # entries of a directory; a task can create more than that
FEW_ENTRIES = 500  # entries that the event loop sorts or encodes in one millisecond
_SNIFFED = 512  # bytes from which the content type is guessed
_UNKNOWN = "application/octet-stream"
_TEXT = "text/plain; charset=utf-8"
_SIGNATURES = (
    (b"%PDF-", "application/pdf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b\x08", "application/x-gzip"),
    (b"<?xml", "text/xml; charset=utf-8"),
)
_MARKUP = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script", b"<!--")
# Bytes that do not occur in text: control characters except tab, LF, FF, CR and ESC.
_BINARY = frozenset(range(0x20)) - frozenset(b"\t\n\f\r\x1b")


class FileAccessDenied(Refused):
    """The content of a file is secret. The message is Nomad's."""

    def __init__(self, path: str) -> None:
        super().__init__(f"Reading secret file prohibited: {path}")


class FileMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a file; `modified` is in nanoseconds, and `kind` is the content type."""

    name: str
    mode: int
    size: int
    modified: int
    kind: str = ""

    @property
    def is_directory(self) -> bool:
        """Return whether the entry is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_regular(self) -> bool:
        """Return whether the entry is a regular file."""
        return stat.S_ISREG(self.mode)


class File(Protocol):
    """An open file of an allocation."""

    @property
    def info(self) -> FileMetadata:
        """Return the current metadata. The content type was detected when the file was opened."""
        ...

    def read(self, offset: int, most: int) -> bytes:
        """Return up to `most` bytes at an offset; empty at the end.

        Raises `FileAccessDenied` or `OSError`.
        """
        ...

    async def fetch(self, offset: int, most: int) -> bytes:
        """Return bytes as `read` does; read in a thread if that may block."""
        ...


class _Plain:
    """A file in the allocation directory; `path` is the requested path."""

    def __init__(self, path: str, name: str, status: FileStatus, opened: OpenedFile | None) -> None:
        self._path, self._name, self._found, self._opened = path, name, status, opened
        self._kind = _UNKNOWN if opened is None else kind_of(self.read(0, _SNIFFED))

    @property
    def info(self) -> FileMetadata:
        file_metadata = self._found
        if self._opened is not None:
            file_metadata = found_of(os.fstat(self._opened.descriptor))
        return _info(self._name, file_metadata, self._kind)

    def read(self, offset: int, most: int) -> bytes:
        if self._opened is not None:
            return os.pread(self._opened.descriptor, most, offset)
        if self._found.is_secret:
            raise FileAccessDenied(self._path)
        # Opened again for reading, because its task may have changed its mode.
        if stat.S_ISREG(self._found.mode):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self._path)
        return b""

    async def fetch(self, offset: int, most: int) -> bytes:
        return self.read(offset, most)


class _Numbered:
    """A numbered file of a log."""

    def __init__(self, stream: Stream, file: LogFile) -> None:
        self._stream, self._file = stream, file
        self._kind = kind_of(self.read(0, _SNIFFED))

    @property
    def info(self) -> FileMetadata:
        return msgspec.structs.replace(_of_stretch(self._stream, self._file), kind=self._kind)

    def read(self, offset: int, most: int) -> bytes:
        if offset >= self._file.size:
            return b""
        chunk = self._stream.read(self._file.start + offset, min(most, self._file.size - offset))
        return chunk.data if chunk else b""

    async def fetch(self, offset: int, most: int) -> bytes:
        left = min(most, self._file.size - offset)
        if left <= 0:
            return b""
        chunk = await self._stream.fetch(self._file.start + offset, left)
        return chunk.data if chunk else b""


class AllocFiles:
    """The files of one allocation; `logs` are its task logs by file name prefix.

    `root` is the path shown to users. With `sees_secrets`, names and sizes in secrets directories
    are visible, but the contents never are.
    """

    def __init__(
        self,
        launcher: Launcher,
        alloc_id: str,
        root: str,
        logs: Mapping[str, TaskLog],
        *,
        sees_secrets: bool = False,
    ) -> None:
        self._launcher, self._alloc_id, self._root = launcher, alloc_id, root
        self._logs, self._sees_secrets = logs, sees_secrets

    def full(self, path: str) -> str:
        """Return the full path on the host, for messages. Raises `PathEscape`."""
        below = relative_path(path)
        return f"{self._root}/{below}" if below else self._root

    async def entries(self, path: str) -> list[FileMetadata]:
        """Return the metadata of all entries of a directory, sorted by name.

        Raises `PathEscape`, `FileAccessDenied` or `OSError`, and `Refused` for too many entries.
        """
        relative, position, entries = self._launcher_path(path), 0, list[DirectoryEntry]()
        while position >= 0:
            request = ListDirectory(
                allocation=self._alloc_id,
                path=relative,
                sees_secrets=self._sees_secrets,
                position=position,
            )
            with _refused(path):
                batch, position = await self._launcher.entries(request)
            entries += batch
            _check_number(len(entries), path)
        logs = [await log.current() for log in self._logs.values()] if relative == _LOGS else []
        number = len(entries) + sum(len(log.numbers()) for log in logs)
        _check_number(number, path)
        if number <= FEW_ENTRIES:
            return self._sorted(entries, logs)
        return await garbage.in_thread(partial(self._sorted, entries, logs))

    def _sorted(self, entries: list[DirectoryEntry], logs: list[Stream]) -> list[FileMetadata]:
        # A file name may hold any bytes.
        infos = [_info(entry.name.decode(errors="replace"), entry.facts) for entry in entries]
        if logs:
            infos = [info for info in infos if not self._is_log(info.name)]
        for stream in logs:
            infos += [_of_stretch(stream, file) for file in stream.files()]
        return sorted(infos, key=lambda info: info.name)

    def _is_log(self, name: str) -> bool:
        stem, _, number = name.rpartition(".")
        return stem in self._logs and number.isdecimal()

    async def open(self, path: str) -> File:
        """Open a file. Raises `PathEscape`, `FileAccessDenied` or `OSError`."""
        relative = self._launcher_path(path)
        folder, _, name = relative.rpartition("/")
        if folder == _LOGS and self._is_log(name):
            return await self._numbered(path, relative)
        request = OpenFile(
            allocation=self._alloc_id, path=relative, sees_secrets=self._sees_secrets
        )
        with _refused(path):
            metadata, descriptor = await self._launcher.open(request)
        opened = None if descriptor is None else OpenedFile(descriptor)
        return _Plain(path, name or os.path.basename(self._root), metadata, opened)

    async def _numbered(self, path: str, relative: str) -> File:
        stream = await self._logs[relative.rpartition("/")[2].rpartition(".")[0]].current()
        file = stream.file(int(relative.rpartition(".")[2]))
        if file is not None and file.name == relative:  # otherwise, the number has leading zeros
            return _Numbered(stream, file)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _launcher_path(self, path: str) -> str:
        """Return a path in the launcher's form.

        Raises `PathEscape`, or `OSError` for an impossible path.
        """
        relative = relative_path(path)
        number = 0
        if "\0" in relative:
            number = errno.EINVAL
        elif len(relative) > MOST_TEXT or any(
            len(part.encode()) > _LONGEST for part in relative.split("/")
        ):
            number = errno.ENAMETOOLONG
        elif relative.startswith(_OWN):
            number = errno.ENOENT
        if number:
            raise OSError(number, os.strerror(number), path)
        return relative


async def is_there(launcher: Launcher, alloc_id: str) -> bool:
    """Return whether an allocation has a directory or retained logs on disk."""
    try:
        await launcher.open(OpenFile(allocation=alloc_id, path="", sees_secrets=False))
    except FileNotFoundError:
        return False
    except OSError:  # the answer is unknown
        return True
    return True


def _check_number(number: int, path: str) -> None:
    """Raise `Refused` if a directory has too many entries for a list."""
    if number > MOST_ENTRIES:
        raise Refused(f'directory "{path}" has more than {MOST_ENTRIES} entries')


@contextmanager
def _refused(path: str) -> Iterator[None]:
    """Convert the launcher's errors into the messages of this module."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise PathEscape from None
        if error.errno == SECRET:
            raise FileAccessDenied(path) from None
        raise OSError(error.errno, error.strerror, path) from None


def _info(name: str, facts: FileStatus, kind: str = "") -> FileMetadata:
    return FileMetadata(
        name=name, mode=facts.mode, size=facts.size, modified=facts.modified, kind=kind
    )


def _of_stretch(stream: Stream, file: LogFile) -> FileMetadata:
    facts = stream.facts
    if facts is None:  # the file did not exist
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file.name)
    return FileMetadata(
        name=file.name.rpartition("/")[2],
        mode=facts.st_mode,
        size=file.size,
        modified=facts.st_mtime_ns,
    )


def kind_of(head: bytes) -> str:
    """Return the content type for the first bytes of a file, as browsers detect it."""
    if not head:
        return _UNKNOWN
    text = head.lstrip(b"\t\n\f\r ").lower()
    if text.startswith(_MARKUP):
        return "text/html; charset=utf-8"
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    return _UNKNOWN if _BINARY.intersection(head) else _TEXT


def mode_text(mode: int) -> str:
    """Format a file mode as Nomad's clients expect: `drwxr-xr-x`, `-rw-r--r--`, `Lrwxrwxrwx`."""
    kinds = {
        stat.S_IFDIR: "d",
        stat.S_IFLNK: "L",
        stat.S_IFBLK: "D",
        stat.S_IFIFO: "p",
        stat.S_IFSOCK: "S",
        stat.S_IFCHR: "Dc",
    }
    bits = ((stat.S_ISUID, "u"), (stat.S_ISGID, "g"))
    letters = kinds.get(stat.S_IFMT(mode), "")
    marks = "".join(letter for bit, letter in bits if mode & bit)
    kind, character = letters[:1], letters[1:]
    before = f"{kind}{marks}{character}{'t' if mode & stat.S_ISVTX else ''}" or "-"
    rights = "".join(
        letter if mode & (1 << bit_number) else "-"
        for bit_number, letter in zip(range(8, -1, -1), "rwxrwxrwx", strict=True)
    )
    return before + rights
