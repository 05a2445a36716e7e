"""Namespaces: they keep the jobs of different people apart."""

import sqlite3

import msgspec

from storage.queries import events
from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.namespace import Namespace
from storage.writer import Transaction

_FIND = "SELECT document, create_index, modify_index FROM namespaces WHERE name = :name"
_EVERY = """
    SELECT document, create_index, modify_index FROM namespaces
     WHERE name >= :first AND name < :end
  ORDER BY name
"""


def _from(row: sqlite3.Row) -> Namespace:
    return msgspec.structs.replace(
        msgspec.json.decode(row["document"], type=Namespace),
        create_index=row["create_index"],
        modify_index=row["modify_index"],
    )


def exists(db: Snapshot, name: str) -> bool:
    """Tell whether there is a namespace of that name."""
    return db.one(_FIND, {"name": name}) is not None


def find(db: Snapshot, name: str) -> Namespace | None:
    """Return a namespace."""
    row = db.one(_FIND, {"name": name})
    return _from(row) if row else None


def every(db: Snapshot, prefix: str = "") -> list[Namespace]:
    """Return the namespaces whose name begins with `prefix`, by name."""
    rows = db.all(_EVERY, {"first": prefix, "end": prefix + "\U0010ffff"})
    return [_from(row) for row in rows]


# ---- writing ------------------------------------------------------------------------------------

_PUT = """
    INSERT INTO namespaces (name, document, create_index, modify_index)
    VALUES (:name, :document, :index, :index)
    ON CONFLICT (name) DO UPDATE
       SET document = excluded.document, modify_index = excluded.modify_index
"""
_REMOVE = "DELETE FROM namespaces WHERE name = :name"


def put(tx: Transaction, namespace: Namespace) -> None:
    """Store a namespace, new or changed."""
    values = {"name": namespace.name, "document": encode(namespace).decode(), "index": tx.index}
    tx.execute(_PUT, values)
    _changed(tx, namespace.name, "NamespaceUpserted")


def remove(tx: Transaction, name: str) -> None:
    """Forget a namespace. What is dead in it stays where it is, until it is forgotten itself."""
    tx.execute(_REMOVE, {"name": name})
    _changed(tx, name, "NamespaceDeleted")


def _changed(tx: Transaction, name: str, kind: str) -> None:
    tx.touch("namespaces", f"namespaces/{name}")
    payload = encode({"Namespace": {"Name": name}}).decode()
    events.add(tx, "Namespace", kind, namespace=name, key=name, payload=payload)


_HAS_LIVE_JOBS = """
    SELECT 1 FROM jobs WHERE namespace = :name AND status <> 'dead' LIMIT 1
"""
_HAS_VARIABLES = "SELECT 1 FROM variables WHERE namespace = :name LIMIT 1"
_HAS_LIVE_ALLOCATIONS = """
    SELECT 1 FROM allocations
     WHERE namespace = :name AND desired_status = 'run'
       AND client_status IN ('pending', 'running', 'unknown')
     LIMIT 1
"""


def in_use(db: Snapshot, name: str) -> list[str]:
    """Return what keeps a namespace from being removed, in the words of the peer's clients."""
    reasons = {
        "non-terminal jobs": _HAS_LIVE_JOBS,
        "non-terminal allocations": _HAS_LIVE_ALLOCATIONS,
        "variables": _HAS_VARIABLES,
    }
    return [what for what, sql in reasons.items() if db.one(sql, {"name": name})]
