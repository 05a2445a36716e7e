"""Nodes, and their metadata set through the API."""

import sqlite3
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from storage.errors import StorageUnreadable
from storage.queries import events, settings
from storage.queries.documents import decode_document, decode_row, readable
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.node import Node, computed_class
from storage.writer import Transaction

_PUT = """
    INSERT INTO nodes (id, document, create_index, modify_index)
    VALUES (:id, :document, :create_index, :modify_index)
    ON CONFLICT (id) DO UPDATE
       SET document = excluded.document, modify_index = excluded.modify_index
"""
_FIND = "SELECT id, CAST(document AS BLOB) AS document FROM nodes WHERE id = :id"
_INDEX = "SELECT modify_index FROM nodes WHERE id = :id"
_ALL = "SELECT id, CAST(document AS BLOB) AS document FROM nodes ORDER BY id"
_LAST_EVENT = """
    SELECT CAST(payload AS BLOB) AS payload
      FROM events
     WHERE topic = 'Node' AND key = :id
  ORDER BY number DESC
     LIMIT 1
"""


class UnreadableNode(NamedTuple):
    """The ID of a node whose row cannot be decoded, and the reason.

    `last` is the node as its newest stored event shows it; None if there is no such event.
    """

    id: str
    reason: str
    last: Node | None


class _Told(msgspec.Struct, rename="pascal"):
    """The part of a node event's payload that contains the node."""

    node: Node


def put(tx: Transaction, node: Node, kind: str) -> Node:
    """Store a node; `kind` names the event, such as `NodeRegistration`."""
    stored = msgspec.structs.replace(
        node, create_index=node.create_index or tx.index, modify_index=tx.index
    )
    document = encode(stored).decode()
    tx.execute(
        _PUT,
        {
            "id": stored.id,
            "document": document,
            "create_index": stored.create_index,
            "modify_index": stored.modify_index,
        },
    )
    tx.touch("nodes", f"nodes/{stored.id}")
    events.add(tx, "Node", kind, key=stored.id, payload=f'{{"Node":{document}}}')
    return stored


def remove(tx: Transaction, node: Node) -> None:
    """Delete a node; its allocations stay."""
    tx.execute("DELETE FROM nodes WHERE id = :id", {"id": node.id})
    tx.touch("nodes", f"nodes/{node.id}")
    payload = f'{{"Node":{encode(node).decode()}}}'
    events.add(tx, "Node", "NodeDeregistration", key=node.id, payload=payload)


def find(db: ReadSnapshot, node_id: str) -> Node | None:
    """Return a node, or None. Raises `StorageUnreadable`."""
    row = db.one(_FIND, {"id": node_id})
    return _from(row) if row else None


def index_of(db: ReadSnapshot, node_id: str) -> int | None:
    """Return the index of a node's last change, or None."""
    row = db.one(_INDEX, {"id": node_id})
    return row["modify_index"] if row else None


def list_all(db: ReadSnapshot) -> list[Node]:
    """Return all nodes. Raises `StorageUnreadable`."""
    return [_from(row) for row in db.all(_ALL)]


def list_readable(db: ReadSnapshot) -> list[Node]:
    """Return all nodes, without rows that cannot be decoded."""
    return list(readable(db, db.all(_ALL), _from))


def unreadable(db: ReadSnapshot) -> list[UnreadableNode]:
    """Return the nodes whose row cannot be decoded.

    If there is such a node, the function reads all stored events.
    """
    return [
        UnreadableNode(node_id, str(error), _last_told(db, node_id))
        for node_id, error in _decoded(db)
        if isinstance(error, StorageUnreadable)
    ]


def _decoded(db: ReadSnapshot) -> Iterator[tuple[str, Node | StorageUnreadable]]:
    """Yield the ID of each node, with the node or with the error of its row."""
    for row in db.all(_ALL):
        try:
            yield row["id"], _from(row)
        except StorageUnreadable as error:
            yield row["id"], error


def _last_told(db: ReadSnapshot, node_id: str) -> Node | None:
    row = db.one(_LAST_EVENT, {"id": node_id})
    try:
        return decode_document(row["payload"], _Told, "events", node_id).node if row else None
    except StorageUnreadable:
        return None


def _from(row: sqlite3.Row) -> Node:
    return decode_row(row, Node, "nodes")


# --- dynamic metadata ---

# By name; None hides a value of the configuration.
MetaChanges = Mapping[str, str | None]


def meta_changes(db: ReadSnapshot, node_id: str) -> dict[str, str | None]:
    """Return the changes to a node's metadata, by key; a value of None removes the key.

    Raises `StorageUnreadable`.
    """
    name = _meta_name(node_id)
    text = settings.find(db, name)
    if not text:
        return {}
    return decode_document(text.encode(), dict[str, str | None], "settings", name)


def put_meta_changes(tx: Transaction, node_id: str, changes: MetaChanges) -> None:
    """Replace all changes to a node's metadata."""
    settings.put(tx, _meta_name(node_id), encode(changes).decode())


def with_meta(node: Node, static: Mapping[str, str], changes: MetaChanges) -> Node:
    """Return a copy of the node whose metadata is `static` with `changes` applied.

    `static` comes from the configuration. A change to None removes a key.
    """
    merged = {**static, **changes}
    meta = {name: value for name, value in merged.items() if value is not None}
    node = msgspec.structs.replace(node, meta=meta)
    return msgspec.structs.replace(node, computed_class=computed_class(node))


def _meta_name(node_id: str) -> str:
    return f"node-meta/{node_id}"
