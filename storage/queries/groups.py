"""Groups of entities, their members, and the aliases by which mounts know them."""

import sqlite3
from collections.abc import Iterable

import msgspec

from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.identity import Group, GroupAlias
from storage.writer import Transaction

_FIND = "SELECT document FROM identity_groups WHERE id = :id"
_BY_NAME = "SELECT document FROM identity_groups WHERE name = :name"
_EVERY = "SELECT document FROM identity_groups ORDER BY name"
_PUT = """
    INSERT INTO identity_groups (id, name, document) VALUES (:id, :name, :document)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, document = excluded.document
"""
_REMOVE = "DELETE FROM identity_groups WHERE id = :id"
_MEMBERS = """
    SELECT member FROM identity_group_members
     WHERE group_id = :id AND is_group = :is_group ORDER BY member
"""
_PARENTS = "SELECT group_id FROM identity_group_members WHERE member = :id ORDER BY group_id"
_ABOVE = """
    WITH RECURSIVE above (id) AS (
        SELECT group_id FROM identity_group_members WHERE member = :id
         UNION
        SELECT m.group_id FROM identity_group_members AS m JOIN above ON m.member = above.id
    )
    SELECT g.document FROM above JOIN identity_groups AS g ON g.id = above.id ORDER BY g.name
"""
_ADD_MEMBER = """
    INSERT OR IGNORE INTO identity_group_members (member, group_id, is_group)
    VALUES (:member, :id, :is_group)
"""
_REMOVE_MEMBER = "DELETE FROM identity_group_members WHERE member = :member AND group_id = :id"
_ALIAS = "SELECT document FROM identity_group_aliases WHERE id = :id"
_ALIAS_OF_GROUP = "SELECT document FROM identity_group_aliases WHERE group_id = :id"
_ALIAS_BY_NAME = "SELECT document FROM identity_group_aliases WHERE mount = :mount AND name = :name"
_ALIASES = "SELECT document FROM identity_group_aliases ORDER BY id"
_OF_MOUNT = "SELECT document FROM identity_group_aliases WHERE mount = :mount"
_PUT_ALIAS = """
    INSERT INTO identity_group_aliases (mount, name, id, group_id, document)
    VALUES (:mount, :name, :id, :group_id, :document)
"""
_REMOVE_ALIAS = "DELETE FROM identity_group_aliases WHERE id = :id"


def _group(row: sqlite3.Row | None) -> Group | None:
    return msgspec.json.decode(row["document"], type=Group) if row else None


def _alias(row: sqlite3.Row | None) -> GroupAlias | None:
    return msgspec.json.decode(row["document"], type=GroupAlias) if row else None


def find(db: Snapshot, group_id: str) -> Group | None:
    """Return a group."""
    return _group(db.one(_FIND, {"id": group_id}))


def by_name(db: Snapshot, name: str) -> Group | None:
    """Return the group of a name."""
    return _group(db.one(_BY_NAME, {"name": name}))


def every(db: Snapshot) -> list[Group]:
    """Return all groups, by name."""
    return [msgspec.json.decode(row["document"], type=Group) for row in db.all(_EVERY)]


def put(tx: Transaction, group: Group) -> None:
    """Store a group."""
    document = encode(group).decode()
    tx.execute(_PUT, {"id": group.id, "name": group.name, "document": document})
    tx.touch("identity_groups", f"identity-groups/{group.id}")


def remove(tx: Transaction, group_id: str) -> None:
    """Remove a group; its members stay."""
    tx.execute(_REMOVE, {"id": group_id})
    tx.touch("identity_groups", f"identity-groups/{group_id}")


# --- members ---


def members(db: Snapshot, group_id: str, *, are_groups: bool) -> list[str]:
    """Return the identifiers of the entities, or of the groups, within a group."""
    rows = db.all(_MEMBERS, {"id": group_id, "is_group": are_groups})
    return [row["member"] for row in rows]


def parents(db: Snapshot, member: str) -> list[str]:
    """Return the identifiers of the groups of which an entity or group is a direct member."""
    return [row["group_id"] for row in db.all(_PARENTS, {"id": member})]


def above(db: Snapshot, member: str) -> list[Group]:
    """Return all groups of an entity or group, those above its own groups as well."""
    rows = db.all(_ABOVE, {"id": member})
    return [msgspec.json.decode(row["document"], type=Group) for row in rows]


def policies(db: Snapshot, entity_id: str) -> list[str]:
    """Return the names of the policies that an entity has by its groups."""
    return sorted({name for group in above(db, entity_id) for name in group.policies})


def add_member(tx: Transaction, group_id: str, member: str, *, is_group: bool) -> bool:
    """Add a member to a group; return whether it was none before."""
    given = {"id": group_id, "member": member, "is_group": is_group}
    return bool(tx.execute(_ADD_MEMBER, given))


def remove_member(tx: Transaction, group_id: str, member: str) -> bool:
    """Remove a member from a group; return whether it was one."""
    return bool(tx.execute(_REMOVE_MEMBER, {"id": group_id, "member": member}))


def set_members(tx: Transaction, group_id: str, wanted: Iterable[str], *, are_groups: bool) -> None:
    """Make these the members of one kind."""
    names = set(wanted)
    for gone in set(members(tx, group_id, are_groups=are_groups)) - names:
        remove_member(tx, group_id, gone)
    for name in sorted(names):
        add_member(tx, group_id, name, is_group=are_groups)


# --- aliases ---


def alias(db: Snapshot, alias_id: str) -> GroupAlias | None:
    """Return an alias."""
    return _alias(db.one(_ALIAS, {"id": alias_id}))


def alias_of(db: Snapshot, group_id: str) -> GroupAlias | None:
    """Return the alias of a group."""
    return _alias(db.one(_ALIAS_OF_GROUP, {"id": group_id}))


def alias_by_name(db: Snapshot, mount: str, name: str) -> GroupAlias | None:
    """Return the alias that a mount's tokens call by this name."""
    return _alias(db.one(_ALIAS_BY_NAME, {"mount": mount, "name": name}))


def aliases(db: Snapshot) -> list[GroupAlias]:
    """Return all aliases."""
    return [msgspec.json.decode(row["document"], type=GroupAlias) for row in db.all(_ALIASES)]


def aliases_of_mount(db: Snapshot, mount: str) -> list[GroupAlias]:
    """Return the aliases of a mount."""
    rows = db.all(_OF_MOUNT, {"mount": mount})
    return [msgspec.json.decode(row["document"], type=GroupAlias) for row in rows]


def put_alias(tx: Transaction, one: GroupAlias) -> None:
    """Store an alias in the place of the one with its identifier.

    Members go with an alias that is replaced: the next logins say who belongs to the new one.
    """
    tx.execute(_REMOVE_ALIAS, {"id": one.id})
    document = encode(one).decode()
    given = {"mount": one.mount, "name": one.name, "id": one.id, "group_id": one.group_id}
    tx.execute(_PUT_ALIAS, {**given, "document": document})
    tx.touch("identity_groups", f"identity-groups/{one.group_id}")


def remove_alias(tx: Transaction, alias_id: str) -> None:
    """Remove an alias, and the members that logins have made by it."""
    tx.execute(_REMOVE_ALIAS, {"id": alias_id})
    tx.touch("identity_groups")
