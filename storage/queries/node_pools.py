"""Pools of nodes: the two that are always there, those of nodes, and those that somebody made."""

import sqlite3

import msgspec

from storage.queries import events, nodes
from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.node import Node
from storage.records.node_pool import BUILT_IN, NodePool
from storage.writer import Transaction

_STORED = "SELECT document, create_index, modify_index FROM node_pools ORDER BY name"
_PUT = """
    INSERT INTO node_pools (name, document, create_index, modify_index)
    VALUES (:name, :document, :index, :index)
    ON CONFLICT (name) DO UPDATE
       SET document = excluded.document, modify_index = excluded.modify_index
"""
_REMOVE = "DELETE FROM node_pools WHERE name = :name"
_JOBS = """
    SELECT 1 FROM jobs j
      JOIN job_versions v
        ON v.namespace = j.namespace AND v.job_id = j.id AND v.version = j.version
     WHERE j.status <> 'dead' AND json_extract(v.document, '$.NodePool') = :name
     LIMIT 1
"""


def every(db: Snapshot) -> list[NodePool]:
    """Return all pools, by name."""
    found = {name: NodePool(name=name, description=text) for name, text in BUILT_IN.items()}
    for node in nodes.every(db):
        one = NodePool(name=node.node_pool, description=_description(node))
        found.setdefault(node.node_pool, one)
    found |= {one.name: one for one in map(_from, db.all(_STORED))}
    return sorted(found.values(), key=lambda one: one.name)


def names(db: Snapshot) -> frozenset[str]:
    """Return the names of all pools."""
    return frozenset(one.name for one in every(db))


def _from(row: sqlite3.Row) -> NodePool:
    return msgspec.structs.replace(
        msgspec.json.decode(row["document"], type=NodePool),
        create_index=row["create_index"],
        modify_index=row["modify_index"],
    )


def _description(node: Node) -> str:
    if not node.engine:
        return ""
    return f'Partition "{node.attributes["engine.partition"]}" of a {node.engine} cluster.'


# ---- writing ------------------------------------------------------------------------------------


def put(tx: Transaction, pool: NodePool) -> None:
    """Store a pool, new or changed."""
    document = encode(pool).decode()
    tx.execute(_PUT, {"name": pool.name, "document": document, "index": tx.index})
    tx.touch("node_pools")
    payload = f'{{"NodePool":{document}}}'
    events.add(tx, "NodePool", "NodePoolUpserted", key=pool.name, payload=payload)


def remove(tx: Transaction, pool: NodePool) -> None:
    """Remove a pool that somebody made."""
    tx.execute(_REMOVE, {"name": pool.name})
    tx.touch("node_pools")
    payload = f'{{"NodePool":{encode(pool).decode()}}}'
    events.add(tx, "NodePool", "NodePoolDeleted", key=pool.name, payload=payload)


def has_jobs(db: Snapshot, name: str) -> bool:
    """Tell whether a job that has not ended asks for a pool."""
    return db.one(_JOBS, {"name": name}) is not None
