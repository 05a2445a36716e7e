"""Nodes, and their metadata set through the API."""

from collections.abc import Mapping

import msgspec

from storage.queries import events, settings
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
_FIND = "SELECT document FROM nodes WHERE id = :id"
_INDEX = "SELECT modify_index FROM nodes WHERE id = :id"
_ALL = "SELECT document FROM nodes ORDER BY id"


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
    """Return a node, or None."""
    row = db.one(_FIND, {"id": node_id})
    return msgspec.json.decode(row["document"], type=Node) if row else None


def index_of(db: ReadSnapshot, node_id: str) -> int | None:
    """Return the index of a node's last change, or None."""
    row = db.one(_INDEX, {"id": node_id})
    return row["modify_index"] if row else None


def every(db: ReadSnapshot) -> list[Node]:
    """Return all nodes."""
    return [msgspec.json.decode(row["document"], type=Node) for row in db.all(_ALL)]


# --- dynamic metadata ---

# By name; None hides a value of the configuration.
MetaChanges = Mapping[str, str | None]


def meta_changes(db: ReadSnapshot, node_id: str) -> dict[str, str | None]:
    """Return the changes to a node's metadata."""
    text = settings.find(db, _meta_name(node_id))
    return msgspec.json.decode(text, type=dict[str, str | None]) if text else {}


def put_meta_changes(tx: Transaction, node_id: str, changes: MetaChanges) -> None:
    """Replace all changes to a node's metadata."""
    settings.put(tx, _meta_name(node_id), encode(changes).decode())


def with_meta(node: Node, static: Mapping[str, str], changes: MetaChanges) -> Node:
    """Return a node with the metadata of the configuration and the changes."""
    merged = {**static, **changes}
    meta = {name: value for name, value in merged.items() if value is not None}
    node = msgspec.structs.replace(node, meta=meta)
    return msgspec.structs.replace(node, computed_class=computed_class(node))


def _meta_name(node_id: str) -> str:
    return f"node-meta/{node_id}"
