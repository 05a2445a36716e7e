"""Entities: the same principal is the same entity, whichever role it logs in with."""

from collections.abc import Mapping, Sequence

import msgspec

from storage.errors import Denied
from storage.queries import entities
from storage.readers import Snapshot
from storage.records.identity import Alias, Entity
from storage.writer import Transaction


def note_login(
    tx: Transaction,
    alias: Alias,
    groups: Sequence[str],
) -> Entity:
    """Return the entity of a principal, made at its first login, and note the latest one.

    `alias` brings identifiers that count if it is new. Raises `Denied` for a disabled entity.
    """
    before, entity = known(tx, alias.mount, alias.name)
    if entity is None:
        entity = _new(alias, groups)
        entities.put(tx, entity)
    elif entity.groups != list(groups):
        entity = msgspec.structs.replace(entity, groups=list(groups))
        entities.put(tx, entity)
    if before is None or before.metadata != alias.metadata:
        entities.put_alias(tx, _renewed(before, alias) if before else alias)
    return entity


def known(db: Snapshot, mount: str, principal: str) -> tuple[Alias | None, Entity | None]:
    """Return what is known of a principal. Raises `Denied` for a disabled entity."""
    alias = entities.alias(db, mount, principal)
    entity = entities.find(db, alias.entity_id) if alias else None
    if entity and entity.is_disabled:
        raise Denied
    return alias, entity


def _new(alias: Alias, groups: Sequence[str]) -> Entity:
    return Entity(
        id=alias.entity_id,
        name=f"entity_{alias.entity_id[:8]}.root",
        groups=list(groups),
        created_at=alias.created_at,
        updated_at=alias.created_at,
    )


def _renewed(before: Alias, alias: Alias) -> Alias:
    """Return an alias with what the latest login says of it."""
    return msgspec.structs.replace(before, metadata=alias.metadata, updated_at=alias.updated_at)


def alias_of(
    mount: str, name: str, metadata: Mapping[str, str], identifiers: tuple[str, str], now: int
) -> Alias:
    """Return an alias as it is if it is new; `identifiers` are its own and its entity's."""
    return Alias(
        id=identifiers[0],
        entity_id=identifiers[1],
        mount=mount,
        name=name,
        metadata=dict(metadata),
        created_at=now,
        updated_at=now,
    )
