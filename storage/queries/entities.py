"""Entities and their aliases."""

import sqlite3

from storage.queries.documents import decode_row, readable
from storage.queries.pages import ALL, KeyRange
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.identity import Alias, Entity
from storage.writer import Transaction

_FIND = "SELECT id, document FROM entities WHERE id = :id"
_BY_NAME = "SELECT id, document FROM entities WHERE name = :name"
_EVERY = "SELECT id, document FROM entities WHERE id > :after ORDER BY id LIMIT :most"
_NAMES = "SELECT name FROM entities WHERE name > :after ORDER BY name LIMIT :most"
_PUT = """
    INSERT INTO entities (id, name, document) VALUES (:id, :name, :document)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, document = excluded.document
"""
_REMOVE = "DELETE FROM entities WHERE id = :id"
_ALIAS = "SELECT id, document FROM entity_aliases WHERE mount = :mount AND name = :name"
_ALIAS_BY_ID = "SELECT id, document FROM entity_aliases WHERE id = :id"
_ALIASES = "SELECT id, document FROM entity_aliases WHERE entity_id = :entity_id ORDER BY id"
_OTHER_ALIAS = """
    SELECT 1 FROM entity_aliases WHERE entity_id = :entity_id AND mount = :mount AND id <> :id
"""
_PUT_ALIAS = """
    INSERT INTO entity_aliases (mount, name, id, entity_id, document)
    VALUES (:mount, :name, :id, :entity_id, :document)
    ON CONFLICT (mount, name) DO UPDATE
       SET id = excluded.id, entity_id = excluded.entity_id, document = excluded.document
"""
_REMOVE_ALIAS = "DELETE FROM entity_aliases WHERE id = :id"
_EVERY_ALIAS = "SELECT id, document FROM entity_aliases WHERE id > :after ORDER BY id LIMIT :most"


def _from(row: sqlite3.Row) -> Entity:
    return decode_row(row, Entity, "entities")


def _alias_from(row: sqlite3.Row) -> Alias:
    return decode_row(row, Alias, "entity_aliases")


def _entity(row: sqlite3.Row | None) -> Entity | None:
    return _from(row) if row else None


def find(db: ReadSnapshot, entity_id: str) -> Entity | None:
    """Return an entity, or None."""
    return _entity(db.one(_FIND, {"id": entity_id}))


def by_name(db: ReadSnapshot, name: str) -> Entity | None:
    """Return an entity by name, or None."""
    return _entity(db.one(_BY_NAME, {"name": name}))


def list_all(db: ReadSnapshot, span: KeyRange = ALL) -> list[Entity]:
    """Return entities, by ID."""
    return list(readable(db, db.all(_EVERY, span.values), _from))


def names(db: ReadSnapshot, span: KeyRange) -> list[str]:
    """Return the sorted names of entities."""
    return [row["name"] for row in db.all(_NAMES, span.values)]


def put(tx: Transaction, entity: Entity) -> None:
    """Store an entity."""
    document = encode(entity).decode()
    tx.execute(_PUT, {"id": entity.id, "name": entity.name, "document": document})
    tx.touch("entities", f"entities/{entity.id}")


def remove(tx: Transaction, entity_id: str) -> bool:
    """Delete an entity with its aliases; return whether it existed."""
    existed = tx.execute(_REMOVE, {"id": entity_id}) > 0
    tx.touch("entities", f"entities/{entity_id}")
    return existed


# --- aliases ---


def alias(db: ReadSnapshot, mount: str, name: str) -> Alias | None:
    """Return the alias of a principal in a mount, or None."""
    row = db.one(_ALIAS, {"mount": mount, "name": name})
    return _alias_from(row) if row else None


def alias_by_id(db: ReadSnapshot, alias_id: str) -> Alias | None:
    """Return an alias, or None."""
    row = db.one(_ALIAS_BY_ID, {"id": alias_id})
    return _alias_from(row) if row else None


def aliases(db: ReadSnapshot, entity_id: str) -> list[Alias]:
    """Return the aliases of an entity."""
    return list(readable(db, db.all(_ALIASES, {"entity_id": entity_id}), _alias_from))


def has_other_alias(db: ReadSnapshot, entity_id: str, mount: str, alias_id: str) -> bool:
    """Return whether an entity has another alias at a mount. The alias may be unreadable."""
    values = {"entity_id": entity_id, "mount": mount, "id": alias_id}
    return db.one(_OTHER_ALIAS, values) is not None


def put_alias(tx: Transaction, alias: Alias) -> None:
    """Store an alias."""
    tx.execute(
        _PUT_ALIAS,
        {
            "mount": alias.mount,
            "name": alias.name,
            "id": alias.id,
            "entity_id": alias.entity_id,
            "document": encode(alias).decode(),
        },
    )


def list_aliases(db: ReadSnapshot, span: KeyRange = ALL) -> list[Alias]:
    """Return aliases, by ID."""
    return list(readable(db, db.all(_EVERY_ALIAS, span.values), _alias_from))


def remove_alias(tx: Transaction, alias_id: str) -> bool:
    """Delete an alias; its entity stays. Return whether the alias existed."""
    existed = tx.execute(_REMOVE_ALIAS, {"id": alias_id}) > 0
    tx.touch("entities")
    return existed
