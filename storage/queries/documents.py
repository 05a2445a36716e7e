"""Decoding of documents. Errors name the unreadable row, and lists omit only unreadable rows."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

import msgspec

from storage.errors import StorageUnreadable
from storage.read_pool import ReadSnapshot

T = TypeVar("T")

_LONGEST_CACHED = 2048  # characters; the text of a group with 1,000 tasks has 100,000

# The key of each table with documents, as the names of unreadable rows show it.
KEYS: Mapping[str, tuple[str, ...]] = {
    "namespaces": ("name",),
    "node_pools": ("name",),
    "jobs": ("namespace", "id"),
    "job_versions": ("namespace", "job_id", "version"),
    "job_submissions": ("namespace", "job_id", "version"),
    "scaling_events": ("namespace", "job_id", "task_group", "create_index"),
    "calendars": ("namespace", "name"),
    "calendar_versions": ("namespace", "name", "version"),
    "evaluations": ("id",),
    "allocations": ("id",),
    "task_events": ("allocation_id", "task", "number"),
    "services": ("id",),
    "deployments": ("id",),
    "run_outputs": ("namespace", "job_id", "number", "step", "element"),
    "run_acts": ("namespace", "job_id", "number", "place"),
    "triggers": ("id",),
    "nodes": ("id",),
    "signing_keys": ("id",),
    "settings": ("name",),
    "mounts": ("path",),
    "tokens": ("accessor",),
    "token_roles": ("name",),
    "policies": ("name",),
    "acl_roles": ("id",),
    "auth_methods": ("name",),
    "binding_rules": ("id",),
    "method_configs": ("mount",),
    "login_roles": ("mount", "name"),
    "secret_rotations": ("mount",),
    "entities": ("id",),
    "entity_aliases": ("id",),
    "identity_groups": ("id",),
    "identity_group_aliases": ("id",),
    "directories": ("mount",),
    "events": ("number",),
}


def decode_row(row: sqlite3.Row, record: type[T], table: str, column: str = "document") -> T:
    """Decode a document of a row. The row must include its key columns, because errors show them.

    Raises `StorageUnreadable`.
    """
    try:
        return msgspec.json.decode(row[column], type=record)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise unreadable(row, table, error) from None


def decode_repeated(row: sqlite3.Row, record: type[T], table: str, column: str) -> T:
    """Decode a document as `decode_row` does, and cache the result: the same text is read often.

    `record` must be immutable, because all callers share the decoded object.
    """
    text = row[column]
    if len(text) > _LONGEST_CACHED:
        return decode_row(row, record, table, column)
    try:
        return _decoded(record, text)  # type: ignore[return-value,arg-type]  # of the type `record`
    except (msgspec.DecodeError, UnicodeError) as error:
        raise unreadable(row, table, error) from None


@lru_cache(maxsize=512)
def _decoded(record: type[object], text: str) -> object:
    return msgspec.json.decode(text, type=record)


def text_of(row: sqlite3.Row, table: str, column: str = "document") -> bytes:
    """Return the bytes of a document if it is a JSON object. Raises `StorageUnreadable`."""
    value = row[column]
    try:
        text: bytes = value if isinstance(value, bytes) else value.encode()
        text.decode()
        msgspec.json.decode(text, type=msgspec.Raw)  # checks the syntax without creating objects
    except (msgspec.DecodeError, UnicodeError) as error:
        raise unreadable(row, table, error) from None
    if not text.startswith(b"{"):
        raise unreadable(row, table, "its text is not a JSON object")
    return text


def decode_document(document: bytes, record: type[T], table: str, key: str) -> T:
    """Decode a document that was selected as a BLOB. `key` is the key of its row, for the error.

    Raises `StorageUnreadable`.
    """
    try:
        return msgspec.json.decode(document, type=record)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise StorageUnreadable.of_row(table, (key,), error) from None


def readable(
    db: ReadSnapshot, rows: Iterable[sqlite3.Row], decode: Callable[[sqlite3.Row], T]
) -> Iterator[T]:
    """Yield the decoded rows of a list, without the unreadable rows.

    Each unreadable row is added to `db.unreadable_rows`.
    """
    for row in rows:
        try:
            decoded = decode(row)
        except StorageUnreadable as error:
            db.unreadable_rows.note(error)
            continue
        yield decoded


def unreadable(row: sqlite3.Row, table: str, reason: object) -> StorageUnreadable:
    """Return the error for an unreadable row.

    A key column that was not selected is shown as `?`.
    """
    selected = set(row.keys())
    key = tuple(row[name] if name in selected else "?" for name in KEYS[table])
    return StorageUnreadable.of_row(table, key, reason)


# --- fields of documents in SQL: without these checks, an unreadable document fails a statement ---


def field(column: str, path: str) -> str:
    """Return an SQL expression for a field of a document.

    The value is NULL if the document is not valid JSON.
    """
    return f"CASE WHEN json_valid({column}) THEN {column} ->> '$.{path}' END"


def is_object(column: str) -> str:
    """Return an SQL expression whose value is 1 if a document is a JSON object."""
    return f"CASE WHEN json_valid({column}) THEN json_type({column}) = 'object' ELSE 0 END"


def check_sound(row: sqlite3.Row, table: str) -> None:
    """Check a row without decoding its document. Raises `StorageUnreadable`.

    The document must be a JSON object, and each string in the row must be valid UTF-8. The column
    `is_sound` of the row contains the value of `is_object`.
    """
    if not row["is_sound"]:
        raise unreadable(row, table, "its text is not a JSON object")
    try:
        for value in row:
            if isinstance(value, str):
                value.encode()
    except UnicodeError as error:
        raise unreadable(row, table, error) from None
