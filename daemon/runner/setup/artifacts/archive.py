"""Unpack untrusted archives into an empty directory that only the daemon can write to.

Only files, directories, and links to targets inside the archive are unpacked. Limits apply to the
bytes written, not to the sizes that the archive declares. Links are created last, so that no file
is written through a link. All functions block: call them in a thread.
"""

import bz2
import gzip
import io
import itertools
import lzma
import os
import posixpath
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from typing import BinaryIO, Protocol

import msgspec

from daemon.runner.setup.artifacts.source import is_single

_CHUNK = 256 * 1024
_MODES = 0o755
_MOST_BETWEEN = 1024 * 1024  # bytes
_MOST_TABLE = 16 * 1024 * 1024  # bytes of the central directory of a zip archive
_ENTRY = b"PK\x01\x02"  # signature of each entry in the central directory
# With other methods, zipfile decompresses a whole member in one call.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
MOST_MEMORY = 256 * 1024 * 1024  # bytes of memory for unpacking; `xz -9` needs 65 MiB
_MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ": "xz"}


class BadArchive(Exception):
    """The archive cannot be read, or contains an entry that is not permitted."""


class ArchiveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the size of a download and of its unpacked content."""

    bytes: int
    files: int


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Plain:
    """The bytes of a tar archive, with a limit on the bytes read between two calls of `refill`.

    `tarfile` keeps in memory everything that is not file content: long names, headers, tables. The
    archive determines the size of these parts.
    """

    def __init__(self, source: _Source) -> None:
        self._source, self._left = source, _MOST_BETWEEN

    def refill(self) -> None:
        """Permit the full number of bytes again."""
        self._left = _MOST_BETWEEN

    def read(self, size: int) -> bytes:
        chunk = self._source.read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise BadArchive(f"the archive has more than {_MOST_BETWEEN} bytes of headers")
        return chunk


class _Content(msgspec.Struct):
    """The content of one file in a tar archive, read through `_Plain`."""

    source: _Source
    archive: _Plain

    def read(self, size: int) -> bytes:
        self.archive.refill()
        return self.source.read(size)


class _Xz:
    """The content of an xz file.

    The reader in the standard library does not limit its memory, so a file could make it use any
    amount.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._stream = file, _new_stream()

    def read(self, size: int) -> bytes:
        chunk = b""
        while not chunk:
            packed = b""
            if self._stream.eof:
                packed = self._next_part()
                if not packed:
                    return b""
                self._stream = _new_stream()
            elif self._stream.needs_input:
                packed = self._file.read(_CHUNK)
                if not packed:
                    raise EOFError("unexpected end of file")
            chunk = self._stream.decompress(packed, size)
        return chunk

    def _next_part(self) -> bytes:
        """Return the first bytes of the next stream after any padding.

        The result is empty at the end of the file.
        """
        chunks = iter(partial(self._file.read, _CHUNK), b"")
        pieces = itertools.chain([self._stream.unused_data], chunks)
        return next(filter(None, (chunk.lstrip(b"\0") for chunk in pieces)), b"")


def _new_stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=MOST_MEMORY)


_OPENERS: dict[str, Callable[[BinaryIO], _Source]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file),
    "bz2": bz2.BZ2File,
    "xz": _Xz,
    "": lambda file: file,
}


def _plain(file: BinaryIO) -> _Plain:
    """Return the bytes of a tar archive.

    The compression is detected from the content, not the name.
    """
    head = file.read(max(map(len, _MAGIC)))
    file.seek(0)
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
    return _Plain(_OPENERS[kind](file))


class _Zip(io.FileIO):
    """A zip archive whose central directory can use only limited memory.

    `zipfile` creates an object for each entry of the central directory before the caller sees an
    entry. It reads the directory with one large read, and everything else in small pieces.
    Therefore each large read is checked against the limits before `zipfile` receives the bytes.
    """

    def __init__(self, path: str, files: int) -> None:
        super().__init__(path)
        self._files = files

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size <= _CHUNK:
            return super().read(size)
        if size > _MOST_TABLE:
            raise BadArchive(
                f"the central directory of the ZIP archive has more than {_MOST_TABLE} bytes"
            )
        table = super().read(size)
        if table.count(_ENTRY) > self._files:
            raise BadArchive(_too_many(self._files))
        return table


def _too_many(files: int) -> str:
    return f"the archive has more than {files} files"


class Unpacker:
    """Writes members below a directory, within limits; `check` may raise an error to abort."""

    def __init__(self, target: str, limits: ArchiveLimits, check: Callable[[], None]) -> None:
        self._target, self._check = target, check
        self._limits, self._bytes, self._files = limits, 0, 0
        self._links: dict[str, str] = {}

    def unpack(self, path: str, kind: str, name: str) -> None:
        """Unpack an archive; `name` is the file name for an archive of a single unnamed file.

        Raises `BadArchive` or `OSError`.
        """
        try:
            if is_single(kind):
                with open(path, "rb") as file:
                    self._file(name.removesuffix(f".{kind}"), _OPENERS[kind](file), 0o644)
            elif kind == "zip":
                self._zip(path)
            else:
                self._tar(path)
        except (
            tarfile.TarError,
            zipfile.BadZipFile,
            lzma.LZMAError,
            zlib.error,
            EOFError,
        ) as error:
            raise BadArchive(f"the archive cannot be read: {error}") from error
        # Zip: encrypted, or an unsupported method.
        except (RuntimeError, NotImplementedError, ValueError) as error:
            raise BadArchive(f"the archive cannot be unpacked: {error}") from error
        self._make_links()

    def _tar(self, path: str) -> None:
        with (
            open(path, "rb") as file,
            tarfile.open(
                # Opened for reading only.
                fileobj=(opened := _plain(file)),  # type: ignore[call-overload]
                mode="r|",
            ) as archive,
        ):
            while (member := archive.next()) is not None:
                archive.members.clear()  # tarfile keeps every member in memory
                opened.refill()
                if member.isdir():
                    self._directory(member.name)
                elif member.isfile():
                    source = archive.extractfile(member)
                    assert source is not None  # noqa: S101  # true for regular files
                    self._file(member.name, _Content(source, opened), member.mode)
                elif member.issym():
                    self._link(member.name, member.linkname)
                else:
                    raise BadArchive(f"{member.name!r} is neither a file nor a directory")

    def _zip(self, path: str) -> None:
        with _Zip(path, self._limits.files) as file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                mode = member.external_attr >> 16
                if member.is_dir():
                    self._directory(member.filename)
                    continue
                if member.compress_type not in _METHODS:
                    raise BadArchive(
                        f"{member.filename!r} is compressed by method {member.compress_type};"
                        " the supported methods are 0 (stored) and 8 (deflated)"
                    )
                with archive.open(member) as source:
                    if stat.S_ISLNK(mode):
                        self._link(
                            member.filename, source.read(_CHUNK).decode(errors="surrogateescape")
                        )
                    else:
                        self._file(member.filename, source, mode or 0o644)

    # --- writing ---

    def _member_path(self, name: str) -> str:
        """Return the target path of a member, and count the member. Raises `BadArchive`."""
        inner = posixpath.normpath(name)
        if name.startswith("/") or inner == ".." or inner.startswith("../") or "\0" in name:
            raise BadArchive(f"{name!r} points outside the archive")
        self._files += 1
        if self._files > self._limits.files:
            raise BadArchive(_too_many(self._limits.files))
        return f"{self._target}/{inner}"

    def _directory(self, name: str) -> None:
        os.makedirs(self._member_path(name), _MODES, exist_ok=True)

    def _file(self, name: str, source: _Source, mode: int) -> None:
        path = self._member_path(name)
        os.makedirs(os.path.dirname(path), _MODES, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "wb") as file:
            while chunk := source.read(_CHUNK):
                self._check()
                self._bytes += len(chunk)
                if self._bytes > self._limits.bytes:
                    raise BadArchive(
                        f"more than {self._limits.bytes} bytes were unpacked from the archive"
                    )
                file.write(chunk)
            os.fchmod(file.fileno(), mode & _MODES | 0o600)

    def _link(self, name: str, target: str) -> None:
        self._links[self._member_path(name)] = target

    def _make_links(self) -> None:
        for path, target in self._links.items():
            if not stays_inside(self._target, path, target):
                raise BadArchive(f"a link to {target!r} points outside the archive")
            os.makedirs(os.path.dirname(path), _MODES, exist_ok=True)
            os.symlink(target, path)


def stays_inside(root: str, path: str, target: str) -> bool:
    """Return whether a link at `path` points below `root`. Only the text is examined."""
    if target.startswith("/"):
        return False
    end = posixpath.normpath(f"{posixpath.dirname(path)}/{target}")
    return end == root or end.startswith(f"{root}/")


def check_links(root: str) -> None:
    """Raise `BadArchive` unless a tree has only files, directories, and links that stay in it."""
    for folder, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = f"{folder}/{name}"
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode) and not stays_inside(root, path, os.readlink(path)):
                raise BadArchive(f"a link to {os.readlink(path)!r} points outside the artifact")
            if not (stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise BadArchive(f"{name!r} is neither a file nor a directory")
