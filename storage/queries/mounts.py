"""Mounts: where login methods are."""

import sqlite3

import msgspec

from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.identity import Mount
from storage.writer import Transaction

_FIND = "SELECT document FROM mounts WHERE path = :path"
_IS_THERE = "SELECT 1 FROM mounts WHERE path = :path"
_BY_ACCESSOR = "SELECT document FROM mounts WHERE accessor = :accessor"
_ALL = "SELECT document FROM mounts ORDER BY path"
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


def _from(row: sqlite3.Row) -> Mount:
    return msgspec.json.decode(row["document"], type=Mount)


def find(db: Snapshot, path: str) -> Mount | None:
    """Return what is mounted at a path, which ends in a slash."""
    row = db.one(_FIND, {"path": path})
    return _from(row) if row else None


def is_there(db: Snapshot, path: str) -> bool:
    """Tell whether something is mounted at a path, which ends in a slash."""
    return db.one(_IS_THERE, {"path": path}) is not None


def by_accessor(db: Snapshot, accessor: str) -> Mount | None:
    """Return the mount with an accessor."""
    row = db.one(_BY_ACCESSOR, {"accessor": accessor})
    return _from(row) if row else None


def every(db: Snapshot) -> list[Mount]:
    """Return all mounts, by path."""
    return [_from(row) for row in db.all(_ALL)]


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
    """Store a mount at its new path; everything set up for it belongs to its accessor."""
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
    """Remove a mount with everything that was set up for it."""
    if tx.execute(_REMOVE, {"path": path}):
        tx.touch("mounts", f"mounts/{path}")
