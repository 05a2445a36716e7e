"""The schema: created from `schema.sql`, upgraded by numbered migrations.

`user_version` is the schema version of a file. Newer versions are rejected, because an older
program must not change data that it does not know. All migrations of a file run in one transaction
with the update of `user_version`, so a crash or a full disk leaves the old version. Before the
first migration, the file is copied next to itself, for a rollback to the older program.
"""

import errno
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

import msgspec

from storage.errors import StorageFull, StorageUnusable
from storage.records.namespace import Namespace

APPLICATION_ID = 0x53545744  # "STWD", recognized by `file` and `steward operator snapshot inspect`
VERSION = 57

# `importlib.resources` would import 0.4 MiB of modules
_PACKAGE = Path(__file__).resolve().parent
_KEPT = 3  # copies of older versions; the newest are the useful ones
# Comments and spaces are not compared, because migrations do not change them.
_COMMENT, _WORD = re.compile(r"--.*"), re.compile(r"\w+|\S")
_STEP = re.compile(r"(\d{4})_\w+\.sql")
_FIRST_ROW = """
    INSERT INTO store (id, last_index, cluster_id, created_at)
    VALUES (1, 1, :cluster_id, :now)
"""
_ADD_NAMESPACE = """
    INSERT INTO namespaces (name, document, create_index, modify_index)
    VALUES (:name, :document, 1, 1)
"""
# Its hash is the one that Nomad's clients know.
_DEFAULT = Namespace(
    name="default",
    description="Default shared namespace",
    hash="C7UbjDwBK0dK8wQq7Izg7SJIzaV+lIo2X7wRtzY3pSw=",
)


def schema_text() -> str:
    """Return `schema.sql`, from inside a built package or from the root of a checkout."""
    inside = _PACKAGE / "schema.sql"
    return (inside if inside.is_file() else _PACKAGE.parent / "schema.sql").read_text()


def migrations() -> dict[int, str]:
    """Return the migrations by target version."""
    steps = {}
    for file in (_PACKAGE / "migrations").iterdir():
        if match := _STEP.fullmatch(file.name):
            steps[int(match[1])] = file.read_text()
    return dict(sorted(steps.items()))


def prepare(
    path: Path, *, cluster_id: str, now: int, before_migration: Callable[[], None] = lambda: None
) -> None:
    """Create the database, or migrate it to this version.

    `before_migration` can refuse a migration by raising an error.

    Raises `StorageUnusable` when the file is not a Steward store, has a newer version, is damaged,
    or cannot be written. Raises `StorageFull` when there is no disk space for the migration or for
    the copy of the old version. The file is unchanged then.
    """
    try:
        if not path.exists() or path.stat().st_size == 0:
            _make(path, cluster_id, now)
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            _check(connection, path)
            _migrate(connection, path, before_migration)
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        remedy = _REMEDIES.get(_primary_code(error), _OF_DAMAGE)
        raise StorageUnusable(f"{path} cannot be used as a store: {error}; {remedy}") from error


_OF_DAMAGE = "restore a snapshot, or name another directory with --data-dir"
_OF_NO_ACCESS = (
    "the daemon must be able to write to the file and its directory: check their owner, mode and "
    "attributes (lsattr), and whether the file system is mounted read-only"
)
_REMEDIES = {
    sqlite3.SQLITE_PERM: _OF_NO_ACCESS,
    sqlite3.SQLITE_READONLY: _OF_NO_ACCESS,
    sqlite3.SQLITE_CANTOPEN: _OF_NO_ACCESS,
    sqlite3.SQLITE_BUSY: "stop the program that uses the file, and start again",
    sqlite3.SQLITE_LOCKED: "stop the program that uses the file, and start again",
    sqlite3.SQLITE_FULL: "free disk space in its directory, and start again",
    sqlite3.SQLITE_IOERR: "check the disk and the kernel log, and start again",
}
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def _primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's code of an error, without its extension."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _is_of_space(error: Exception) -> bool:
    """Return whether an error means that the disk is full."""
    if isinstance(error, sqlite3.Error):
        return _primary_code(error) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in _NO_SPACE


def version_of(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the application ID and version of a file."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return application, connection.execute("PRAGMA user_version").fetchone()[0]


def altered_objects(connection: sqlite3.Connection) -> list[str]:
    """Return the names of tables, indexes, triggers and views that differ from `schema.sql`.

    A trigger or view that `schema.sql` does not have would act in every write of the daemon.
    """
    present, expected = _objects(connection), _expected_objects()
    return sorted(name for name, _ in present ^ expected)


@cache
def _expected_objects() -> frozenset[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema_text())
        return _objects(connection)


def _objects(connection: sqlite3.Connection) -> frozenset[tuple[str, str]]:
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
    )
    return frozenset((name, " ".join(_WORD.findall(_COMMENT.sub("", sql)))) for name, sql in rows)


def _make(path: Path, cluster_id: str, now: int) -> None:
    """Create a complete store atomically. After a crash there is no store, and a retry is safe."""
    unfinished = path.with_name(f"{path.name}.new")
    for leftover in path.parent.glob(f"{unfinished.name}*"):
        leftover.unlink()
    unfinished.touch(mode=0o600)
    connection = sqlite3.connect(unfinished, isolation_level=None)
    try:
        _create(connection, cluster_id, now)
    finally:
        connection.close()
    unfinished.replace(path)


def _create(connection: sqlite3.Connection, cluster_id: str, now: int) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(f"BEGIN; {schema_text()}")
    connection.execute(_FIRST_ROW, {"cluster_id": cluster_id, "now": now})
    document = msgspec.json.encode(_DEFAULT).decode()
    connection.execute(_ADD_NAMESPACE, {"name": _DEFAULT.name, "document": document})
    connection.execute("INSERT INTO table_indexes (name, last_index) VALUES ('namespaces', 1)")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    application, version = version_of(connection)
    if application != APPLICATION_ID:
        raise StorageUnusable(
            f"{path} is an SQLite file, but not a store of Steward: name another "
            "directory with --data-dir"
        )
    if version > VERSION:
        raise StorageUnusable(
            f"{path} has version {version}, but this program supports versions up to {VERSION}: "
            "use the program that wrote it, or a newer one"
        )


def _migrate(
    connection: sqlite3.Connection, path: Path, before_migration: Callable[[], None]
) -> None:
    _, version = version_of(connection)
    if version == VERSION:
        return
    before_migration()
    _copy_previous(connection, path, version)
    steps = ";\n".join(step for target, step in migrations().items() if target > version)
    try:
        connection.executescript(f"BEGIN; {steps}; PRAGMA user_version = {VERSION}; COMMIT")
    except sqlite3.OperationalError as error:
        if not _is_of_space(error):
            raise
        connection.rollback()
        raise StorageFull(
            f"{_versions(path, version)}, and its migration does not fit on the disk: {error}; the "
            f"store is unchanged; {_freeing(path)}"
        ) from error


def _versions(path: Path, version: int) -> str:
    return f"{path} has version {version}, but this program works with version {VERSION}"


def _freeing(path: Path) -> str:
    """Return the remedy for a full disk: the copy, the log and the growth of the store need it."""
    needed = 2 * path.stat().st_size // 1_000_000 + 1
    return f"free {needed} MB of disk space in {path.parent}, and start again"


def _copy_previous(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Copy the file next to itself, under a name with its version. Keep only the newest copies.

    Raises `StorageFull`, `StorageUnusable`.
    """
    copy = path.with_name(f"{path.name}.version-{version:04}")
    unfinished = path.with_name(f"{copy.name}.new")
    unfinished.unlink(missing_ok=True)
    try:
        unfinished.touch(mode=0o600)
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as target:
            connection.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
        fsync_path(unfinished)
        unfinished.replace(copy)
        fsync_path(path.parent)
    except (OSError, sqlite3.OperationalError) as error:
        unfinished.unlink(missing_ok=True)
        prefix = (
            f"{_versions(path, version)}, and the store cannot be copied before its migration: "
            f"{error}"
        )
        if not _is_of_space(error):
            raise StorageUnusable(f"{prefix}; {_OF_NO_ACCESS}") from error
        raise StorageFull(f"{prefix}; {_freeing(path)}") from error
    for older in sorted(path.parent.glob(f"{path.name}.version-????"))[:-_KEPT]:
        older.unlink()


def fsync_path(path: Path) -> None:
    """Sync a file, or the entries of a directory, to disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
