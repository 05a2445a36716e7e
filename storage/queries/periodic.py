"""Periodic jobs: the next slot, and the outcomes of earlier slots."""

import sqlite3
from collections.abc import Iterator

import msgspec

from storage.queries.pages import Key, numbers
from storage.read_pool import ReadSnapshot
from storage.records.job import Job
from storage.records.periodic import Slot, SlotOutcome, calendars_of
from storage.writer import Transaction

TOPIC = "periodic"  # a next slot may have changed
NEVER = 2**63 - 1  # the slot of a job without further slots
KEPT = 1000  # newest outcomes stored per job
_MOST_CALENDARS = 64  # calendars of one job; more than a job can have


def topic(namespace: str, job_id: str) -> str:
    """Return the topic of decisions about a job's slots."""
    return f"periodic-slots/{namespace}/{job_id}"


# --- next slots ---


class DueLaunch(msgspec.Struct, frozen=True):
    """The next slot of a periodic job. If `next_slot` is None, the slot must be computed first.

    `next_launch` is set only for a job with a calendar: the next slot at which the calendar is
    open.
    """

    namespace: str
    job_id: str
    followed_to: int
    next_slot: int | None
    paused: bool
    next_launch: int | None = None

    @property
    def launch(self) -> int | None:
        """Return the time of the next launch; `NEVER` if there is none, None if it is unknown."""
        return self.next_slot if self.next_launch is None else self.next_launch


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
# NULL sorts first: slots that must be computed.
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
       AND coalesce(next_launch, next_slot) < :never
"""
_FOLLOWED = "SELECT * FROM periodic_jobs WHERE namespace = :namespace OR :namespace = '*'"
_PARTS = ("coalesce(next_launch, next_slot)", "namespace", "job_id")
_PLACE = ", ".join(_PARTS)
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
       SET followed_to = :followed_to, next_slot = :next_slot, next_launch = :next_launch
     WHERE namespace = :namespace AND job_id = :job_id
"""
_SET_PAUSED = """
    UPDATE periodic_jobs SET paused = :paused WHERE namespace = :namespace AND job_id = :job_id
"""


def sync_schedule(tx: Transaction, job: Job) -> None:
    """Start, continue or stop the schedule of a job that has a new version.

    An unchanged schedule continues. The new version then applies to all undecided slots.
    """
    key = {"namespace": job.namespace, "job_id": job.id}
    if job.periodic is None:
        return
    schedule = of_job(tx, job.namespace, job.id)
    goes_on = is_followed(job)
    if schedule and goes_on and tx.one(_SAME_CLOCK, {**key, "version": job.version}):
        tx.execute(_LOOK_AGAIN, key)
    else:
        if schedule and schedule.next_slot and schedule.next_slot <= job.submit_time:
            reason = "the schedule was changed" if goes_on else "the job was stopped"
            _record_unschedulable(
                tx, job, schedule.next_slot, f"{reason} before the slot was decided"
            )
        if goes_on:
            tx.execute(_FOLLOW, {**key, "followed_to": job.submit_time})
        else:
            tx.execute(_LEAVE, key)
    if goes_on:
        tx.touch("periodic_jobs", TOPIC)


def end_schedule(tx: Transaction, job: Job) -> None:
    """Delete the schedule of a job."""
    tx.execute(_LEAVE, {"namespace": job.namespace, "job_id": job.id})


def _record_unschedulable(tx: Transaction, job: Job, slot: int, reason: str) -> None:
    skipped = SlotOutcome.SKIPPED
    done = Slot(slot=slot, slots=1, decided_at=job.submit_time, outcome=skipped, reason=reason)
    add_slot(tx, job.namespace, job.id, done)


def is_followed(job: Job) -> bool:
    """Return whether the schedule of a job is active.

    The schedule of a parameterized job applies only to its dispatched children, as in Nomad.
    """
    if job.periodic is None or job.is_parameterized:
        return False
    return job.periodic.enabled and not job.stop


def _due(row: sqlite3.Row) -> DueLaunch:
    return DueLaunch(
        row["namespace"],
        row["job_id"],
        row["followed_to"],
        row["next_slot"],
        bool(row["paused"]),
        row["next_launch"],
    )


def due(db: ReadSnapshot, now: int, most: int) -> list[DueLaunch]:
    """Return up to `most` jobs whose next slot is due or must be computed."""
    return [_due(row) for row in db.all(_DUE, {"now": now, "most": most})]


def next_time(db: ReadSnapshot, after: int = 0) -> int | None:
    """Return the earliest time after `after` at which any job has a slot, or None."""
    row = db.one(_NEXT, {"after": after})
    time = row["at"] if row else None
    return None if time in (None, NEVER) else time


def upcoming(
    db: ReadSnapshot,
    namespace: str,
    start: tuple[int, str, str] | None = None,
    *,
    reverse: bool = False,
) -> Iterator[DueLaunch]:
    """Yield the jobs with an upcoming slot in a namespace, or in all (`*`), earliest slot first.

    `start` is the time, the namespace and the ID of the first job.
    """
    sql, values = _COMING, {"namespace": namespace, "never": NEVER}
    if start is not None:
        sql += f" AND ({_PLACE}) {'<=' if reverse else '>='} (:at, :first, :second)"
        values |= dict(zip(("at", "first", "second"), start, strict=True))
    order_by = ", ".join(f"{part} DESC" for part in _PARTS) if reverse else _PLACE
    for row in db.each(f"{sql} ORDER BY {order_by}", values):
        yield _due(row)


def followed(db: ReadSnapshot, namespace: str) -> Iterator[DueLaunch]:
    """Yield the jobs with a schedule in a namespace, or in all (`*`), in no defined order."""
    for row in db.each(_FOLLOWED, {"namespace": namespace}):
        yield _due(row)


def of_job(db: ReadSnapshot, namespace: str, job_id: str) -> DueLaunch | None:
    """Return the schedule state of a job, or None if the job has no schedule."""
    row = db.one(_OF_JOB, {"namespace": namespace, "job_id": job_id})
    return _due(row) if row else None


def time_zone(db: ReadSnapshot, due_launch: DueLaunch) -> str:
    """Return the time zone name of a job's schedule."""
    row = db.one(_ZONE, {"namespace": due_launch.namespace, "job_id": due_launch.job_id})
    return str(row["zone"] or "") if row else ""


def set_paused(tx: Transaction, namespace: str, job_id: str, *, paused: bool) -> None:
    """Pause or resume the schedule of a job."""
    key = {"namespace": namespace, "job_id": job_id}
    tx.execute(_SET_PAUSED, {**key, "paused": paused})
    tx.touch("periodic_slots", topic(namespace, job_id))


def advance(
    tx: Transaction,
    namespace: str,
    job_id: str,
    *,
    followed_to: int,
    next_slot: int | None,
    next_launch: int | None = None,
) -> None:
    """Record the next slot of a job, and the time until which all slots are decided.

    `next_slot` is None if the schedule has no further slots. `next_launch` is the next slot at
    which the calendar of the job is open; `NEVER` if there is none.
    """
    tx.execute(
        _ADVANCE,
        {
            "namespace": namespace,
            "job_id": job_id,
            "followed_to": followed_to,
            "next_slot": NEVER if next_slot is None else next_slot,
            "next_launch": next_launch,
        },
    )
    tx.touch("periodic_jobs", TOPIC)


# --- calendars ---

_CALENDARS_CHANGED = """
    WITH RECURSIVE used (name) AS (
        SELECT calendar FROM calendar_jobs WHERE namespace = :namespace AND job_id = :job_id
        UNION
        SELECT p.part FROM used JOIN calendar_parts p
            ON p.namespace = :namespace AND p.name = used.name
         LIMIT :most
    )
    SELECT coalesce(max(c.modify_index), 0) AS at
      FROM used JOIN calendars c ON c.namespace = :namespace AND c.name = used.name
"""
_CLEAR_JOB = "DELETE FROM calendar_jobs WHERE namespace = :namespace AND job_id = :job_id"
_ADD_JOB = """
    INSERT INTO calendar_jobs (namespace, job_id, calendar) VALUES (:namespace, :job_id, :calendar)
"""


def calendars_changed(db: ReadSnapshot, namespace: str, job_id: str) -> int:
    """Return the index of the last change to a job's calendars; 0 if the job has none."""
    key = {"namespace": namespace, "job_id": job_id, "most": _MOST_CALENDARS}
    row = db.one(_CALENDARS_CHANGED, key)
    return int(row["at"]) if row else 0


def sync_calendars(tx: Transaction, job: Job) -> None:
    """Record which calendars a new version of a job uses."""
    if job.parent_id:
        return
    key = {"namespace": job.namespace, "job_id": job.id}
    if job.version:
        tx.execute(_CLEAR_JOB, key)
    if not job.stop:
        for name in calendars_of(job):
            tx.execute(_ADD_JOB, {**key, "calendar": name})


# --- outcomes ---

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
_EXTEND = """
    UPDATE periodic_slots
       SET slots = slots + :slots, decided_at = :decided_at, write_index = :index
     WHERE namespace = :namespace AND job_id = :job_id
       AND slot = (SELECT max(slot) FROM periodic_slots
                    WHERE namespace = :namespace AND job_id = :job_id)
       AND outcome = :outcome AND reason = :reason
"""
_LEDGER = """
    SELECT * FROM periodic_slots
     WHERE namespace = :namespace AND job_id = :job_id AND slot BETWEEN :low AND :high
  ORDER BY slot"""


def add_slot(tx: Transaction, namespace: str, job_id: str, slot: Slot) -> None:
    """Store the outcome of a slot, and delete the slots of its job beyond the newest `KEPT`."""
    key = {"namespace": namespace, "job_id": job_id}
    values = {**msgspec.structs.asdict(slot), **key, "index": tx.index}
    tx.execute(_ADD, values)
    tx.execute(_TRIM, {**key, "kept": KEPT})
    tx.touch("periodic_slots", topic(namespace, job_id))


def extend(tx: Transaction, namespace: str, job_id: str, slot: Slot) -> None:
    """Merge the outcome of a slot into the newest stored outcome if both outcomes are equal.

    Otherwise store the outcome separately.
    """
    key = {"namespace": namespace, "job_id": job_id}
    values = {**msgspec.structs.asdict(slot), **key, "index": tx.index}
    if tx.execute(_EXTEND, values):
        tx.touch("periodic_slots", topic(namespace, job_id))
    else:
        add_slot(tx, namespace, job_id, slot)


def slots(
    db: ReadSnapshot,
    namespace: str,
    job_id: str,
    start: Key | None = None,
    *,
    reverse: bool = True,
) -> Iterator[Slot]:
    """Yield the outcomes of a job's slots, beginning at `start`; newest first with `reverse`."""
    key = {"namespace": namespace, "job_id": job_id, **numbers(start, reverse=reverse)}
    for row in db.each(f"{_LEDGER}{' DESC' if reverse else ''}", key):
        yield Slot(
            slot=row["slot"],
            slots=row["slots"],
            decided_at=row["decided_at"],
            outcome=SlotOutcome(row["outcome"]),
            reason=row["reason"],
            child_id=row["child_id"],
            create_index=row["write_index"],
        )
