"""Identity groups, their members, and their aliases."""

import sqlite3
from collections.abc import Iterable

from storage.queries.documents import decode_row, readable
from storage.queries.pages import KeyRange
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.identity import Group, GroupAlias
from storage.writer import Transaction

_FIND = "SELECT id, document FROM identity_groups WHERE id = :id"
_BY_NAME = "SELECT id, document FROM identity_groups WHERE name = :name"
_EVERY = "SELECT id, document FROM identity_groups WHERE id > :after ORDER BY id LIMIT :most"
_NAMES = "SELECT name FROM identity_groups WHERE name > :after ORDER BY name LIMIT :most"
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
    SELECT g.id, g.document FROM above JOIN identity_groups AS g ON g.id = above.id ORDER BY g.name
"""
_ADD_MEMBER = """
    INSERT OR IGNORE INTO identity_group_members (member, group_id, is_group)
    VALUES (:member, :id, :is_group)
"""
_REMOVE_MEMBER = "DELETE FROM identity_group_members WHERE member = :member AND group_id = :id"
_ALIAS = "SELECT id, document FROM identity_group_aliases WHERE id = :id"
_ALIAS_OF_GROUP = "SELECT id, document FROM identity_group_aliases WHERE group_id = :id"
_ALIAS_BY_NAME = (
    "SELECT id, document FROM identity_group_aliases WHERE mount = :mount AND name = :name"
)
_ALIASES = """
    SELECT id, document FROM identity_group_aliases
     WHERE id > :after
  ORDER BY id LIMIT :most
"""
_OF_MOUNT = "SELECT id, document FROM identity_group_aliases WHERE mount = :mount"
_PUT_ALIAS = """
    INSERT INTO identity_group_aliases (mount, name, id, group_id, document)
    VALUES (:mount, :name, :id, :group_id, :document)
"""
_REMOVE_ALIAS = "DELETE FROM identity_group_aliases WHERE id = :id"


def _from(row: sqlite3.Row) -> Group:
    return decode_row(row, Group, "identity_groups")


def _alias_from(row: sqlite3.Row) -> GroupAlias:
    return decode_row(row, GroupAlias, "identity_group_aliases")


def _group(row: sqlite3.Row | None) -> Group | None:
    return _from(row) if row else None


def _alias(row: sqlite3.Row | None) -> GroupAlias | None:
    return _alias_from(row) if row else None


def find(db: ReadSnapshot, group_id: str) -> Group | None:
    """Return a group, or None."""
    return _group(db.one(_FIND, {"id": group_id}))


def by_name(db: ReadSnapshot, name: str) -> Group | None:
    """Return a group by name, or None."""
    return _group(db.one(_BY_NAME, {"name": name}))


def list_all(db: ReadSnapshot, span: KeyRange) -> list[Group]:
    """Return groups, by ID."""
    return list(readable(db, db.all(_EVERY, span.values), _from))


def names(db: ReadSnapshot, span: KeyRange) -> list[str]:
    """Return the sorted names of groups."""
    return [row["name"] for row in db.all(_NAMES, span.values)]


def put(tx: Transaction, group: Group) -> None:
    """Store a group."""
    document = encode(group).decode()
    tx.execute(_PUT, {"id": group.id, "name": group.name, "document": document})
    tx.touch("identity_groups", f"identity-groups/{group.id}")


def remove(tx: Transaction, group_id: str) -> bool:
    """Delete a group; its members stay. Return whether the group existed."""
    existed = tx.execute(_REMOVE, {"id": group_id}) > 0
    tx.touch("identity_groups", f"identity-groups/{group_id}")
    return existed


# --- members ---


def members(db: ReadSnapshot, group_id: str, *, are_groups: bool) -> list[str]:
    """Return the IDs of the member groups of a group if `are_groups`, otherwise of its entities."""
    rows = db.all(_MEMBERS, {"id": group_id, "is_group": are_groups})
    return [row["member"] for row in rows]


def parents(db: ReadSnapshot, member: str) -> list[str]:
    """Return the IDs of the groups that an entity or group is a direct member of."""
    return [row["group_id"] for row in db.all(_PARENTS, {"id": member})]


def containing(db: ReadSnapshot, member: str) -> list[Group]:
    """Return all groups that contain an entity or group, directly or through other groups."""
    rows = db.all(_ABOVE, {"id": member})
    return [_from(row) for row in rows]


def policies(db: ReadSnapshot, entity_id: str) -> list[str]:
    """Return the names of the policies that an entity gets from its groups."""
    return sorted({name for group in containing(db, entity_id) for name in group.policies})


def add_member(tx: Transaction, group_id: str, member: str, *, is_group: bool) -> bool:
    """Add a member to a group; return whether it was not a member before."""
    values = {"id": group_id, "member": member, "is_group": is_group}
    return bool(tx.execute(_ADD_MEMBER, values))


def remove_member(tx: Transaction, group_id: str, member: str) -> bool:
    """Remove a member from a group; return whether it was a member."""
    return bool(tx.execute(_REMOVE_MEMBER, {"id": group_id, "member": member}))


def set_members(
    tx: Transaction, group_id: str, new_members: Iterable[str], *, are_groups: bool
) -> None:
    """Replace the member groups of a group if `are_groups`, otherwise its member entities."""
    names = set(new_members)
    for member in set(members(tx, group_id, are_groups=are_groups)) - names:
        remove_member(tx, group_id, member)
    for name in sorted(names):
        add_member(tx, group_id, name, is_group=are_groups)


# --- aliases ---


def alias(db: ReadSnapshot, alias_id: str) -> GroupAlias | None:
    """Return an alias, or None."""
    return _alias(db.one(_ALIAS, {"id": alias_id}))


def alias_of(db: ReadSnapshot, group_id: str) -> GroupAlias | None:
    """Return the alias of a group, or None."""
    return _alias(db.one(_ALIAS_OF_GROUP, {"id": group_id}))


def alias_by_name(db: ReadSnapshot, mount: str, name: str) -> GroupAlias | None:
    """Return the group alias with this name at a mount, or None."""
    return _alias(db.one(_ALIAS_BY_NAME, {"mount": mount, "name": name}))


def aliases(db: ReadSnapshot, span: KeyRange) -> list[GroupAlias]:
    """Return aliases, by ID."""
    return list(readable(db, db.all(_ALIASES, span.values), _alias_from))


def aliases_of_mount(db: ReadSnapshot, mount: str) -> list[GroupAlias]:
    """Return the aliases of a mount."""
    rows = db.all(_OF_MOUNT, {"mount": mount})
    return [_alias_from(row) for row in rows]


def put_alias(tx: Transaction, group_alias: GroupAlias) -> None:
    """Store an alias; it replaces the alias with the same ID.

    The members that logins added through the replaced alias are removed from the group. Later
    logins add the members of the new alias.
    """
    tx.execute(_REMOVE_ALIAS, {"id": group_alias.id})
    document = encode(group_alias).decode()
    values = {
        "mount": group_alias.mount,
        "name": group_alias.name,
        "id": group_alias.id,
        "group_id": group_alias.group_id,
    }
    tx.execute(_PUT_ALIAS, {**values, "document": document})
    tx.touch("identity_groups", f"identity-groups/{group_alias.group_id}")


def remove_alias(tx: Transaction, alias_id: str) -> bool:
    """Delete an alias; return whether it existed.

    The members that logins added through the alias leave the group.
    """
    existed = tx.execute(_REMOVE_ALIAS, {"id": alias_id}) > 0
    tx.touch("identity_groups")
    return existed
