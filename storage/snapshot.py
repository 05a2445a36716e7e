"""Snapshots: consistent copies of the whole database, even while a daemon is running.

A snapshot is a SQLite file without a write-ahead log. It gets its final name after SQLite has
checked all its pages.
"""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from storage.errors import Refused, StorageFull, StorageUnusable, reporting_full_disk
from storage.read_pool import path_of_uri
from storage.schema import APPLICATION_ID, VERSION, altered_objects, fsync_path, version_of
from storage.store import FILE_NAME, lock
from storage.wal_watermark import delete_watermark

_UNFINISHED = ".unfinished"
_PAGES_AT_ONCE = 1000  # then a waiting writer can proceed


class SnapshotSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A description of a snapshot: `index` is the index of the last write, `size` is in bytes."""

    version: int
    cluster_id: str
    index: int
    jobs: int
    allocations: int
    size: int


def save(directory: Path, target: Path) -> SnapshotSummary:
    """Save a snapshot of the store in `directory` to the new file `target`.

    Raises `Refused` when the file exists, `StorageUnusable` when there is no intact store, and
    `StorageFull`.
    """
    source = directory / FILE_NAME
    if not source.exists():
        raise StorageUnusable(
            f"there is no store in {directory}: name the data directory with --data-dir"
        )
    return _copy(source, target)


def partial_files(directory: Path) -> Path:
    """Return the directory for incomplete files. No other code reads this directory."""
    unfinished_dir = directory / _UNFINISHED
    unfinished_dir.mkdir(mode=0o700, exist_ok=True)
    return unfinished_dir


def delete_partial(directory: Path) -> None:
    """Delete partial files that a crash has left."""
    shutil.rmtree(directory / _UNFINISHED, ignore_errors=True)


def inspect(file: Path) -> SnapshotSummary:
    """Return the description of a snapshot.

    Raises `StorageUnusable` if the file is damaged or is not a snapshot.
    """
    if not file.is_file():
        raise StorageUnusable(f"there is no file {file}")
    try:
        with closing(sqlite3.connect(f"file:{path_of_uri(file)}?mode=ro", uri=True)) as connection:
            return _checked(connection, file)
    except sqlite3.DatabaseError as error:
        raise StorageUnusable(f"{file} is not a snapshot of Steward: {error}") from error


def restore(file: Path, directory: Path) -> SnapshotSummary:
    """Replace the store in `directory` by a snapshot. Keep the previous store next to it.

    Raises `StorageLocked` when a daemon is running, `StorageUnusable` for an invalid snapshot.
    """
    summary = inspect(file)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock(directory):
        delete_partial(directory)
        present, fresh = directory / FILE_NAME, partial_files(directory) / FILE_NAME
        _copy(file, fresh)
        if present.exists():
            _fold_log(present)
            # A hard link instead of a move: a store exists at all times. Otherwise a start could
            # create one.
            backup = directory / f"{FILE_NAME}.before-restore"
            backup.unlink(missing_ok=True)
            backup.hardlink_to(present)
        delete_watermark(directory)
        fresh.replace(present)
        fsync_path(directory)
    return summary


def _copy(source: Path, target: Path) -> SnapshotSummary:
    try:
        with reporting_full_disk("the snapshot"):
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise Refused(f"{target} already exists: name another file") from None
    except OSError as error:
        raise Refused(f"cannot write {target}: {error.strerror}") from error
    try:
        with (
            reporting_full_disk("the snapshot"),
            closing(sqlite3.connect(f"file:{path_of_uri(source)}?mode=ro", uri=True)) as reading,
            closing(sqlite3.connect(target, isolation_level=None)) as writing,
        ):
            reading.backup(writing, pages=_PAGES_AT_ONCE)
            writing.execute("PRAGMA journal_mode = DELETE")
            summary = _checked(writing, target)
            fsync_path(target)
    except sqlite3.DatabaseError as error:
        target.unlink(missing_ok=True)
        raise StorageUnusable(f"cannot make an intact snapshot of {source}: {error}") from error
    except (StorageFull, StorageUnusable):
        target.unlink(missing_ok=True)
        raise
    return msgspec.structs.replace(summary, size=target.stat().st_size)


def _checked(connection: sqlite3.Connection, file: Path) -> SnapshotSummary:
    application, version = version_of(connection)
    if application != APPLICATION_ID:
        raise StorageUnusable(f"{file} is an SQLite file, but not a snapshot of Steward")
    if version > VERSION:
        raise StorageUnusable(
            f"{file} has version {version}, but this program supports version {VERSION}"
        )
    if (fault := connection.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
        raise StorageUnusable(f"{file} is damaged: {fault}")
    if version == VERSION and (altered := altered_objects(connection)):
        raise StorageUnusable(f"the schema of {file} differs from version {VERSION}: {altered[0]}")
    row = connection.execute("SELECT last_index, cluster_id FROM store").fetchone()
    if row is None:
        raise StorageUnusable(f"{file} is incomplete: its table store is empty")
    index, cluster_id = row
    return SnapshotSummary(
        version=version,
        cluster_id=cluster_id,
        index=index,
        jobs=connection.execute("SELECT count(*) FROM jobs").fetchone()[0],
        allocations=connection.execute("SELECT count(*) FROM allocations").fetchone()[0],
        size=file.stat().st_size,
    )


def _fold_log(file: Path) -> None:
    """Checkpoint the write-ahead log of a store, so that the database file alone is complete."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
