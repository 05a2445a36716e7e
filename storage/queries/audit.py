"""The audit log: entries are appended, and deleted when they are old."""

import sqlite3
from collections.abc import Mapping

import msgspec

from storage.queries import garbage_collection
from storage.queries.garbage_collection import ANY_NUMBER
from storage.read_pool import ReadSnapshot
from storage.records.audit import AuditEntry
from storage.writer import Transaction

TOPIC = "audit"
MOST = 1000  # entries per page

_ADD = """
    INSERT INTO audit (time, accessor, secret_hash, address, method, path, query, namespace,
                       status, reason)
    VALUES (:time, :accessor, :secret_hash, :address, :method, :path, :query, :namespace,
            :status, :reason)
"""
_COLUMNS = """
    SELECT number, time, accessor, secret_hash, address, method, path, query, namespace, status,
           reason
      FROM audit
"""
_AFTER = f"{_COLUMNS} WHERE number > :number ORDER BY number LIMIT :most"
_LAST = "SELECT max(number) AS number FROM audit"
_FILTERS = {
    "accessor": "accessor = :accessor",
    "address": "address = :address",
    "method": "method = :method",
    "namespace": "namespace = :namespace",
    "path": "path >= :path AND path < :path || char(1114111)",
    "refused": "status >= 400",
    "since": "time >= :since",
    "until": "time < :until",
}
_TRIM = """
    DELETE FROM audit
     WHERE number <= (SELECT max(number) FROM (SELECT number, time FROM audit
                                             ORDER BY number LIMIT :most)
                       WHERE time < :before
                          OR number <= (SELECT max(number) FROM audit) - :kept)
"""


def _from(row: sqlite3.Row) -> AuditEntry:
    return AuditEntry(**dict(row))


def add(tx: Transaction, entry: AuditEntry) -> None:
    """Append an entry; the database assigns its number."""
    tx.execute(_ADD, msgspec.structs.asdict(entry))
    tx.touch("audit", TOPIC)


def after(db: ReadSnapshot, number: int, most: int = MOST) -> list[AuditEntry]:
    """Return up to `most` entries whose number is higher than `number`, oldest first."""
    return [_from(row) for row in db.all(_AFTER, {"number": number, "most": most})]


def last(db: ReadSnapshot) -> int:
    """Return the number of the newest entry, or 0 if the log is empty."""
    row = db.one(_LAST)
    return int(row["number"] or 0) if row else 0


def page(
    db: ReadSnapshot, filters: Mapping[str, object], before: int, most: int = MOST
) -> list[AuditEntry]:
    """Return up to `most` entries that match the filters, newest first.

    Only entries whose number is lower than `before` are returned. Filters: accessor, address,
    method, namespace, path (a prefix), refused, since, until.
    """
    conditions = " AND ".join(["number < :before", *(_FILTERS[name] for name in filters)])
    sql = f"{_COLUMNS} WHERE {conditions} ORDER BY number DESC LIMIT :most"
    return [_from(row) for row in db.all(sql, {**filters, "before": before, "most": most})]


def trim(tx: Transaction, before: int, most: int, most_entries: int = ANY_NUMBER) -> int:
    """Delete up to `most` old entries; return the number of deleted entries.

    An entry is old if it is from before the time `before`, or not among the newest `most_entries`.
    """
    values = {"before": before, "most": most, "kept": most_entries}
    return garbage_collection.count(tx, "audit", tx.execute(_TRIM, values))
