"""The event stream: changes in order.

Event numbers have no gaps, so a reader notices when events that it has not read were deleted.
"""

import sqlite3

import msgspec

from storage.queries.documents import decode_row, readable
from storage.read_pool import ReadSnapshot
from storage.writer import Transaction

TOPIC = "events"  # published with every event
_COLLECTED = "collected-events"

_ADD = """
    INSERT INTO events (write_index, topic, type, namespace, key, filter_keys, payload)
    VALUES (:index, :topic, :type, :namespace, :key, :filter_keys, :payload)
"""


def add(
    tx: Transaction,
    topic: str,
    kind: str,
    *,
    key: str,
    payload: str,
    namespace: str = "",
    filter_keys: tuple[str, ...] = (),
) -> None:
    """Append an event about an object of this topic; `payload` is a JSON object."""
    tx.execute(
        _ADD,
        {
            "index": tx.index,
            "topic": topic,
            "type": kind,
            "namespace": namespace,
            "key": key,
            "filter_keys": msgspec.json.encode(filter_keys).decode(),
            "payload": payload,
        },
    )
    tx.publish(TOPIC)


# --- queries ---


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `events`; the payload is a JSON object."""

    number: int
    index: int
    topic: str
    type: str
    namespace: str
    key: str
    filter_keys: list[str]
    payload: str


_NEWEST = "SELECT number FROM events ORDER BY number DESC LIMIT 1"
_FIRST_AT = """
    SELECT number FROM events
     WHERE write_index >= :index
  ORDER BY write_index, number
     LIMIT 1
"""
_INDEX_AT = "SELECT write_index FROM events WHERE number >= :number ORDER BY number LIMIT 1"
_AFTER = """
    SELECT * FROM events
     WHERE number > :after
       AND write_index <= coalesce((SELECT write_index FROM events
                                     WHERE number > :after
                                  ORDER BY number LIMIT 1 OFFSET :most - 1), :any)
  ORDER BY number
"""
_ANY = 2**63 - 1


def newest(db: ReadSnapshot) -> int:
    """Return the number of the newest event; 0 if there are no events."""
    row = db.one(_NEWEST)
    return int(row["number"]) if row else 0


def before_index(db: ReadSnapshot, index: int) -> int:
    """Return the number of the last event before an index."""
    row = db.one(_FIRST_AT, {"index": index})
    return int(row["number"]) - 1 if row else newest(db)


def before_last(db: ReadSnapshot, count: int) -> int:
    """Return the number of the last event before the newest `count` events.

    If one write added events before and after this boundary, return the number of the last event
    before the write.
    """
    row = db.one(_INDEX_AT, {"number": newest(db) - count + 1})
    return before_index(db, row["write_index"]) if row else 0


def after(db: ReadSnapshot, number: int, most: int) -> list[StoredEvent]:
    """Return the first `most` events after a number.

    All events of the last write are returned, so the result can be longer than `most`.
    """
    rows = db.all(_AFTER, {"after": number, "most": most, "any": _ANY})
    return list(readable(db, rows, _from))


def _from(row: sqlite3.Row) -> StoredEvent:
    return StoredEvent(
        number=row["number"],
        index=row["write_index"],
        topic=row["topic"],
        type=row["type"],
        namespace=row["namespace"],
        key=row["key"],
        filter_keys=decode_row(row, list[str], "events", "filter_keys"),
        payload=row["payload"],
    )


def collected(db: ReadSnapshot) -> int:
    """Return the highest index whose events were deleted; 0 if none were deleted."""
    return db.table_index(_COLLECTED)


# --- deletion ---

_LAST_OF = """
    SELECT number FROM events WHERE write_index <= :index ORDER BY write_index DESC, number DESC LIMIT 1
"""
_LAST_TRIMMED = """
    SELECT max(write_index) AS highest
      FROM (SELECT write_index FROM events WHERE number <= :last ORDER BY number LIMIT :most)
"""
_NOTE = """
    INSERT INTO table_indexes (name, last_index) VALUES (:name, :index)
    ON CONFLICT (name) DO UPDATE SET last_index = excluded.last_index
"""
_TRIM = """
    DELETE FROM events
     WHERE number IN (SELECT number FROM events
                       WHERE number <= :last
                    ORDER BY number LIMIT :most)
"""


def trim(tx: Transaction, retained: int, most: int, index: int = 0) -> int:
    """Delete up to `most` of the oldest events; return the number of deleted events.

    An event is deleted only if it is beyond the newest `retained`, or its index is at most `index`.
    """
    old = tx.one(_LAST_OF, {"index": index})
    values = {"last": max(newest(tx) - retained, old["number"] if old else 0), "most": most}
    row = tx.one(_LAST_TRIMMED, values)
    if row is None or row["highest"] is None:
        return 0
    tx.execute(_NOTE, {"name": _COLLECTED, "index": row["highest"]})
    return tx.execute(_TRIM, values)
