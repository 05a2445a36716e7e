"""Children of jobs: how many are at work, which wait until fewer are, which have ended."""

from storage.readers import Snapshot
from storage.writer import Transaction

ROOM = "children-room"  # topic: children may wait where others have ended, or may be more

# What was stopped counts as dead at once, while its tasks may still be ending: few are at a time.
_ARE_AT_WORK = """
    SELECT id FROM jobs
     WHERE namespace = :namespace AND parent_id = :id AND parent_id <> ''
       AND held = 0 AND status <> 'dead'
     UNION ALL
    SELECT DISTINCT j.id
      FROM allocations a INDEXED BY allocations_ending
CROSS JOIN jobs j ON j.namespace = a.namespace AND j.id = a.job_id
     WHERE a.namespace = :namespace AND a.desired_status <> 'run'
       AND a.client_status IN ('pending', 'running', 'unknown')
       AND j.parent_id = :id AND j.status = 'dead'
     LIMIT 1 OFFSET :number - 1
"""
_WANTED_AT_WORK = """
    SELECT id FROM jobs
     WHERE namespace = :namespace AND parent_id = :id AND parent_id <> ''
       AND held = 0 AND status <> 'dead' AND stop = 0
  ORDER BY create_index
     LIMIT :most
"""
_HELD = """
    SELECT id FROM jobs
     WHERE namespace = :namespace AND parent_id = :id AND held = 1
  ORDER BY create_index
     LIMIT :most
"""
_IS_HELD = "SELECT held FROM jobs WHERE namespace = :namespace AND id = :id"
_WITH_HELD = """
    SELECT namespace, parent_id FROM jobs
     WHERE held = 1 AND {}
  ORDER BY namespace, parent_id
     LIMIT 1
"""
# One comparison of both at once would read every child of the last parent.
_NEXT_WITH_HELD = (
    _WITH_HELD.format("namespace = :namespace AND parent_id > :id"),
    _WITH_HELD.format("namespace > :namespace"),
)
_RELEASE = "UPDATE jobs SET held = 0 WHERE namespace = :namespace AND id = :id"
_PARENTS = "SELECT namespace, id FROM jobs WHERE launches_children = 1"
_ENDED = """
    SELECT id FROM jobs
     WHERE namespace = :namespace AND parent_id = :id AND parent_id <> '' AND status = 'dead'
  ORDER BY modify_index DESC
     LIMIT :most OFFSET :kept
"""
_ENDED_BEFORE = """
    SELECT id FROM jobs
     WHERE namespace = :namespace AND parent_id = :id AND parent_id <> '' AND status = 'dead'
       AND modify_index <= :index
  ORDER BY modify_index
     LIMIT :most
"""


def are_at_work(db: Snapshot, namespace: str, parent_id: str, number: int) -> bool:
    """Tell whether so many children, or more, have begun and not ended with all their tasks."""
    key = {"namespace": namespace, "id": parent_id, "number": number}
    return db.one(_ARE_AT_WORK, key) is not None


def unstopped(db: Snapshot, namespace: str, parent_id: str, most: int) -> list[str]:
    """Return children that are at work and are to go on, then those that wait; oldest first."""
    key = {"namespace": namespace, "id": parent_id, "most": most}
    found = [*db.all(_WANTED_AT_WORK, key), *db.all(_HELD, key)]
    return [row["id"] for row in found[:most]]


# ---- what waits ---------------------------------------------------------------------------------


def held(db: Snapshot, namespace: str, parent_id: str, most: int) -> list[str]:
    """Return the children that wait until fewer are at work, oldest first."""
    rows = db.all(_HELD, {"namespace": namespace, "id": parent_id, "most": most})
    return [row["id"] for row in rows]


def is_held(db: Snapshot, namespace: str, job_id: str) -> bool:
    """Tell whether a job waits until fewer children of its parent are at work."""
    row = db.one(_IS_HELD, {"namespace": namespace, "id": job_id})
    return row is not None and bool(row["held"])


def with_held(db: Snapshot) -> list[tuple[str, str]]:
    """Return namespace and id of the parents whose children wait, whether they exist or not."""
    found: list[tuple[str, str]] = []
    key = {"namespace": "", "id": ""}
    # A step for each parent, however many of its children wait.
    while (
        row := next(filter(None, (db.one(sql, key) for sql in _NEXT_WITH_HELD)), None)
    ) is not None:
        found.append((row["namespace"], row["parent_id"]))
        key = {"namespace": row["namespace"], "id": row["parent_id"]}
    return found


def release(tx: Transaction, namespace: str, job_id: str) -> None:
    """Let a child wait no more; the caller has it evaluated."""
    tx.execute(_RELEASE, {"namespace": namespace, "id": job_id})


def note_room(tx: Transaction, namespace: str, parent_id: str) -> None:
    """Say that more children of a job may be at work, if any waits for that."""
    if held(tx, namespace, parent_id, 1):
        tx.publish(ROOM)


# ---- what has ended -----------------------------------------------------------------------------


def parents(db: Snapshot) -> list[tuple[str, str]]:
    """Return namespace and id of the jobs that launch children."""
    return [(row["namespace"], row["id"]) for row in db.all(_PARENTS)]


def ended_beyond(db: Snapshot, namespace: str, parent_id: str, kept: int, most: int) -> list[str]:
    """Return children that have ended, without the `kept` newest of them, at most `most`."""
    values = {"namespace": namespace, "id": parent_id, "kept": kept, "most": most}
    return [row["id"] for row in db.all(_ENDED, values)]


def ended_before(db: Snapshot, namespace: str, parent_id: str, index: int, most: int) -> list[str]:
    """Return children that have not changed since they ended at an index or before."""
    values = {"namespace": namespace, "id": parent_id, "index": index, "most": most}
    return [row["id"] for row in db.all(_ENDED_BEFORE, values)]
