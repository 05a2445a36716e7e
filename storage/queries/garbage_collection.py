"""Garbage collection: long reads find the candidates, and small writes delete them.

Each write checks the condition again, because the state may have changed since the read. The same
write counts the deleted objects by kind.
"""

from collections.abc import Iterable

import msgspec

from storage.errors import StorageUnreadable
from storage.queries import allocations, deployments, job_status, jobs
from storage.read_pool import ReadSnapshot
from storage.writer import Transaction

Key = tuple[str, str]  # namespace and ID of a job
ANY_NUMBER = 2**62  # for a limit that does not apply

_COUNT = """
    INSERT INTO collected (kind, number) VALUES (:kind, :number)
    ON CONFLICT (kind) DO UPDATE SET number = number + excluded.number
"""
_COUNTS = "SELECT kind, number FROM collected WHERE kind > ''"


def counts(db: ReadSnapshot) -> dict[str, int]:
    """Return the number of deleted rows by kind."""
    return {row["kind"]: row["number"] for row in db.all(_COUNTS)}


def count(tx: Transaction, kind: str, number: int) -> int:
    """Add `number` to the count of deleted rows of a kind, and return `number`."""
    if number:
        tx.execute(_COUNT, {"kind": kind, "number": number})
    return number


def _list(ids: Iterable[str]) -> str:
    return msgspec.json.encode(list(ids)).decode()


# --- dead jobs ---

# A stopped job counts as dead while its tasks are still ending.
_IS_OVER = """
       status = 'dead'
       AND NOT EXISTS (SELECT 1 FROM allocations a INDEXED BY allocations_ending
                        WHERE a.namespace = jobs.namespace AND a.job_id = jobs.id
                          AND a.desired_status <> 'run'
                          AND a.client_status >= 'pending')
       AND NOT EXISTS (SELECT 1 FROM allocations a INDEXED BY allocations_unfinished
                        WHERE a.namespace = jobs.namespace AND a.job_id = jobs.id
                          AND a.desired_status = 'run'
                          AND a.client_status >= 'pending')
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
# In dependency order: rows that no other rows need come first.
_PARTS = {
    "task events": _REMOVE_EVENTS,
    "allocations": _REMOVE_SOME.format(table="allocations"),
    "evaluations": _REMOVE_SOME.format(table="evaluations"),
}


def dead_jobs(db: ReadSnapshot, index: int, retained: int, most: int) -> list[Key]:
    """Return up to `most` dead jobs, oldest first.

    A job is returned if it has not changed since an index, or if it is beyond the newest
    `retained`.
    """
    if retained < ANY_NUMBER and (row := db.one(_LAST_KEPT, {"kept": retained})) is not None:
        # Jobs that changed at the same index as the last retained job stay.
        index = max(index, row["modify_index"] - 1)
    rows = db.all(_DEAD, {"index": index, "most": most})
    return [(row["namespace"], row["id"]) for row in rows]


def forget_job(tx: Transaction, key: Key, most: int) -> tuple[bool, int]:
    """Delete a dead job with all its rows, or only `most` of its rows if it has more.

    Return whether the deletion is complete, and the number of deleted rows. A partially deleted job
    never runs again: see `jobs.definition_index`.
    """
    values = {"namespace": key[0], "id": key[1]}
    try:
        job = jobs.current(tx, *key)
    except StorageUnreadable as error:  # the job stays, and other jobs are collected
        tx.unreadable_rows.note(error)
        return True, 0
    if job is None or tx.one(_STILL_OVER, values) is None:
        return True, 0
    removed_count = 0
    for kind, remove in _PARTS.items():
        removed_count += count(
            tx, kind, tx.execute(remove, {**values, "most": most - removed_count})
        )
        if removed_count >= most:
            tx.execute(_BEGIN, values)
            return False, removed_count
    jobs.purge(tx, job)
    tx.touch("evaluations")
    tx.touch("allocations", *(allocations.removed_topic(node["id"]) for node in tx.all(_NODES)))
    return True, removed_count + count(tx, "jobs", 1)


# --- objects of existing jobs ---

# Allocations that no decision depends on: see `daemon/scheduler/alloc_sets.py`. A stopped
# allocation of a batch job may still reserve its name. A stopped allocation of a sysbatch job
# counts as completed.
_REPLACED = """
       client_status < 'pending'
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
# An allocation stays while its replacement has not ended. The replacement may still take over the
# data, and its reschedule history names the allocation.
_ALLOCATIONS = f"""
    SELECT a.id
      FROM ({_PLACED_SINCE}) AS found
CROSS JOIN allocations a ON a.rowid = found.row
     WHERE (found.modify_time < :before OR found.place > :kept)
       AND NOT EXISTS (SELECT 1 FROM allocations n
                        WHERE n.id = a.desired ->> '$.NextAllocation'
                          AND n.client_status >= 'pending')
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


def replaced_allocations(db: ReadSnapshot, before: int, retained: int, most: int) -> list[str]:
    """Return up to `most` IDs of terminal allocations that were replaced or are not desired.

    An allocation is returned only if it has not changed since the time `before`, or if it is beyond
    the newest `retained` of its job.
    """
    values = {"before": before, "kept": retained, "most": most}
    return [row["id"] for row in db.all(_ALLOCATIONS, values)]


def remove_allocations(tx: Transaction, ids: Iterable[str]) -> int:
    """Delete allocations with their events, but not their files.

    Return the number of deleted allocations.
    """
    values = {"ids": _list(ids)}
    nodes = [row["node_id"] for row in tx.all(_NODES_OF, values)]
    owners = [(row["namespace"], row["job_id"]) for row in tx.all(_JOBS_OF, values)]
    removed = tx.execute(_REMOVE_ALLOCATIONS, values)
    tx.touch("allocations", *(allocations.removed_topic(node) for node in nodes))
    for key in owners:
        tx.touch("allocations", allocations.job_topic(*key))
        job_status.refresh_summary(tx, *key)
    return count(tx, "allocations", removed)


# The first part finds the jobs with more than `kept` objects. It reads only an index.
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
     WHERE e.status NOT IN ('pending', 'blocked') AND e.modify_time < :before
       AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.namespace = e.namespace AND j.id = e.job_id)
     LIMIT :most
"""


def evaluations_beyond(db: ReadSnapshot, retained: int, most: int) -> list[str]:
    """Return up to `most` IDs of completed evaluations beyond the newest `retained` of their job.

    Evaluations with existing allocations are not returned.
    """
    return [row["id"] for row in db.all(_EVALUATIONS, {"kept": retained, "most": most})]


def notifications_beyond(db: ReadSnapshot, before: int, retained: int, most: int) -> list[str]:
    """Return up to `most` IDs of delivered or failed notifications that may be deleted.

    A notification is returned if it is older than the time `before`, or beyond the newest
    `retained` of its job.
    """
    values = {"before": before, "kept": retained, "most": most}
    return [str(row["number"]) for row in db.all(_NOTIFICATIONS, values)]


def remove_notifications(tx: Transaction, ids: Iterable[str]) -> int:
    """Delete notifications whose delivery has ended; return their number."""
    removed = tx.execute(_REMOVE_NOTIFICATIONS, {"ids": _list(ids)})
    tx.touch("notifications")
    return count(tx, "notifications", removed)


def orphans(db: ReadSnapshot, before: int, most: int) -> list[str]:
    """Return up to `most` IDs of evaluations whose job was deleted.

    Only evaluations that were completed before the time `before` are returned.
    """
    return [row["id"] for row in db.all(_ORPHANS, {"before": before, "most": most})]


def remove_evaluations(tx: Transaction, ids: Iterable[str]) -> int:
    """Delete completed evaluations; return their number."""
    removed = tx.execute(_REMOVE_EVALUATIONS, {"ids": _list(ids)})
    tx.touch("evaluations")
    return count(tx, "evaluations", removed)


def deployments_beyond(db: ReadSnapshot, retained: int, most: int) -> list[str]:
    """Return up to `most` IDs of ended deployments beyond the newest `retained` of their job.

    Deployments with existing allocations are not returned.
    """
    return [row["id"] for row in db.all(_DEPLOYMENTS, {"kept": retained, "most": most})]


def remove_deployments(tx: Transaction, ids: Iterable[str]) -> int:
    """Delete ended deployments; return their number."""
    values = {"ids": _list(ids)}
    owners = tx.all(_DEPLOYED, values)
    removed = tx.execute(_REMOVE_DEPLOYMENTS, values)
    for row in owners:
        tx.touch("deployments", deployments.job_topic(row["namespace"], row["job_id"]))
    return count(tx, "deployments", removed)
