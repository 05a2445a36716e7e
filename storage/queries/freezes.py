"""Freezes, and the jobs whose evaluation waits for the end of a freeze."""

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec

from storage.queries import events, periodic, runs
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.freeze import EVERYTHING, Freeze, FreezeHold, Strength
from storage.writer import Transaction

TABLE = "freezes"
TOPIC = "freezes"  # a freeze was created or has ended, or a job waits for the end of a freeze
KEPT = 200  # newest ended freezes of a namespace

Key = tuple[str, str]  # namespace and ID of a job

_FIND = "SELECT * FROM freezes WHERE id = :id"
_OPEN = """
    SELECT * FROM freezes INDEXED BY freezes_open
     WHERE namespace IN (:namespace, '*') AND ended = 0
  ORDER BY create_index, id
"""
_ALL_OPEN = """
    SELECT * FROM freezes INDEXED BY freezes_open WHERE ended = 0
  ORDER BY create_index, id
     LIMIT :most
"""
_ANY_OPEN = "SELECT 1 FROM freezes INDEXED BY freezes_open WHERE ended = 0 LIMIT 1"
_NUMBER = """
    SELECT count(*) AS number FROM freezes INDEXED BY freezes_open
     WHERE namespace = :namespace AND ended = 0
"""
_SINCE = """
    SELECT * FROM freezes INDEXED BY freezes_ended
     WHERE namespace IN (:namespace, '*') AND ended > 0 AND ended > :at AND begin <= :at
"""
_OVER = """
    SELECT * FROM freezes INDEXED BY freezes_open
     WHERE ended = 0 AND until > 0 AND until <= :now
  ORDER BY until LIMIT :most
"""
_NEXT_END = """
    SELECT min(until) AS at FROM freezes INDEXED BY freezes_open WHERE ended = 0 AND until > 0
"""
_PAGE = "SELECT * FROM freezes INDEXED BY freezes_in_order"


def _freeze(row: sqlite3.Row) -> Freeze:
    values = {name: row[name] for name in Freeze.__struct_fields__}
    return Freeze(**{**values, "strength": Strength(row["strength"])})


def find(db: ReadSnapshot, freeze_id: str) -> Freeze | None:
    """Return a freeze; None if it does not exist."""
    row = db.one(_FIND, {"id": freeze_id})
    return _freeze(row) if row else None


def any_open(db: ReadSnapshot) -> bool:
    """Return whether any freeze has not ended."""
    return db.one(_ANY_OPEN) is not None


def any_work(db: ReadSnapshot) -> bool:
    """Return whether a freeze has not ended, or a job still waits for the end of a freeze."""
    return any_open(db) or db.one(_ANY_HELD) is not None


def not_ended(db: ReadSnapshot, namespace: str) -> list[Freeze]:
    """Return the freezes that apply to a namespace and have not ended, oldest first."""
    return [_freeze(row) for row in db.all(_OPEN, {"namespace": namespace})]


def all_not_ended(db: ReadSnapshot, most: int) -> list[Freeze]:
    """Return up to `most` freezes of all namespaces that have not ended, oldest first."""
    return [_freeze(row) for row in db.all(_ALL_OPEN, {"most": most})]


def number(db: ReadSnapshot, namespace: str) -> int:
    """Return how many freezes of a namespace have not ended."""
    row: Any = db.one(_NUMBER, {"namespace": namespace})
    return int(row["number"])


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[Freeze]:
    """Yield the freezes that apply to a namespace, or all freezes (`*`), in creation order."""
    conditions, values = list(page_request.conditions), dict(page_request.values)
    if page_request.namespace != EVERYTHING:
        conditions.append("+namespace IN (:namespace, '*')")
        values["namespace"] = page_request.namespace
    if page_request.start is not None:
        sign = "<=" if page_request.reverse else ">="
        conditions.append(f"(create_index, id) {sign} (:first, :second)")
        values["first"], values["second"] = page_request.start
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    direction = " DESC" if page_request.reverse else ""
    for row in db.each(f"{_PAGE}{where} ORDER BY create_index{direction}, id{direction}", values):
        yield _freeze(row)


def over(db: ReadSnapshot, now: int, most: int) -> list[Freeze]:
    """Return up to `most` expired freezes whose end is not stored yet."""
    return [_freeze(row) for row in db.all(_OVER, {"now": now, "most": most})]


def next_end(db: ReadSnapshot) -> int | None:
    """Return the next time at which a freeze ends; None if no freeze has a future end."""
    row: Any = db.one(_NEXT_END)
    return row["at"] if row else None


# --- jobs ---


def covering(
    db: ReadSnapshot, key: Key, parent_id: str, queue: str, *, time: int, changes: bool = False
) -> Freeze | None:
    """Return the freeze that has the strongest effect on a job at `time`, or None.

    With `changes`, only freezes that refuse changes of jobs are considered. Without `changes`, only
    freezes that hold runs are considered. Among freezes of equal effect, the last to end is
    returned.
    """
    values = {"namespace": key[0], "at": time}
    rows = [*db.all(_OPEN, values), *db.all(_SINCE, values)]
    freezes = [
        freeze
        for freeze in map(_freeze, rows)
        if (freeze.strength == Strength.CHANGES) == changes
        and freeze.holds_at(time)
        and freeze.covers(key[1], parent_id, queue)
    ]
    return max(freezes, key=_rank, default=None)


def _rank(freeze: Freeze) -> tuple[bool, bool, int, str]:
    return (freeze.strength == Strength.STEPS, not freeze.end, freeze.end, freeze.id)


def hold_of(freeze: Freeze) -> FreezeHold:
    """Return the values of a freeze that are shown with each job that the freeze holds."""
    return FreezeHold(
        id=freeze.id, strength=freeze.strength, reason=freeze.reason, until=freeze.end
    )


_HOLD = """
    INSERT INTO frozen_jobs (namespace, job_id, freeze_id, since, arrived)
    VALUES (:namespace, :job_id, :freeze_id, :now, :index)
    ON CONFLICT (namespace, job_id) DO UPDATE SET freeze_id = excluded.freeze_id
"""
_GIVE_BACK = """
    UPDATE queue_entries SET state = 'waiting', since = :now
     WHERE namespace = :namespace AND job_id = :job_id AND state = 'holding'
       AND NOT EXISTS (SELECT 1 FROM run_steps s
                        WHERE s.namespace = queue_entries.namespace
                          AND s.job_id = queue_entries.job_id
                          AND s.number = queue_entries.number AND s.opened > 0)
"""
_RELEASE = "DELETE FROM frozen_jobs WHERE namespace = :namespace AND job_id = :job_id"
_HELD = "SELECT freeze_id FROM frozen_jobs WHERE namespace = :namespace AND job_id = :job_id"
_ANY_HELD = "SELECT 1 FROM frozen_jobs INDEXED BY frozen_jobs_in_order LIMIT 1"
_HELD_NUMBER = "SELECT count(*) AS number FROM frozen_jobs"
_THAWED = """
    SELECT f.namespace, f.job_id
      FROM freezes z CROSS JOIN frozen_jobs f INDEXED BY frozen_jobs_in_order
        ON f.freeze_id = z.id
     WHERE z.id = (SELECT z.id FROM freezes z INDEXED BY freezes_ended
                    WHERE z.ended > 0 AND z.ended <= :now
                      AND EXISTS (SELECT 1 FROM frozen_jobs f INDEXED BY frozen_jobs_in_order
                                   WHERE f.freeze_id = z.id AND NOT EXISTS
                                         (SELECT 1 FROM json_each(:without)
                                           WHERE value = f.namespace || '/' || f.job_id))
                 ORDER BY z.ended LIMIT 1)
       AND NOT EXISTS (SELECT 1 FROM json_each(:without)
                        WHERE value = f.namespace || '/' || f.job_id)
  ORDER BY f.arrived, f.namespace, f.job_id
     LIMIT :most
"""


def hold(tx: Transaction, key: Key, freeze_id: str, now: int) -> None:
    """Record that a job waits for the end of a freeze; a job that already waits keeps its position.

    If the job's run has not opened a step yet, the run gives back its queue slots until the freeze
    ends.
    """
    values = {"namespace": key[0], "job_id": key[1], "now": now}
    tx.execute(_HOLD, {**values, "freeze_id": freeze_id, "index": tx.index})
    tx.touch("frozen_jobs", TOPIC)
    if tx.execute(_GIVE_BACK, values):
        _queues_changed(tx, key)


def release(tx: Transaction, key: Key) -> bool:
    """Record that a job no longer waits for the end of a freeze; return whether it waited."""
    is_held = bool(tx.execute(_RELEASE, {"namespace": key[0], "job_id": key[1]}))
    if is_held:
        _queues_changed(tx, key)
    return is_held


def _queues_changed(tx: Transaction, key: Key) -> None:
    for name in runs.queues_of_job(tx, *key):
        runs.queue_changed(tx, key[0], name)


def holder(db: ReadSnapshot, key: Key) -> str:
    """Return the ID of the freeze that holds a job, or an empty string."""
    row = db.one(_HELD, {"namespace": key[0], "job_id": key[1]})
    return row["freeze_id"] if row else ""


def held_number(db: ReadSnapshot) -> int:
    """Return how many jobs wait for the end of a freeze."""
    row: Any = db.one(_HELD_NUMBER)
    return int(row["number"])


def thawed(db: ReadSnapshot, now: int, most: int, without: frozenset[str]) -> list[Key]:
    """Return up to `most` jobs that still wait although their freeze has ended.

    All returned jobs wait for the same freeze, in the order in which they began to wait. Jobs in
    `without` are omitted.
    """
    values = {"now": now, "most": most, "without": encode(sorted(without)).decode()}
    return [(row["namespace"], row["job_id"]) for row in db.all(_THAWED, values)]


# --- changes ---

_ADD = """
    INSERT INTO freezes (id, namespace, jobs, queue, strength, reason, person, begin, until, ended,
                         ended_by, create_index, modify_index)
    VALUES (:id, :namespace, :jobs, :queue, :strength, :reason, :person, :begin, :until, :ended,
            :ended_by, :index, :index)
"""
_END = """
    UPDATE freezes SET ended = :ended, ended_by = :ended_by, modify_index = :index WHERE id = :id
"""
# A freeze for which jobs still wait is needed until they are released.
_TRIM = """
    DELETE FROM freezes
     WHERE namespace = :namespace AND ended > 0 AND id IN
           (SELECT id FROM freezes INDEXED BY freezes_ended
             WHERE namespace = :namespace AND ended > 0
          ORDER BY ended DESC, id LIMIT -1 OFFSET :kept)
       AND NOT EXISTS (SELECT 1 FROM frozen_jobs f INDEXED BY frozen_jobs_in_order
                        WHERE f.freeze_id = freezes.id)
"""
_LOOK_AGAIN = """
    UPDATE periodic_jobs SET next_slot = NULL
     WHERE (:namespace = '*' OR namespace = :namespace) AND next_slot = :never
"""


def add(tx: Transaction, freeze: Freeze) -> None:
    """Store a new freeze."""
    tx.execute(_ADD, {**msgspec.structs.asdict(freeze), "index": tx.index})
    _changed(tx, freeze, "FreezeCreated")


def end(tx: Transaction, freeze: Freeze, *, time: int, by: str) -> None:
    """End a freeze. For schedules that have no next slot, the next slot is computed again."""
    done = msgspec.structs.replace(freeze, ended=time, ended_by=by)
    tx.execute(_END, {"id": freeze.id, "ended": time, "ended_by": by, "index": tx.index})
    tx.execute(_TRIM, {"namespace": freeze.namespace, "kept": KEPT})
    tx.execute(_LOOK_AGAIN, {"namespace": freeze.namespace, "never": periodic.NEVER})
    tx.touch("periodic_jobs", periodic.TOPIC)
    _changed(tx, done, "FreezeEnded")


def _changed(tx: Transaction, freeze: Freeze, kind: str) -> None:
    tx.touch(TABLE, TOPIC, f"{TOPIC}/{freeze.id}")
    payload = encode({"Freeze": msgspec.structs.replace(freeze, modify_index=tx.index)}).decode()
    scope = "" if freeze.namespace == EVERYTHING else freeze.namespace
    events.add(tx, "Freeze", kind, namespace=scope, key=freeze.id, payload=payload)
