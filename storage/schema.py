"""The file's form: created from `schema.sql`, brought up to date by numbered steps.

`user_version` says which form a file has. A file of a newer form is refused: an older
program must not touch what it does not know. A step runs in one transaction with the
change of `user_version`, so a crash leaves the old form or the new one.
"""

import re
import sqlite3
from importlib import resources
from pathlib import Path

import msgspec

from storage.errors import StorageUnusable
from storage.records.namespace import Namespace

APPLICATION_ID = 0x53545744  # "STWD": what `file` and `steward operator snapshot inspect` look for
VERSION = 11

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
    is damaged.
    """
    try:
        if not path.exists() or path.stat().st_size == 0:
            _make(path, cluster_id, now)
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            _check(connection, path)
            _migrate(connection)
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


def _migrate(connection: sqlite3.Connection) -> None:
    _, version = version_of(connection)
    for target, step in migrations().items():
        if target > version:
            connection.executescript(f"BEGIN; {step}; PRAGMA user_version = {target}; COMMIT")
