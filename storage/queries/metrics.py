"""Counts of what there is, for who watches the daemon from afar."""

from typing import NamedTuple

import msgspec

from storage.readers import Snapshot
from storage.records.job import JobCounts

_JOBS = """
    SELECT status, count(*) AS number FROM jobs WHERE status <> 'dead' GROUP BY status
     UNION ALL
    SELECT 'dead', count(*) FROM jobs WHERE status = 'dead'
"""
# Children that have ended are history, and a million may wait: those at work are shown.
_SUMMARIES = """
    SELECT parent_id, summary FROM jobs WHERE parent_id IS ''
     UNION ALL
    SELECT parent_id, summary FROM jobs WHERE status = 'running' AND parent_id <> ''
"""
_EVALUATIONS = """
    SELECT document ->> '$.Type' AS type, status, wait_until > :now AS waits,
           needs_memory = 0 AS escaped, count(*) AS number
      FROM evaluations
     WHERE status IN ('pending', 'blocked')
  GROUP BY 1, 2, 3, 4
"""
_ALLOCATIONS = "SELECT client_status, count(*) AS number FROM allocations GROUP BY client_status"
_ON_NODE = """
    SELECT client_status, count(*) AS number FROM allocations
     WHERE node_id = :node_id
  GROUP BY client_status
"""
_KILLED_FOR_MEMORY = """
    SELECT count(*) AS number
      FROM task_events
     WHERE allocation_id = :id
       AND task = :task
       AND document ->> '$.Details.oom_killed' = 'true'
"""

_PAGES = """
    SELECT p.page_size * n.page_count AS bytes, p.page_size * f.freelist_count AS free_bytes
      FROM pragma_page_size() p, pragma_page_count() n, pragma_freelist_count() f
"""


class Unfinished(NamedTuple):
    """Evaluations of one kind that are not finished.

    `waits`: for their time. `escaped`: blocked, and no room in particular would help.
    """

    type: str
    status: str
    waits: bool
    escaped: bool
    number: int


def jobs_by_status(db: Snapshot) -> dict[str, int]:
    """Return how many jobs are in each status."""
    return {row["status"]: row["number"] for row in db.all(_JOBS)}


def file(db: Snapshot) -> dict[str, int]:
    """Return the bytes of the file, and how many of them the next rows use before it grows."""
    row = db.one(_PAGES)
    return dict(row) if row else {}


def killed_for_memory(db: Snapshot, allocation_id: str, task: str) -> int:
    """Return how often a task was killed because it took too much memory, as far as is kept."""
    row = db.one(_KILLED_FOR_MEMORY, {"id": allocation_id, "task": task})
    return int(row["number"]) if row else 0


def summaries(db: Snapshot) -> list[tuple[str, JobCounts]]:
    """Return parent and counts of each job, of children only if they are at work."""
    rows = db.all(_SUMMARIES)
    decode = msgspec.json.Decoder(JobCounts).decode
    return [(row["parent_id"], decode(row["summary"])) for row in rows if row["summary"]]


def unfinished_evaluations(db: Snapshot, now: int) -> list[Unfinished]:
    """Return how many evaluations of each kind are not finished."""
    return [
        Unfinished(
            row["type"], row["status"], bool(row["waits"]), bool(row["escaped"]), row["number"]
        )
        for row in db.all(_EVALUATIONS, {"now": now})
    ]


def allocations_by_status(db: Snapshot) -> dict[str, int]:
    """Return how many allocations the runner reports in each status."""
    return {row["client_status"]: row["number"] for row in db.all(_ALLOCATIONS)}


def allocations_on(db: Snapshot, node_id: str) -> dict[str, int]:
    """Return likewise how many there are on one node."""
    return {row["client_status"]: row["number"] for row in db.all(_ON_NODE, {"node_id": node_id})}
