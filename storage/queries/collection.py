"""What may be forgotten: found by long reads, removed a little at a time.

Whoever removes asks again for what matters: between the reading and the write things may have
changed. What was removed is counted by kind, in the same write.
"""

from collections.abc import Iterable

import msgspec

from storage.queries import allocations, deployments, job_status, jobs
from storage.readers import Snapshot
from storage.writer import Transaction

Key = tuple[str, str]  # namespace and id of a job
ANY_NUMBER = 2**62  # kept: however many there are

_COUNT = """
    INSERT INTO collected (kind, number) VALUES (:kind, :number)
    ON CONFLICT (kind) DO UPDATE SET number = number + excluded.number
"""
_COUNTS = "SELECT kind, number FROM collected WHERE kind > ''"


def counts(db: Snapshot) -> dict[str, int]:
    """Return how many rows of each kind have been removed so far."""
    return {row["kind"]: row["number"] for row in db.all(_COUNTS)}


def count(tx: Transaction, kind: str, number: int) -> int:
    """Add to what has been removed of a kind; return the number."""
    if number:
        tx.execute(_COUNT, {"kind": kind, "number": number})
    return number


def _list(ids: Iterable[str]) -> str:
    return msgspec.json.encode(list(ids)).decode()


# ---- dead jobs ----------------------------------------------------------------------------------

# A stopped job counts as dead while its tasks are still ending.
_IS_OVER = """
       status = 'dead'
       AND NOT EXISTS (SELECT 1 FROM allocations a INDEXED BY allocations_ending
                        WHERE a.namespace = jobs.namespace AND a.job_id = jobs.id
                          AND a.desired_status <> 'run'
                          AND a.client_status IN ('pending', 'running', 'unknown'))
       AND NOT EXISTS (SELECT 1 FROM allocations a INDEXED BY allocations_unfinished
                        WHERE a.namespace = jobs.namespace AND a.job_id = jobs.id
                          AND a.desired_status = 'run'
                          AND a.client_status IN ('pending', 'running', 'unknown'))
       AND NOT EXISTS (SELECT 1 FROM evaluations e INDEXED BY evaluations_unfinished
                        WHERE e.namespace = jobs.namespace AND e.job_id = jobs.id
                          AND e.status IN ('pending', 'blocked'))
"""
_DEAD = f"""
    SELECT namespace, id FROM jobs
     WHERE modify_index <= :index AND {_IS_OVER}
  ORDER BY modify_index
     LIMIT :most
"""
_LAST_KEPT = """
    SELECT modify_index FROM jobs WHERE status = 'dead' ORDER BY modify_index DESC LIMIT 1 OFFSET :kept - 1
"""
_STILL_OVER = f"SELECT 1 FROM jobs WHERE namespace = :namespace AND id = :id AND {_IS_OVER}"
_NODES = "SELECT id FROM nodes"
_BEGIN = "UPDATE jobs SET forgotten = 1 WHERE namespace = :namespace AND id = :id"
_REMOVE_SOME = """
    DELETE FROM {table}
     WHERE rowid IN (SELECT rowid FROM {table}
                      WHERE namespace = :namespace AND job_id = :id
                      LIMIT :most)
"""
_REMOVE_EVENTS = """
    DELETE FROM task_events
     WHERE (allocation_id, task, number) IN (
           SELECT e.allocation_id, e.task, e.number
             FROM allocations a
       CROSS JOIN task_events e ON e.allocation_id = a.id
            WHERE a.namespace = :namespace AND a.job_id = :id
            LIMIT :most)
"""
# In this order: what nothing else needs goes first.
_PARTS = {
    "task events": _REMOVE_EVENTS,
    "allocations": _REMOVE_SOME.format(table="allocations"),
    "evaluations": _REMOVE_SOME.format(table="evaluations"),
}


def dead_jobs(db: Snapshot, index: int, kept: int, most: int) -> list[Key]:
    """Return dead jobs, oldest first: unchanged since an index, and those beyond the newest `kept`."""
    if kept < ANY_NUMBER and (row := db.one(_LAST_KEPT, {"kept": kept})) is not None:
        index = max(index, row["modify_index"] - 1)  # of equals all stay
    rows = db.all(_DEAD, {"index": index, "most": most})
    return [(row["namespace"], row["id"]) for row in rows]


def forget_job(tx: Transaction, key: Key, most: int) -> tuple[bool, int]:
    """Remove a dead job with all that belongs to it, or, of one with much, so many rows of that.

    Returns whether nothing is left to do, and how many rows went. Of a job that is half gone
    nothing runs again: see `jobs.definition_index`.
    """
    values = {"namespace": key[0], "id": key[1]}
    job = jobs.current(tx, *key)
    if job is None or tx.one(_STILL_OVER, values) is None:
        return True, 0
    gone = 0
    for kind, remove in _PARTS.items():
        gone += count(tx, kind, tx.execute(remove, {**values, "most": most - gone}))
        if gone >= most:
            tx.execute(_BEGIN, values)
            return False, gone
    jobs.purge(tx, job)
    tx.touch("evaluations")
    tx.touch("allocations", *(allocations.removed_topic(node["id"]) for node in tx.all(_NODES)))
    return True, gone + count(tx, "jobs", 1)


# ---- what jobs leave behind while they live -------------------------------------------------------

# What a decision does not look at any more: see `daemon/scheduler/sorting.py`. What a batch job has
# stopped may keep its place; of a sysbatch job it stands for work that is done.
_REPLACED = """
       client_status IN ('complete', 'failed', 'lost')
       AND (desired ->> '$.NextAllocation' IS NOT NULL
            OR desired_status <> 'run' AND job_type <> 'sysbatch'
               AND desired ->> '$.Transition.MigrateDisablePlacement' IS NOT 1)
"""
_PLACED_SINCE = f"""
    SELECT rowid AS row, modify_time,
           row_number() OVER (PARTITION BY namespace, job_id ORDER BY modify_time DESC) AS place
      FROM allocations INDEXED BY allocations_replaced
     WHERE {_REPLACED}
"""
# The one that follows may be about to take over its data, and tells how often it was tried.
_ALLOCATIONS = f"""
    SELECT a.id
      FROM ({_PLACED_SINCE}) AS found
CROSS JOIN allocations a ON a.rowid = found.row
     WHERE (found.modify_time < :before OR found.place > :kept)
       AND NOT EXISTS (SELECT 1 FROM allocations n
                        WHERE n.id = a.desired ->> '$.NextAllocation'
                          AND n.client_status IN ('pending', 'running', 'unknown'))
       AND NOT EXISTS (SELECT 1 FROM deployments d
                        WHERE d.id = a.deployment_id AND d.status IN ('running', 'paused'))
     LIMIT :most
"""
_OF = "SELECT DISTINCT {} FROM allocations WHERE id IN (SELECT value FROM json_each(:ids))"
_JOBS_OF = _OF.format("namespace, job_id")
_NODES_OF = _OF.format("node_id")
_REMOVE_ALLOCATIONS = f"""
    DELETE FROM allocations
     WHERE id IN (SELECT value FROM json_each(:ids)) AND {_REPLACED}
"""


def replaced_allocations(db: Snapshot, before: int, kept: int, most: int) -> list[str]:
    """Return allocations that have ended and others have replaced, or nobody wants.

    Those that changed last before a time, and of each job those beyond the newest `kept`.
    """
    values = {"before": before, "kept": kept, "most": most}
    return [row["id"] for row in db.all(_ALLOCATIONS, values)]


def remove_allocations(tx: Transaction, ids: Iterable[str]) -> int:
    """Remove allocations with their events; whoever has their files removes these, too."""
    values = {"ids": _list(ids)}
    nodes = [row["node_id"] for row in tx.all(_NODES_OF, values)]
    owners = [(row["namespace"], row["job_id"]) for row in tx.all(_JOBS_OF, values)]
    removed = tx.execute(_REMOVE_ALLOCATIONS, values)
    tx.touch("allocations", *(allocations.removed_topic(node) for node in nodes))
    for key in owners:
        tx.touch("allocations", allocations.job_topic(*key))
        job_status.settle(tx, *key)
    return count(tx, "allocations", removed)


# Which jobs have more than is kept tells an index alone.
_BEYOND = """
      WITH crowded AS MATERIALIZED (SELECT namespace, job_id FROM {table}
                                  GROUP BY namespace, job_id HAVING count(*) > :kept)
    SELECT found.id
      FROM (SELECT o.id, o.status,
                   row_number() OVER (PARTITION BY o.namespace, o.job_id
                                          ORDER BY o.{order} DESC) AS place
              FROM crowded c
        CROSS JOIN {table} o ON o.namespace = c.namespace AND o.job_id = c.job_id) AS found
     WHERE found.place > :kept AND found.status NOT IN ({active})
       AND NOT EXISTS (SELECT 1 FROM allocations a WHERE a.{reference} = found.id{plain})
     LIMIT :most
"""
_EVALUATIONS = _BEYOND.format(
    table="evaluations",
    order="modify_index",
    active="'pending', 'blocked'",
    reference="eval_id",
    plain="",
)
_DEPLOYMENTS = _BEYOND.format(
    table="deployments",
    order="create_index",
    active="'running', 'paused'",
    reference="deployment_id",
    plain=" AND a.deployment_id <> ''",
)
_REMOVE_EVALUATIONS = """
    DELETE FROM evaluations
     WHERE id IN (SELECT value FROM json_each(:ids)) AND status NOT IN ('pending', 'blocked')
"""
_REMOVE_DEPLOYMENTS = """
    DELETE FROM deployments
     WHERE id IN (SELECT value FROM json_each(:ids)) AND status NOT IN ('running', 'paused')
"""
_DEPLOYED = """
    SELECT DISTINCT namespace, job_id FROM deployments
     WHERE id IN (SELECT value FROM json_each(:ids))
"""
_NOTIFICATIONS = """
    SELECT n.number
      FROM (SELECT number, row_number() OVER (PARTITION BY namespace, job_id
                                                  ORDER BY number DESC) AS place
              FROM notifications INDEXED BY notifications_by_job) AS found
CROSS JOIN notifications n ON n.number = found.number
     WHERE n.status <> 'pending' AND (found.place > :kept OR n.modify_time < :before)
     LIMIT :most
"""
_REMOVE_NOTIFICATIONS = """
    DELETE FROM notifications
     WHERE number IN (SELECT CAST(value AS INTEGER) FROM json_each(:ids)) AND status <> 'pending'
"""
_ORPHANS = """
    SELECT id FROM evaluations e
     WHERE e.status IN ('complete', 'failed', 'canceled') AND e.modify_time < :before
       AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.namespace = e.namespace AND j.id = e.job_id)
     LIMIT :most
"""


def evaluations_beyond(db: Snapshot, kept: int, most: int) -> list[str]:
    """Return finished evaluations beyond the newest `kept` of their job, that placed nothing kept."""
    return [row["id"] for row in db.all(_EVALUATIONS, {"kept": kept, "most": most})]


def notifications_beyond(db: Snapshot, before: int, kept: int, most: int) -> list[str]:
    """Return what was told, or could not be, before a time or beyond the newest `kept` of its job."""
    values = {"before": before, "kept": kept, "most": most}
    return [str(row["number"]) for row in db.all(_NOTIFICATIONS, values)]


def remove_notifications(tx: Transaction, ids: Iterable[str]) -> int:
    """Remove notifications that are not to be sent any more."""
    removed = tx.execute(_REMOVE_NOTIFICATIONS, {"ids": _list(ids)})
    tx.touch("notifications")
    return count(tx, "notifications", removed)


def orphans(db: Snapshot, before: int, most: int) -> list[str]:
    """Return evaluations that finished before a time and whose job is gone."""
    return [row["id"] for row in db.all(_ORPHANS, {"before": before, "most": most})]


def remove_evaluations(tx: Transaction, ids: Iterable[str]) -> int:
    """Remove evaluations that are finished."""
    removed = tx.execute(_REMOVE_EVALUATIONS, {"ids": _list(ids)})
    tx.touch("evaluations")
    return count(tx, "evaluations", removed)


def deployments_beyond(db: Snapshot, kept: int, most: int) -> list[str]:
    """Return ended deployments beyond the newest `kept` of their job, of which no allocation is kept."""
    return [row["id"] for row in db.all(_DEPLOYMENTS, {"kept": kept, "most": most})]


def remove_deployments(tx: Transaction, ids: Iterable[str]) -> int:
    """Remove deployments that have ended."""
    values = {"ids": _list(ids)}
    owners = tx.all(_DEPLOYED, values)
    removed = tx.execute(_REMOVE_DEPLOYMENTS, values)
    for row in owners:
        tx.touch("deployments", deployments.job_topic(row["namespace"], row["job_id"]))
    return count(tx, "deployments", removed)
