"""The status and the summary of jobs, derived from evaluations, allocations and children."""

import re
import sqlite3
from collections.abc import Iterator
from functools import lru_cache

import msgspec

from storage.queries import children, notifications, runs
from storage.queries.documents import decode_row
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.flow import FlowRun
from storage.records.job import GroupSummary, JobCounts, JobStatus, JobType
from storage.writer import Transaction

Row = sqlite3.Row  # of the table `jobs`


def topic(namespace: str, job_id: str) -> str:
    """Return the topic of changes to a job."""
    return f"jobs/{namespace}/{job_id}"


def summary_topic(namespace: str, job_id: str) -> str:
    """Return the topic of changes to a job's summary."""
    return f"summaries/{namespace}/{job_id}"


def changed(tx: Transaction, namespace: str, job_id: str) -> None:
    """Publish that a job has changed."""
    tx.touch("jobs", topic(namespace, job_id))


_ROW = "SELECT * FROM jobs WHERE namespace = :namespace AND id = :id"
# The whole row of a job of a thousand groups takes 100 KB.
_NOTIFY = "SELECT notify FROM jobs WHERE namespace = :namespace AND id = :id"
_QUEUED = "SELECT namespace, id, queued FROM jobs WHERE namespace = :namespace AND id = :id"
_PARENTLESS = "SELECT * FROM jobs INDEXED BY jobs_by_change WHERE parent_id IS ''"


def load_summary(db: ReadSnapshot, namespace: str, job_id: str) -> sqlite3.Row | None:
    """Return the row of a job, with status, summary and current version; or None."""
    return db.one(_ROW, {"namespace": namespace, "id": job_id})


def has_notifications(db: ReadSnapshot, namespace: str, job_id: str) -> bool:
    """Return whether a job requests notifications."""
    row = db.one(_NOTIFY, {"namespace": namespace, "id": job_id})
    return row is not None and bool(row["notify"])


def parentless(db: ReadSnapshot) -> Iterator[sqlite3.Row]:
    """Yield the rows of all jobs without a parent."""
    return db.each(_PARENTLESS)


_SET_QUEUED = "UPDATE jobs SET queued = :queued WHERE namespace = :namespace AND id = :id"


def set_queued(tx: Transaction, namespace: str, job_id: str, queued: dict[str, int]) -> None:
    """Set the number of unplaced allocations of each group; 0 for groups not in `queued`."""
    row = tx.one(_QUEUED, {"namespace": namespace, "id": job_id})
    if row is None:
        return
    no_queued = dict.fromkeys(decode_row(row, dict[str, int], "jobs", "queued"), 0)
    counts = encode({**no_queued, **queued}).decode()
    if counts != row["queued"]:
        tx.execute(_SET_QUEUED, {"namespace": namespace, "id": job_id, "queued": counts})


_STATUSES = """
    SELECT :namespace AS namespace, :id AS id,
           json_group_array(json_array(task_group, client_status, number)) AS statuses
      FROM (SELECT task_group, client_status, count(*) AS number
              FROM allocations
             WHERE namespace = :namespace AND job_id = :id
          GROUP BY task_group, client_status)
"""
_DOES = """
    SELECT CASE
      WHEN EXISTS (SELECT 1 FROM allocations
                    WHERE namespace = :namespace AND job_id = :id AND desired_status = 'run'
                      AND client_status >= 'pending')
        OR EXISTS (SELECT 1 FROM deployments
                    WHERE namespace = :namespace AND job_id = :id
                      AND status IN ('running', 'paused'))
      THEN 'running'
      WHEN NOT :stop AND EXISTS (SELECT 1 FROM runs
                    WHERE namespace = :namespace AND job_id = :id
                      AND status IN ('running', 'stopping') AND EXISTS
                          (SELECT 1 FROM allocations INDEXED BY allocations_by_job
                            WHERE namespace = runs.namespace AND job_id = runs.job_id
                              AND job_version = runs.version))
      THEN 'running'
      WHEN NOT :stop AND EXISTS (SELECT 1 FROM runs
                    WHERE namespace = :namespace AND job_id = :id
                      AND status IN ('running', 'stopping'))
      THEN 'pending'
      WHEN NOT :stop AND EXISTS (SELECT 1 FROM frozen_jobs
                    WHERE namespace = :namespace AND job_id = :id)
      THEN 'pending'
      WHEN EXISTS (SELECT 1 FROM evaluations
                    WHERE namespace = :namespace AND job_id = :id
                      AND status IN ('pending', 'blocked'))
      THEN 'pending'
      ELSE 'dead'
    END AS status
"""
_SETTLE = """
    UPDATE jobs
       SET status = :status, modify_index = :modify_index,
           summary = :summary, summary_index = :summary_index,
           has_failed_allocation = :has_failed
     WHERE namespace = :namespace AND id = :id
"""
_FAILURES = re.compile('"(?:Failed|Lost)":[1-9]')
_ENDING = (JobType.BATCH, JobType.SYSBATCH)
_STARTING = ("pending", "starting")  # the client status that summaries count by another name
_COUNTED_AS = dict([_STARTING])


def refresh_summary(tx: Transaction, namespace: str, job_id: str) -> None:
    """Refresh the status and the summary of a job.

    Every write that changes the job or its evaluations, allocations or deployments calls this after
    the change. Listings are therefore never older than the objects.
    """
    row = load_summary(tx, namespace, job_id)
    if row is None:
        return  # purged, but its evaluations and tasks may still be ending
    status, summary = status_of(tx, row), counts_of(tx, row)
    moved, counted = status != row["status"], summary != row["summary"]
    if not (moved or counted):
        return
    tx.execute(
        _SETTLE,
        {
            "namespace": namespace,
            "id": job_id,
            "status": status,
            "modify_index": tx.index if moved else row["modify_index"],
            "summary": summary,
            "summary_index": tx.index if counted else row["summary_index"],
            "has_failed": bool(_FAILURES.search(summary)),
        },
    )
    if row["notify"]:
        _follow(tx, row, status, summary)
    if status == JobStatus.DEAD and row["type"] in _ENDING and not row["launches_children"]:
        _note_end(tx, row)
    if moved:
        changed(tx, namespace, job_id)
        if row["parent_id"]:
            count_child(tx, namespace, row["parent_id"], row["status"], status)
    if counted:
        tx.touch("summaries", summary_topic(namespace, job_id))
        if status == JobStatus.DEAD and not moved:  # its last task may have ended
            children.publish_free_slot(tx, namespace, row["parent_id"])


def _note_end(tx: Transaction, row: Row) -> None:
    """Record the end of a batch job for the jobs that follow this job."""
    if runs.has_followers(tx, row["namespace"], row["id"], row["parent_id"]):
        from storage.queries import triggers  # imported late: few jobs follow others

        triggers.note_job_end(tx, row)


def _follow(tx: Transaction, row: sqlite3.Row, status: JobStatus, summary: str) -> None:
    before, after = _numbers(row["summary"]), _numbers(summary)
    notifications.queue_job_notification(
        tx,
        row,
        ended=status == JobStatus.DEAD and row["status"] != JobStatus.DEAD,
        failed=after.failed > before.failed,
        runs=bool(after.running) and not (after.starting or after.queued),
    )


def note_deployed(tx: Transaction, namespace: str, job_id: str) -> None:
    """Queue the notification about a deployed version, which may be a success after a failure.

    A deployment can succeed without a change of the summary.
    """
    row = load_summary(tx, namespace, job_id)
    if row is not None and row["notify"]:
        _follow(tx, row, row["status"], row["summary"])


def note_earlier_end(tx: Transaction, run: FlowRun) -> None:
    """Queue the notification about the end of a run of an earlier version.

    The current version waited for the end of this run, so the job itself has not ended.
    """
    row = load_summary(tx, run.namespace, run.job_id)
    if row is not None and row["notify"]:
        notifications.queue_job_notification(
            tx, row, ended=True, failed=False, runs=False, version=run.version
        )


def _numbers(summary: str) -> GroupSummary:
    """Return the summed counts of all groups; zeros if the summary is unreadable.

    The caller then replaces an unreadable summary.
    """
    return _summarize(summary) or GroupSummary()


def has_allocations(row: Row) -> bool:
    """Return whether a job has allocations according to its summary.

    Return true if the summary cannot be read.
    """
    counts = _summarize(row["summary"])
    return counts is None or msgspec.structs.replace(counts, queued=0) != GroupSummary()


def allocation_counts(row: Row) -> dict[str, int]:
    """Return the number of allocations of a job by client status; empty if unreadable."""
    counts = msgspec.structs.asdict(_numbers(row["summary"]))
    counts[_STARTING[0]] = counts.pop(_STARTING[1])
    return {status: number for status, number in counts.items() if number and status != "queued"}


def _summarize(summary: str) -> GroupSummary | None:
    try:
        counts = msgspec.json.decode(summary, type=JobCounts).summary if summary else {}
    except (msgspec.DecodeError, UnicodeError):
        return None
    counts_of_groups = [msgspec.structs.asdict(count) for count in counts.values()]
    names = GroupSummary.__struct_fields__
    return GroupSummary(
        **{name: sum(group_counts[name] for group_counts in counts_of_groups) for name in names}
    )


def status_of(db: ReadSnapshot, row: sqlite3.Row) -> JobStatus:
    """Return the status of a job.

    The rules are taken from the recordings `kind-*`, `dispatch` and `periodic` of Nomad.
    """
    if row["held"]:
        return JobStatus.PENDING
    if row["launches_children"] or row["type"] == JobType.SYSTEM:
        return JobStatus.DEAD if row["stop"] else JobStatus.RUNNING
    key = {"namespace": row["namespace"], "id": row["id"], "stop": row["stop"]}
    row_of_status = db.one(_DOES, key)
    assert row_of_status is not None  # noqa: S101  # the statement always returns a row
    return JobStatus(row_of_status["status"])


def counts_of(db: ReadSnapshot, row: sqlite3.Row) -> str:
    """Return a job's summary as JSON, for storage. `JobCounts` lists the omitted values."""
    queued = decode_row(row, dict[str, int], "jobs", "queued")
    counts: dict[str, tuple[tuple[str, int], ...]] = {
        group: (("queued", number),) for group, number in queued.items()
    }
    row_of_counts = db.one(_STATUSES, {"namespace": row["namespace"], "id": row["id"]})
    assert row_of_counts is not None  # noqa: S101  # the statement always returns a row
    for group, status, number in decode_row(
        row_of_counts, list[tuple[str, str, int]], "jobs", "statuses"
    ):
        counts[group] = (*counts.get(group, ()), (_COUNTED_AS.get(status, status), number))
    summary = JobCounts(
        job_id=row["id"],
        namespace=row["namespace"],
        summary={group: _summary_of(numbers) for group, numbers in counts.items()},
    )
    return encode(summary).decode()


@lru_cache(maxsize=256)
def _summary_of(numbers: tuple[tuple[str, int], ...]) -> GroupSummary:
    """Return the summary of a group with these counts by status.

    The result is cached, because most groups of a large job have equal counts.
    """
    return GroupSummary(**dict(numbers))


_COUNT_CHILD = """
    UPDATE jobs
       SET children_pending = children_pending + :pending,
           children_running = children_running + :running,
           children_dead    = children_dead + :dead,
           summary_index    = :index
     WHERE namespace = :namespace AND id = :id
"""


def count_child(
    tx: Transaction,
    namespace: str,
    parent_id: str,
    before: str | None,
    after: str | None,
    number: int = 1,
) -> None:
    """Move children from one status count of their parent to another.

    `before` is None for children that no count included before the change, and `after` is None for
    children that no count includes after it.
    """
    change = {
        status.value: number * ((after == status) - (before == status)) for status in JobStatus
    }
    key = {"namespace": namespace, "id": parent_id, "index": tx.index}
    if tx.execute(_COUNT_CHILD, {**key, **change}):
        tx.touch("summaries", summary_topic(namespace, parent_id))
    if after in (None, JobStatus.DEAD):
        children.publish_free_slot(tx, namespace, parent_id)
