"""The columns that contain documents, their record types, and the search for unreadable rows.

Modules that serve requests do not import this module, because it imports most records.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from storage.errors import StorageUnreadable
from storage.queries.documents import KEYS, decode_row
from storage.read_pool import ReadSnapshot
from storage.records.acl import AclRole, Policy, Token, TokenRole
from storage.records.allocation import (
    ClientState,
    DeploymentHealth,
    DesiredState,
    Placement,
    StoredTaskEvent,
)
from storage.records.auth_method import AuthMethod, BindingRule
from storage.records.calendar import Calendar
from storage.records.deployment import Deployment
from storage.records.evaluation import Evaluation
from storage.records.identity import (
    Alias,
    Directory,
    Entity,
    Group,
    GroupAlias,
    LoginRole,
    MethodConfig,
    Mount,
    Rotation,
)
from storage.records.job import Job, JobCounts, Submission
from storage.records.namespace import Namespace
from storage.records.node import Node
from storage.records.node_pool import NodePool
from storage.records.scaling import ScalingEvent
from storage.records.signing import PublicKey


class DocumentColumn(NamedTuple):
    """A column of a table, and the type of its documents."""

    table: str
    name: str
    type: Any


COLUMNS = (
    DocumentColumn("namespaces", "document", Namespace),
    DocumentColumn("node_pools", "document", NodePool),
    DocumentColumn("jobs", "queued", dict[str, int]),
    DocumentColumn("jobs", "summary", JobCounts),
    DocumentColumn("job_versions", "document", Job),
    DocumentColumn("job_submissions", "document", Submission),
    DocumentColumn("scaling_events", "document", ScalingEvent),
    DocumentColumn("calendars", "document", Calendar),
    DocumentColumn("calendar_versions", "document", Calendar),
    DocumentColumn("evaluations", "document", Evaluation),
    DocumentColumn("allocations", "exclusive", tuple[list[int], list[str]]),
    DocumentColumn("allocations", "placement", Placement),
    DocumentColumn("allocations", "desired", DesiredState),
    DocumentColumn("allocations", "client", ClientState),
    DocumentColumn("allocations", "health", DeploymentHealth),
    DocumentColumn("task_events", "document", StoredTaskEvent),
    DocumentColumn("services", "tags", list[str]),
    DocumentColumn("deployments", "document", Deployment),
    DocumentColumn("run_outputs", "outputs", dict[str, dict[str, str]]),
    DocumentColumn("run_acts", "steps", list[str]),
    DocumentColumn("triggers", "meta", dict[str, str]),
    DocumentColumn("nodes", "document", Node),
    DocumentColumn("signing_keys", "public", PublicKey),
    DocumentColumn("mounts", "document", Mount),
    DocumentColumn("tokens", "document", Token),
    DocumentColumn("token_roles", "document", TokenRole),
    DocumentColumn("policies", "document", Policy),
    DocumentColumn("acl_roles", "document", AclRole),
    DocumentColumn("auth_methods", "document", AuthMethod),
    DocumentColumn("binding_rules", "document", BindingRule),
    DocumentColumn("method_configs", "document", MethodConfig),
    DocumentColumn("login_roles", "document", LoginRole),
    DocumentColumn("secret_rotations", "document", Rotation),
    DocumentColumn("entities", "document", Entity),
    DocumentColumn("entity_aliases", "document", Alias),
    DocumentColumn("identity_groups", "document", Group),
    DocumentColumn("identity_group_aliases", "document", GroupAlias),
    DocumentColumn("directories", "document", Directory),
    DocumentColumn("events", "filter_keys", list[str]),
    DocumentColumn("events", "payload", dict[str, msgspec.Raw]),
)


def unreadable(db: ReadSnapshot) -> Iterator[StorageUnreadable]:
    """Yield the error of each document that cannot be decoded. This reads the whole store."""
    for column in COLUMNS:
        selected = ", ".join((*KEYS[column.table], column.name))
        for row in db.each(f"SELECT {selected} FROM {column.table}"):
            if (error := _fault(row, column)) is not None:
                yield error


def _fault(row: sqlite3.Row, column: DocumentColumn) -> StorageUnreadable | None:
    """Return the error if a document cannot be decoded, or None."""
    if row[column.name] is None:
        return None
    try:
        decode_row(row, column.type, column.table, column.name)
    except StorageUnreadable as error:
        return error
    return None


def _is_damaged(key: tuple[object, ...]) -> bool:
    """Return whether a key cannot be used to find its row.

    In such a key, a part is not valid UTF-8, or is `?` because its column was not selected.
    """
    return any(isinstance(part, str) and (part == "?" or not _is_text(part)) for part in key)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def look_again(db: ReadSnapshot) -> None:
    """Remove rows from `db.unreadable_rows` if they can be read again or were deleted."""
    for table, key in db.unreadable_rows.rows():
        if _is_damaged(key):
            continue
        condition = " AND ".join(f"{name} = :{name}" for name in KEYS[table])
        row = db.one(
            f"SELECT * FROM {table} WHERE {condition}", dict(zip(KEYS[table], key, strict=True))
        )
        columns = [column for column in COLUMNS if column.table == table]
        # Settings have documents of several types.
        if row is None or (columns and not any(_fault(row, column) for column in columns)):
            db.unreadable_rows.forget((table, key))
