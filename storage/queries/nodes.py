"""Nodes: places where tasks run."""

import msgspec

from storage.queries import events
from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.node import Node
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
    """Store a node; `kind` names the event, for example `NodeRegistration`."""
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


def find(db: Snapshot, node_id: str) -> Node | None:
    """Return a node."""
    row = db.one(_FIND, {"id": node_id})
    return msgspec.json.decode(row["document"], type=Node) if row else None


def index_of(db: Snapshot, node_id: str) -> int | None:
    """Return the index at which a node changed last."""
    row = db.one(_INDEX, {"id": node_id})
    return row["modify_index"] if row else None


def every(db: Snapshot) -> list[Node]:
    """Return all nodes."""
    return [msgspec.json.decode(row["document"], type=Node) for row in db.all(_ALL)]
