"""Mounts of auth methods."""

import sqlite3
from typing import NamedTuple

from storage.errors import StorageUnreadable
from storage.queries.documents import decode_row
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.identity import Mount
from storage.writer import Transaction

_FIND = "SELECT path, CAST(document AS BLOB) AS document FROM mounts WHERE path = :path"
_IS_THERE = "SELECT 1 FROM mounts WHERE path = :path"
_BY_ACCESSOR = (
    "SELECT path, CAST(document AS BLOB) AS document FROM mounts WHERE accessor = :accessor"
)
_ALL = "SELECT path, accessor, CAST(document AS BLOB) AS document FROM mounts ORDER BY path"
_NAME = "SELECT path, accessor FROM mounts WHERE path = :path"
_NAMES = "SELECT path, accessor FROM mounts ORDER BY path"
_IS_ANY = "SELECT 1 FROM mounts LIMIT 1"
_HAS_ACCESSOR = "SELECT 1 FROM mounts WHERE accessor = :accessor"
_PUT = """
    INSERT INTO mounts (path, accessor, document, create_index, modify_index)
    VALUES (:path, :accessor, :document, :index, :index)
    ON CONFLICT (path) DO UPDATE
       SET document = excluded.document, modify_index = excluded.modify_index
"""
_MOVE = """
    UPDATE mounts SET path = :path, document = :document, modify_index = :index
     WHERE accessor = :accessor
"""
_REMOVE = "DELETE FROM mounts WHERE path = :path"


class MountName(NamedTuple):
    """The identity of a mount, readable even if its document is damaged."""

    path: str
    accessor: str


def _from(row: sqlite3.Row) -> Mount:
    return decode_row(row, Mount, "mounts")


def find(db: ReadSnapshot, path: str) -> Mount | None:
    """Return the mount at a path, which ends in a slash; or None. Raises `StorageUnreadable`."""
    row = db.one(_FIND, {"path": path})
    return _from(row) if row else None


def exists(db: ReadSnapshot, path: str) -> bool:
    """Return whether a mount exists at a path, which ends in a slash."""
    return db.one(_IS_THERE, {"path": path}) is not None


def by_accessor(db: ReadSnapshot, accessor: str) -> Mount | None:
    """Return the mount with an accessor, or None. Raises `StorageUnreadable`."""
    row = db.one(_BY_ACCESSOR, {"accessor": accessor})
    return _from(row) if row else None


def find_name(db: ReadSnapshot, path: str) -> MountName | None:
    """Return the identity of the mount at a path, or None. Reads no document."""
    row = db.one(_NAME, {"path": path})
    return MountName(row["path"], row["accessor"]) if row else None


def list_readable(db: ReadSnapshot) -> tuple[list[Mount], list[MountName]]:
    """Return the mounts whose document can be decoded, and the names of all other mounts.

    Both lists are sorted by path.
    """
    mounts, damaged = list[Mount](), list[MountName]()
    for row in db.all(_ALL):
        try:
            mounts.append(_from(row))
        except StorageUnreadable:
            damaged.append(MountName(row["path"], row["accessor"]))
    return mounts, damaged


def names(db: ReadSnapshot) -> list[MountName]:
    """Return the identity of each mount, by path. Reads no document."""
    return [MountName(row["path"], row["accessor"]) for row in db.all(_NAMES)]


def is_any(db: ReadSnapshot) -> bool:
    """Return whether a mount exists. Reads no document."""
    return db.one(_IS_ANY) is not None


def has_accessor(db: ReadSnapshot, accessor: str) -> bool:
    """Return whether a mount with an accessor exists. Reads no document."""
    return db.one(_HAS_ACCESSOR, {"accessor": accessor}) is not None


def put(tx: Transaction, mount: Mount) -> None:
    """Store a mount."""
    tx.execute(
        _PUT,
        {
            "path": mount.path,
            "accessor": mount.accessor,
            "document": encode(mount).decode(),
            "index": tx.index,
        },
    )
    tx.touch("mounts", f"mounts/{mount.path}")


def move(tx: Transaction, mount: Mount) -> None:
    """Store a mount at its new path.

    The configuration stays, because it belongs to the accessor of the mount.
    """
    tx.execute(
        _MOVE,
        {
            "path": mount.path,
            "accessor": mount.accessor,
            "document": encode(mount).decode(),
            "index": tx.index,
        },
    )
    tx.touch("mounts", f"mounts/{mount.path}", f"mounts/{mount.moved_from}")


def remove(tx: Transaction, path: str) -> None:
    """Delete a mount with its configuration."""
    if tx.execute(_REMOVE, {"path": path}):
        tx.touch("mounts", f"mounts/{path}")
