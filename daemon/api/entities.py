"""Entities: who logs in, under whatever names the mounts know them."""

from collections.abc import Callable

import msgspec

from daemon.web.envelope import Answer
from daemon.web.request import Call
from storage.errors import Malformed, NotFound
from storage.queries import entities, mounts
from storage.readers import Snapshot
from storage.records.identity import Alias, Entity
from storage.records.times import rfc3339
from storage.writer import Transaction

_ALWAYS = "default"


def _shown(db: Snapshot, entity: Entity) -> dict[str, object]:
    return {
        "id": entity.id,
        "name": entity.name,
        "aliases": [_alias(db, one) for one in entities.aliases(db, entity.id)],
        "policies": entity.policies,
        "metadata": entity.metadata,
        "disabled": entity.is_disabled,
        "namespace_id": "root",
        "group_ids": [],
        "direct_group_ids": [],
        "inherited_group_ids": [],
        "merged_entity_ids": None,
        "creation_time": rfc3339(entity.created_at),
        "last_update_time": rfc3339(entity.updated_at),
    }


def _alias(db: Snapshot, alias: Alias) -> dict[str, object]:
    mount = mounts.by_accessor(db, alias.mount)
    return {
        "id": alias.id,
        "canonical_id": alias.entity_id,
        "name": alias.name,
        "metadata": alias.metadata,
        "custom_metadata": None,
        "local": bool(mount and mount.local),
        "mount_accessor": alias.mount,
        "mount_path": f"auth/{mount.path}" if mount else "",
        "mount_type": mount.type if mount else "",
        "merged_from_canonical_ids": None,
        "creation_time": rfc3339(alias.created_at),
        "last_update_time": rfc3339(alias.updated_at),
    }


def _found(call: Call, find: Callable[[Snapshot], Entity | None]) -> Answer:
    def look(db: Snapshot) -> dict[str, object]:
        entity = find(db)
        if entity is None:
            raise NotFound("")
        return _shown(db, entity)

    return Answer(data=call.parts.store.read(look))


async def read(call: Call) -> Answer:
    """Show an entity."""
    return _found(call, lambda db: entities.find(db, call["entity"]))


async def read_by_name(call: Call) -> Answer:
    """Show the entity of a name."""
    return _found(call, lambda db: entities.by_name(db, call["entity"]))


async def index(call: Call) -> Answer:
    """List the identifiers of all entities."""
    found = call.parts.store.read(entities.ids)
    if not found:
        raise NotFound("")
    return Answer(data={"keys": found})


async def look_up(call: Call) -> Answer:
    """Find an entity by its identifier, its name, or a name by which a mount knows it."""
    fields = call.fields
    if name := fields.text("alias_name"):
        accessor = fields.text("alias_mount_accessor")
        return _or_nothing(call, lambda db: _of_alias(db, accessor, name))
    if identifier := fields.text("id"):
        return _or_nothing(call, lambda db: entities.find(db, identifier))
    if name := fields.text("name"):
        return _or_nothing(call, lambda db: entities.by_name(db, name))
    raise Malformed("query parameter not supplied: one of id, name, alias_name")


def _of_alias(db: Snapshot, accessor: str, name: str) -> Entity | None:
    alias = entities.alias(db, accessor, name)
    return entities.find(db, alias.entity_id) if alias else None


def _or_nothing(call: Call, find: Callable[[Snapshot], Entity | None]) -> Answer:
    """Return what was found; nothing is no error in a search."""
    try:
        return _found(call, find)
    except NotFound:
        return Answer()


async def change(call: Call) -> Answer:
    """Change the policies of an entity, what is noted of it, or whether it is let in."""
    fields = call.fields
    changes: dict[str, object] = {"updated_at": call.parts.clock.now()}
    if "policies" in fields:
        names = (name.lower() for name in fields.texts("policies"))
        changes["policies"] = sorted({name for name in names if name} - {_ALWAYS})
    if "disabled" in fields:
        changes["is_disabled"] = fields.flag("disabled")
    if "metadata" in fields:
        changes["metadata"] = fields.pairs("metadata")
    if fields.text("name"):
        changes["name"] = fields.text("name")

    def write(tx: Transaction) -> None:
        entity = entities.find(tx, call["entity"])
        if entity is None:
            raise Malformed(f"no entity has the identifier {call['entity']}")
        after = msgspec.structs.replace(entity, **changes)
        taken = entities.by_name(tx, after.name)
        if taken and taken.id != entity.id:
            raise Malformed(f"another entity is named {after.name!r}")
        if "root" in after.policies:
            raise Malformed("policies cannot contain root")
        entities.put(tx, after)

    await call.parts.store.write(write)
    return Answer()


async def remove(call: Call) -> Answer:
    """Remove an entity; its tokens are of no use any more."""
    await call.parts.store.write(lambda tx: entities.remove(tx, call["entity"]))
    return Answer()
