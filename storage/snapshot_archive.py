"""Snapshot archives for transfer, with checksums in the form that clients verify.

An archive holds the metadata, the snapshot, and the checksums of both, in this order. Content
with a missing or wrong checksum is not used.
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
from storage.snapshot import SnapshotSummary

_META, _STATE, _SUMS = "meta.json", "state.bin", "SHA256SUMS"
_PIECE = 1024 * 1024
_MAGIC = b"\x1f\x8b"
_QUICK = 1  # compression level: the store compresses well, and the disk is slower


class RaftServerList(Record, frozen=True, kw_only=True):
    """The Raft servers named in a snapshot. Clients expect the field; Steward does not use it."""

    servers: tuple[()] = ()


class SnapshotMeta(Record, frozen=True, kw_only=True):
    """The metadata of a snapshot in the form of Nomad's clients."""

    version: int = 1
    id: str
    index: int
    term: int = 1
    peers: str | None = None
    configuration: RaftServerList = RaftServerList()
    configuration_index: int = 0
    size: int


def pack(snapshot: Path, summary: SnapshotSummary, target: IO[bytes]) -> None:
    """Write a snapshot as an archive."""
    meta = msgspec.json.encode(
        SnapshotMeta(
            id=f"1-{summary.index}-{summary.cluster_id}", index=summary.index, size=summary.size
        )
    )
    with snapshot.open("rb") as state:
        sums = f"{hashlib.sha256(meta).hexdigest()}  {_META}\n{_checksum(state)}  {_STATE}\n"
        state.seek(0)
        with tarfile.open(fileobj=target, mode="w:gz", compresslevel=_QUICK) as archive:
            _add(archive, _META, io.BytesIO(meta), len(meta))
            _add(archive, _STATE, state, summary.size)
            _add(archive, _SUMS, io.BytesIO(sums.encode()), len(sums))


def _add(archive: tarfile.TarFile, name: str, source: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    archive.addfile(entry, source)


def _checksum(file: IO[bytes]) -> str:
    # Opened for reading.
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


@contextmanager
def unpacked(file: Path) -> Iterator[Path]:
    """Yield the snapshot in an archive, or the file itself if it is not an archive.

    Raises `StorageUnusable` when the archive is damaged. Errors of the caller about the snapshot
    name the archive.
    """
    if not file.is_file() or not _is_archive(file):
        yield file
        return
    with TemporaryDirectory(prefix=".unpacked-", dir=file.absolute().parent) as directory:
        state = Path(directory) / _STATE
        try:
            checksum = _extract(file, state)
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise StorageUnusable(f"{file} is a damaged archive: {error}") from error
        if checksum is None:
            raise StorageUnusable(f"{file} is not a snapshot archive, or its checksums are wrong")
        try:
            yield state
        except StorageUnusable as error:
            raise StorageUnusable(str(error).replace(str(state), str(file))) from error


def _is_archive(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(_MAGIC)) == _MAGIC


def _extract(file: Path, target: Path) -> str | None:
    """Extract the snapshot from an archive.

    Return the snapshot's checksum, or None if the archive does not contain the same checksum.
    """
    checksum = computed = ""
    with tarfile.open(file, "r:gz") as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            if content is not None and entry.name == _STATE:
                computed = _write(content, target)
            elif content is not None and entry.name == _SUMS:
                checksum = content.read(_PIECE).decode(errors="replace")
    return computed if computed and f"{computed}  {_STATE}\n" in checksum else None


def _write(content: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("xb") as file:
        while chunk := content.read(_PIECE):
            file.write(chunk)
            digest.update(chunk)
    return digest.hexdigest()
