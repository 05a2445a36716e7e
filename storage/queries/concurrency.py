"""Queues: the slots in use, and the runs that wait for slots. For steps, see `step_slots`.

This module is imported only when queues are used. Until then, `storage/queries/runs.py` frees slots
and checks whether any run waits.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any

from storage.queries import events, runs
from storage.queries.pages import PageRequest, by_namespace, key_range
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.concurrency import QueueEntry, QueueLine, RunQueue, SlotState
from storage.records.flow import Beyond, FlowRun, QueueUse
from storage.records.job import Job
from storage.writer import Transaction

Key = tuple[str, str]  # namespace and name of a queue

_ENTER = """
    INSERT INTO queue_entries (namespace, name, job_id, parent_id, number, slots, state, priority,
                               beyond, arrived, since)
    VALUES (:namespace, :name, :job_id, :parent_id, :number, :slots, :state, :priority,
            :beyond, :arrived, :since)
"""
_GRANT = """
    UPDATE queue_entries SET state = 'holding', since = :now
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
"""
_CHANGED = "SELECT namespace, name FROM queues_changed ORDER BY namespace, name LIMIT :most"
_SERVED = "DELETE FROM queues_changed WHERE namespace = :namespace AND name = :name"
# A run that a freeze holds keeps its place in its queue, but gets no slot.
_NOT_FROZEN = """
    NOT EXISTS (SELECT 1 FROM frozen_jobs f
                 WHERE f.namespace = queue_entries.namespace AND f.job_id = queue_entries.job_id)
"""
_WAITERS = f"""
    SELECT * FROM queue_entries INDEXED BY queue_entries_waiting
     WHERE namespace = :namespace AND name = :name AND state = 'waiting'
       AND {_NOT_FROZEN}
  ORDER BY priority DESC, arrived, job_id
     LIMIT :most
"""
_BEFORE = """
    SELECT count(*) AS number
      FROM queue_entries e
      JOIN queue_entries o INDEXED BY queue_entries_waiting
        ON o.namespace = e.namespace AND o.name = e.name
     WHERE e.namespace = :namespace AND e.job_id = :job_id AND e.number = :number
       AND o.state = 'waiting'
       AND (o.priority > e.priority OR o.priority = e.priority AND o.arrived < e.arrived)
       AND NOT EXISTS (SELECT 1 FROM frozen_jobs f
                        WHERE f.namespace = o.namespace AND f.job_id = o.job_id)
"""
_HOLDERS = """
    SELECT * FROM queue_entries INDEXED BY queue_entries_holding
     WHERE namespace = :namespace AND name = :name AND state = 'holding'
  ORDER BY arrived, job_id
     LIMIT :most
"""
_IN_USE = """
    SELECT (SELECT coalesce(sum(slots), 0) FROM queue_entries INDEXED BY queue_entries_holding
             WHERE namespace = :namespace AND name = :name AND state = 'holding')
         + (SELECT coalesce(sum(slots * held), 0) FROM step_slots INDEXED BY step_slots_holding
             WHERE namespace = :namespace AND name = :name AND held > 0) AS number
"""
_NEWEST = f"""
    SELECT * FROM queue_entries INDEXED BY queue_entries_eager
     WHERE namespace = :namespace AND name = :name AND state = 'waiting' AND beyond <> 'queue'
       AND {_NOT_FROZEN}
  ORDER BY arrived DESC
     LIMIT :most
"""
_OF_FAMILY = """
    SELECT * FROM queue_entries INDEXED BY queue_entries_by_owner
     WHERE namespace = :namespace AND name = :name AND state = :state
       AND coalesce(nullif(parent_id, ''), job_id) = :owner AND arrived < :before
  ORDER BY arrived
     LIMIT :most
"""
_LIMIT = "SELECT * FROM queues WHERE namespace = :namespace AND name = :name"
# The next key of a list comes from the first row of each of these tables. Each table has an index
# in the order of the list, so no search is needed.
_SOURCES = (
    ("queues", "TRUE"),
    ("queue_entries INDEXED BY queue_entries_by_owner", "TRUE"),
    ("step_slots INDEXED BY step_slots_holding", "held > 0"),
    ("step_slots INDEXED BY step_slots_waiting", "wanted > held"),
)
_FIRST = """
    SELECT * FROM (SELECT namespace, name FROM {table}
                    WHERE (namespace, name) {sign} (:namespace, :name) AND {condition}
                 ORDER BY namespace {way}, name {way}
                    LIMIT 1)
"""


def _next(sign: str, direction: str) -> str:
    firsts = [
        _FIRST.format(table=table, condition=condition, sign=sign, way=direction)
        for table, condition in _SOURCES
    ]
    return f"{' UNION ALL '.join(firsts)} ORDER BY namespace {direction}, name {direction} LIMIT 1"


_STEPS = {
    sign: _next(sign, direction)
    for sign, direction in ((">=", ""), (">", ""), ("<=", "DESC"), ("<", "DESC"))
}
# If a run or an element requests more slots than the queue has, it gets all slots of the queue.
_LINE = """
    SELECT coalesce(q.slots, 1) AS slots, coalesce(q.note, '') AS note,
           coalesce(q.modify_index, 0) AS modify_index, q.name IS NOT NULL AS there,
           (SELECT coalesce(sum(min(e.slots, coalesce(q.slots, 1))), 0)
              FROM queue_entries e INDEXED BY queue_entries_holding
             WHERE e.namespace = :namespace AND e.name = :name AND e.state = 'holding')
         + (SELECT coalesce(sum(min(s.slots, coalesce(q.slots, 1)) * s.held), 0)
              FROM step_slots s INDEXED BY step_slots_holding
             WHERE s.namespace = :namespace AND s.name = :name AND s.held > 0) AS in_use,
           (SELECT count(*) FROM queue_entries e INDEXED BY queue_entries_waiting
             WHERE e.namespace = :namespace AND e.name = :name AND e.state = 'waiting')
         + (SELECT count(*) FROM step_slots s INDEXED BY step_slots_waiting
             WHERE s.namespace = :namespace AND s.name = :name AND s.wanted > s.held) AS waiting
      FROM (SELECT 1)
      LEFT JOIN queues q ON q.namespace = :namespace AND q.name = :name
"""
_SET = """
    INSERT INTO queues (namespace, name, slots, note, modify_index)
    VALUES (:namespace, :name, :slots, :note, :index)
    ON CONFLICT (namespace, name) DO UPDATE
       SET slots = excluded.slots, note = excluded.note, modify_index = excluded.modify_index
"""
_REMOVE = "DELETE FROM queues WHERE namespace = :namespace AND name = :name"
_LIMITS = "SELECT count(*) AS number FROM queues WHERE namespace = :namespace"
_HAS_RUN = """
    SELECT 1 FROM queue_entries INDEXED BY queue_entries_by_owner
     WHERE namespace = :namespace AND name = :name
     LIMIT 1
"""
# One step for each queue, regardless of the number of its runs.
_WITH_RUNS = """
    WITH RECURSIVE found (name, place) AS (
        SELECT min(name), 1 FROM queue_entries INDEXED BY queue_entries_by_owner
         WHERE namespace = :namespace
         UNION ALL
        SELECT (SELECT min(e.name) FROM queue_entries e INDEXED BY queue_entries_by_owner
                 WHERE e.namespace = :namespace AND e.name > found.name), place + 1
          FROM found WHERE name IS NOT NULL AND place < :most
    )
    SELECT count(name) AS number FROM found
"""
_OTHER_USER = """
    SELECT job_id FROM queue_users
     WHERE namespace = :namespace AND name = :name AND kind = :kind AND job_id <> :job_id
     LIMIT 1
"""
_OTHER_ENTRY = {
    QueueUse.RUNS: """
        SELECT job_id FROM queue_entries INDEXED BY queue_entries_by_owner
         WHERE namespace = :namespace AND name = :name AND job_id <> :job_id
         LIMIT 1
    """,
    QueueUse.STEPS: """
        SELECT job_id FROM step_slots INDEXED BY step_slots_holding
         WHERE namespace = :namespace AND name = :name AND job_id <> :job_id AND held > 0
         LIMIT 1
    """,
}
_IS_USED = """
    SELECT 1 FROM queue_users WHERE namespace = :namespace AND name = :name LIMIT 1
"""
_USED = """
    WITH RECURSIVE found (name, place) AS (
        SELECT min(name), 1 FROM queue_users WHERE namespace = :namespace
         UNION ALL
        SELECT (SELECT min(u.name) FROM queue_users u
                 WHERE u.namespace = :namespace AND u.name > found.name), place + 1
          FROM found WHERE name IS NOT NULL AND place < :most
    )
    SELECT count(name) AS number FROM found
"""


def _entry(row: sqlite3.Row) -> QueueEntry:
    values = {name: row[name] for name in _FIELDS}
    return QueueEntry(
        **{**values, "state": SlotState(row["state"]), "beyond": Beyond(row["beyond"])}
    )


_FIELDS = tuple(name for name in QueueEntry.__struct_fields__ if name != "step")


# --- entries ---


def enter(tx: Transaction, run_queue: RunQueue, job: Job, run: FlowRun, now: int) -> None:
    """Add a run to its queue when the run begins or restarts. `grant` assigns slots later."""
    entry = QueueEntry(
        namespace=job.namespace,
        name=run_queue.name,
        job_id=job.id,
        parent_id=job.parent_id,
        number=run.number,
        slots=run_queue.slots,
        state=SlotState.WAITING,
        priority=job.priority,
        beyond=run_queue.beyond,
        arrived=tx.index,
        since=now,
    )
    tx.execute(_ENTER, {name: getattr(entry, name) for name in _FIELDS})
    runs.queue_changed(tx, entry.namespace, entry.name)


def grant(tx: Transaction, entry: QueueEntry, now: int) -> None:
    """Assign a waiting run the slots that it needs; the caller creates the run's evaluation."""
    key = {"namespace": entry.namespace, "job_id": entry.job_id, "number": entry.number}
    tx.execute(_GRANT, {**key, "now": now})
    runs.queue_changed(tx, entry.namespace, entry.name)
    events.add(
        tx,
        "Concurrency",
        "SlotGranted",
        namespace=entry.namespace,
        key=entry.name,
        filter_keys=(entry.job_id,),
        payload=f'{{"Entry":{encode(entry).decode()}}}',
    )


def changed(db: ReadSnapshot, most: int) -> list[Key]:
    """Return up to `most` queues that have changed since the last call of `served` for them.

    Changes are recorded only while a run or a step waits in the queue.
    """
    return [(row["namespace"], row["name"]) for row in db.all(_CHANGED, {"most": most})]


def served(tx: Transaction, key: Key) -> None:
    """Record that a queue needs no action until its next change."""
    tx.execute(_SERVED, {"namespace": key[0], "name": key[1]})


def waiters(db: ReadSnapshot, key: Key, most: int) -> list[QueueEntry]:
    """Return up to `most` waiting runs that no freeze holds, by priority, then by arrival."""
    rows = db.all(_WAITERS, {"namespace": key[0], "name": key[1], "most": most})
    return [_entry(row) for row in rows]


def waits_behind(db: ReadSnapshot, run: FlowRun) -> int:
    """Return the number of runs ahead of a waiting run, not counting runs that a freeze holds."""
    key = {"namespace": run.namespace, "job_id": run.job_id, "number": run.number}
    row: Any = db.one(_BEFORE, key)
    return int(row["number"])


def holders(db: ReadSnapshot, key: Key, most: int) -> list[QueueEntry]:
    """Return the first `most` runs that hold slots of a queue, in the order of their arrival."""
    rows = db.all(_HOLDERS, {"namespace": key[0], "name": key[1], "most": most})
    return [_entry(row) for row in rows]


def in_use(db: ReadSnapshot, key: Key) -> int:
    """Return how many slots of a queue are held by runs and steps."""
    row: Any = db.one(_IN_USE, {"namespace": key[0], "name": key[1]})
    return int(row["number"])


def not_patient(db: ReadSnapshot, key: Key, most: int) -> list[QueueEntry]:
    """Return up to `most` waiting runs with an overflow policy other than `queue`, newest first.

    Runs that a freeze holds are omitted.
    """
    rows = db.all(_NEWEST, {"namespace": key[0], "name": key[1], "most": most})
    return [_entry(row) for row in rows]


def of_family(db: ReadSnapshot, entry: QueueEntry, state: SlotState, most: int) -> list[QueueEntry]:
    """Return up to `most` queue entries that arrived before `entry`, oldest first.

    Only entries with this `state` are returned. They belong to the same job as `entry`, or to other
    children of the same parent.
    """
    values = {"namespace": entry.namespace, "name": entry.name, "state": state, "most": most}
    owner = entry.parent_id or entry.job_id
    rows = db.all(_OF_FAMILY, {**values, "owner": owner, "before": entry.arrived})
    return [_entry(row) for row in rows]


# --- limits ---


def limit(db: ReadSnapshot, key: Key) -> int:
    """Return the number of slots of a queue; 1 if no number was set."""
    row = db.one(_LIMIT, {"namespace": key[0], "name": key[1]})
    return int(row["slots"]) if row else 1


def has_limit(db: ReadSnapshot, key: Key) -> bool:
    """Return whether the number of slots of a queue was set."""
    return db.one(_LIMIT, {"namespace": key[0], "name": key[1]}) is not None


def limits(db: ReadSnapshot, namespace: str) -> int:
    """Return the number of queues of a namespace whose number of slots was set."""
    row: Any = db.one(_LIMITS, {"namespace": namespace})
    return int(row["number"])


def has_run(db: ReadSnapshot, key: Key) -> bool:
    """Return whether a run holds slots of a queue, or waits for them."""
    return db.one(_HAS_RUN, {"namespace": key[0], "name": key[1]}) is not None


def with_runs(db: ReadSnapshot, namespace: str, most: int) -> int:
    """Return how many queues of a namespace have runs; counting stops at `most`."""
    row: Any = db.one(_WITH_RUNS, {"namespace": namespace, "most": most})
    return int(row["number"])


def other_user(db: ReadSnapshot, key: Key, use: QueueUse, job_id: str) -> str | None:
    """Return the ID of another job that uses a queue for `use` (runs or steps), or None."""
    values = {"namespace": key[0], "name": key[1], "kind": use, "job_id": job_id}
    row = db.one(_OTHER_USER, values)
    if row is None:
        row = db.one(_OTHER_ENTRY[use], values)
    return str(row["job_id"]) if row else None


def is_used(db: ReadSnapshot, key: Key) -> bool:
    """Return whether a job uses a queue."""
    return db.one(_IS_USED, {"namespace": key[0], "name": key[1]}) is not None


def used(db: ReadSnapshot, namespace: str, most: int) -> int:
    """Return how many queues are used by jobs of a namespace; counting stops at `most`."""
    row: Any = db.one(_USED, {"namespace": namespace, "most": most})
    return int(row["number"])


def line(db: ReadSnapshot, key: Key) -> QueueLine | None:
    """Return a queue; None if it has no limit, no runs and no steps."""
    line = line_in_use(db, key)
    return line if line.exists or line.in_use or line.waiting else None


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[QueueLine]:
    """Yield the queues of a namespace, or of all namespaces (`*`), by namespace and name."""
    for part in by_namespace(db, page_request):
        yield from _page(db, part)


def _page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[QueueLine]:
    low, high = key_range(page_request)
    key, direction = (high, "<") if page_request.reverse else (low, ">")
    sign = f"{direction}="
    while row := db.one(_STEPS[sign], {"namespace": key[0], "name": key[1]}):
        key, sign = (row["namespace"], row["name"]), direction
        if not low <= key <= high:
            return
        yield line_in_use(db, key)


def line_in_use(db: ReadSnapshot, key: Key) -> QueueLine:
    """Return a queue that has a limit, or that a run or a step uses."""
    row: Any = db.one(_LINE, {"namespace": key[0], "name": key[1]})
    return QueueLine(
        namespace=key[0],
        name=key[1],
        slots=row["slots"],
        in_use=row["in_use"],
        waiting=row["waiting"],
        exists=bool(row["there"]),
        note=row["note"],
        modify_index=row["modify_index"],
    )


def set_limit(tx: Transaction, key: Key, slots: int, note: str) -> None:
    """Set the number of slots of a queue. If the number is lowered, active runs still continue."""
    values = {"namespace": key[0], "name": key[1], "slots": slots, "note": note}
    tx.execute(_SET, {**values, "index": tx.index})
    _queue_changed(tx, key, "QueueSet", f'{{"Slots":{slots}}}')


def remove_limit(tx: Transaction, key: Key) -> bool:
    """Delete the limit of a queue; return whether the queue had a limit.

    Without a limit, a queue has 1 slot.
    """
    if not tx.execute(_REMOVE, {"namespace": key[0], "name": key[1]}):
        return False
    _queue_changed(tx, key, "QueueDeleted", "{}")
    return True


def _queue_changed(tx: Transaction, key: Key, kind: str, payload: str) -> None:
    runs.queue_changed(tx, *key)
    events.add(tx, "Concurrency", kind, namespace=key[0], key=key[1], payload=payload)
