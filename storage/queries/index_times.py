"""The index that the store had at recorded times."""

from storage.read_pool import ReadSnapshot
from storage.writer import Transaction

_ADD = "INSERT OR REPLACE INTO moments (time, last_index) VALUES (:time, :index)"
_AT = "SELECT last_index FROM moments WHERE time <= :time ORDER BY time DESC LIMIT 1"
_TRIM = """
    DELETE FROM moments WHERE time < (SELECT max(time) FROM moments WHERE time <= :time)
"""


def record_time(tx: Transaction, time: int) -> None:
    """Record that the store has its current index at this time."""
    tx.execute(_ADD, {"time": time, "index": tx.index - 1})


def index_at(db: ReadSnapshot, time: int) -> int:
    """Return the index that the store had at a time; 0 for a time before the first record."""
    row = db.one(_AT, {"time": time})
    return int(row["last_index"]) if row else 0


def trim(tx: Transaction, time: int) -> None:
    """Delete the records that `index_at` does not need for `time` or later."""
    tx.execute(_TRIM, {"time": time})
