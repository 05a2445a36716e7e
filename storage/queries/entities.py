"""Entities, and the aliases by which mounts know them."""

import sqlite3

import msgspec

from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.identity import Alias, Entity
from storage.writer import Transaction

_FIND = "SELECT document FROM entities WHERE id = :id"
_BY_NAME = "SELECT document FROM entities WHERE name = :name"
_EVERY = "SELECT document FROM entities ORDER BY id"
_PUT = """
    INSERT INTO entities (id, name, document) VALUES (:id, :name, :document)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, document = excluded.document
"""
_REMOVE = "DELETE FROM entities WHERE id = :id"
_ALIAS = "SELECT document FROM entity_aliases WHERE mount = :mount AND name = :name"
_ALIAS_BY_ID = "SELECT document FROM entity_aliases WHERE id = :id"
_ALIASES = "SELECT document FROM entity_aliases WHERE entity_id = :entity_id ORDER BY id"
_PUT_ALIAS = """
    INSERT INTO entity_aliases (mount, name, id, entity_id, document)
    VALUES (:mount, :name, :id, :entity_id, :document)
    ON CONFLICT (mount, name) DO UPDATE
       SET id = excluded.id, entity_id = excluded.entity_id, document = excluded.document
"""
_REMOVE_ALIAS = "DELETE FROM entity_aliases WHERE id = :id"
_EVERY_ALIAS = "SELECT document FROM entity_aliases ORDER BY id"


def _entity(row: sqlite3.Row | None) -> Entity | None:
    return msgspec.json.decode(row["document"], type=Entity) if row else None


def find(db: Snapshot, entity_id: str) -> Entity | None:
    """Return an entity."""
    return _entity(db.one(_FIND, {"id": entity_id}))


def by_name(db: Snapshot, name: str) -> Entity | None:
    """Return the entity of a name."""
    return _entity(db.one(_BY_NAME, {"name": name}))


def every(db: Snapshot) -> list[Entity]:
    """Return all entities, by identifier."""
    return [msgspec.json.decode(row["document"], type=Entity) for row in db.all(_EVERY)]


def put(tx: Transaction, entity: Entity) -> None:
    """Store an entity."""
    document = encode(entity).decode()
    tx.execute(_PUT, {"id": entity.id, "name": entity.name, "document": document})
    tx.touch("entities", f"entities/{entity.id}")


def remove(tx: Transaction, entity_id: str) -> None:
    """Remove an entity with its aliases."""
    tx.execute(_REMOVE, {"id": entity_id})
    tx.touch("entities", f"entities/{entity_id}")


# ---- aliases


def alias(db: Snapshot, mount: str, name: str) -> Alias | None:
    """Return the alias by which a mount knows a principal."""
    row = db.one(_ALIAS, {"mount": mount, "name": name})
    return msgspec.json.decode(row["document"], type=Alias) if row else None


def alias_by_id(db: Snapshot, alias_id: str) -> Alias | None:
    """Return an alias."""
    row = db.one(_ALIAS_BY_ID, {"id": alias_id})
    return msgspec.json.decode(row["document"], type=Alias) if row else None


def aliases(db: Snapshot, entity_id: str) -> list[Alias]:
    """Return the aliases of an entity."""
    rows = db.all(_ALIASES, {"entity_id": entity_id})
    return [msgspec.json.decode(row["document"], type=Alias) for row in rows]


def put_alias(tx: Transaction, one: Alias) -> None:
    """Store an alias."""
    tx.execute(
        _PUT_ALIAS,
        {
            "mount": one.mount,
            "name": one.name,
            "id": one.id,
            "entity_id": one.entity_id,
            "document": encode(one).decode(),
        },
    )


def every_alias(db: Snapshot) -> list[Alias]:
    """Return the aliases of all entities, by identifier."""
    return [msgspec.json.decode(row["document"], type=Alias) for row in db.all(_EVERY_ALIAS)]


def remove_alias(tx: Transaction, alias_id: str) -> None:
    """Remove an alias; its entity stays."""
    tx.execute(_REMOVE_ALIAS, {"id": alias_id})
    tx.touch("entities")
