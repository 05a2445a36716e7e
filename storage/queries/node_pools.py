"""Node pools: the two built-in pools, the pools that nodes name, and user-defined pools."""

import heapq
import sqlite3
from collections.abc import Iterator
from itertools import groupby

import msgspec

from storage.queries import events, nodes
from storage.queries.documents import decode_row, readable
from storage.queries.pages import PageRequest, by_name, is_within
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.node import Node
from storage.records.node_pool import BUILT_IN, NodePool
from storage.writer import Transaction

_STORED = "SELECT name, document, create_index, modify_index FROM node_pools"
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
     WHERE j.status <> 'dead' AND CASE WHEN json_valid(v.document)
           THEN json_extract(v.document, '$.NodePool') = :name ELSE 1 END
     LIMIT 1
"""


def list_all(db: ReadSnapshot) -> list[NodePool]:
    """Return all pools, by name."""
    return list(page(db, PageRequest(namespace="*")))


def identity_ttl(db: ReadSnapshot, name: str) -> int | None:
    """Return the lifetime of node identities in a user-defined pool, in nanoseconds, or None.

    Raises `StorageUnreadable`.
    """
    row = db.one(f"{_STORED} WHERE name = :name", {"name": name})
    return _from(row).node_identity_ttl if row else None


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[NodePool]:
    """Yield pools by name, ascending or descending. The name is the last part of a page's key."""
    stored = readable(db, by_name(db, _STORED, "name", page_request), _from)
    pools_by_name = heapq.merge(
        stored,
        _unstored(db, page_request),
        key=lambda node_pool: node_pool.name,
        reverse=page_request.reverse,
    )
    for _, same in groupby(pools_by_name, key=lambda pool: pool.name):
        yield next(same)  # a stored pool comes before an unstored pool with the same name


def _unstored(db: ReadSnapshot, page_request: PageRequest) -> list[NodePool]:
    """Return the pools that exist although no user has defined them."""
    pools_by_name = {name: NodePool(name=name, description=text) for name, text in BUILT_IN.items()}
    for node in nodes.list_readable(db):
        node_pool = NodePool(name=node.node_pool, description=_description(node))
        pools_by_name.setdefault(node.node_pool, node_pool)
    pools = [pool for name, pool in pools_by_name.items() if is_within(page_request, name)]
    return sorted(pools, key=lambda pool: pool.name, reverse=page_request.reverse)


def names(db: ReadSnapshot) -> frozenset[str]:
    """Return the names of all pools."""
    return frozenset(pool.name for pool in list_all(db))


def _from(row: sqlite3.Row) -> NodePool:
    return msgspec.structs.replace(
        decode_row(row, NodePool, "node_pools"),
        create_index=row["create_index"],
        modify_index=row["modify_index"],
    )


def _description(node: Node) -> str:
    if not node.engine:
        return ""
    return f'Partition "{node.attributes["engine.partition"]}" of a {node.engine} cluster.'


# --- changes ---


def put(tx: Transaction, pool: NodePool) -> None:
    """Store a pool."""
    document = encode(pool).decode()
    tx.execute(_PUT, {"name": pool.name, "document": document, "index": tx.index})
    tx.touch("node_pools")
    payload = f'{{"NodePool":{document}}}'
    events.add(tx, "NodePool", "NodePoolUpserted", key=pool.name, payload=payload)


def remove(tx: Transaction, pool: NodePool) -> None:
    """Delete a user-defined pool."""
    tx.execute(_REMOVE, {"name": pool.name})
    tx.touch("node_pools")
    payload = f'{{"NodePool":{encode(pool).decode()}}}'
    events.add(tx, "NodePool", "NodePoolDeleted", key=pool.name, payload=payload)


def has_jobs(db: ReadSnapshot, name: str) -> bool:
    """Return whether any job that is not dead uses a pool."""
    return db.one(_JOBS, {"name": name}) is not None
