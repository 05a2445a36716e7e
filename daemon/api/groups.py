"""Groups of entities, and the names by which directories know them."""

from collections.abc import Callable

from daemon.api import shown
from daemon.fields import Fields
from daemon.identity import groups
from daemon.web.envelope import Answer
from daemon.web.request import Call
from storage.errors import Invalid, Malformed
from storage.queries import groups as stored
from storage.queries import mounts
from storage.readers import Snapshot
from storage.records.identity import Group, GroupAlias
from storage.records.times import rfc3339
from storage.writer import Transaction

Find = Callable[[Snapshot], Group | None]


def _shown(db: Snapshot, group: Group) -> dict[str, object]:
    alias = stored.alias_of(db, group.id)
    entities = stored.members(db, group.id, are_groups=False)
    inner = stored.members(db, group.id, are_groups=True)
    parents = stored.parents(db, group.id)
    return {
        "id": group.id,
        "name": group.name,
        "type": group.type,
        "alias": _alias(db, alias) if alias else {},
        "policies": group.policies,
        "metadata": group.metadata,
        "member_entity_ids": entities if group.has_had_entities else None,
        "member_group_ids": inner if group.has_had_groups else None,
        "parent_group_ids": parents if group.has_had_parents else None,
        "modify_index": group.version,
        "namespace_id": "root",
        "creation_time": rfc3339(group.created_at),
        "last_update_time": rfc3339(group.updated_at),
    }


def _alias(db: Snapshot, alias: GroupAlias) -> dict[str, object]:
    mount = mounts.by_accessor(db, alias.mount)
    return {
        "id": alias.id,
        "canonical_id": alias.group_id,
        "name": alias.name,
        "metadata": None,
        "mount_accessor": alias.mount,
        "mount_path": f"auth/{mount.path}" if mount else "",
        "mount_type": mount.type if mount else "",
        "merged_from_canonical_ids": None,
        "creation_time": rfc3339(alias.created_at),
        "last_update_time": rfc3339(alias.updated_at),
    }


def _finds(find: Find) -> shown.Look:
    def look(db: Snapshot) -> dict[str, object] | None:
        group = find(db)
        return _shown(db, group) if group else None

    return look


async def index(call: Call) -> Answer:
    """List the identifiers of all groups."""

    def look(db: Snapshot) -> dict[str, object]:
        return {
            group.id: {
                "name": group.name,
                "num_member_entities": len(stored.members(db, group.id, are_groups=False)),
                "num_parent_groups": len(stored.parents(db, group.id)),
            }
            for group in stored.every(db)
        }

    return await shown.key_info(call, look)


async def names(call: Call) -> Answer:
    """List the names of all groups."""
    return await shown.keys(call, lambda db: [group.name for group in stored.every(db)])


async def read(call: Call) -> Answer:
    """Show a group."""
    return await shown.one(call, _finds(lambda db: stored.find(db, call["group"])))


async def read_by_name(call: Call) -> Answer:
    """Show the group of a name."""
    return await shown.one(call, _finds(lambda db: stored.by_name(db, call["group"])))


async def look_up(call: Call) -> Answer:
    """Find a group by its identifier, its name, or its alias."""
    return await shown.one_or_nothing(call, _finds(_wanted(call.fields)))


def _wanted(fields: Fields) -> Find:
    if name := fields.text("alias_name"):
        accessor = fields.text("alias_mount_accessor")
        return lambda db: _of_alias(db, stored.alias_by_name(db, accessor, name))
    if alias_id := fields.text("alias_id"):
        return lambda db: _of_alias(db, stored.alias(db, alias_id))
    if group_id := fields.text("id"):
        return lambda db: stored.find(db, group_id)
    if name := fields.text("name"):
        return lambda db: stored.by_name(db, name)
    raise Malformed("query parameter not supplied")


def _of_alias(db: Snapshot, alias: GroupAlias | None) -> Group | None:
    return stored.find(db, alias.group_id) if alias else None


async def create(call: Call) -> Answer:
    """Create a group, or change the one with the identifier or name in the request."""
    fields = call.fields
    if group_id := fields.text("id"):
        return await _write(call, _by_id(group_id), fields)
    return await _write(call, lambda db: stored.by_name(db, fields.text("name")), fields)


async def change(call: Call) -> Answer:
    """Change a group."""
    return await _write(call, _by_id(call["group"]), call.fields)


async def write_by_name(call: Call) -> Answer:
    """Create the group of a name, or change it."""
    name = call["group"]
    fields = Fields({**call.fields.values, "name": name})
    return await _write(call, lambda db: stored.by_name(db, name), fields)


def _by_id(group_id: str) -> Find:
    def find(db: Snapshot) -> Group:
        group = stored.find(db, group_id)
        if group is None:
            raise Invalid("invalid group ID")
        return group

    return find


async def _write(call: Call, find: Find, fields: Fields) -> Answer:
    new_id, now = next(call.parts.ids), call.parts.clock.now()

    def write(tx: Transaction) -> Group:
        return groups.write(tx, find(tx), fields, new_id=new_id, now=now)

    group = await call.parts.store.write(write)
    is_new = group.id == new_id
    return Answer(data={"id": group.id, "name": group.name}) if is_new else Answer()


async def remove(call: Call) -> Answer:
    """Remove a group; its members lose its policies with the next request."""
    await call.parts.store.write(lambda tx: stored.remove(tx, call["group"]))
    return Answer()


async def remove_by_name(call: Call) -> Answer:
    """Remove the group of a name."""

    def write(tx: Transaction) -> None:
        if group := stored.by_name(tx, call["group"]):
            stored.remove(tx, group.id)

    await call.parts.store.write(write)
    return Answer()


# --- aliases ---


async def aliases(call: Call) -> Answer:
    """List the aliases of all groups."""

    def look(db: Snapshot) -> dict[str, object]:
        hidden = ("id", "creation_time", "last_update_time", "merged_from_canonical_ids")
        shown = {one.id: _whole_alias(db, one) for one in stored.aliases(db)}
        left_out = {*hidden, "namespace_id"}
        return {
            key: {name: value for name, value in one.items() if name not in left_out}
            for key, one in shown.items()
        }

    return await shown.key_info(call, look)


def _whole_alias(db: Snapshot, alias: GroupAlias) -> dict[str, object]:
    return {
        **_alias(db, alias),
        "custom_metadata": None,
        "local": False,
        "namespace_id": "root",
    }


async def read_alias(call: Call) -> Answer:
    """Show the alias of a group."""

    def look(db: Snapshot) -> dict[str, object] | None:
        alias = stored.alias(db, call["alias"])
        return _whole_alias(db, alias) if alias else None

    return await shown.one(call, look)


async def create_alias(call: Call) -> Answer:
    """Create the alias of an external group."""
    return await _write_alias(call, call.fields.text("id"))


async def change_alias(call: Call) -> Answer:
    """Change the alias of an external group."""
    return await _write_alias(call, call["alias"])


async def _write_alias(call: Call, alias_id: str) -> Answer:
    new_id, now = next(call.parts.ids), call.parts.clock.now()

    def write(tx: Transaction) -> GroupAlias:
        before = stored.alias(tx, alias_id) if alias_id else None
        if alias_id and before is None:
            raise Invalid("invalid group alias ID")
        return groups.write_alias(tx, before, call.fields, new_id=new_id, now=now)

    alias = await call.parts.store.write(write)
    return Answer(data={"id": alias.id, "canonical_id": alias.group_id})


async def remove_alias(call: Call) -> Answer:
    """Remove the alias of a group, and with it the members that it gave the group."""
    await call.parts.store.write(lambda tx: stored.remove_alias(tx, call["alias"]))
    return Answer()
