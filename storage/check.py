"""Check the integrity of a store and its invariants."""

import sqlite3
from contextlib import closing
from pathlib import Path

from storage.errors import StorageUnusable
from storage.queries import invariants
from storage.read_pool import ReadSnapshot, connect
from storage.schema import APPLICATION_ID, VERSION, altered_objects, version_of
from storage.store import FILE_NAME


def check(directory: Path) -> list[str]:
    """Return a description of each error of the store in `directory`.

    A daemon may be using the store. Raises `StorageUnusable` if the directory contains no store of
    this schema version.
    """
    path = directory / FILE_NAME
    if not path.exists():
        raise StorageUnusable(
            f"there is no store in {directory}: name the data directory with --data-dir"
        )
    try:
        with closing(connect(path, read_only=True)) as connection:
            return _faults(connection, path)
    except sqlite3.DatabaseError as error:
        raise StorageUnusable(f"{path} cannot be read: {error}") from error


def _faults(connection: sqlite3.Connection, path: Path) -> list[str]:
    if version_of(connection) != (APPLICATION_ID, VERSION):
        raise StorageUnusable(f"{path} is not a store of version {VERSION}")
    connection.execute("BEGIN")
    damage = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
    if damage:  # further checks of a damaged file are not reliable
        return [f"the file is damaged: {row}" for row in damage]
    altered = [
        f"the schema differs from that of version {VERSION}: {name}"
        for name in altered_objects(connection)
    ]
    try:
        return [*altered, *_broken_rules(connection)]
    except sqlite3.OperationalError:
        if altered:  # a rule may need a table that is missing
            return altered
        raise


def _broken_rules(connection: sqlite3.Connection) -> list[str]:
    dangling = [
        f"referenced rows exist: violated by row {row[1]} of {row[0]}, which refers to {row[2]}"
        for row in connection.execute("PRAGMA foreign_key_check")
    ]
    return [*dangling, *invariants.find_violations(ReadSnapshot(connection))]
