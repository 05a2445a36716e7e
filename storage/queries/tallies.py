"""Queries for the state of a job: counts of its allocations, last failure, and children."""

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from storage.queries.allocations import IS_OVERTIME
from storage.queries.documents import decode_row
from storage.read_pool import ReadSnapshot
from storage.records.allocation import ClientState
from storage.records.flow import FlowRun

_WANTED = """
    SELECT job_version = :version AS is_current, client_status,
           desired ->> '$.FollowupEvalID' <> '' AND EXISTS (
               SELECT 1 FROM evaluations INDEXED BY evaluations_unfinished
                WHERE namespace = :namespace AND job_id = :job_id
                  AND status IN ('pending', 'blocked')) AS is_retried, count(*) AS number
      FROM allocations INDEXED BY allocations_considered
     WHERE namespace = :namespace AND job_id = :job_id
       AND (desired_status = 'run'
            OR client_status >= 'pending'
            OR desired ->> '$.Transition.MigrateDisablePlacement')
       AND desired_status = 'run' AND desired ->> '$.NextAllocation' IS NULL
  GROUP BY 1, 2, 3
"""
_OVERTIME = f"""
    SELECT job_version = :version AS is_current, count(*) AS number
      FROM allocations INDEXED BY allocations_overtime
     WHERE namespace = :namespace AND job_id = :job_id AND {IS_OVERTIME}
       AND desired_status = 'run' AND desired ->> '$.NextAllocation' IS NULL
  GROUP BY 1
"""
_ENDING = """
    SELECT count(*) AS number FROM allocations INDEXED BY allocations_ending
     WHERE namespace = :namespace AND job_id = :job_id AND desired_status <> 'run'
       AND client_status >= 'pending'
"""
_RESTARTED = """
    SELECT id, job_version = :version AS is_current, client_status, client
      FROM allocations INDEXED BY allocations_unfinished
     WHERE namespace = :namespace AND job_id = :job_id AND desired_status = 'run'
       AND client_status >= 'pending'
       AND EXISTS (SELECT 1 FROM json_each(client, '$.TaskStates')
                    WHERE value ->> '$.Restarts' > 0)
     LIMIT :most
"""
_FAILED = f"""
    SELECT id, modify_index FROM allocations
     WHERE namespace = :namespace AND job_id = :job_id
       AND client_status IN ('failed', 'lost')
     UNION ALL
    SELECT id, modify_index FROM allocations INDEXED BY allocations_overtime
     WHERE namespace = :namespace AND job_id = :job_id AND {IS_OVERTIME}
  ORDER BY modify_index DESC
     LIMIT 1
"""
# The conditions are those of the index.
_FAILED_OF_RUN = f"""
    SELECT id FROM allocations INDEXED BY allocations_failed
     WHERE namespace = :namespace AND job_id = :job_id AND job_version = :version
       AND desired_status = 'run'
       AND CASE WHEN json_valid(desired) THEN desired ->> '$.NextAllocation' END IS NULL
       AND (client_status IN ('failed', 'lost') OR {IS_OVERTIME})
       AND task_group IN (SELECT step FROM run_steps
                           WHERE namespace = :namespace AND job_id = :job_id AND number = :number
                             AND outcome = 'bad')
  ORDER BY modify_index DESC
     LIMIT 1
"""
_PENDING = """
    SELECT id FROM allocations INDEXED BY allocations_unfinished
     WHERE namespace = :namespace AND job_id = :job_id AND desired_status = 'run'
       AND client_status >= 'pending' AND client_status = 'pending'
     LIMIT 1
"""
_TIMES = """
    SELECT min(create_time) AS began, max(modify_time) AS ended FROM allocations
     WHERE namespace = :namespace AND job_id = :job_id
"""
_CHILDREN = """
    SELECT * FROM jobs INDEXED BY jobs_by_creation
     WHERE namespace = :namespace AND parent_id = :job_id AND parent_id <> ''
  ORDER BY create_index DESC, id DESC
     LIMIT :most
"""
_CHILD = "SELECT * FROM jobs WHERE namespace = :namespace AND id = :job_id"
_LAUNCHED = """
    SELECT submit_time FROM job_versions
     WHERE namespace = :namespace AND job_id = :job_id AND version = 0
"""

# The rules of `daemon/text/job_state.py` for ended child jobs, in SQL, so that fifty children need
# one statement. Most children are complete: a column of their job and a short index show that
# without reading their allocations and evaluations.
_RESULTS = f"""
    SELECT id, stop,
           (SELECT submit_time FROM job_versions
             WHERE namespace = jobs.namespace AND job_id = jobs.id AND version = 0) AS launched,
           coalesce(
           CASE WHEN has_failed_allocation THEN
           (SELECT max(CASE WHEN desired ->> '$.FollowupEvalID' <> '' AND EXISTS (
                       SELECT 1 FROM evaluations INDEXED BY evaluations_unfinished
                        WHERE namespace = jobs.namespace AND job_id = jobs.id
                          AND status IN ('pending', 'blocked')) THEN 2 ELSE 1 END)
              FROM allocations INDEXED BY allocations_considered
             WHERE namespace = jobs.namespace AND job_id = jobs.id
               AND (desired_status = 'run'
                    OR client_status >= 'pending'
                    OR desired ->> '$.Transition.MigrateDisablePlacement')
               AND desired_status = 'run' AND client_status IN ('failed', 'lost')
               AND job_version = jobs.version
               AND desired ->> '$.NextAllocation' IS NULL) END,
           (SELECT 1 FROM allocations INDEXED BY allocations_overtime
             WHERE namespace = jobs.namespace AND job_id = jobs.id AND {IS_OVERTIME}
               AND desired_status = 'run' AND job_version = jobs.version
               AND desired ->> '$.NextAllocation' IS NULL
             LIMIT 1)) AS failed,
           CASE WHEN EXISTS (SELECT 1 FROM evaluations INDEXED BY evaluations_unplaced
             WHERE namespace = jobs.namespace AND job_id = jobs.id
               AND (status = 'failed' OR CASE WHEN json_valid(document)
                   THEN coalesce(document ->> '$.FailedTGAllocs', '{{}}') <> '{{}}' ELSE 1 END)) THEN
           (SELECT status = 'failed' OR CASE WHEN json_valid(document)
                   THEN coalesce(document ->> '$.FailedTGAllocs', '{{}}') <> '{{}}' ELSE 1 END
              FROM evaluations INDEXED BY evaluations_by_job
             WHERE namespace = jobs.namespace AND job_id = jobs.id
          ORDER BY modify_index DESC
             LIMIT 1) END AS unplaced,
           (SELECT CASE WHEN version = jobs.version THEN status ELSE '' END FROM runs
             WHERE namespace = jobs.namespace AND job_id = jobs.id
          ORDER BY number DESC
             LIMIT 1) AS run_status
      FROM jobs INDEXED BY jobs_ended_children
     WHERE namespace = :namespace AND parent_id = :job_id AND parent_id <> '' AND status = 'dead'
  ORDER BY modify_index DESC
     LIMIT :most
"""


class ChildResult(NamedTuple):
    """The result of a child. `is_unplaced` is true if some of its allocations were not placed.

    `run_status` is the status of the child's newest run. It is empty if the child is not a
    workflow, or if the run belongs to an older version of the child. `launched` is the time at
    which the child was registered, in nanoseconds.
    """

    id: str
    launched: int
    is_stopped: bool
    is_failed: bool
    is_retried: bool
    is_unplaced: bool
    run_status: str = ""


class DesiredCount(NamedTuple):
    """The number of desired allocations for one combination of the other fields.

    `is_current` is true for allocations of the requested job version. `is_retried` is true if an
    unfinished evaluation will replace the allocations.
    """

    is_current: bool
    client_status: str
    is_retried: bool
    number: int


class Restarted(NamedTuple):
    """A non-terminal allocation with a restarted task."""

    id: str
    is_current: bool
    client_status: str
    client: ClientState


def desired_counts(
    db: ReadSnapshot, namespace: str, job_id: str, version: int
) -> list[DesiredCount]:
    """Return the number of desired allocations for each combination of their properties.

    Allocations that were already replaced do not count.
    """
    values = {"namespace": namespace, "job_id": job_id, "version": version}
    return [
        DesiredCount(bool(row[0]), row["client_status"], bool(row["is_retried"]), row["number"])
        for row in db.all(_WANTED, values)
    ]


def overtime(db: ReadSnapshot, namespace: str, job_id: str, version: int) -> dict[bool, int]:
    """Return how many desired allocations exceeded their `max_run_duration`.

    The count under the key True is for `version`. The count under False is for all other versions.
    """
    values = {"namespace": namespace, "job_id": job_id, "version": version}
    return {bool(row["is_current"]): row["number"] for row in db.all(_OVERTIME, values)}


def ending(db: ReadSnapshot, namespace: str, job_id: str) -> int:
    """Return the number of stopping allocations."""
    row = db.one(_ENDING, {"namespace": namespace, "job_id": job_id})
    return int(row["number"]) if row else 0


def restarted(
    db: ReadSnapshot, namespace: str, job_id: str, version: int, most: int
) -> list[Restarted]:
    """Return up to `most` non-terminal allocations with a restarted task."""
    values = {"namespace": namespace, "job_id": job_id, "version": version, "most": most}
    return [
        Restarted(row["id"], bool(row["is_current"]), row["client_status"], _client(row))
        for row in db.all(_RESTARTED, values)
    ]


def _client(row: sqlite3.Row) -> ClientState:
    return decode_row(row, ClientState, "allocations", "client")


def newest_failed(db: ReadSnapshot, namespace: str, job_id: str) -> str | None:
    """Return the ID of the allocation that last failed or exceeded its time limit, or None."""
    row = db.one(_FAILED, {"namespace": namespace, "job_id": job_id})
    return row["id"] if row else None


def newest_failed_of_run(db: ReadSnapshot, run: FlowRun) -> str | None:
    """Return the ID of the newest failed allocation in a run's steps with the outcome `bad`.

    Return None if no allocation of these steps failed.
    """
    key = {"namespace": run.namespace, "job_id": run.job_id, "number": run.number}
    row = db.one(_FAILED_OF_RUN, {**key, "version": run.version})
    return row["id"] if row else None


def any_pending(db: ReadSnapshot, namespace: str, job_id: str) -> str | None:
    """Return the ID of a pending allocation, or None."""
    row = db.one(_PENDING, {"namespace": namespace, "job_id": job_id})
    return row["id"] if row else None


def times(db: ReadSnapshot, namespace: str, job_id: str) -> tuple[int, int]:
    """Return when the first allocation of a job was created, and when any of them last changed.

    Both times are 0 if the job has no allocations.
    """
    row = db.one(_TIMES, {"namespace": namespace, "job_id": job_id})
    return (row["began"] or 0, row["ended"] or 0) if row else (0, 0)


def newest_children(db: ReadSnapshot, namespace: str, job_id: str, most: int) -> list[sqlite3.Row]:
    """Return the rows of a job's `most` newest children in the table `jobs`, newest first."""
    return db.all(_CHILDREN, {"namespace": namespace, "job_id": job_id, "most": most})


def child(db: ReadSnapshot, namespace: str, job_id: str) -> sqlite3.Row | None:
    """Return the row of a child in the table `jobs`, or None."""
    return db.one(_CHILD, {"namespace": namespace, "job_id": job_id})


def launched(db: ReadSnapshot, namespace: str, job_id: str) -> int:
    """Return when a job was registered, in nanoseconds; 0 if the job does not exist."""
    row = db.one(_LAUNCHED, {"namespace": namespace, "job_id": job_id})
    return int(row["submit_time"]) if row else 0


def results(db: ReadSnapshot, namespace: str, job_id: str, most: int) -> list[ChildResult]:
    """Return the results of up to `most` ended children of a job, newest end first."""
    rows = db.all(_RESULTS, {"namespace": namespace, "job_id": job_id, "most": most})
    return [_result(row, row["id"]) for row in rows]


_COUNTED = f"""
    SELECT min(launched) AS launched, stop, failed, unplaced, run_status, count(*) AS number
      FROM ({_RESULTS}) AS results
  GROUP BY results.launched / :period, stop, failed, unplaced, run_status
"""


def counted_results(
    db: ReadSnapshot, namespace: str, job_id: str, most: int, period: int
) -> list[tuple[ChildResult, int]]:
    """Return each distinct result of the children that `results` returns, and how many have it.

    Time is divided into periods of `period` nanoseconds. Results of children that were launched in
    different periods are distinct. In a returned result, the ID is empty, and `launched` is the
    earliest launch of the counted children.
    """
    key = {"namespace": namespace, "job_id": job_id, "most": most, "period": period}
    return [(_result(row, ""), int(row["number"])) for row in db.all(_COUNTED, key)]


def _result(row: sqlite3.Row, job_id: str) -> ChildResult:
    return ChildResult(
        job_id,
        row["launched"] or 0,
        bool(row["stop"]),
        bool(row["failed"]),
        row["failed"] == 2,
        bool(row["unplaced"]),
        row["run_status"] or "",
    )


_AT_WORK = """
    SELECT DISTINCT task_group, client_status FROM allocations INDEXED BY allocations_unfinished
     WHERE namespace = :namespace AND job_id = :job_id AND job_version = :version
       AND desired_status = 'run' AND client_status >= 'pending'
"""


_STOPPED = """
    SELECT DISTINCT task_group FROM allocations INDEXED BY allocations_ending
     WHERE namespace = :namespace AND job_id = :job_id AND job_version = :version
       AND desired_status <> 'run' AND client_status >= 'pending'
"""


def stopped(db: ReadSnapshot, namespace: str, job_id: str, version: int) -> frozenset[str]:
    """Return the groups in which allocations of a version are being stopped."""
    key = {"namespace": namespace, "job_id": job_id, "version": version}
    return frozenset(row["task_group"] for row in db.all(_STOPPED, key))


def at_work(
    db: ReadSnapshot, namespace: str, job_id: str, version: int
) -> Iterator[tuple[str, str]]:
    """Yield each distinct pair of group and client status of non-terminal allocations."""
    key = {"namespace": namespace, "job_id": job_id, "version": version}
    for row in db.all(_AT_WORK, key):
        yield row["task_group"], row["client_status"]
