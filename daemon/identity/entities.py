"""Entities: each principal has one entity, even if it logs in with several roles."""

from collections.abc import Mapping, Sequence

import msgspec

from daemon.identity import groups as groups_of
from daemon.text.go_format import quote
from daemon.text.request_fields import RequestFields
from storage.errors import Denied, Invalid, Malformed
from storage.queries import entities, mounts
from storage.read_pool import ReadSnapshot
from storage.records.acl import DEFAULT
from storage.records.identity import Alias, Entity
from storage.writer import Transaction


def record_login(
    tx: Transaction,
    alias: Alias,
    groups: Sequence[str],
) -> Entity:
    """Record a login of a principal, and return the principal's entity.

    The first login creates the entity. `alias` is stored if it is new or has new metadata.
    Raises `Denied` for a disabled entity.
    """
    before, entity = find_entity(tx, alias.mount, alias.name)
    if entity is None:
        entity = _new(alias, groups)
        entities.put(tx, entity)
    elif entity.groups != list(groups):
        entity = msgspec.structs.replace(entity, groups=list(groups))
        entities.put(tx, entity)
    if before is None or before.metadata != alias.metadata:
        entities.put_alias(tx, _renewed(before, alias) if before else alias)
    groups_of.update_memberships(tx, alias.mount, entity.id, groups)
    return entity


def find_entity(db: ReadSnapshot, mount: str, principal: str) -> tuple[Alias | None, Entity | None]:
    """Return the alias and entity of a principal. Raises `Denied` for a disabled entity."""
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
    """Return the stored alias `before` with the metadata and the time of the latest login."""
    return msgspec.structs.replace(
        before,
        metadata=alias.metadata,
        custom_metadata=before.custom_metadata or None,
        updated_at=alias.updated_at,
    )


def alias_of(
    mount: str, name: str, metadata: Mapping[str, str], identifiers: tuple[str, str], now: int
) -> Alias:
    """Return a new alias of a principal; `identifiers` are the IDs of alias and entity."""
    return Alias(
        id=identifiers[0],
        entity_id=identifiers[1],
        mount=mount,
        name=name,
        metadata=dict(metadata),
        created_at=now,
        updated_at=now,
    )


def write(
    tx: Transaction, before: Entity | None, fields: RequestFields, *, new_id: str, now: int
) -> Entity:
    """Create an entity, or change the entity `before`. Raises `Malformed`."""
    name = fields.text("name") or (before.name if before else f"entity_{new_id[:8]}.root")
    changes: dict[str, object] = {"name": name, "updated_at": now}
    if "policies" in fields:
        changes["policies"] = [
            policy for policy in groups_of.policies_of(fields) if policy != DEFAULT
        ]
    if "disabled" in fields:
        changes["is_disabled"] = fields.flag("disabled")
    if "metadata" in fields:
        changes["metadata"] = fields.pairs("metadata")
    entity = before or Entity(id=new_id, name=name, created_at=now, updated_at=now)
    same = entities.by_name(tx, name)
    if same and same.id != entity.id:
        raise Malformed(f"another entity is named {name!r}")
    changed = msgspec.structs.replace(entity, **changes)
    entities.put(tx, changed)
    return changed


def write_alias(
    tx: Transaction, before: Alias | None, fields: RequestFields, *, new_id: str, now: int
) -> Alias:
    """Create an alias, or change the alias `before`. Raises `Invalid`."""
    name = fields.text("name") or (before.name if before else "")
    mount = fields.text("mount_accessor") or (before.mount if before else "")
    if not (name and mount):
        raise Invalid("'id' or 'mount_accessor' and 'name' must be provided")
    if mounts.by_accessor(tx, mount) is None:
        raise Invalid(f"invalid mount accessor {quote(mount)}")
    same = entities.alias(tx, mount, name)
    if before and same and same.id != before.id:
        raise Invalid(f"another alias has the name {quote(name)} at that mount")
    before = before or same
    entity_id = fields.text("canonical_id") or (before.entity_id if before else "")
    if entities.find(tx, entity_id) is None:
        raise Invalid("invalid canonical ID")
    alias = before or Alias(
        id=new_id, entity_id=entity_id, mount=mount, name=name, created_at=now, updated_at=now
    )
    if entities.has_other_alias(tx, entity_id, mount, alias.id):
        raise Invalid("Alias already exists for requested entity and mount")
    custom = fields.pairs("custom_metadata") if "custom_metadata" in fields else {}
    changed = msgspec.structs.replace(
        alias,
        entity_id=entity_id,
        mount=mount,
        name=name,
        custom_metadata=custom or alias.custom_metadata or {},
        updated_at=now,
    )
    entities.remove_alias(tx, changed.id)
    entities.put_alias(tx, changed)
    return changed
