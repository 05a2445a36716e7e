"""Snapshots: the whole file at one moment, as another file. A daemon may be at work meanwhile.

A snapshot is an SQLite file in itself, complete without a write-ahead log, and is only called
one after SQLite has checked every page of it.
"""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from storage.errors import Refused, StorageUnusable
from storage.mark import forget
from storage.schema import APPLICATION_ID, VERSION, sync, version_of
from storage.store import FILE_NAME, lock

_UNFINISHED = ".unfinished"
_PAGES_AT_ONCE = 1000  # then a waiting writer gets its turn


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a snapshot: `index` is that of the last write, `size` in bytes."""

    version: int
    cluster_id: str
    index: int
    jobs: int
    allocations: int
    size: int


def save(directory: Path, target: Path) -> Summary:
    """Write a snapshot of the store in `directory` to the new file `target`.

    Raises `Refused` when the file exists, `StorageUnusable` when there is no sound store.
    """
    source = directory / FILE_NAME
    if not source.exists():
        raise StorageUnusable(f"there is no store in {directory}: name its directory")
    return _copy(source, target)


def unfinished(directory: Path) -> Path:
    """Return where files of a directory are made that are not whole yet; nobody else looks there."""
    place = directory / _UNFINISHED
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def discard_unfinished(directory: Path) -> None:
    """Remove what was being made in a directory when a crash came."""
    shutil.rmtree(directory / _UNFINISHED, ignore_errors=True)


def inspect(file: Path) -> Summary:
    """Return what is in a snapshot. Raises `StorageUnusable` when it is none, or is damaged."""
    if not file.is_file():
        raise StorageUnusable(f"there is no file {file}")
    try:
        with closing(sqlite3.connect(f"file:{file.absolute()}?mode=ro", uri=True)) as connection:
            return _checked(connection, file)
    except sqlite3.DatabaseError as error:
        raise StorageUnusable(f"{file} is not a snapshot of Steward: {error}") from error


def restore(file: Path, directory: Path) -> Summary:
    """Put a snapshot in the place of the store in `directory`; the old one is kept beside it.

    Raises `StorageLocked` when a daemon works there, `StorageUnusable` when the snapshot is none.
    """
    summary = inspect(file)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock(directory):
        discard_unfinished(directory)
        present, fresh = directory / FILE_NAME, unfinished(directory) / FILE_NAME
        _copy(file, fresh)
        if present.exists():
            _fold_log(present)
            # A second name, not a move: at no moment is there no store, which a start would make.
            kept = directory / f"{FILE_NAME}.before-restore"
            kept.unlink(missing_ok=True)
            kept.hardlink_to(present)
        forget(directory)
        fresh.replace(present)
        sync(directory)
    return summary


def _copy(source: Path, target: Path) -> Summary:
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise Refused(f"{target} exists already: name another file") from None
    except OSError as error:
        raise Refused(f"cannot write {target}: {error.strerror}") from error
    try:
        with (
            closing(sqlite3.connect(f"file:{source.absolute()}?mode=ro", uri=True)) as reading,
            closing(sqlite3.connect(target, isolation_level=None)) as writing,
        ):
            reading.backup(writing, pages=_PAGES_AT_ONCE)
            writing.execute("PRAGMA journal_mode = DELETE")
            summary = _checked(writing, target)
        sync(target)
    except sqlite3.DatabaseError as error:
        target.unlink(missing_ok=True)
        raise StorageUnusable(f"no sound snapshot of {source} can be made: {error}") from error
    except StorageUnusable:
        target.unlink(missing_ok=True)
        raise
    return msgspec.structs.replace(summary, size=target.stat().st_size)


def _checked(connection: sqlite3.Connection, file: Path) -> Summary:
    application, version = version_of(connection)
    if application != APPLICATION_ID:
        raise StorageUnusable(f"{file} is an SQLite file, but not a snapshot of Steward")
    if version > VERSION:
        raise StorageUnusable(f"{file} has version {version}, this program knows {VERSION}")
    if (fault := connection.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
        raise StorageUnusable(f"{file} is damaged: {fault}")
    index, cluster_id = connection.execute("SELECT last_index, cluster_id FROM store").fetchone()
    return Summary(
        version=version,
        cluster_id=cluster_id,
        index=index,
        jobs=connection.execute("SELECT count(*) FROM jobs").fetchone()[0],
        allocations=connection.execute("SELECT count(*) FROM allocations").fetchone()[0],
        size=file.stat().st_size,
    )


def _fold_log(file: Path) -> None:
    """Bring a store's write-ahead log into the file, so that the file alone is the store."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
