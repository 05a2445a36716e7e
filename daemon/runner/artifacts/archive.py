"""Unpacking archives that nobody vouches for, into an empty directory that only we can write to.

Only files, directories and links that stay inside come out of it; how much may come out is
limited while it is written, not by what the archive says of itself. Links are made last, so
nothing is ever written through one. All of this blocks: it runs in a thread.
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

from daemon.runner.artifacts.source import is_single

_CHUNK = 256 * 1024
_MODES = 0o755
_MOST_BETWEEN = 1024 * 1024  # bytes
_MOST_TABLE = 16 * 1024 * 1024  # bytes of a zip archive's table of contents
_ENTRY = b"PK\x01\x02"  # each entry of it begins so
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # of others the library unpacks all at once
MOST_MEMORY = 256 * 1024 * 1024  # bytes that unpacking may take; `xz -9` needs 65 MiB
_MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ": "xz"}


class BadArchive(Exception):
    """An archive that cannot be read, or that holds what it should not."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be fetched, and how much may come out of it."""

    bytes: int
    files: int


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Plain:
    """The bytes of a tar archive. How many are read from one `refill` to the next is bounded.

    Of what is no file's content the library keeps in memory all that the archive wants: long names,
    headers, tables.
    """

    def __init__(self, source: _Source) -> None:
        self._source, self._left = source, _MOST_BETWEEN

    def refill(self) -> None:
        """Begin to count anew."""
        self._left = _MOST_BETWEEN

    def read(self, size: int) -> bytes:
        piece = self._source.read(size)
        self._left -= len(piece)
        if self._left < 0:
            raise BadArchive(f"more than {_MOST_BETWEEN} bytes of headers are in the archive")
        return piece


class _Content(msgspec.Struct):
    """The content of a file in a tar archive."""

    source: _Source
    archive: _Plain

    def read(self, size: int) -> bytes:
        self.archive.refill()
        return self.source.read(size)


class _Xz:
    """The content of an xz file; the library's own reader takes as much memory as the file wants."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._stream = file, _new_stream()

    def read(self, size: int) -> bytes:
        piece = b""
        while not piece:
            packed = b""
            if self._stream.eof:
                packed = self._next_part()
                if not packed:
                    return b""
                self._stream = _new_stream()
            elif self._stream.needs_input:
                packed = self._file.read(_CHUNK)
                if not packed:
                    raise EOFError("it ends in the middle")
            piece = self._stream.decompress(packed, size)
        return piece

    def _next_part(self) -> bytes:
        """Return how the next part begins, behind any padding; nothing at the end of the file."""
        rest = iter(partial(self._file.read, _CHUNK), b"")
        pieces = itertools.chain([self._stream.unused_data], rest)
        return next(filter(None, (piece.lstrip(b"\0") for piece in pieces)), b"")


def _new_stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=MOST_MEMORY)


_OPENERS: dict[str, Callable[[BinaryIO], _Source]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file),
    "bz2": bz2.BZ2File,
    "xz": _Xz,
    "": lambda file: file,
}


def _plain(file: BinaryIO) -> _Plain:
    """Return the bytes of a tar archive, however it is compressed, and whatever its name says."""
    head = file.read(max(map(len, _MAGIC)))
    file.seek(0)
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
    return _Plain(_OPENERS[kind](file))


class _Zip(io.FileIO):
    """A zip archive. The library makes an object of every entry before we see one.

    It reads the table of contents at once, all else in pieces of no more than ours. What the
    archive says of its table is not believed: whatever is read as one is counted.
    """

    def __init__(self, path: str, files: int) -> None:
        super().__init__(path)
        self._files = files

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size <= _CHUNK:
            return super().read(size)
        if size > _MOST_TABLE:
            raise BadArchive(f"a table of more than {_MOST_TABLE} bytes is in the archive")
        table = super().read(size)
        if table.count(_ENTRY) > self._files:
            raise BadArchive(_too_many(self._files))
        return table


def _too_many(files: int) -> str:
    return f"more than {files} files come out of the archive"


class Unpacker:
    """Writes below a directory, up to the limits. `check` may stop it by raising."""

    def __init__(self, target: str, limits: Limits, check: Callable[[], None]) -> None:
        self._target, self._check = target, check
        self._limits, self._bytes, self._files = limits, 0, 0
        self._links: dict[str, str] = {}

    def unpack(self, path: str, kind: str, name: str) -> None:
        """Unpack an archive; `name` is for the file in one that holds a single one.

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
        except (RuntimeError, NotImplementedError, ValueError) as error:  # of zip: secret, exotic
            raise BadArchive(f"the archive cannot be unpacked: {error}") from error
        self._make_links()

    def _tar(self, path: str) -> None:
        with (
            open(path, "rb") as file,
            tarfile.open(
                fileobj=(opened := _plain(file)),  # type: ignore[call-overload]  # it is only read
                mode="r|",
            ) as archive,
        ):
            while (member := archive.next()) is not None:
                archive.members.clear()  # the library keeps them all
                opened.refill()
                if member.isdir():
                    self._directory(member.name)
                elif member.isfile():
                    source = archive.extractfile(member)
                    assert source is not None  # noqa: S101  # it is a file
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
                        " a zip archive may store (0) or deflate (8)"
                    )
                with archive.open(member) as source:
                    if stat.S_ISLNK(mode):
                        self._link(
                            member.filename, source.read(_CHUNK).decode(errors="surrogateescape")
                        )
                    else:
                        self._file(member.filename, source, mode or 0o644)

    # ---- writing -----------------------------------------------------------------------------------

    def _place(self, name: str) -> str:
        """Return where a member belongs, and count it. Raises `BadArchive`."""
        inner = posixpath.normpath(name)
        if name.startswith("/") or inner == ".." or inner.startswith("../") or "\0" in name:
            raise BadArchive(f"{name!r} leads out of the archive")
        self._files += 1
        if self._files > self._limits.files:
            raise BadArchive(_too_many(self._limits.files))
        return f"{self._target}/{inner}"

    def _directory(self, name: str) -> None:
        os.makedirs(self._place(name), _MODES, exist_ok=True)

    def _file(self, name: str, source: _Source, mode: int) -> None:
        place = self._place(name)
        os.makedirs(os.path.dirname(place), _MODES, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(place, flags, 0o600), "wb") as file:
            while piece := source.read(_CHUNK):
                self._check()
                self._bytes += len(piece)
                if self._bytes > self._limits.bytes:
                    raise BadArchive(
                        f"more than {self._limits.bytes} bytes come out of the archive"
                    )
                file.write(piece)
            os.fchmod(file.fileno(), mode & _MODES | 0o600)

    def _link(self, name: str, target: str) -> None:
        self._links[self._place(name)] = target

    def _make_links(self) -> None:
        for place, target in self._links.items():
            if not stays_inside(self._target, place, target):
                raise BadArchive(f"a link to {target!r} leads out of the archive")
            os.makedirs(os.path.dirname(place), _MODES, exist_ok=True)
            os.symlink(target, place)


def stays_inside(root: str, place: str, target: str) -> bool:
    """Tell whether a link at a place leads to something below the root, by its words alone."""
    if target.startswith("/"):
        return False
    end = posixpath.normpath(f"{posixpath.dirname(place)}/{target}")
    return end == root or end.startswith(f"{root}/")


def check_links(root: str) -> None:
    """Raise `BadArchive` unless every link in a tree stays inside, and nothing else is odd."""
    for folder, directories, files in os.walk(root):
        for name in (*directories, *files):
            place = f"{folder}/{name}"
            mode = os.lstat(place).st_mode
            if stat.S_ISLNK(mode) and not stays_inside(root, place, os.readlink(place)):
                raise BadArchive(f"a link to {os.readlink(place)!r} leads out of the artifact")
            if not (stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise BadArchive(f"{name!r} is neither a file nor a directory")
