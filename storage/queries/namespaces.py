"""Namespaces, which separate the jobs of different teams."""

import sqlite3
from collections.abc import Iterator

import msgspec

from storage.queries import events
from storage.queries.documents import decode_row, readable
from storage.queries.pages import PageRequest, by_name
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.flow import SLOTS_TABLE, slots_topic
from storage.records.namespace import Namespace
from storage.writer import Transaction

_COLUMNS = "SELECT name, document, create_index, modify_index FROM namespaces"
_FIND = f"{_COLUMNS} WHERE name = :name"
_EXISTS = "SELECT 1 FROM namespaces WHERE name = :name"
_EVERY = """
    SELECT name, document, create_index, modify_index FROM namespaces
     WHERE name >= :first AND name < :end
  ORDER BY name
"""


def _from(row: sqlite3.Row) -> Namespace:
    return msgspec.structs.replace(
        decode_row(row, Namespace, "namespaces"),
        create_index=row["create_index"],
        modify_index=row["modify_index"],
    )


def exists(db: ReadSnapshot, name: str) -> bool:
    """Return whether a namespace exists."""
    return db.one(_EXISTS, {"name": name}) is not None


def find(db: ReadSnapshot, name: str) -> Namespace | None:
    """Return a namespace, or None."""
    row = db.one(_FIND, {"name": name})
    return _from(row) if row else None


def list_all(db: ReadSnapshot, prefix: str = "") -> list[Namespace]:
    """Return the namespaces with a name prefix, by name."""
    rows = db.all(_EVERY, {"first": prefix, "end": prefix + "\U0010ffff"})
    return list(readable(db, rows, _from))


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[Namespace]:
    """Yield namespaces by name."""
    return readable(db, by_name(db, _COLUMNS, "name", page_request), _from)


# --- changes ---

_PUT = """
    INSERT INTO namespaces (name, document, create_index, modify_index)
    VALUES (:name, :document, :index, :index)
    ON CONFLICT (name) DO UPDATE
       SET document = excluded.document, modify_index = excluded.modify_index
"""
_REMOVE = "DELETE FROM namespaces WHERE name = :name"
_QUEUES = "SELECT name FROM queues WHERE namespace = :name"
_REMOVE_FREEZES = "DELETE FROM freezes WHERE namespace = :name"
_REMOVE_QUEUES = "DELETE FROM queues WHERE namespace = :name"


def put(tx: Transaction, namespace: Namespace) -> None:
    """Store a namespace."""
    values = {"name": namespace.name, "document": encode(namespace).decode(), "index": tx.index}
    tx.execute(_PUT, values)
    _changed(tx, namespace.name, "NamespaceUpserted")


def remove(tx: Transaction, name: str) -> None:
    """Delete a namespace. Its dead objects stay until their own garbage collection.

    The slot limits of its queues are deleted with the namespace.
    """
    tx.execute(_REMOVE, {"name": name})
    tx.execute(_REMOVE_FREEZES, {"name": name})
    if queues := tx.all(_QUEUES, {"name": name}):
        tx.execute(_REMOVE_QUEUES, {"name": name})
        tx.touch(SLOTS_TABLE, *(slots_topic(name, row["name"]) for row in queues))
    _changed(tx, name, "NamespaceDeleted")


def _changed(tx: Transaction, name: str, kind: str) -> None:
    tx.touch("namespaces", f"namespaces/{name}")
    payload = encode({"Namespace": {"Name": name}}).decode()
    events.add(tx, "Namespace", kind, namespace=name, key=name, payload=payload)


_HAS_LIVE_JOBS = """
    SELECT 1 FROM jobs WHERE namespace = :name AND status <> 'dead' LIMIT 1
"""
_HAS_VARIABLES = "SELECT 1 FROM variables WHERE namespace = :name LIMIT 1"
_HAS_QUEUED_RUNS = """
    SELECT 1 FROM queue_entries WHERE namespace = :name
     UNION ALL
    SELECT 1 FROM step_slots WHERE namespace = :name
     LIMIT 1
"""
_HAS_CALENDARS = "SELECT 1 FROM calendars WHERE namespace = :name LIMIT 1"
_HAS_LIVE_ALLOCATIONS = """
    SELECT 1 FROM allocations
     WHERE namespace = :name AND desired_status = 'run'
       AND client_status >= 'pending'
     LIMIT 1
"""


def in_use(db: ReadSnapshot, name: str) -> list[str]:
    """Return the kinds of objects that prevent the deletion of a namespace, in Nomad's wording."""
    reasons = {
        "non-terminal jobs": _HAS_LIVE_JOBS,
        "non-terminal allocations": _HAS_LIVE_ALLOCATIONS,
        "variables": _HAS_VARIABLES,
        "calendars": _HAS_CALENDARS,
        "queues with runs": _HAS_QUEUED_RUNS,
    }
    return [kind for kind, sql in reasons.items() if db.one(sql, {"name": name})]
