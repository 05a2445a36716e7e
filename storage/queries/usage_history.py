"""Usage over time: blocks of samples by series, and their retention."""

from collections.abc import Iterable, Mapping

from storage.read_pool import ReadSnapshot
from storage.records.usage_history import SeriesKey, UsageBlock, pack, unpack
from storage.writer import Transaction

FINE, COARSE = 10, 300  # seconds between samples
# The length of a block in seconds. The fine blocks within a coarse block stay until they are folded
# into it.
LENGTH = {FINE: 300, COARSE: 3 * 3600}
KEPT = {FINE: 6 * 3600 + LENGTH[COARSE], COARSE: 30 * 86400}

Blocks = dict[SeriesKey, dict[int, UsageBlock]]  # by series and begin

_COLUMNS = "s.kind, s.namespace, s.owner, s.task, b.begin, b.data"
_OF_OWNER = f"""
    SELECT {_COLUMNS}
      FROM usage_series s JOIN usage_blocks b ON b.series = s.id
     WHERE s.kind = :kind AND s.namespace = :namespace AND s.owner = :owner
       AND b.step = :step AND b.begin >= :begin AND b.begin < :end
"""  # a constant
_WITHIN = f"""
    SELECT {_COLUMNS}
      FROM usage_blocks b JOIN usage_series s ON s.id = b.series
     WHERE b.step = :step AND b.begin >= :begin AND b.begin < :end
"""  # a constant
_FIRST = "SELECT begin FROM usage_blocks WHERE step = :step ORDER BY begin LIMIT 1"
_LAST = "SELECT begin FROM usage_blocks WHERE step = :step ORDER BY begin DESC LIMIT 1"
_ADD_SERIES = """
    INSERT INTO usage_series (kind, namespace, owner, task, last)
    VALUES (:kind, :namespace, :owner, :task, :begin)
    ON CONFLICT (kind, namespace, owner, task) DO UPDATE SET last = max(last, excluded.last)
"""
_ADD_BLOCK = """
    INSERT INTO usage_blocks (series, step, begin, data)
    SELECT id, :step, :begin, :data FROM usage_series
     WHERE kind = :kind AND namespace = :namespace AND owner = :owner AND task = :task
    ON CONFLICT (series, step, begin) DO UPDATE SET data = excluded.data
"""
_DROP_BLOCKS = "DELETE FROM usage_blocks WHERE step = :step AND begin < :before"
_DROP_SERIES = "DELETE FROM usage_series WHERE kind = :kind AND last < :before"
# The oldest series of allocations, beyond a maximum number.
_DROP_SURPLUS = """
    DELETE FROM usage_series WHERE id IN (
        SELECT id FROM usage_series WHERE kind = 'alloc' ORDER BY last DESC LIMIT -1 OFFSET :most)
"""
KINDS = ("node", "job", "alloc")


def of_owner(
    db: ReadSnapshot, kind: str, namespace: str, owner: str, *, step: int, begin: int, end: int
) -> Blocks:
    """Return the blocks of an object that overlap a period.

    The period is from `begin` to `end`, in seconds since the epoch.
    """
    parameters = {"kind": kind, "namespace": namespace, "owner": owner, "step": step}
    return _blocks(db, _OF_OWNER, parameters | {"begin": begin - LENGTH[step] + 1, "end": end})


def within(db: ReadSnapshot, step: int, begin: int, end: int) -> Blocks:
    """Return all blocks that begin within a period."""
    return _blocks(db, _WITHIN, {"step": step, "begin": begin, "end": end})


def _blocks(db: ReadSnapshot, sql: str, values: Mapping[str, object]) -> Blocks:
    blocks: Blocks = {}
    for row in db.each(sql, values):
        key = SeriesKey(row["kind"], row["owner"], row["namespace"], row["task"])
        blocks.setdefault(key, {})[row["begin"]] = unpack(row["data"])
    return blocks


def first_begin(db: ReadSnapshot, step: int) -> int | None:
    """Return the time at which the oldest block begins; None if there are no blocks."""
    row = db.one(_FIRST, {"step": step})
    return int(row["begin"]) if row else None


def last_begin(db: ReadSnapshot, step: int) -> int | None:
    """Return the time at which the newest block begins; None if there are no blocks."""
    row = db.one(_LAST, {"step": step})
    return int(row["begin"]) if row else None


def put(tx: Transaction, step: int, begin: int, blocks: Mapping[SeriesKey, UsageBlock]) -> None:
    """Store one block of each series, replacing a block that begins at the same time."""
    for key, block in blocks.items():
        series = {
            "kind": key.kind,
            "namespace": key.namespace,
            "owner": key.owner,
            "task": key.task,
            "begin": begin,
        }
        tx.execute(_ADD_SERIES, series)
        tx.execute(_ADD_BLOCK, {**series, "step": step, "data": pack(block)})


def trim(tx: Transaction, now: int, most: int) -> None:
    """Delete expired blocks. Keep only the newest `most` series of allocations."""
    for step, retention in KEPT.items():
        tx.execute(_DROP_BLOCKS, {"step": step, "before": now - retention})
    _drop_series(tx, KINDS, now - KEPT[COARSE])
    tx.execute(_DROP_SURPLUS, {"most": most})


def _drop_series(tx: Transaction, kinds: Iterable[str], before: int) -> None:
    for kind in kinds:
        tx.execute(_DROP_SERIES, {"kind": kind, "before": before})
