"""Periodic jobs: which slot comes next, and what became of the earlier ones."""

import sqlite3

import msgspec

from storage.readers import Snapshot
from storage.records.job import Job
from storage.records.periodic import Slot, SlotOutcome
from storage.writer import Transaction

TOPIC = "periodic"  # somebody has to look at what comes next
NEVER = 2**63 - 1  # the slot of a job that has no more
KEPT = 1000  # newest rows of the ledger of a job


def topic(namespace: str, job_id: str) -> str:
    """Return the topic on which decisions about a job's slots are published."""
    return f"periodic-slots/{namespace}/{job_id}"


# ---- what comes next ----------------------------------------------------------------------------


class Due(msgspec.Struct, frozen=True):
    """A job whose slot has come; or, where the slot is None, has to be worked out."""

    namespace: str
    job_id: str
    followed_to: int
    next_slot: int | None
    paused: bool


_FOLLOW = """
    INSERT INTO periodic_jobs (namespace, job_id, followed_to, next_slot)
    VALUES (:namespace, :job_id, :followed_to, NULL)
    ON CONFLICT (namespace, job_id) DO UPDATE
       SET followed_to = max(followed_to, excluded.followed_to), next_slot = NULL
"""
_LOOK_AGAIN = """
    UPDATE periodic_jobs SET next_slot = NULL WHERE namespace = :namespace AND job_id = :job_id
"""
_SAME_CLOCK = """
    SELECT 1 FROM job_versions n
      JOIN job_versions o
        ON o.namespace = n.namespace AND o.job_id = n.job_id AND o.version = n.version - 1
     WHERE n.namespace = :namespace AND n.job_id = :job_id AND n.version = :version
       AND n.document -> '$.Periodic' = o.document -> '$.Periodic'
"""
_LEAVE = "DELETE FROM periodic_jobs WHERE namespace = :namespace AND job_id = :job_id"
# NULL sorts first: what is not worked out yet.
_DUE = """
    SELECT * FROM periodic_jobs
     WHERE next_slot <= :now OR next_slot IS NULL
  ORDER BY next_slot
     LIMIT :most
"""
_NEXT = "SELECT min(next_slot) AS at FROM periodic_jobs WHERE next_slot > :after"
_COMING = """
    SELECT * FROM periodic_jobs
     WHERE (namespace = :namespace OR :namespace = '*') AND next_slot < :never
  ORDER BY next_slot, namespace, job_id
"""
_ZONE = """
    SELECT v.document ->> '$.Periodic.TimeZone' AS zone
      FROM jobs j
      JOIN job_versions v
        ON v.namespace = j.namespace AND v.job_id = j.id AND v.version = j.version
     WHERE j.namespace = :namespace AND j.id = :job_id
"""
_OF_JOB = "SELECT * FROM periodic_jobs WHERE namespace = :namespace AND job_id = :job_id"
_ADVANCE = """
    UPDATE periodic_jobs
       SET followed_to = :followed_to, next_slot = :next_slot
     WHERE namespace = :namespace AND job_id = :job_id
"""
_SET_PAUSED = """
    UPDATE periodic_jobs SET paused = :paused WHERE namespace = :namespace AND job_id = :job_id
"""


def follow(tx: Transaction, job: Job) -> None:
    """Follow the clock for a job that has a new version, or do not any more.

    A clock that is the same goes on: what has not been decided yet is decided for the new version.
    """
    key = {"namespace": job.namespace, "job_id": job.id}
    if job.periodic is None:
        return
    known = of_job(tx, job.namespace, job.id)
    goes_on = is_followed(job)
    if known and goes_on and tx.one(_SAME_CLOCK, {**key, "version": job.version}):
        tx.execute(_LOOK_AGAIN, key)
    else:
        if known and known.next_slot and known.next_slot <= job.submit_time:
            reason = "its clock was changed" if goes_on else "the job was stopped"
            _give_up(tx, job, known.next_slot, f"{reason} before it was decided")
        if goes_on:
            tx.execute(_FOLLOW, {**key, "followed_to": job.submit_time})
        else:
            tx.execute(_LEAVE, key)
    if goes_on:
        tx.touch("periodic_jobs", TOPIC)


def _give_up(tx: Transaction, job: Job, slot: int, reason: str) -> None:
    skipped = SlotOutcome.SKIPPED
    done = Slot(slot=slot, slots=1, decided_at=job.submit_time, outcome=skipped, reason=reason)
    add_slot(tx, job.namespace, job.id, done)


def is_followed(job: Job) -> bool:
    """Tell whether a job launches children by the clock as it stands."""
    return job.periodic is not None and job.periodic.enabled and not job.stop


def _due(row: sqlite3.Row) -> Due:
    return Due(
        row["namespace"], row["job_id"], row["followed_to"], row["next_slot"], bool(row["paused"])
    )


def due(db: Snapshot, now: int, most: int) -> list[Due]:
    """Return jobs whose next slot has come or is to be worked out, at most `most`."""
    return [_due(row) for row in db.all(_DUE, {"now": now, "most": most})]


def next_time(db: Snapshot, after: int = 0) -> int | None:
    """Return when the next slot of all after a time comes; None when there is none."""
    row = db.one(_NEXT, {"after": after})
    at = row["at"] if row else None
    return None if at in (None, NEVER) else at


def coming(db: Snapshot, namespace: str) -> list[Due]:
    """Return the jobs of a namespace, or of all (`*`), that have a slot to come; the next one first."""
    return [_due(row) for row in db.all(_COMING, {"namespace": namespace, "never": NEVER})]


def of_job(db: Snapshot, namespace: str, job_id: str) -> Due | None:
    """Return how far the clock has been followed for a job; None when it is not."""
    row = db.one(_OF_JOB, {"namespace": namespace, "job_id": job_id})
    return _due(row) if row else None


def time_zone(db: Snapshot, due: Due) -> str:
    """Return the name of the time zone of a job's clock."""
    row = db.one(_ZONE, {"namespace": due.namespace, "job_id": due.job_id})
    return str(row["zone"] or "") if row else ""


def set_paused(tx: Transaction, namespace: str, job_id: str, *, paused: bool) -> None:
    """Let the slots of a job be skipped from now on, or launch children again."""
    key = {"namespace": namespace, "job_id": job_id}
    tx.execute(_SET_PAUSED, {**key, "paused": paused})
    tx.touch("periodic_slots", topic(namespace, job_id))


def advance(
    tx: Transaction, namespace: str, job_id: str, *, followed_to: int, next_slot: int | None
) -> None:
    """Note that all slots up to a time have been decided, and which comes next; None: no more."""
    tx.execute(
        _ADVANCE,
        {
            "namespace": namespace,
            "job_id": job_id,
            "followed_to": followed_to,
            "next_slot": NEVER if next_slot is None else next_slot,
        },
    )
    tx.touch("periodic_jobs", TOPIC)


# ---- the ledger ---------------------------------------------------------------------------------

_ADD = """
    INSERT OR REPLACE INTO periodic_slots
           (namespace, job_id, slot, slots, decided_at, outcome, reason, child_id, write_index)
    VALUES (:namespace, :job_id, :slot, :slots, :decided_at, :outcome, :reason, :child_id, :index)
"""
_TRIM = """
    DELETE FROM periodic_slots
     WHERE namespace = :namespace AND job_id = :job_id
       AND slot < (SELECT slot FROM periodic_slots
                    WHERE namespace = :namespace AND job_id = :job_id
                 ORDER BY slot DESC LIMIT 1 OFFSET :kept - 1)
"""
_LEDGER = """
    SELECT * FROM periodic_slots
     WHERE namespace = :namespace AND job_id = :job_id
  ORDER BY slot DESC
"""


def add_slot(tx: Transaction, namespace: str, job_id: str, slot: Slot) -> None:
    """Write down what became of a slot, and keep only the newest `KEPT` rows of its job."""
    key = {"namespace": namespace, "job_id": job_id}
    values = {**msgspec.structs.asdict(slot), **key, "index": tx.index}
    tx.execute(_ADD, values)
    tx.execute(_TRIM, {**key, "kept": KEPT})
    tx.touch("periodic_slots", topic(namespace, job_id))


def slots(db: Snapshot, namespace: str, job_id: str) -> list[Slot]:
    """Return what became of a job's slots, newest first."""
    return [
        Slot(
            slot=row["slot"],
            slots=row["slots"],
            decided_at=row["decided_at"],
            outcome=SlotOutcome(row["outcome"]),
            reason=row["reason"],
            child_id=row["child_id"],
            create_index=row["write_index"],
        )
        for row in db.all(_LEDGER, {"namespace": namespace, "job_id": job_id})
    ]
