"""Variables: everything about them but their values, which are sealed (`secrets.py`)."""

import sqlite3

import msgspec

from storage.queries import secrets
from storage.readers import Snapshot, selection
from storage.writer import Transaction

TOPIC = "variables/"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The lock of a variable; spans and the end are nanoseconds. No id: nobody holds it."""

    id: str = ""
    ttl: int = 0
    delay: int = 0
    ends: int = 0


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A variable as the file has it; `sealed` is empty where the values were not asked for."""

    namespace: str
    path: str
    create_index: int = 0
    modify_index: int = 0
    create_time: int
    modify_time: int
    lock: Held = Held()
    sealed: bytes = b""


_COLUMNS = """
    SELECT namespace, path, lock_id, lock_ttl, lock_delay, lock_ends, create_index, modify_index,
           create_time, modify_time
      FROM variables
"""
_FIND = f"{_COLUMNS} WHERE namespace = :namespace AND path = :path"
_FILTERS = {
    "namespace": "namespace = :namespace",
    "prefix": "path >= :prefix AND path < :prefix || char(1114111)",
}
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


def place(namespace: str, path: str) -> str:
    """Return where the values of a variable are kept."""
    return f"variables/{namespace}/{path}"


def _from(row: sqlite3.Row) -> Entry:
    return Entry(
        namespace=row["namespace"],
        path=row["path"],
        create_index=row["create_index"],
        modify_index=row["modify_index"],
        create_time=row["create_time"],
        modify_time=row["modify_time"],
        lock=Held(
            id=row["lock_id"], ttl=row["lock_ttl"], delay=row["lock_delay"], ends=row["lock_ends"]
        ),
    )


def find(db: Snapshot, namespace: str, path: str) -> Entry | None:
    """Return a variable with its sealed values."""
    row = db.one(_FIND, {"namespace": namespace, "path": path})
    if row is None:
        return None
    sealed = secrets.find(db, place(namespace, path)) or b""
    return msgspec.structs.replace(_from(row), sealed=sealed)


def listed(db: Snapshot, namespace: str, prefix: str = "") -> list[Entry]:
    """Return the variables whose path begins with `prefix`, by namespace and path; `*` is all."""
    values = {"namespace": namespace, "prefix": prefix}
    given = {name: value for name, value in values.items() if value and value != "*"}
    return [
        _from(row) for row in db.all(selection(_COLUMNS, _FILTERS, given, "namespace, path"), given)
    ]


def put(tx: Transaction, entry: Entry) -> Entry:
    """Store a variable, new or changed; return it with its indexes."""
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
    secrets.put(tx, place(entry.namespace, entry.path), entry.sealed)
    _changed(tx, entry.namespace, entry.path)
    return stored


def renew(tx: Transaction, entry: Entry, ends: int) -> None:
    """Let the lock of a variable end later; nobody who watches it is woken by that."""
    tx.execute(_RENEW, {"namespace": entry.namespace, "path": entry.path, "ends": ends})


def next_end(db: Snapshot) -> int | None:
    """Return when the next lock ends that is not renewed."""
    row = db.one(_NEXT_END)
    return row["ends"] if row else None


def ended(db: Snapshot, now: int, most: int) -> list[Entry]:
    """Return some of the variables whose lock has ended, and nobody has noticed."""
    return [_from(row) for row in db.all(_ENDED, {"now": now, "most": most})]


def lose(tx: Transaction, entry: Entry, now: int) -> None:
    """Let nobody hold the lock of a variable; when it ended, and its delay, stay known."""
    key = {"namespace": entry.namespace, "path": entry.path}
    tx.execute(_LOSE, {**key, "now": now, "index": tx.index})
    _changed(tx, entry.namespace, entry.path)


def remove(tx: Transaction, entry: Entry) -> None:
    """Forget a variable and its values."""
    tx.execute(_REMOVE, {"namespace": entry.namespace, "path": entry.path})
    secrets.remove(tx, place(entry.namespace, entry.path))
    _changed(tx, entry.namespace, entry.path)


def _changed(tx: Transaction, namespace: str, path: str) -> None:
    tx.touch("variables", f"variables/{namespace}/{path}")
