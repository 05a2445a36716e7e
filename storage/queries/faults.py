"""Faults: repeated errors of the daemon's units of work, stored across restarts."""

import msgspec

from storage.queries import jobs, periodic
from storage.read_pool import ReadSnapshot
from storage.writer import Transaction

TOPIC = "faults"
ATTEMPTS = 3
CLOCK = "periodic job"  # unit kind for the schedule of a job
_AT_INDEX = " at index "


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive failures of one unit of work; times are wall clock nanoseconds."""

    kind: str
    key: str
    failures: int
    reason: str
    since: int
    until: int  # the unit is not retried before this time

    @property
    def is_closed(self) -> bool:
        """Return whether all attempts have failed, so that the daemon does not retry the unit."""
        return self.failures >= ATTEMPTS


_EVERY = "SELECT * FROM faults ORDER BY since, kind, key"
_PUT = """
    INSERT INTO faults (kind, key, failures, reason, since, until)
    VALUES (:kind, :key, :failures, :reason, :since, :until)
    ON CONFLICT (kind, key) DO UPDATE
       SET failures = excluded.failures, reason = excluded.reason,
           since = excluded.since, until = excluded.until
"""
_FIND = "SELECT * FROM faults WHERE kind = :kind AND key = :key"
_REMOVE = "DELETE FROM faults WHERE kind = :kind AND key = :key"


def list_all(db: ReadSnapshot) -> list[Fault]:
    """Return all faults, oldest first."""
    return [Fault(**row) for row in db.all(_EVERY)]


def of_clock(db: ReadSnapshot, namespace: str, job_id: str) -> Fault | None:
    """Return the fault of a job's current schedule, or None. Faults of earlier ones are ignored."""
    row = db.one(_FIND, {"kind": CLOCK, "key": clock(db, namespace, job_id)})
    return Fault(**row) if row else None


def clock(db: ReadSnapshot, namespace: str, job_id: str) -> str:
    """Return the fault key of a job's schedule, which changes with the job and its calendars."""
    index = jobs.definition_index(db, namespace, job_id)
    if index is not None:
        index = max(index, periodic.calendars_changed(db, namespace, job_id))
    return f"{namespace}/{job_id}{_AT_INDEX}{index}"


def job_of_clock(key: str) -> tuple[str, str]:
    """Return the namespace and the job ID in the fault key of a schedule."""
    namespace, _, job_id = key.rpartition(_AT_INDEX)[0].partition("/")
    return namespace, job_id


def put(tx: Transaction, fault: Fault) -> None:
    """Store a fault, in place of the previous fault of the same unit."""
    tx.execute(_PUT, msgspec.structs.asdict(fault))
    tx.touch("faults", TOPIC)


def remove(tx: Transaction, kind: str, key: str) -> None:
    """Delete the fault of a unit."""
    tx.execute(_REMOVE, {"kind": kind, "key": key})
    tx.touch("faults", TOPIC)
