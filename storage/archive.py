"""Snapshots as they go over the wire: packed with their sums, in the form that clients check.

The archive holds what the snapshot is about, the snapshot itself, and the sums of both, in this
order. Reading it believes nothing that the sums do not confirm.
"""

import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import msgspec

from storage.errors import StorageUnusable
from storage.records.base import Record
from storage.snapshot import Summary

_META, _STATE, _SUMS = "meta.json", "state.bin", "SHA256SUMS"
_PIECE = 1024 * 1024
_MAGIC = b"\x1f\x8b"
_QUICK = 1  # the level of compression: the store is text, the disk is slower


class Servers(Record, frozen=True, kw_only=True):
    """The servers that had part in a snapshot: one needs none."""

    servers: tuple[()] = ()


class Meta(Record, frozen=True, kw_only=True):
    """What a snapshot is about, as the peer's clients read it."""

    version: int = 1
    id: str
    index: int
    term: int = 1
    peers: str | None = None
    configuration: Servers = Servers()
    configuration_index: int = 0
    size: int


def pack(snapshot: Path, summary: Summary, target: IO[bytes]) -> None:
    """Write a snapshot as an archive."""
    meta = msgspec.json.encode(
        Meta(id=f"1-{summary.index}-{summary.cluster_id}", index=summary.index, size=summary.size)
    )
    with snapshot.open("rb") as state:
        sums = f"{hashlib.sha256(meta).hexdigest()}  {_META}\n{_sum(state)}  {_STATE}\n"
        state.seek(0)
        with tarfile.open(fileobj=target, mode="w:gz", compresslevel=_QUICK) as archive:
            _add(archive, _META, io.BytesIO(meta), len(meta))
            _add(archive, _STATE, state, summary.size)
            _add(archive, _SUMS, io.BytesIO(sums.encode()), len(sums))


def _add(archive: tarfile.TarFile, name: str, source: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    archive.addfile(entry, source)


def _sum(file: IO[bytes]) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it is readable


@contextmanager
def unpacked(file: Path) -> Iterator[Path]:
    """Yield the snapshot in an archive, or the file itself when it is no archive.

    Raises `StorageUnusable` when the archive is damaged.
    """
    if not file.is_file() or not _is_archive(file):
        yield file
        return
    with TemporaryDirectory(prefix=".unpacked-", dir=file.absolute().parent) as directory:
        state = Path(directory) / _STATE
        try:
            found = _extract(file, state)
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise StorageUnusable(f"{file} is a damaged archive: {error}") from error
        if found is None:
            raise StorageUnusable(f"{file} is no archive of a snapshot, or its sums are wrong")
        yield state


def _is_archive(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(_MAGIC)) == _MAGIC


def _extract(file: Path, target: Path) -> str | None:
    """Write the snapshot of an archive to a file; return its sum if that is as the archive says."""
    said = computed = ""
    with tarfile.open(file, "r:gz") as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            if content is not None and entry.name == _STATE:
                computed = _write(content, target)
            elif content is not None and entry.name == _SUMS:
                said = content.read(_PIECE).decode(errors="replace")
    return computed if computed and f"{computed}  {_STATE}\n" in said else None


def _write(content: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("xb") as file:
        while piece := content.read(_PIECE):
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()
