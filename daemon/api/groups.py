"""Groups of entities, and the aliases that link them to groups of a directory."""

from collections.abc import Callable

from daemon.api import vault_reads
from daemon.identity import groups
from daemon.text.request_fields import RequestFields
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody
from storage.errors import Invalid, Malformed
from storage.queries import groups as stored
from storage.queries import mounts
from storage.queries.pages import KeyRange
from storage.read_pool import ReadSnapshot
from storage.records.identity import Group, GroupAlias
from storage.records.times import rfc3339
from storage.writer import Transaction

Find = Callable[[ReadSnapshot], Group | None]


def _shown(db: ReadSnapshot, group: Group) -> dict[str, object]:
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


def _alias(db: ReadSnapshot, alias: GroupAlias) -> dict[str, object]:
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


def _finds(find: Find) -> vault_reads.Look:
    def look(db: ReadSnapshot) -> dict[str, object] | None:
        group = find(db)
        return _shown(db, group) if group else None

    return look


async def index(call: RouteCall) -> VaultBody:
    """List the identifiers of all groups."""

    def look(db: ReadSnapshot, span: KeyRange) -> dict[str, object]:
        return {
            group.id: {
                "name": group.name,
                "num_member_entities": len(stored.members(db, group.id, are_groups=False)),
                "num_parent_groups": len(stored.parents(db, group.id)),
            }
            for group in stored.list_all(db, span)
        }

    return await vault_reads.key_info(call, look)


async def names(call: RouteCall) -> VaultBody:
    """List the names of all groups."""
    return await vault_reads.keys(call, stored.names)


async def read(call: RouteCall) -> VaultBody:
    """Show a group."""
    return await vault_reads.read_one(call, _finds(lambda db: stored.find(db, call["group"])))


async def read_by_name(call: RouteCall) -> VaultBody:
    """Show the group with this name."""
    return await vault_reads.read_one(call, _finds(lambda db: stored.by_name(db, call["group"])))


async def look_up(call: RouteCall) -> VaultBody:
    """Find a group by its identifier, its name, or its alias."""
    return await vault_reads.read_optional(call, _finds(_wanted(call.fields)))


def _wanted(fields: RequestFields) -> Find:
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


def _of_alias(db: ReadSnapshot, alias: GroupAlias | None) -> Group | None:
    return stored.find(db, alias.group_id) if alias else None


async def create(call: RouteCall) -> VaultBody:
    """Create a group, or change the group with the identifier or name in the request."""
    fields = call.fields
    if group_id := fields.text("id"):
        return await _write(call, _by_id(group_id), fields)
    return await _write(call, lambda db: stored.by_name(db, fields.text("name")), fields)


async def change(call: RouteCall) -> VaultBody:
    """Change a group."""
    return await _write(call, _by_id(call["group"]), call.fields)


async def write_by_name(call: RouteCall) -> VaultBody:
    """Create or change the group with this name."""
    name = call["group"]
    fields = RequestFields({**call.fields.values, "name": name})
    return await _write(call, lambda db: stored.by_name(db, name), fields)


def _by_id(group_id: str) -> Find:
    def find(db: ReadSnapshot) -> Group:
        group = stored.find(db, group_id)
        if group is None:
            raise Invalid("invalid group ID")
        return group

    return find


async def _write(call: RouteCall, find: Find, fields: RequestFields) -> VaultBody:
    new_id, now = next(call.parts.ids), call.parts.clock.now()

    def write(tx: Transaction) -> Group:
        return groups.write(tx, find(tx), fields, new_id=new_id, now=now)

    group = await call.parts.store.write(write, is_long=call.is_long)
    is_new = group.id == new_id
    return VaultBody(data={"id": group.id, "name": group.name}) if is_new else VaultBody()


async def remove(call: RouteCall) -> VaultBody:
    """Delete a group; its members lose its policies immediately."""
    existed = await call.parts.store.write(lambda tx: stored.remove(tx, call["group"]))
    call.note_deletion("group", call["group"], existed=existed)
    return VaultBody()


async def remove_by_name(call: RouteCall) -> VaultBody:
    """Delete the group with this name."""

    def write(tx: Transaction) -> bool:
        group = stored.by_name(tx, call["group"])
        return group is not None and stored.remove(tx, group.id)

    existed = await call.parts.store.write(write)
    call.note_deletion("group", call["group"], existed=existed)
    return VaultBody()


# --- aliases ---


async def aliases(call: RouteCall) -> VaultBody:
    """List the aliases of all groups."""

    def look(db: ReadSnapshot, span: KeyRange) -> dict[str, object]:
        hidden = ("id", "creation_time", "last_update_time", "merged_from_canonical_ids")
        documents = {alias.id: _whole_alias(db, alias) for alias in stored.aliases(db, span)}
        left_out = {*hidden, "namespace_id"}
        return {
            key: {name: value for name, value in document.items() if name not in left_out}
            for key, document in documents.items()
        }

    return await vault_reads.key_info(call, look)


def _whole_alias(db: ReadSnapshot, alias: GroupAlias) -> dict[str, object]:
    return {
        **_alias(db, alias),
        "custom_metadata": None,
        "local": False,
        "namespace_id": "root",
    }


async def read_alias(call: RouteCall) -> VaultBody:
    """Show the alias of a group."""

    def look(db: ReadSnapshot) -> dict[str, object] | None:
        alias = stored.alias(db, call["alias"])
        return _whole_alias(db, alias) if alias else None

    return await vault_reads.read_one(call, look)


async def create_alias(call: RouteCall) -> VaultBody:
    """Create the alias of an external group."""
    return await _write_alias(call, call.fields.text("id"))


async def change_alias(call: RouteCall) -> VaultBody:
    """Change the alias of an external group."""
    return await _write_alias(call, call["alias"])


async def _write_alias(call: RouteCall, alias_id: str) -> VaultBody:
    new_id, now = next(call.parts.ids), call.parts.clock.now()

    def write(tx: Transaction) -> GroupAlias:
        before = stored.alias(tx, alias_id) if alias_id else None
        if alias_id and before is None:
            raise Invalid("invalid group alias ID")
        return groups.write_alias(tx, before, call.fields, new_id=new_id, now=now)

    alias = await call.parts.store.write(write)
    return VaultBody(data={"id": alias.id, "canonical_id": alias.group_id})


async def remove_alias(call: RouteCall) -> VaultBody:
    """Delete the alias of a group, and the members that logins added through it."""
    existed = await call.parts.store.write(lambda tx: stored.remove_alias(tx, call["alias"]))
    call.note_deletion("alias", call["alias"], existed=existed)
    return VaultBody()
