"""Entities: who logs in, under whatever names the mounts know them."""

from collections.abc import Callable

from daemon.api import shown
from daemon.fields import Fields
from daemon.identity import entities as written
from daemon.web.envelope import Answer
from daemon.web.request import Call
from storage.errors import Invalid, Malformed
from storage.queries import entities, groups, mounts
from storage.readers import Snapshot
from storage.records.identity import Alias, Entity
from storage.records.times import rfc3339
from storage.writer import Transaction

Find = Callable[[Snapshot], Entity | None]


def _shown(db: Snapshot, entity: Entity) -> dict[str, object]:
    direct = groups.parents(db, entity.id)
    every = sorted(group.id for group in groups.above(db, entity.id))
    return {
        "id": entity.id,
        "name": entity.name,
        "aliases": [_alias(db, one) for one in entities.aliases(db, entity.id)],
        "policies": entity.policies,
        "metadata": entity.metadata,
        "disabled": entity.is_disabled,
        "namespace_id": "root",
        "group_ids": [*direct, *(one for one in every if one not in direct)],
        "direct_group_ids": direct,
        "inherited_group_ids": [one for one in every if one not in direct],
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


def _finds(find: Find) -> shown.Look:
    def look(db: Snapshot) -> dict[str, object] | None:
        entity = find(db)
        return _shown(db, entity) if entity else None

    return look


async def read(call: Call) -> Answer:
    """Show an entity."""
    return await shown.one(call, _finds(lambda db: entities.find(db, call["entity"])))


async def read_by_name(call: Call) -> Answer:
    """Show the entity of a name."""
    return await shown.one(call, _finds(lambda db: entities.by_name(db, call["entity"])))


async def index(call: Call) -> Answer:
    """List the identifiers of all entities."""

    def look(db: Snapshot) -> dict[str, object]:
        return {
            entity.id: {
                "name": entity.name,
                "aliases": [
                    {"id": one.id, "mount_accessor": one.mount, "name": one.name}
                    for one in entities.aliases(db, entity.id)
                ],
            }
            for entity in entities.every(db)
        }

    return await shown.key_info(call, look)


async def names(call: Call) -> Answer:
    """List the names of all entities."""
    return await shown.keys(call, lambda db: sorted(one.name for one in entities.every(db)))


async def look_up(call: Call) -> Answer:
    """Find an entity by its identifier, its name, or a name by which a mount knows it."""
    return await shown.one_or_nothing(call, _finds(_wanted(call.fields)))


def _wanted(fields: Fields) -> Find:
    if name := fields.text("alias_name"):
        accessor = fields.text("alias_mount_accessor")
        return lambda db: _of_alias(db, accessor, name)
    if identifier := fields.text("id"):
        return lambda db: entities.find(db, identifier)
    if name := fields.text("name"):
        return lambda db: entities.by_name(db, name)
    raise Malformed("query parameter not supplied")


def _of_alias(db: Snapshot, accessor: str, name: str) -> Entity | None:
    alias = entities.alias(db, accessor, name)
    return entities.find(db, alias.entity_id) if alias else None


async def create(call: Call) -> Answer:
    """Create an entity, or change the one with the identifier or name in the request."""
    fields = call.fields
    if entity_id := fields.text("id"):
        return await _write(call, _by_id(entity_id), fields)
    return await _write(call, lambda db: entities.by_name(db, fields.text("name")), fields)


async def change(call: Call) -> Answer:
    """Change the policies of an entity, what is noted of it, or whether it is let in."""
    return await _write(call, _by_id(call["entity"]), call.fields)


async def write_by_name(call: Call) -> Answer:
    """Create the entity of a name, or change it."""
    name = call["entity"]
    fields = Fields({**call.fields.values, "name": name})
    return await _write(call, lambda db: entities.by_name(db, name), fields)


def _by_id(entity_id: str) -> Find:
    def find(db: Snapshot) -> Entity:
        entity = entities.find(db, entity_id)
        if entity is None:
            raise Malformed(f"no entity has the identifier {entity_id}")
        return entity

    return find


async def _write(call: Call, find: Find, fields: Fields) -> Answer:
    new_id, now = next(call.parts.ids), call.parts.clock.now()

    def write(tx: Transaction) -> Entity:
        return written.write(tx, find(tx), fields, new_id=new_id, now=now)

    entity = await call.parts.store.write(write)
    if entity.id != new_id:
        return Answer()
    return Answer(data={"id": entity.id, "name": entity.name, "aliases": None})


async def remove(call: Call) -> Answer:
    """Remove an entity; its tokens are of no use any more."""
    await call.parts.store.write(lambda tx: entities.remove(tx, call["entity"]))
    return Answer()


async def remove_by_name(call: Call) -> Answer:
    """Remove the entity of a name; its tokens are of no use any more."""

    def write(tx: Transaction) -> None:
        if entity := entities.by_name(tx, call["entity"]):
            entities.remove(tx, entity.id)

    await call.parts.store.write(write)
    return Answer()


# --- aliases ---


async def aliases(call: Call) -> Answer:
    """List the aliases of all entities."""
    fields = ("canonical_id", "custom_metadata", "local", "metadata", "mount_accessor", "name")

    def look(db: Snapshot) -> dict[str, object]:
        every = {one.id: _alias(db, one) for one in entities.every_alias(db)}
        return {key: {name: one[name] for name in fields} for key, one in every.items()}

    return await shown.key_info(call, look)


async def read_alias(call: Call) -> Answer:
    """Show the alias of an entity."""

    def look(db: Snapshot) -> dict[str, object] | None:
        alias = entities.alias_by_id(db, call["alias"])
        return {**_alias(db, alias), "namespace_id": "root"} if alias else None

    return await shown.one(call, look)


async def create_alias(call: Call) -> Answer:
    """Create an alias of an entity, so that a login finds the entity prepared for it."""
    return await _write_alias(call, call.fields.text("id"))


async def change_alias(call: Call) -> Answer:
    """Change an alias of an entity."""
    return await _write_alias(call, call["alias"])


async def _write_alias(call: Call, alias_id: str) -> Answer:
    new_id, now = next(call.parts.ids), call.parts.clock.now()

    def write(tx: Transaction) -> Alias:
        before = entities.alias_by_id(tx, alias_id) if alias_id else None
        if alias_id and before is None:
            raise Invalid("invalid alias ID")
        return written.write_alias(tx, before, call.fields, new_id=new_id, now=now)

    alias = await call.parts.store.write(write)
    return Answer(data={"id": alias.id, "canonical_id": alias.entity_id})


async def remove_alias(call: Call) -> Answer:
    """Remove an alias; its entity stays."""
    await call.parts.store.write(lambda tx: entities.remove_alias(tx, call["alias"]))
    return Answer()
