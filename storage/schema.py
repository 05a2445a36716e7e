"""The file's form: created from `schema.sql`, brought up to date by numbered steps.

`user_version` says which form a file has. A file of a newer form is refused: an older
program must not touch what it does not know. A step runs in one transaction with the
change of `user_version`, so a crash leaves the old form or the new one. Before the first
step the file as it was is copied beside it: the way back to the older program.
"""

import os
import re
import sqlite3
from contextlib import closing
from importlib import resources
from pathlib import Path

import msgspec

from storage.errors import StorageFull, StorageUnusable
from storage.records.namespace import Namespace

APPLICATION_ID = 0x53545744  # "STWD": what `file` and `steward operator snapshot inspect` look for
VERSION = 18

_KEPT = 3  # copies of older forms; the newest are those that one may want back
_STEP = re.compile(r"(\d{4})_\w+\.sql")
_FIRST_ROW = """
    INSERT INTO store (id, last_index, cluster_id, created_at)
    VALUES (1, 1, :cluster_id, :now)
"""
_ADD_NAMESPACE = """
    INSERT INTO namespaces (name, document, create_index, modify_index)
    VALUES (:name, :document, 1, 1)
"""
# Its hash is the one that the peer's clients know.
_DEFAULT = Namespace(
    name="default",
    description="Default shared namespace",
    hash="C7UbjDwBK0dK8wQq7Izg7SJIzaV+lIo2X7wRtzY3pSw=",
)


def schema_text() -> str:
    """Return `schema.sql`: a built package carries it inside, a checkout has it at its top."""
    package = resources.files("storage")
    inside = package.joinpath("schema.sql")
    return (inside if inside.is_file() else package.joinpath("../schema.sql")).read_text()


def migrations() -> dict[int, str]:
    """Return the steps by the version that each leads to."""
    steps = {}
    for file in resources.files("storage").joinpath("migrations").iterdir():
        if match := _STEP.fullmatch(file.name):
            steps[int(match[1])] = file.read_text()
    return dict(sorted(steps.items()))


def prepare(path: Path, *, cluster_id: str, now: int) -> None:
    """Create the file, or bring it to this version.

    Raises `StorageUnusable` when it is not a store of ours, is newer than this program, or
    is damaged, and `StorageFull` when there is no room for a copy of the older form; then the
    file is as it was.
    """
    try:
        if not path.exists() or path.stat().st_size == 0:
            _make(path, cluster_id, now)
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            _check(connection, path)
            _migrate(connection, path)
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise StorageUnusable(
            f"{path} cannot be used as a store: {error}; restore a snapshot, or name another "
            "directory with --data-dir"
        ) from error


def version_of(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return a file's application id and version."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return application, connection.execute("PRAGMA user_version").fetchone()[0]


def _make(path: Path, cluster_id: str, now: int) -> None:
    """Put a whole store in place at once: a kill in between leaves none, which is no harm."""
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
        raise StorageUnusable(f"{path} is an SQLite file, but not a store of Steward")
    if version > VERSION:
        raise StorageUnusable(
            f"{path} has version {version}, this program knows versions up to {VERSION}: "
            "use the program that wrote it, or a newer one"
        )


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    _, version = version_of(connection)
    if version < VERSION:
        _keep(connection, path, version)
    for target, step in migrations().items():
        if target > version:
            connection.executescript(f"BEGIN; {step}; PRAGMA user_version = {target}; COMMIT")


def _keep(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Put a whole copy of the file beside it, named by its version; the newest few stay.

    Raises `StorageFull`.
    """
    copy = path.with_name(f"{path.name}.version-{version:04}")
    unfinished = path.with_name(f"{copy.name}.new")
    unfinished.unlink(missing_ok=True)
    try:
        unfinished.touch(mode=0o600)
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as target:
            connection.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
        sync(unfinished)
        unfinished.replace(copy)
        sync(path.parent)
    except (OSError, sqlite3.OperationalError) as error:
        unfinished.unlink(missing_ok=True)
        raise StorageFull(
            f"{path} has version {version}, this program works with version {VERSION}, and the copy "
            f"that is kept before it is changed cannot be made: {error}; see that there is room for "
            f"{path.stat().st_size // 1_000_000 + 1} MB in {path.parent}, and start again"
        ) from error
    for older in sorted(path.parent.glob(f"{path.name}.version-????"))[:-_KEPT]:
        older.unlink()


def sync(path: Path) -> None:
    """Return when a file, or which files a directory has, is on disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
