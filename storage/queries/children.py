"""Child jobs, which are active, queued or ended."""

from storage.read_pool import ReadSnapshot
from storage.writer import Transaction

ROOM = "children-room"  # topic: queued children may start, or the limit was raised

# A stopped child counts as ended immediately, even while its few tasks still run.
_ARE_AT_WORK = """
    SELECT id FROM jobs
     WHERE namespace = :namespace AND parent_id = :id AND parent_id <> ''
       AND held = 0 AND status <> 'dead'
     UNION ALL
    SELECT DISTINCT j.id
      FROM allocations a INDEXED BY allocations_ending
CROSS JOIN jobs j ON j.namespace = a.namespace AND j.id = a.job_id
     WHERE a.namespace = :namespace AND a.desired_status <> 'run'
       AND a.client_status >= 'pending'
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
# A single comparison of both columns would read every child of the last parent.
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


def has_at_least_active(db: ReadSnapshot, namespace: str, parent_id: str, number: int) -> bool:
    """Return whether at least `number` children are active."""
    key = {"namespace": namespace, "id": parent_id, "number": number}
    return db.one(_ARE_AT_WORK, key) is not None


def unstopped(db: ReadSnapshot, namespace: str, parent_id: str, most: int) -> list[str]:
    """Return up to `most` IDs of children that were not stopped.

    Active children come before queued children, and older children before newer children.
    """
    key = {"namespace": namespace, "id": parent_id, "most": most}
    rows = [*db.all(_WANTED_AT_WORK, key), *db.all(_HELD, key)]
    return [row["id"] for row in rows[:most]]


# --- queue ---


def queued_children(db: ReadSnapshot, namespace: str, parent_id: str, most: int) -> list[str]:
    """Return up to `most` IDs of queued children, oldest first."""
    rows = db.all(_HELD, {"namespace": namespace, "id": parent_id, "most": most})
    return [row["id"] for row in rows]


def is_queued(db: ReadSnapshot, namespace: str, job_id: str) -> bool:
    """Return whether a job is queued because too many children of its parent are active."""
    row = db.one(_IS_HELD, {"namespace": namespace, "id": job_id})
    return row is not None and bool(row["held"])


def parents_with_queued(db: ReadSnapshot) -> list[tuple[str, str]]:
    """Return the namespace and ID of each parent of queued children, including deleted parents."""
    parent_keys: list[tuple[str, str]] = []
    key = {"namespace": "", "id": ""}
    # One step per parent, regardless of its number of queued children.
    while (
        row := next(filter(None, (db.one(sql, key) for sql in _NEXT_WITH_HELD)), None)
    ) is not None:
        parent_keys.append((row["namespace"], row["parent_id"]))
        key = {"namespace": row["namespace"], "id": row["parent_id"]}
    return parent_keys


def release(tx: Transaction, namespace: str, job_id: str) -> None:
    """Remove a child from the queue; the caller creates the evaluation of the child."""
    tx.execute(_RELEASE, {"namespace": namespace, "id": job_id})


def publish_free_slot(tx: Transaction, namespace: str, parent_id: str) -> None:
    """If children of a job are queued, publish that more children may become active."""
    if queued_children(tx, namespace, parent_id, 1):
        tx.publish(ROOM)


# --- ended children ---


def parents(db: ReadSnapshot) -> list[tuple[str, str]]:
    """Return the namespace and ID of each periodic or parameterized job."""
    return [(row["namespace"], row["id"]) for row in db.all(_PARENTS)]


def ended_beyond(
    db: ReadSnapshot, namespace: str, parent_id: str, retained: int, most: int
) -> list[str]:
    """Return up to `most` IDs of ended children. The `retained` newest ones are omitted."""
    values = {"namespace": namespace, "id": parent_id, "kept": retained, "most": most}
    return [row["id"] for row in db.all(_ENDED, values)]


def ended_before(
    db: ReadSnapshot, namespace: str, parent_id: str, index: int, most: int
) -> list[str]:
    """Return up to `most` IDs of ended children that have not changed since an index."""
    values = {"namespace": namespace, "id": parent_id, "index": index, "most": most}
    return [row["id"] for row in db.all(_ENDED_BEFORE, values)]
