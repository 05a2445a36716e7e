"""Groups of entities: validation, and membership by login.

An internal group lists its members. Logins change the members of an external group: the entity
becomes a member if the `groups` claim of its login contains the name of the group's alias.
Otherwise the login removes the entity from the group.
"""

from collections.abc import Sequence

import msgspec

from daemon.text.go_format import quote
from daemon.text.request_fields import RequestFields
from storage.errors import Invalid, Malformed, Refused
from storage.queries import entities, groups, mounts
from storage.read_pool import ReadSnapshot
from storage.records.acl import ROOT
from storage.records.identity import Group, GroupAlias
from storage.writer import Transaction

MOST_MEMBERS = 10_000  # members of a group that one request can name
_TYPES = ("internal", "external")


def policies_of(fields: RequestFields) -> list[str]:
    """Return the policies that a request gives an entity or a group. Raises `Malformed`."""
    names = sorted({name.lower() for name in fields.texts("policies") if name})
    if ROOT in names:
        raise Malformed("policies cannot contain root")
    return names


def write(
    tx: Transaction, before: Group | None, fields: RequestFields, *, new_id: str, now: int
) -> Group:
    """Create a group, or change the group `before`. Raises `Invalid` or `Malformed`."""
    kind = fields.text("type") or (before.type if before else _TYPES[0])
    if kind not in _TYPES:
        raise Invalid(f"invalid group type {quote(kind)}")
    if before and kind != before.type:
        raise Invalid("group type cannot be changed")
    name = fields.text("name") or (before.name if before else f"group_{new_id[:8]}.root")
    group = before or Group(id=new_id, name=name, type=kind, created_at=now, updated_at=now)
    same = groups.by_name(tx, name)
    if same and same.id != group.id:
        raise Invalid("group name is already in use")
    changes: dict[str, object] = {"name": name, "updated_at": now}
    if before:
        changes["version"] = before.version + 1
    if "policies" in fields:
        changes["policies"] = policies_of(fields)
    if "metadata" in fields:
        changes["metadata"] = fields.pairs("metadata") or None
    if "member_entity_ids" in fields:
        changes["has_had_entities"] = True
    if "member_group_ids" in fields:
        changes["has_had_groups"] = True
    group = msgspec.structs.replace(group, **changes)
    groups.put(tx, group)
    _set_entities(tx, group, fields)
    _set_groups(tx, group, fields)
    return group


def _set_entities(tx: Transaction, group: Group, fields: RequestFields) -> None:
    if "member_entity_ids" not in fields:
        return
    entity_ids = _bounded(fields, "member_entity_ids")
    if group.type == "external":
        raise Invalid("member entities can't be set manually for external groups")
    for entity_id in entity_ids:
        if entities.find(tx, entity_id) is None:
            raise Refused(f"invalid entity ID {quote(entity_id)}")
    groups.set_members(tx, group.id, entity_ids, are_groups=False)


def _set_groups(tx: Transaction, group: Group, fields: RequestFields) -> None:
    if "member_group_ids" not in fields:
        return
    group_ids = _bounded(fields, "member_group_ids")
    if group.type == "external":
        raise Invalid("member groups can't be set for external groups")
    forbidden = {group.id, *(group.id for group in groups.containing(tx, group.id))}
    before = set(groups.members(tx, group.id, are_groups=True))
    for group_id in group_ids:
        member = groups.find(tx, group_id)
        if member is None:
            raise Refused(f"invalid group ID {quote(group_id)}")
        if group_id in forbidden:
            raise Refused(f"cyclic relationship detected for member group ID {quote(group_id)}")
        if group_id not in before:
            version = member.version + 1
            groups.put(tx, msgspec.structs.replace(member, has_had_parents=True, version=version))
    groups.set_members(tx, group.id, group_ids, are_groups=True)


def _bounded(fields: RequestFields, name: str) -> list[str]:
    entries = [text for text in fields.texts(name) if text]
    if len(entries) > MOST_MEMBERS:
        raise Invalid(f"{name} has {len(entries)} entries: at most {MOST_MEMBERS} are allowed")
    return entries


def write_alias(
    tx: Transaction, before: GroupAlias | None, fields: RequestFields, *, new_id: str, now: int
) -> GroupAlias:
    """Create the alias of an external group, or change it. Raises `Invalid`."""
    name, mount = fields.text("name"), fields.text("mount_accessor")
    if not name:
        raise Invalid("missing alias name")
    if not mount:
        raise Invalid("missing mount_accessor")
    if mounts.by_accessor(tx, mount) is None:
        raise Invalid(f"invalid mount accessor {quote(mount)}")
    group = groups.find(tx, fields.text("canonical_id") or (before.group_id if before else ""))
    if group is None:
        raise Invalid("invalid group ID given in 'canonical_id'")
    if group.type != "external":
        raise Invalid("alias can't be set on an internal group")
    before = before or groups.alias_of(tx, group.id)
    same = groups.alias_by_name(tx, mount, name)
    if same and (before is None or same.id != before.id):
        raise Invalid("group alias name already in use")
    of_group = groups.alias_of(tx, group.id)
    if before and of_group and of_group.id != before.id:
        raise Invalid("the group has another alias")
    alias = GroupAlias(
        id=before.id if before else new_id,
        group_id=group.id,
        mount=mount,
        name=name,
        created_at=before.created_at if before else now,
        updated_at=now,
    )
    groups.put_alias(tx, alias)
    groups.put(tx, msgspec.structs.replace(group, version=group.version + 1, updated_at=now))
    return alias


def update_memberships(tx: Transaction, mount: str, entity_id: str, claimed: Sequence[str]) -> None:
    """Make an entity a member of exactly those external groups that its login claims."""
    for alias in groups.aliases_of_mount(tx, mount):
        group = groups.find(tx, alias.group_id)
        if group is None:
            continue
        if alias.name in claimed:
            has_changed = groups.add_member(tx, group.id, entity_id, is_group=False)
        else:
            has_changed = groups.remove_member(tx, group.id, entity_id)
        if has_changed:
            version = group.version + 1
            groups.put(tx, msgspec.structs.replace(group, has_had_entities=True, version=version))


def identity_policies(db: ReadSnapshot, entity_id: str) -> list[str]:
    """Return the policies that an entity gives its tokens: its own and those of its groups."""
    entity = entities.find(db, entity_id) if entity_id else None
    return sorted({*entity.policies, *groups.policies(db, entity.id)}) if entity else []
