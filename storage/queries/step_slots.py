"""Slots of queues that steps hold or wait for.

This module is imported on first use, because few workflows have queues of steps.

A step has one row for each of its queues; the rows differ only in the name of the queue. The number
of slots in use is the sum over all rows of the queue. The write that ends a step, sets it back to
waiting, or deletes its job also deletes the rows of the step.
"""

import sqlite3

from storage.queries import events, runs
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.concurrency import QueueEntry, SlotState
from storage.records.flow import Beyond, FlowRun, SlotDemand, StepSlots
from storage.records.job import Job
from storage.writer import Transaction

Key = tuple[str, str]  # namespace and name of a queue

_COLUMNS = """
    namespace, job_id, number, step, place, slots, wanted, held, busy, priority, arrived, since
"""
_OF_RUN = f"""
    SELECT {_COLUMNS}, name FROM step_slots
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number
  ORDER BY step, name
"""
_NAMES = """
    SELECT name FROM step_slots
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number AND step = :step
  ORDER BY name
"""
_WAITING = f"""
    SELECT {_COLUMNS} FROM step_slots INDEXED BY step_slots_waiting
     WHERE namespace = :namespace AND name = :name AND wanted > held
  ORDER BY priority DESC, arrived, job_id, number, place
     LIMIT :most
"""
_HOLDING = f"""
    SELECT {_COLUMNS} FROM step_slots INDEXED BY step_slots_holding
     WHERE namespace = :namespace AND name = :name AND held > 0
  ORDER BY arrived, job_id, number, place
     LIMIT :most
"""
_BEFORE = """
    SELECT step, before
      FROM (SELECT job_id, number, step,
                   row_number() OVER (ORDER BY priority DESC, arrived, job_id, number, place) - 1
                       AS before
              FROM step_slots INDEXED BY step_slots_waiting
             WHERE namespace = :namespace AND name = :name AND wanted > held)
     WHERE job_id = :job_id AND number = :number
"""
_ASK = """
    INSERT INTO step_slots (namespace, job_id, number, step, name, place, slots, wanted, held, busy,
                            priority, arrived, since)
    VALUES (:namespace, :job_id, :number, :step, :name, :place, :slots, :wanted, 0, 0,
            :priority, :index, :now)
    ON CONFLICT (namespace, job_id, number, step, name) DO UPDATE
       SET wanted = :wanted, held = min(held - :released, :wanted),
           busy = min(:busy, held - :released, :wanted)
"""
_GRANT = """
    UPDATE step_slots SET held = held + :elements, since = :now
     WHERE namespace = :namespace AND job_id = :job_id AND number = :number AND step = :step
"""


def of_run(db: ReadSnapshot, run: FlowRun) -> dict[str, StepSlots]:
    """Return the slots of each step of a run that holds slots or waits for slots, by step name."""
    key = {"namespace": run.namespace, "job_id": run.job_id, "number": run.number}
    rows: dict[str, list[sqlite3.Row]] = {}
    for row in db.all(_OF_RUN, key):
        rows.setdefault(row["step"], []).append(row)
    return {
        step: _slots(slot_rows[0], tuple(row["name"] for row in slot_rows))
        for step, slot_rows in rows.items()
    }


def _slots(row: sqlite3.Row, names: tuple[str, ...]) -> StepSlots:
    return StepSlots(names=names, **{name: row[name] for name in _FIELDS})


_FIELDS = tuple(name for name in StepSlots.__struct_fields__ if name != "names")


def first(db: ReadSnapshot, key: Key) -> StepSlots | None:
    """Return the first step that waits for slots of a queue, or None."""
    row = db.one(_WAITING, {"namespace": key[0], "name": key[1], "most": 1})
    if row is None:
        return None
    names = db.all(_NAMES, {name: row[name] for name in ("namespace", "job_id", "number", "step")})
    return _slots(row, tuple(name["name"] for name in names))


def waits_behind(db: ReadSnapshot, run: FlowRun, name: str) -> dict[str, int]:
    """Return how many steps are ahead of each waiting step of a run in the queue `name`.

    The keys of the result are the names of the waiting steps.
    """
    key = {"namespace": run.namespace, "job_id": run.job_id, "number": run.number}
    return {row["step"]: row["before"] for row in db.all(_BEFORE, {**key, "name": name})}


def waiters(db: ReadSnapshot, key: Key, most: int) -> list[QueueEntry]:
    """Return the first `most` steps that wait for slots of a queue, in the order of the queue."""
    rows = db.all(_WAITING, {"namespace": key[0], "name": key[1], "most": most})
    return [_entry(row, key[1], SlotState.WAITING) for row in rows]


def holders(db: ReadSnapshot, key: Key, most: int) -> list[QueueEntry]:
    """Return the first `most` steps that hold slots of a queue, in the order of their arrival."""
    rows = db.all(_HOLDING, {"namespace": key[0], "name": key[1], "most": most})
    return [_entry(row, key[1], SlotState.HOLDING) for row in rows]


def _entry(row: sqlite3.Row, name: str, state: SlotState) -> QueueEntry:
    elements = row["held"] if state == SlotState.HOLDING else row["wanted"] - row["held"]
    same = ("namespace", "job_id", "number", "step", "priority", "arrived", "since")
    return QueueEntry(
        **{field: row[field] for field in same},
        name=name,
        parent_id="",
        slots=elements * row["slots"],
        state=state,
        beyond=Beyond.QUEUE,
    )


def ask(
    tx: Transaction, job: Job, run: FlowRun, demand: SlotDemand, position: int, now: int
) -> None:
    """Store how many elements of a step need slots after a decision, and free unneeded slots.

    `grant_slots` in `daemon/jobs/queues.py` later grants the slots.
    """
    values = {
        "namespace": run.namespace,
        "job_id": run.job_id,
        "number": run.number,
        "step": demand.step,
        "place": position,
        "slots": demand.slots,
        "wanted": demand.wanted,
        "released": demand.released,
        "busy": demand.busy,
        "priority": job.priority,
        "index": tx.index,
        "now": now,
    }
    for name in demand.names:
        tx.execute(_ASK, {**values, "name": name})
        runs.queue_changed(tx, run.namespace, name)


def grant(tx: Transaction, slots: StepSlots, elements: int, now: int) -> None:
    """Assign slots to further elements of a step.

    The caller creates the evaluation of the step's job.
    """
    key = {field: getattr(slots, field) for field in ("namespace", "job_id", "number", "step")}
    tx.execute(_GRANT, {**key, "elements": elements, "now": now})
    runs.touch(tx, slots.namespace, slots.job_id)
    for name in slots.names:
        runs.queue_changed(tx, slots.namespace, name)
        entry = QueueEntry(
            **key,
            name=name,
            parent_id="",
            slots=elements * slots.slots,
            state=SlotState.HOLDING,
            priority=slots.priority,
            beyond=Beyond.QUEUE,
            arrived=slots.arrived,
            since=now,
        )
        events.add(
            tx,
            "Concurrency",
            "SlotGranted",
            namespace=slots.namespace,
            key=name,
            filter_keys=(slots.job_id,),
            payload=f'{{"Entry":{encode(entry).decode()}}}',
        )
