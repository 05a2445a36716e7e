"""Counts of objects for monitoring."""

import sqlite3
from collections import Counter
from typing import NamedTuple

from storage.queries.documents import decode_row, field, readable
from storage.read_pool import ReadSnapshot
from storage.records.job import JobCounts

_JOBS = "SELECT status, number FROM job_counts"
# Ended children are history, and a million may be queued, so only active children are included.
_SUMMARIES = """
    SELECT namespace, id, parent_id, summary FROM jobs WHERE parent_id IS ''
     UNION ALL
    SELECT namespace, id, parent_id, summary FROM jobs INDEXED BY jobs_alive
     WHERE status = 'running' AND status <> 'dead' AND parent_id <> ''
"""
_EVALUATIONS = f"""
    SELECT {field("document", "Type")} AS type, status, wait_until > :now AS waits,
           needs_memory = 0 AS escaped, count(*) AS number
      FROM evaluations
     WHERE status IN ('pending', 'blocked')
  GROUP BY 1, 2, 3, 4
"""
_ALLOCATIONS = "SELECT node_id, client_status, number FROM allocation_counts"
_KILLED_FOR_MEMORY = f"""
    SELECT count(*) AS number
      FROM task_events
     WHERE allocation_id = :id
       AND task = :task
       AND {field("document", "Details.oom_killed")} = 'true'
"""

_PAGES = """
    SELECT p.page_size * n.page_count AS bytes, p.page_size * f.freelist_count AS free_bytes
      FROM pragma_page_size() p, pragma_page_count() n, pragma_freelist_count() f
"""


class UnfinishedEvaluations(NamedTuple):
    """The number of uncompleted evaluations of one kind.

    `waits` is true for delayed evaluations. `escaped` is true for evaluations without stored
    resource needs.
    """

    type: str
    status: str
    waits: bool
    escaped: bool
    number: int


def jobs_by_status(db: ReadSnapshot) -> dict[str, int]:
    """Return the number of jobs per status."""
    return {row["status"]: row["number"] for row in db.all(_JOBS)}


def file_sizes(db: ReadSnapshot) -> dict[str, int]:
    """Return the size of the database file, and its free space, in bytes.

    The keys are `bytes` and `free_bytes`.
    """
    row = db.one(_PAGES)
    return dict(row) if row else {}


def killed_for_memory(db: ReadSnapshot, allocation_id: str, task: str) -> int:
    """Return how often a task was killed for its memory limit, according to its stored events."""
    row = db.one(_KILLED_FOR_MEMORY, {"id": allocation_id, "task": task})
    return int(row["number"]) if row else 0


def summaries(db: ReadSnapshot) -> list[tuple[str, JobCounts]]:
    """Return the parent ID and the summary of each job, except child jobs that are not active."""
    return list(readable(db, (row for row in db.all(_SUMMARIES) if row["summary"]), _summary))


def _summary(row: sqlite3.Row) -> tuple[str, JobCounts]:
    return row["parent_id"], decode_row(row, JobCounts, "jobs", "summary")


def unfinished_evaluations(db: ReadSnapshot, now: int) -> list[UnfinishedEvaluations]:
    """Return the number of uncompleted evaluations of each kind."""
    return [
        UnfinishedEvaluations(
            row["type"], row["status"], bool(row["waits"]), bool(row["escaped"]), row["number"]
        )
        for row in db.all(_EVALUATIONS, {"now": now})
    ]


def allocations(db: ReadSnapshot) -> dict[str, Counter[str]]:
    """Return the number of allocations by node and client status."""
    numbers: dict[str, Counter[str]] = {}
    for row in db.all(_ALLOCATIONS):
        numbers.setdefault(row["node_id"], Counter())[row["client_status"]] += row["number"]
    return numbers
