"""Stored variables. Their encrypted values are stored separately (`secrets.py`)."""

import sqlite3
from collections.abc import Iterator

import msgspec

from storage.queries import secrets
from storage.queries.pages import PageRequest, by_namespace
from storage.read_pool import ReadSnapshot
from storage.writer import Transaction

TOPIC = "variables/"


class VariableLock(msgspec.Struct, frozen=True, kw_only=True):
    """The lock of a variable. Times are in nanoseconds. A lock without an ID is not held."""

    id: str = ""
    ttl: int = 0
    delay: int = 0
    ends: int = 0


class VariableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A variable as stored; `sealed` is empty if the values were not requested."""

    namespace: str
    path: str
    create_index: int = 0
    modify_index: int = 0
    create_time: int
    modify_time: int
    lock: VariableLock = VariableLock()
    sealed: bytes = b""


_COLUMNS = """
    SELECT namespace, path, lock_id, lock_ttl, lock_delay, lock_ends, create_index, modify_index,
           create_time, modify_time
      FROM variables
"""
_FIND = f"{_COLUMNS} WHERE namespace = :namespace AND path = :path"
_PUT = """
    INSERT INTO variables (namespace, path, lock_id, lock_ttl, lock_delay, lock_ends,
                           create_index, modify_index, create_time, modify_time)
    VALUES (:namespace, :path, :lock_id, :lock_ttl, :lock_delay, :lock_ends,
            :create_index, :index, :create_time, :modify_time)
    ON CONFLICT (namespace, path) DO UPDATE
       SET lock_id = excluded.lock_id, lock_ttl = excluded.lock_ttl,
           lock_delay = excluded.lock_delay, lock_ends = excluded.lock_ends,
           modify_index = excluded.modify_index, modify_time = excluded.modify_time
"""
_RENEW = """
    UPDATE variables SET lock_ends = :ends WHERE namespace = :namespace AND path = :path
"""
_NEXT_END = "SELECT min(lock_ends) AS ends FROM variables WHERE lock_id <> ''"
_ENDED = f"""
    {_COLUMNS} WHERE lock_id <> '' AND lock_ends <= :now
  ORDER BY lock_ends
     LIMIT :most
"""
_LOSE = """
    UPDATE variables
       SET lock_id = '', modify_index = :index, modify_time = :now
     WHERE namespace = :namespace AND path = :path
"""
_REMOVE = "DELETE FROM variables WHERE namespace = :namespace AND path = :path"


def variable_path(namespace: str, path: str) -> str:
    """Return the path of a variable's values."""
    return f"variables/{namespace}/{path}"


def _from(row: sqlite3.Row) -> VariableRow:
    return VariableRow(
        namespace=row["namespace"],
        path=row["path"],
        create_index=row["create_index"],
        modify_index=row["modify_index"],
        create_time=row["create_time"],
        modify_time=row["modify_time"],
        lock=VariableLock(
            id=row["lock_id"], ttl=row["lock_ttl"], delay=row["lock_delay"], ends=row["lock_ends"]
        ),
    )


def find(db: ReadSnapshot, namespace: str, path: str) -> VariableRow | None:
    """Return a variable with its encrypted values, or None."""
    row = db.one(_FIND, {"namespace": namespace, "path": path})
    if row is None:
        return None
    sealed = secrets.find(db, variable_path(namespace, path)) or b""
    return msgspec.structs.replace(_from(row), sealed=sealed)


def page(db: ReadSnapshot, listing_request: PageRequest) -> Iterator[VariableRow]:
    """Yield variables by namespace and path.

    The prefix applies to the path; the namespace `*` means all namespaces.
    """
    for page_request in by_namespace(db, listing_request):
        yield from _page(db, page_request)


def _page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[VariableRow]:
    conditions, values = [], dict[str, object]()
    if page_request.namespace != "*":
        conditions.append("namespace = :namespace")
        values["namespace"] = page_request.namespace
    if page_request.prefix:
        conditions.append("path >= :prefix AND path < :prefix || char(1114111)")
        values["prefix"] = page_request.prefix
    if page_request.start is not None:
        values["first"], values["second"] = page_request.start
        # From a comparison of both columns, SQLite would use only `namespace = :namespace` in the
        # index.
        within = page_request.start[0] == page_request.namespace
        columns, start = (
            ("path", ":second") if within else ("(namespace, path)", "(:first, :second)")
        )
        conditions.append(f"{columns} {'<=' if page_request.reverse else '>='} {start}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    direction = " DESC" if page_request.reverse else ""
    return map(
        _from, db.each(f"{_COLUMNS}{where} ORDER BY namespace{direction}, path{direction}", values)
    )


def put(tx: Transaction, entry: VariableRow) -> VariableRow:
    """Store a variable; return it with its indexes."""
    stored = msgspec.structs.replace(
        entry, create_index=entry.create_index or tx.index, modify_index=tx.index
    )
    tx.execute(
        _PUT,
        {
            "namespace": entry.namespace,
            "path": entry.path,
            "lock_id": entry.lock.id,
            "lock_ttl": entry.lock.ttl,
            "lock_delay": entry.lock.delay,
            "lock_ends": entry.lock.ends,
            "create_index": stored.create_index,
            "create_time": entry.create_time,
            "modify_time": entry.modify_time,
            "index": tx.index,
        },
    )
    secrets.put(tx, variable_path(entry.namespace, entry.path), entry.sealed)
    _changed(tx, entry.namespace, entry.path)
    return stored


def renew(tx: Transaction, entry: VariableRow, ends: int) -> None:
    """Extend the lock of a variable, without notifying its watchers."""
    tx.execute(_RENEW, {"namespace": entry.namespace, "path": entry.path, "ends": ends})


def next_end(db: ReadSnapshot) -> int | None:
    """Return the next expiry time of any lock, or None."""
    row = db.one(_NEXT_END)
    return row["ends"] if row else None


def ended(db: ReadSnapshot, now: int, most: int) -> list[VariableRow]:
    """Return up to `most` variables with an expired lock that is not released yet."""
    return [_from(row) for row in db.all(_ENDED, {"now": now, "most": most})]


def lose_lock(tx: Transaction, entry: VariableRow, now: int) -> None:
    """Release the expired lock of a variable, but keep its expiry time and delay."""
    key = {"namespace": entry.namespace, "path": entry.path}
    tx.execute(_LOSE, {**key, "now": now, "index": tx.index})
    _changed(tx, entry.namespace, entry.path)


def remove(tx: Transaction, entry: VariableRow) -> None:
    """Delete a variable and its values."""
    tx.execute(_REMOVE, {"namespace": entry.namespace, "path": entry.path})
    secrets.remove(tx, variable_path(entry.namespace, entry.path))
    _changed(tx, entry.namespace, entry.path)


def _changed(tx: Transaction, namespace: str, path: str) -> None:
    tx.touch("variables", f"variables/{namespace}/{path}")
