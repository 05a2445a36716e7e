"""Calendars, their versions, and the jobs and calendars that use them."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from storage.queries import events, periodic
from storage.queries.documents import check_sound, decode_row, field, is_object, readable
from storage.queries.pages import Key, PageRequest, by_namespace, key_range, numbers
from storage.read_pool import ReadSnapshot
from storage.records.calendar import Calendar, CalendarListing, CalendarVersion
from storage.records.codec import encode
from storage.writer import Transaction

TABLE = "calendars"
KEPT = 50  # newest versions of a calendar
_MOST_FOLLOWED = 64  # calendars that one calendar refers to; more than a valid calendar can have

_COLUMNS = "SELECT namespace, name, version, document, create_index, modify_index FROM calendars"
_FIND = f"{_COLUMNS} WHERE namespace = :namespace AND name = :name"
_PAGE = f"""
    SELECT namespace, name, version, create_index, modify_index,
           {is_object("document")} AS is_sound,
           {field("document", "Description")} AS description,
           {field("document", "TimeZone")} AS time_zone
      FROM calendars
     WHERE (namespace, name) BETWEEN (:low_namespace, :low_name) AND (:high_namespace, :high_name)
  ORDER BY namespace, name
"""
_PAGE_BACK = f"""
    SELECT namespace, name, version, create_index, modify_index,
           {is_object("document")} AS is_sound,
           {field("document", "Description")} AS description,
           {field("document", "TimeZone")} AS time_zone
      FROM calendars
     WHERE (namespace, name) BETWEEN (:low_namespace, :low_name) AND (:high_namespace, :high_name)
  ORDER BY namespace DESC, name DESC
"""
_NAMES = "SELECT name FROM calendars WHERE namespace = :namespace ORDER BY name"
_COUNT = "SELECT count(*) AS number FROM calendars WHERE namespace = :namespace"
_COUNT_ALL = "SELECT count(*) AS number FROM calendars"
_VERSIONS = """
    SELECT namespace, name, version, document, person, time FROM calendar_versions
     WHERE namespace = :namespace AND name = :name AND version BETWEEN :low AND :high
  ORDER BY version"""
_CLOSURE = """
    WITH RECURSIVE parts (name) AS (
        VALUES (:name)
        UNION
        SELECT p.part FROM parts JOIN calendar_parts p
            ON p.namespace = :namespace AND p.name = parts.name
         LIMIT :most
    )
    SELECT c.namespace, c.name, c.version, c.create_index, c.document
      FROM parts JOIN calendars c ON c.namespace = :namespace AND c.name = parts.name
"""
_VERSION = (
    "SELECT version, create_index FROM calendars WHERE namespace = :namespace AND name = :name"
)
_USERS = """
    SELECT name FROM calendar_parts WHERE namespace = :namespace AND part = :name ORDER BY name
"""
_JOBS = """
    SELECT job_id FROM calendar_jobs
     WHERE namespace = :namespace AND calendar = :name
  ORDER BY job_id LIMIT :most
"""
_REFERENCES = """
    WITH RECURSIVE users (name) AS (
        VALUES (:name)
        UNION
        SELECT p.name FROM users JOIN calendar_parts p
            ON p.namespace = :namespace AND p.part = users.name
    ), needed (name) AS (
        SELECT name FROM users
        UNION
        SELECT value FROM json_each(:parts)
        UNION
        SELECT p.part FROM needed JOIN calendar_parts p
            ON p.namespace = :namespace AND p.name = needed.name
    )
    SELECT p.name, p.part FROM needed JOIN calendar_parts p
        ON p.namespace = :namespace AND p.name = needed.name
"""
_LOOK_AGAIN = """
    WITH RECURSIVE users (name) AS (
        VALUES (:name)
        UNION
        SELECT p.name FROM users JOIN calendar_parts p
            ON p.namespace = :namespace AND p.part = users.name
    )
    UPDATE periodic_jobs SET next_slot = NULL
     WHERE namespace = :namespace
       AND job_id IN (SELECT j.job_id FROM users JOIN calendar_jobs j
                          ON j.namespace = :namespace AND j.calendar = users.name)
"""


def _from(row: sqlite3.Row) -> Calendar:
    return msgspec.structs.replace(
        decode_row(row, Calendar, "calendars"),
        namespace=row["namespace"],
        version=row["version"],
        create_index=row["create_index"],
        modify_index=row["modify_index"],
    )


def find(db: ReadSnapshot, namespace: str, name: str) -> Calendar | None:
    """Return the latest version of a calendar, or None."""
    row = db.one(_FIND, {"namespace": namespace, "name": name})
    return _from(row) if row else None


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[CalendarListing]:
    """Yield the calendars of a namespace, or of all namespaces (`*`), by namespace and name."""
    for part in by_namespace(db, page_request):
        low, high = key_range(part)
        values = {
            "low_namespace": low[0],
            "low_name": low[1],
            "high_namespace": high[0],
            "high_name": high[1],
        }
        rows = db.each(_PAGE_BACK if page_request.reverse else _PAGE, values)
        yield from readable(db, rows, _listing)


def _listing(row: sqlite3.Row) -> CalendarListing:
    check_sound(row, "calendars")
    return CalendarListing(**{name: row[name] for name in CalendarListing.__struct_fields__})


def names(db: ReadSnapshot, namespace: str) -> list[str]:
    """Return the names of the calendars in a namespace."""
    return [row["name"] for row in db.all(_NAMES, {"namespace": namespace})]


def number(db: ReadSnapshot, namespace: str = "") -> int:
    """Return the number of calendars in a namespace; if `namespace` is empty, in all namespaces."""
    row = db.one(_COUNT if namespace else _COUNT_ALL, {"namespace": namespace})
    return int(row["number"]) if row else 0


def versions(
    db: ReadSnapshot,
    namespace: str,
    name: str,
    start: Key | None = None,
    *,
    reverse: bool = False,
) -> Iterator[CalendarVersion]:
    """Yield the stored versions of a calendar from `start` on; with `reverse`, newest first."""
    values = {"namespace": namespace, "name": name, **numbers(start, reverse=reverse)}
    rows = db.each(f"{_VERSIONS}{' DESC' if reverse else ''}", values)
    return readable(db, rows, _version)


def _version(row: sqlite3.Row) -> CalendarVersion:
    return CalendarVersion(
        version=row["version"],
        person=row["person"],
        time=row["time"],
        calendar=decode_row(row, Calendar, "calendar_versions"),
    )


class CalendarDocuments(msgspec.Struct, frozen=True):
    """A calendar and all calendars that it uses, directly or indirectly.

    The keys are calendar names. `documents` has the JSON documents. `versions` has pairs of the
    version number and the create index.
    """

    documents: Mapping[str, bytes]
    versions: Mapping[str, tuple[int, int]]


def documents(db: ReadSnapshot, namespace: str, name: str) -> CalendarDocuments:
    """Return the documents of a calendar and of the existing calendars that it uses.

    Raises `StorageUnreadable`.
    """
    values = {"namespace": namespace, "name": name, "most": _MOST_FOLLOWED}
    rows = db.all(_CLOSURE, values)
    for row in rows:
        decode_row(row, Calendar, TABLE)
    return CalendarDocuments(
        {row["name"]: row["document"].encode() for row in rows},
        {row["name"]: (row["version"], row["create_index"]) for row in rows},
    )


def references(
    db: ReadSnapshot, namespace: str, name: str, parts: Sequence[str]
) -> dict[str, set[str]]:
    """Return the names of the calendars that each calendar uses directly, by its name.

    The keys are the calendars that use `name`, the calendars in `parts`, and all calendars that any
    of these uses, directly or indirectly. A namespace with more references needs more time.
    """
    values = {"namespace": namespace, "name": name, "parts": encode(parts).decode()}
    references_by_name: dict[str, set[str]] = {}
    for row in db.each(_REFERENCES, values):
        references_by_name.setdefault(row["name"], set()).add(row["part"])
    return references_by_name


def has_versions(
    db: ReadSnapshot, namespace: str, desired_versions: Mapping[str, tuple[int, int]]
) -> bool:
    """Return whether each calendar in `desired_versions` still has that version and index."""
    for name, version in desired_versions.items():
        row = db.one(_VERSION, {"namespace": namespace, "name": name})
        if row is None or (row["version"], row["create_index"]) != version:
            return False
    return True


def users(db: ReadSnapshot, namespace: str, name: str, most: int) -> tuple[list[str], list[str]]:
    """Return the IDs of the jobs and the names of the calendars that use a calendar.

    `most` limits only the number of jobs.
    """
    values = {"namespace": namespace, "name": name, "most": most}
    jobs = [row["job_id"] for row in db.all(_JOBS, values)]
    return jobs, [row["name"] for row in db.all(_USERS, values)]


# --- changes ---

_PUT = """
    INSERT INTO calendars (namespace, name, version, document, create_index, modify_index)
    VALUES (:namespace, :name, :version, :document, :index, :index)
    ON CONFLICT (namespace, name) DO UPDATE
       SET version = excluded.version, document = excluded.document,
           modify_index = excluded.modify_index
"""
_ADD_VERSION = """
    INSERT INTO calendar_versions (namespace, name, version, document, person, time)
    VALUES (:namespace, :name, :version, :document, :person, :time)
"""
_TRIM = """
    DELETE FROM calendar_versions
     WHERE namespace = :namespace AND name = :name AND version <= :version - :kept
"""
_CLEAR_PARTS = "DELETE FROM calendar_parts WHERE namespace = :namespace AND name = :name"
_ADD_PART = """
    INSERT INTO calendar_parts (namespace, name, part) VALUES (:namespace, :name, :part)
"""
_REMOVE = "DELETE FROM calendars WHERE namespace = :namespace AND name = :name"


def topic(namespace: str, name: str) -> str:
    """Return the topic of the changes of a calendar."""
    return f"calendars/{namespace}/{name}"


def put(tx: Transaction, calendar: Calendar, *, person: str, now: int) -> None:
    """Store a version of a calendar. Jobs that use the calendar get their next slots recomputed."""
    document = encode(calendar).decode()
    values = {
        "namespace": calendar.namespace,
        "name": calendar.name,
        "version": calendar.version,
        "document": document,
        "person": person,
        "time": now,
        "index": tx.index,
        "kept": KEPT,
    }
    tx.execute(_PUT, values)
    tx.execute(_ADD_VERSION, values)
    tx.execute(_TRIM, values)
    tx.execute(_CLEAR_PARTS, values)
    for part in (*(calendar.only or ()), *(calendar.except_ or ())):
        tx.execute(_ADD_PART, {**values, "part": part})
    tx.execute(_LOOK_AGAIN, values)
    tx.touch("periodic_jobs", periodic.TOPIC)
    _changed(tx, calendar, "CalendarUpserted")


def remove(tx: Transaction, calendar: Calendar) -> None:
    """Delete a calendar with its versions."""
    tx.execute(_REMOVE, {"namespace": calendar.namespace, "name": calendar.name})
    _changed(tx, calendar, "CalendarDeleted")


def _changed(tx: Transaction, calendar: Calendar, kind: str) -> None:
    tx.touch(TABLE, topic(calendar.namespace, calendar.name))
    listing = CalendarListing(
        name=calendar.name,
        namespace=calendar.namespace,
        description=calendar.description,
        time_zone=calendar.time_zone,
        version=calendar.version,
        create_index=calendar.create_index or tx.index,
        modify_index=tx.index,
    )
    payload = f'{{"Calendar":{encode(listing).decode()}}}'
    events.add(
        tx,
        "Calendar",
        kind,
        namespace=calendar.namespace,
        key=calendar.name,
        payload=payload,
    )
