"""ACL policies and roles."""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from storage.queries.documents import decode_row, readable
from storage.queries.pages import KeyRange, PageRequest, by_name
from storage.read_pool import ReadSnapshot
from storage.records.acl import AclRole, Policy
from storage.records.codec import encode
from storage.writer import Transaction

R = TypeVar("R", Policy, AclRole)

_PUT = """
    INSERT INTO policies (name, document, create_index, modify_index, job_id)
    VALUES (:name, :document, :index, :index, :job_id)
    ON CONFLICT (name) DO UPDATE
       SET document = excluded.document, modify_index = excluded.modify_index,
           job_id = excluded.job_id
"""
_COLUMNS = "SELECT name, document, create_index, modify_index FROM policies"
_FIND = f"{_COLUMNS} WHERE name = :name"
_OF_JOB = f"{_COLUMNS} WHERE job_id = :job_id ORDER BY name"
_NAMES = "SELECT name FROM policies WHERE name > :after ORDER BY name LIMIT :most"
_REMOVE = "DELETE FROM policies WHERE name = :name"


def _from(row: sqlite3.Row) -> Policy:
    return _with_indexes(decode_row(row, Policy, "policies"), row)


def _role(row: sqlite3.Row) -> AclRole:
    return _with_indexes(decode_row(row, AclRole, "acl_roles"), row)


def _with_indexes(record: R, row: sqlite3.Row) -> R:
    return msgspec.structs.replace(
        record, create_index=row["create_index"], modify_index=row["modify_index"]
    )


def put(tx: Transaction, policy: Policy) -> None:
    """Store a policy."""
    job_id = policy.job_acl.job_id or None if policy.job_acl else None
    values = {"name": policy.name, "document": encode(policy).decode(), "job_id": job_id}
    tx.execute(_PUT, {**values, "index": tx.index})
    tx.touch("policies", f"policies/{policy.name}")


def find(db: ReadSnapshot, name: str) -> Policy | None:
    """Return a policy, or None."""
    row = db.one(_FIND, {"name": name})
    return _from(row) if row else None


def of_job(db: ReadSnapshot, job_id: str) -> Iterator[Policy]:
    """Yield the policies that apply to tasks of jobs with this ID, in any namespace, by name.

    Raises `StorageUnreadable`: a policy that cannot be read might deny something.
    """
    return map(_from, db.each(_OF_JOB, {"job_id": job_id}))


def names(db: ReadSnapshot, span: KeyRange) -> list[str]:
    """Return the sorted names of policies."""
    return [row["name"] for row in db.all(_NAMES, span.values)]


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[Policy]:
    """Yield policies by name."""
    return readable(db, by_name(db, _COLUMNS, "name", page_request), _from)


def remove(tx: Transaction, name: str) -> bool:
    """Delete a policy; return whether it existed."""
    existed = tx.execute(_REMOVE, {"name": name}) > 0
    tx.touch("policies", f"policies/{name}")
    return existed


# --- roles ---

_PUT_ROLE = """
    INSERT INTO acl_roles (id, name, document, create_index, modify_index)
    VALUES (:id, :name, :document, :index, :index)
    ON CONFLICT (id) DO UPDATE
       SET name = excluded.name, document = excluded.document,
           modify_index = excluded.modify_index
"""
_ROLE_COLUMNS = "SELECT id, document, create_index, modify_index FROM acl_roles"
_FIND_ROLE = f"{_ROLE_COLUMNS} WHERE id = :id"
_ROLE_NAME = "SELECT name FROM acl_roles WHERE id = :id"
_ROLE_NAMED = f"{_ROLE_COLUMNS} WHERE name = :name"
_EVERY_ROLE = f"{_ROLE_COLUMNS} WHERE id >= :first AND id < :end ORDER BY id"
_REMOVE_ROLE = "DELETE FROM acl_roles WHERE id = :id"


def put_role(tx: Transaction, role: AclRole) -> AclRole:
    """Store a role."""
    values = {"id": role.id, "name": role.name, "document": encode(role).decode()}
    tx.execute(_PUT_ROLE, {**values, "index": tx.index})
    tx.touch("acl_roles", f"acl_roles/{role.id}")
    created = role.create_index or tx.index
    return msgspec.structs.replace(role, create_index=created, modify_index=tx.index)


def find_role(db: ReadSnapshot, role_id: str) -> AclRole | None:
    """Return a role, or None."""
    row = db.one(_FIND_ROLE, {"id": role_id})
    return _role(row) if row else None


def role_named(db: ReadSnapshot, name: str) -> AclRole | None:
    """Return a role by name, or None."""
    row = db.one(_ROLE_NAMED, {"name": name})
    return _role(row) if row else None


def list_roles(db: ReadSnapshot, prefix: str = "") -> list[AclRole]:
    """Return the roles with an ID prefix, by ID."""
    rows = db.all(_EVERY_ROLE, {"first": prefix, "end": prefix + "\U0010ffff"})
    return list(readable(db, rows, _role))


def role_page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[AclRole]:
    """Yield roles by ID."""
    return readable(db, by_name(db, _ROLE_COLUMNS, "id", page_request), _role)


def role_names(db: ReadSnapshot, ids: Iterable[str]) -> dict[str, str]:
    """Return the names of the existing roles in `ids`, by ID."""
    rows = ((identifier, db.one(_ROLE_NAME, {"id": identifier})) for identifier in ids)
    return {role_id: row["name"] for role_id, row in rows if row is not None}


def remove_role(tx: Transaction, role_id: str) -> bool:
    """Delete a role; return whether it existed."""
    gone = tx.execute(_REMOVE_ROLE, {"id": role_id}) > 0
    tx.touch("acl_roles", f"acl_roles/{role_id}")
    return gone
