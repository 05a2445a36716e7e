"""Entities: one identity for the aliases of a user or machine at all mounts."""

from collections.abc import Callable

from daemon.api import vault_reads
from daemon.identity import entities as written
from daemon.text.request_fields import RequestFields
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody
from storage.errors import Invalid, Malformed
from storage.queries import entities, groups, mounts
from storage.queries.pages import KeyRange
from storage.read_pool import ReadSnapshot
from storage.records.identity import Alias, Entity
from storage.records.times import rfc3339
from storage.writer import Transaction

Find = Callable[[ReadSnapshot], Entity | None]


def _shown(db: ReadSnapshot, entity: Entity) -> dict[str, object]:
    direct = groups.parents(db, entity.id)
    group_ids = sorted(group.id for group in groups.containing(db, entity.id))
    return {
        "id": entity.id,
        "name": entity.name,
        "aliases": [_alias(db, alias) for alias in entities.aliases(db, entity.id)],
        "policies": entity.policies,
        "metadata": entity.metadata,
        "disabled": entity.is_disabled,
        "namespace_id": "root",
        "group_ids": [*direct, *(group_id for group_id in group_ids if group_id not in direct)],
        "direct_group_ids": direct,
        "inherited_group_ids": [group_id for group_id in group_ids if group_id not in direct],
        "merged_entity_ids": None,
        "creation_time": rfc3339(entity.created_at),
        "last_update_time": rfc3339(entity.updated_at),
    }


def _alias(db: ReadSnapshot, alias: Alias) -> dict[str, object]:
    mount = mounts.by_accessor(db, alias.mount)
    return {
        "id": alias.id,
        "canonical_id": alias.entity_id,
        "name": alias.name,
        "metadata": alias.metadata or None,
        "custom_metadata": alias.custom_metadata,
        "local": bool(mount and mount.local),
        "mount_accessor": alias.mount,
        "mount_path": f"auth/{mount.path}" if mount else "",
        "mount_type": mount.type if mount else "",
        "merged_from_canonical_ids": None,
        "creation_time": rfc3339(alias.created_at),
        "last_update_time": rfc3339(alias.updated_at),
    }


def _finds(find: Find) -> vault_reads.Look:
    def look(db: ReadSnapshot) -> dict[str, object] | None:
        entity = find(db)
        return _shown(db, entity) if entity else None

    return look


async def read(call: RouteCall) -> VaultBody:
    """Show an entity."""
    return await vault_reads.read_one(call, _finds(lambda db: entities.find(db, call["entity"])))


async def read_by_name(call: RouteCall) -> VaultBody:
    """Show the entity with this name."""
    return await vault_reads.read_one(call, _finds(lambda db: entities.by_name(db, call["entity"])))


async def index(call: RouteCall) -> VaultBody:
    """List the identifiers of all entities."""

    def look(db: ReadSnapshot, span: KeyRange) -> dict[str, object]:
        return {
            entity.id: {
                "name": entity.name,
                "aliases": [
                    {"id": alias.id, "mount_accessor": alias.mount, "name": alias.name}
                    for alias in entities.aliases(db, entity.id)
                ],
            }
            for entity in entities.list_all(db, span)
        }

    return await vault_reads.key_info(call, look)


async def names(call: RouteCall) -> VaultBody:
    """List the names of all entities."""
    return await vault_reads.keys(call, entities.names)


async def lookup_entity(call: RouteCall) -> VaultBody:
    """Find an entity by its identifier, its name, or an alias."""
    return await vault_reads.read_optional(call, _finds(_wanted(call.fields)))


def _wanted(fields: RequestFields) -> Find:
    if name := fields.text("alias_name"):
        accessor = fields.text("alias_mount_accessor")
        return lambda db: _of_alias(db, accessor, name)
    if identifier := fields.text("id"):
        return lambda db: entities.find(db, identifier)
    if name := fields.text("name"):
        return lambda db: entities.by_name(db, name)
    raise Malformed("query parameter not supplied")


def _of_alias(db: ReadSnapshot, accessor: str, name: str) -> Entity | None:
    alias = entities.alias(db, accessor, name)
    return entities.find(db, alias.entity_id) if alias else None


async def create(call: RouteCall) -> VaultBody:
    """Create an entity, or change the entity with the identifier or name in the request."""
    fields = call.fields
    if entity_id := fields.text("id"):
        return await _write(call, _by_id(entity_id), fields)
    return await _write(call, lambda db: entities.by_name(db, fields.text("name")), fields)


async def update_entity(call: RouteCall) -> VaultBody:
    """Change the policies, metadata or disabled flag of an entity."""
    return await _write(call, _by_id(call["entity"]), call.fields)


async def write_by_name(call: RouteCall) -> VaultBody:
    """Create or change the entity with this name."""
    name = call["entity"]
    fields = RequestFields({**call.fields.values, "name": name})
    return await _write(call, lambda db: entities.by_name(db, name), fields)


def _by_id(entity_id: str) -> Find:
    def find(db: ReadSnapshot) -> Entity:
        entity = entities.find(db, entity_id)
        if entity is None:
            raise Malformed(f"no entity has the identifier {entity_id}")
        return entity

    return find


async def _write(call: RouteCall, find: Find, fields: RequestFields) -> VaultBody:
    new_id, now = next(call.parts.ids), call.parts.clock.now()

    def write(tx: Transaction) -> Entity:
        return written.write(tx, find(tx), fields, new_id=new_id, now=now)

    entity = await call.parts.store.write(write, is_long=call.is_long)
    if entity.id != new_id:
        return VaultBody()
    return VaultBody(data={"id": entity.id, "name": entity.name, "aliases": None})


async def remove(call: RouteCall) -> VaultBody:
    """Delete an entity; its tokens become invalid."""
    existed = await call.parts.store.write(lambda tx: entities.remove(tx, call["entity"]))
    call.note_deletion("entity", call["entity"], existed=existed)
    return VaultBody()


async def remove_by_name(call: RouteCall) -> VaultBody:
    """Delete the entity with this name; its tokens become invalid."""

    def write(tx: Transaction) -> bool:
        entity = entities.by_name(tx, call["entity"])
        return entity is not None and entities.remove(tx, entity.id)

    existed = await call.parts.store.write(write)
    call.note_deletion("entity", call["entity"], existed=existed)
    return VaultBody()


# --- aliases ---


async def aliases(call: RouteCall) -> VaultBody:
    """List the aliases of all entities."""
    fields = ("canonical_id", "custom_metadata", "local", "metadata", "mount_accessor", "name")

    def look(db: ReadSnapshot, span: KeyRange) -> dict[str, object]:
        documents = {alias.id: _alias(db, alias) for alias in entities.list_aliases(db, span)}
        return {
            key: {name: document[name] for name in fields} for key, document in documents.items()
        }

    return await vault_reads.key_info(call, look)


async def read_alias(call: RouteCall) -> VaultBody:
    """Show the alias of an entity."""

    def look(db: ReadSnapshot) -> dict[str, object] | None:
        alias = entities.alias_by_id(db, call["alias"])
        return {**_alias(db, alias), "namespace_id": "root"} if alias else None

    return await vault_reads.read_one(call, look)


async def create_alias(call: RouteCall) -> VaultBody:
    """Create an alias of an entity, so that logins with this alias use the entity."""
    return await _write_alias(call, call.fields.text("id"))


async def change_alias(call: RouteCall) -> VaultBody:
    """Change an alias of an entity."""
    return await _write_alias(call, call["alias"])


async def _write_alias(call: RouteCall, alias_id: str) -> VaultBody:
    new_id, now = next(call.parts.ids), call.parts.clock.now()

    def write(tx: Transaction) -> Alias:
        before = entities.alias_by_id(tx, alias_id) if alias_id else None
        if alias_id and before is None:
            raise Invalid("invalid alias ID")
        return written.write_alias(tx, before, call.fields, new_id=new_id, now=now)

    alias = await call.parts.store.write(write)
    return VaultBody(data={"id": alias.id, "canonical_id": alias.entity_id})


async def remove_alias(call: RouteCall) -> VaultBody:
    """Delete an alias; its entity stays."""
    existed = await call.parts.store.write(lambda tx: entities.remove_alias(tx, call["alias"]))
    call.note_deletion("alias", call["alias"], existed=existed)
    return VaultBody()
