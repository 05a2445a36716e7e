"""The status and the counts of jobs: what follows from their evaluations, allocations and children."""

import sqlite3

import msgspec

from storage.queries import children, notifications
from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.job import GroupSummary, JobCounts, JobStatus, JobType
from storage.writer import Transaction


def topic(namespace: str, job_id: str) -> str:
    """Return the topic on which changes of a job are published."""
    return f"jobs/{namespace}/{job_id}"


def summary_topic(namespace: str, job_id: str) -> str:
    """Return the topic on which changes of a job's counts are published."""
    return f"summaries/{namespace}/{job_id}"


def changed(tx: Transaction, namespace: str, job_id: str) -> None:
    """Say that something about a job changed."""
    tx.touch("jobs", topic(namespace, job_id))


_ROW = "SELECT * FROM jobs WHERE namespace = :namespace AND id = :id"


def stored(db: Snapshot, namespace: str, job_id: str) -> sqlite3.Row | None:
    """Return the row of a job: its status, its counts and which version is current."""
    return db.one(_ROW, {"namespace": namespace, "id": job_id})


_SET_QUEUED = "UPDATE jobs SET queued = :queued WHERE namespace = :namespace AND id = :id"


def set_queued(tx: Transaction, namespace: str, job_id: str, queued: dict[str, int]) -> None:
    """Note how many allocations of each group wait for room; of groups not named none does."""
    row = stored(tx, namespace, job_id)
    if row is None:
        return
    known = dict.fromkeys(msgspec.json.decode(row["queued"], type=dict[str, int]), 0)
    counts = encode({**known, **queued}).decode()
    tx.execute(_SET_QUEUED, {"namespace": namespace, "id": job_id, "queued": counts})


_STATUSES = """
    SELECT task_group, client_status, count(*) AS number
      FROM allocations
     WHERE namespace = :namespace AND job_id = :id
  GROUP BY task_group, client_status
"""
_DOES = """
    SELECT CASE
      WHEN EXISTS (SELECT 1 FROM allocations
                    WHERE namespace = :namespace AND job_id = :id AND desired_status = 'run'
                      AND client_status IN ('pending', 'running', 'unknown'))
        OR EXISTS (SELECT 1 FROM deployments
                    WHERE namespace = :namespace AND job_id = :id
                      AND status IN ('running', 'paused'))
      THEN 'running'
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
           summary = :summary, summary_index = :summary_index
     WHERE namespace = :namespace AND id = :id
"""
_COUNTED_AS = {"pending": "starting"}  # every other client status is counted under its own name


def settle(tx: Transaction, namespace: str, job_id: str) -> None:
    """Bring the status and the counts of a job up to date.

    Called by every write that changes an evaluation, an allocation or a deployment, or the job
    itself, after the change: so what lists show is never older than what they list.
    """
    row = stored(tx, namespace, job_id)
    if row is None:
        return  # purged; its evaluations and tasks may still end
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
        },
    )
    if row["notify"]:
        _follow(tx, row, status, summary)
    if moved:
        changed(tx, namespace, job_id)
        if row["parent_id"]:
            count_child(tx, namespace, row["parent_id"], row["status"], status)
    if counted:
        tx.touch("summaries", summary_topic(namespace, job_id))
        if status == JobStatus.DEAD and not moved:  # its last task may have ended
            children.note_room(tx, namespace, row["parent_id"])


def _follow(tx: Transaction, row: sqlite3.Row, status: JobStatus, summary: str) -> None:
    before, after = _numbers(row["summary"]), _numbers(summary)
    notifications.follow(
        tx,
        row,
        ended=status == JobStatus.DEAD and row["status"] != JobStatus.DEAD,
        failed=after.failed > before.failed,
        runs=bool(after.running) and not (after.starting or after.queued),
    )


def _numbers(summary: str) -> GroupSummary:
    """Return the counts of all groups together."""
    counts = msgspec.json.decode(summary, type=JobCounts).summary if summary else {}
    every = [msgspec.structs.asdict(one) for one in counts.values()]
    names = GroupSummary.__struct_fields__
    return GroupSummary(**{name: sum(one[name] for one in every) for name in names})


def status_of(db: Snapshot, row: sqlite3.Row) -> JobStatus:
    """Return what a job is doing (golden: kind-*, dispatch, periodic)."""
    if row["held"]:
        return JobStatus.PENDING
    if row["launches_children"] or row["type"] == JobType.SYSTEM:
        return JobStatus.DEAD if row["stop"] else JobStatus.RUNNING
    found = db.one(_DOES, {"namespace": row["namespace"], "id": row["id"]})
    assert found is not None  # noqa: S101  # it selects from nothing
    return JobStatus(found["status"])


def counts_of(db: Snapshot, row: sqlite3.Row) -> str:
    """Return a job's counts as JSON, without what is joined on when it is read: see `JobCounts`."""
    queued = msgspec.json.decode(row["queued"], type=dict[str, int])
    counts: dict[str, dict[str, int]] = {group: {"queued": n} for group, n in queued.items()}
    for found in db.all(_STATUSES, {"namespace": row["namespace"], "id": row["id"]}):
        name = _COUNTED_AS.get(found["client_status"], found["client_status"])
        counts.setdefault(found["task_group"], {})[name] = found["number"]
    summary = JobCounts(
        job_id=row["id"],
        namespace=row["namespace"],
        summary={group: GroupSummary(**numbers) for group, numbers in counts.items()},
    )
    return encode(summary).decode()


_COUNT_CHILD = """
    UPDATE jobs
       SET children_pending = children_pending + :pending,
           children_running = children_running + :running,
           children_dead    = children_dead + :dead,
           summary_index    = :index
     WHERE namespace = :namespace AND id = :id
"""


def count_child(
    tx: Transaction, namespace: str, parent_id: str, before: str | None, after: str | None
) -> None:
    """Move a child from one count of its parent to another; None is outside of the job."""
    change = {status.value: (after == status) - (before == status) for status in JobStatus}
    key = {"namespace": namespace, "id": parent_id, "index": tx.index}
    if tx.execute(_COUNT_CHILD, {**key, **change}):
        tx.touch("summaries", summary_topic(namespace, parent_id))
    if after in (None, JobStatus.DEAD):
        children.note_room(tx, namespace, parent_id)
