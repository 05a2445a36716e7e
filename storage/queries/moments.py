"""Which index the counter of writes had reached at a time."""

from storage.readers import Snapshot
from storage.writer import Transaction

_ADD = "INSERT OR REPLACE INTO moments (time, last_index) VALUES (:time, :index)"
_AT = "SELECT last_index FROM moments WHERE time <= :time ORDER BY time DESC LIMIT 1"
_TRIM = """
    DELETE FROM moments WHERE time < (SELECT max(time) FROM moments WHERE time <= :time)
"""


def note(tx: Transaction, time: int) -> None:
    """Keep the present index under this time."""
    tx.execute(_ADD, {"time": time, "index": tx.index - 1})


def index_at(db: Snapshot, time: int) -> int:
    """Return the index that had been reached at a time, as far as it was noted; 0 before that."""
    row = db.one(_AT, {"time": time})
    return int(row["last_index"]) if row else 0


def trim(tx: Transaction, time: int) -> None:
    """Forget what is not needed to answer for this time and later ones."""
    tx.execute(_TRIM, {"time": time})
