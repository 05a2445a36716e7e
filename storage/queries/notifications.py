"""Notifications: stored in the transaction that causes them, with their delivery state."""

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from storage.queries import pages
from storage.queries.allocations import IS_OVERTIME
from storage.read_pool import ReadSnapshot
from storage.records.notification import (
    Notification,
    NotificationStatus,
    NotifyEvent,
    NotifySettings,
    Streak,
    decoded,
)
from storage.records.times import span
from storage.writer import Transaction

TOPIC = "notifications"  # a notification is to be sent, or was sent
Key = tuple[str, str]  # namespace and ID of a job
MOST_PENDING = 1000  # per receiver, or per job for its own channels
_FULL = f"dropped: {MOST_PENDING} messages were waiting already"


def topic(namespace: str, job_id: str) -> str:
    """Return the topic of a job's notifications."""
    return f"notifications/{namespace}/{job_id}"


_NO_STREAK = Streak()
_ADD = """
    INSERT INTO notifications (namespace, job_id, run_id, event, reason, webhook, command, status,
                               attempts, next_attempt, error, create_time, modify_time,
                               create_index, modify_index, receiver, failures, failing_since)
    VALUES (:namespace, :job_id, :run_id, :event, :reason, :webhook, :command, :status,
            0, :next, :error, :now, :now, :index, :index, :receiver, :failures, :failing_since)
"""
_PENDING_OF_RECEIVER = """
    SELECT 1 FROM notifications
     WHERE status = 'pending' AND receiver > '' AND receiver = :receiver
     LIMIT 1 OFFSET :most
"""
_PENDING_OF_JOB = """
    SELECT 1 FROM notifications
     WHERE status = 'pending' AND receiver = '' AND namespace = :namespace AND job_id = :job_id
     LIMIT 1 OFFSET :most
"""
_TOTAL = """
    INSERT INTO notification_totals (receiver, outcome, number) VALUES (:receiver, :outcome, 1)
    ON CONFLICT (receiver, outcome) DO UPDATE SET number = number + 1
"""


def add(
    tx: Transaction,
    key: Key,
    notify_settings: NotifySettings,
    event: NotifyEvent,
    *,
    run_id: str,
    reason: str,
    now: int,
    streak: Streak = _NO_STREAK,
) -> None:
    """Queue the notifications about an event of a job or its child.

    If too many notifications are pending already, a new one is stored as failed and counted as
    dropped.
    """
    if event not in notify_settings.events:
        return
    own = (("webhook", notify_settings.webhook), ("command", notify_settings.command))
    receivers = [*own, *(("receiver", name) for name in notify_settings.receivers)]
    for column, name in receivers:
        if name:
            values: dict[str, str | int] = {"namespace": key[0], "job_id": key[1]}
            values |= {"run_id": run_id, "event": event, "reason": reason}
            values |= {"webhook": "", "command": "", "receiver": "", column: name}
            _add(tx, {**values, **msgspec.structs.asdict(streak)}, now)
    tx.touch("notifications", TOPIC, topic(*key))


def _add(tx: Transaction, values: dict[str, str | int], now: int) -> None:
    row = {**values, "status": "pending", "next": now, "error": "", "most": MOST_PENDING - 1}
    if tx.one(_PENDING_OF_RECEIVER if values["receiver"] else _PENDING_OF_JOB, row):
        row |= {"status": "failed", "next": 0, "error": _FULL}
        _count(tx, _channel(values["receiver"], values["webhook"]), "dropped")
    tx.execute(_ADD, {**row, "now": now, "index": tx.index})


def _channel(receiver: str | int, webhook: str | int) -> str:
    return str(receiver) or ("webhook" if webhook else "command")


def _count(tx: Transaction, receiver: str, outcome: str) -> None:
    tx.execute(_TOTAL, {"receiver": receiver, "outcome": outcome})


# --- outcomes of jobs ---

_OUTCOME = """
    SELECT outcome, failures, failing_since FROM jobs WHERE namespace = :namespace AND id = :id
"""
_SET_OUTCOME = """
    UPDATE jobs SET outcome = :outcome, failures = :failures, failing_since = :failing_since
     WHERE namespace = :namespace AND id = :id
"""
_RUN = """
    SELECT number, status, reason, ended, only_step FROM (
        SELECT number, status, reason, ended, only_step, version FROM runs
         WHERE namespace = :namespace AND job_id = :id
      ORDER BY number DESC
         LIMIT 1)
     WHERE version = :version
"""
_COLUMNS = "id, task_group, client ->> '$.Description' AS description, modify_time AS time"
_NOT_REPLACED = """desired_status = 'run'
       AND CASE WHEN json_valid(desired) THEN desired ->> '$.NextAllocation' END IS NULL"""
_HAS_FAILED = f"""(client_status IN ('failed', 'lost') OR {IS_OVERTIME})"""
# The newest failed allocation of a version. The conditions are those of the index.
_FAILED = f"""
    SELECT {_COLUMNS} FROM allocations INDEXED BY allocations_failed
     WHERE namespace = :namespace AND job_id = :id AND job_version = :version
       AND {_NOT_REPLACED} AND {_HAS_FAILED}
  ORDER BY modify_index DESC
     LIMIT 1
"""
_COMPLETE = f"""
    SELECT {_COLUMNS} FROM allocations INDEXED BY allocations_of_job_changed
     WHERE namespace = :namespace AND job_id = :id AND job_version = :version
       AND {_NOT_REPLACED} AND client_status = 'complete'
  ORDER BY modify_index DESC
     LIMIT 1
"""
# A service is judged when an allocation changes, so the newest changes decide.
_LAST = f"""
    SELECT {_COLUMNS} FROM allocations INDEXED BY allocations_of_job_changed
     WHERE namespace = :namespace AND job_id = :id AND ({_HAS_FAILED} OR NOT :failed)
  ORDER BY modify_index DESC
     LIMIT 1
"""
# A deployment that has not ended, or has not deployed the current version.
_UNDEPLOYED = """
    SELECT 1 FROM (
        SELECT status, job_version FROM deployments
         WHERE namespace = :namespace AND job_id = :id
      ORDER BY create_index DESC
         LIMIT 1)
     WHERE status IN ('running', 'paused') OR (status = 'failed' AND job_version = :version)
"""
# The newest failed allocation of a bad step.
_LAST_OF_RUN = f"""
    SELECT {_COLUMNS} FROM allocations INDEXED BY allocations_failed
     WHERE namespace = :namespace AND job_id = :id AND job_version = :version
       AND {_NOT_REPLACED} AND {_HAS_FAILED}
       AND task_group IN (SELECT step FROM run_steps
                           WHERE namespace = :namespace AND job_id = :id AND number = :number
                             AND outcome = 'bad')
  ORDER BY modify_index DESC
     LIMIT 1
"""


def queue_job_notification(
    tx: Transaction,
    row: sqlite3.Row,
    *,
    ended: bool,
    failed: bool,
    runs: bool,
    version: int | None = None,
) -> None:
    """Queue a notification about a failure, or a success after a failure, if the job requests it.

    `row` is the job's database row before the change. The flags state the change: the job has
    `ended`, another allocation has `failed`, or all desired allocations are running (`runs`).
    `version` is the job version whose run has ended; None means the current version.

    The result of a batch job is decided when it ends, from the allocations that were not replaced.
    For a service job, each failed allocation is a failure of the job. An allocation that is being
    stopped does not count as failed. While the newest deployment is active or has failed, running
    allocations are not a success. For a child job, the parent's history decides whether a success
    follows a failure.
    """
    key = {"namespace": row["namespace"], "id": row["id"]}
    if row["stop"] or row["launches_children"]:
        return
    result = None
    if row["type"] in ("batch", "sysbatch"):
        number = row["version"] if version is None else version
        result = _result(tx, {**key, "version": number}) if ended else None
        if result is None:
            return
        failed = result.failed
    elif not failed and not (runs and _is_sound(tx, {**key, "version": row["version"]})):
        return
    if result is None:
        last = tx.one(_LAST, {**key, "failed": failed})
        if last is None:
            return
        result = _Result(failed, _of_allocation(last) if failed else "", last["time"])
    owner_id = row["parent_id"] or row["id"]
    before = _record_outcome(tx, (row["namespace"], owner_id), result.time, failed=failed)
    if before is not None:
        _publish(tx, row, owner_id, result.time, before, failure=result.reason)


def _is_sound(tx: Transaction, key: dict[str, object]) -> bool:
    """Return whether a service has no failed allocation, and its newest deployment succeeded."""
    return not (tx.one(_FAILED, key) or tx.one(_UNDEPLOYED, key))


class _Result(NamedTuple):
    """The result of a job; `time` is its end in nanoseconds."""

    failed: bool
    reason: str
    time: int


def _result(tx: Transaction, key: dict[str, object]) -> _Result | None:
    """Return the result of an ended batch job; None if the job has no result.

    The result of a workflow is the result of its run, not of its tasks. A run may allow failures,
    and it may fail without a failed task. A canceled run has no result, and neither has a
    successful run of only one step.
    """
    run = tx.one(_RUN, key)
    if run is None:
        if (last := tx.one(_FAILED, key)) is not None:
            return _Result(True, _of_allocation(last), last["time"])
        last = tx.one(_COMPLETE, key)
        return _Result(False, "", last["time"]) if last else None
    if run["status"] == "succeeded" and not run["only_step"]:
        return _Result(False, "", run["ended"])
    if run["status"] != "failed":
        return None
    last = tx.one(_LAST_OF_RUN, {**key, "number": run["number"]})
    reason = _of_allocation(last) if last else f"run {run['number']} has failed: {run['reason']}"
    return _Result(True, reason, run["ended"])


def _of_allocation(last: sqlite3.Row) -> str:
    description = f": {last['description']}" if last["description"] else ""
    return f'allocation {last["id"]} of group "{last["task_group"]}" has failed{description}'


def _record_outcome(tx: Transaction, key: Key, now: int, *, failed: bool) -> Streak | None:
    """Record an outcome of a job, and return the streak of failures.

    After a failure, the streak includes this failure. After a success, it contains the failures
    before the success. Return None for a success that does not follow a failure.
    """
    owner = {"namespace": key[0], "id": key[1]}
    row = tx.one(_OUTCOME, owner)
    outcome = row["outcome"] if row else ""
    streak = Streak()
    if row and outcome == "failed":
        streak = Streak(failures=row["failures"], failing_since=row["failing_since"])
    if not failed:
        if outcome != "good":
            values = {"outcome": "good", "failures": 0, "failing_since": 0}
            tx.execute(_SET_OUTCOME, {**owner, **values})
        return streak if outcome == "failed" else None
    streak = Streak(
        failures=streak.failures + 1, failing_since=min(streak.failing_since or now, now)
    )
    tx.execute(_SET_OUTCOME, {**owner, "outcome": "failed", **msgspec.structs.asdict(streak)})
    return streak


def _publish(
    tx: Transaction,
    row: sqlite3.Row,
    owner_id: str,
    now: int,
    streak: Streak,
    *,
    failure: str,
) -> None:
    """Queue a notification of a failure, or of a success if `failure` is empty.

    `now` is the time of this write.
    """
    reason = failure
    if not failure:
        ended = row["type"] in ("batch", "sysbatch")
        state = "succeeded again" if ended else "running again"
        reason = f"{state} after {_streak(streak, now)}"
    add(
        tx,
        (row["namespace"], owner_id),
        decoded(row["notify"]),
        NotifyEvent.FAILURE if failure else NotifyEvent.RECOVERY,
        run_id=row["id"],
        reason=reason,
        now=now,
        streak=streak,
    )


def _streak(streak: Streak, now: int) -> str:
    """Format a streak of failures: `3 failures, 12 min`."""
    if not streak.failures:  # an older version of Steward, without counts, recorded the failure
        return "a failure"
    often = "1 failure" if streak.failures == 1 else f"{streak.failures} failures"
    return f"{often}, {span(now - streak.failing_since)}"


_GATE = """
    SELECT coalesce(nullif(parent_id, ''), id) AS owner, notify FROM jobs
     WHERE namespace = :namespace AND id = :id
"""


def queue_gate_notification(tx: Transaction, key: Key, reason: str, now: int) -> None:
    """Queue a notification about a step that waits at its gate, if the job requests it."""
    row = tx.one(_GATE, {"namespace": key[0], "id": key[1]})
    if row is not None and row["notify"]:
        settings = decoded(row["notify"])
        owner = (key[0], row["owner"])
        add(tx, owner, settings, NotifyEvent.APPROVAL, run_id=key[1], reason=reason, now=now)


_WISH = "SELECT notify FROM jobs WHERE namespace = :namespace AND id = :id"


def deployment_failed(tx: Transaction, key: Key, reason: str, now: int) -> None:
    """Queue a notification about a failed deployment, if the job requests it."""
    values = {"namespace": key[0], "id": key[1]}
    row = tx.one(_WISH, values)
    if row and row["notify"]:
        add(
            tx,
            key,
            decoded(row["notify"]),
            NotifyEvent.FAILURE,
            run_id=key[1],
            reason=reason,
            now=now,
            streak=_record_outcome(tx, key, now, failed=True) or _NO_STREAK,
        )


# --- delivery ---

_DUE = """
    SELECT namespace, job_id, min(next_attempt) AS at FROM notifications
     WHERE status = 'pending' AND receiver = ''
  GROUP BY namespace, job_id
    HAVING min(next_attempt) <= :now
  ORDER BY at
     LIMIT :most
"""
_FIRST = """
    SELECT * FROM notifications
     WHERE status = 'pending' AND receiver = '' AND namespace = :namespace AND job_id = :job_id
       AND next_attempt <= :now
  ORDER BY next_attempt, number
     LIMIT 1
"""
_FIRST_OF_RECEIVERS = """
    SELECT receiver, min(next_attempt) AS at FROM notifications
     WHERE status = 'pending' AND receiver > ''
  GROUP BY receiver
"""
_OF_RECEIVER = """
    SELECT * FROM notifications
     WHERE status = 'pending' AND receiver > '' AND receiver = :receiver AND next_attempt <= :now
  ORDER BY number
     LIMIT :most
"""
_NEXT_TIME = """
    SELECT min(next_attempt) AS at FROM notifications INDEXED BY notifications_by_time
     WHERE status = 'pending' AND receiver = '' AND next_attempt > :now
"""
_MARK = """
    UPDATE notifications
       SET status = :status, attempts = :attempts, next_attempt = :next_attempt, error = :error,
           modify_time = :now, modify_index = :index
     WHERE number = :number
"""
_OF_JOB = """
    SELECT * FROM notifications
     WHERE namespace = :namespace AND job_id = :job_id AND number BETWEEN :low AND :high
  ORDER BY number"""


def _from(row: sqlite3.Row) -> Notification:
    return Notification(
        id=row["number"],
        namespace=row["namespace"],
        job_id=row["job_id"],
        run_id=row["run_id"],
        event=NotifyEvent(row["event"]),
        reason=row["reason"],
        webhook=row["webhook"],
        command=row["command"],
        receiver=row["receiver"],
        failures=row["failures"],
        failing_since=row["failing_since"],
        status=NotificationStatus(row["status"]),
        attempts=row["attempts"],
        next_attempt=row["next_attempt"],
        error=row["error"],
        create_time=row["create_time"],
        modify_time=row["modify_time"],
        create_index=row["create_index"],
        modify_index=row["modify_index"],
    )


def due(db: ReadSnapshot, now: int, most: int) -> list[Notification]:
    """Return the oldest due notification of each job, for up to `most` jobs.

    Only notifications to a job's own webhook or command are returned, not those to a receiver.
    """
    first_rows = [
        db.one(_FIRST, {"namespace": row["namespace"], "job_id": row["job_id"], "now": now})
        for row in db.all(_DUE, {"now": now, "most": most})
    ]
    return [_from(row) for row in first_rows if row is not None]


def next_time(db: ReadSnapshot, now: int) -> int | None:
    """Return the next time to notify the webhook or command of any job, or None."""
    row = db.one(_NEXT_TIME, {"now": now})
    return row["at"] if row else None


def first_of_receivers(db: ReadSnapshot) -> dict[str, int]:
    """Return the next delivery time of each receiver with pending notifications."""
    return {row["receiver"]: row["at"] for row in db.all(_FIRST_OF_RECEIVERS)}


def of_receiver(db: ReadSnapshot, receiver: str, now: int) -> list[Notification]:
    """Return all notifications due for a receiver, oldest first."""
    values = {"receiver": receiver, "now": now, "most": MOST_PENDING}
    return [_from(row) for row in db.all(_OF_RECEIVER, values)]


_TOTALS = "SELECT receiver, outcome, number FROM notification_totals WHERE receiver > ''"
_PENDING = """
    SELECT CASE WHEN receiver > '' THEN receiver WHEN webhook > '' THEN 'webhook'
                ELSE 'command' END AS way, count(*) AS number
      FROM notifications INDEXED BY notifications_by_time
     WHERE status = 'pending'
  GROUP BY way
"""


def totals(db: ReadSnapshot) -> dict[tuple[str, str], int]:
    """Return the total number of sent, failed, dropped and pending notifications.

    Each key is a pair: the name of the receiver (or `webhook` or `command`), and the outcome.
    """
    counts = {(row["receiver"], row["outcome"]): row["number"] for row in db.all(_TOTALS)}
    return counts | {(row["way"], "pending"): row["number"] for row in db.all(_PENDING)}


def record_attempt(tx: Transaction, notification: Notification) -> None:
    """Record the result of a delivery attempt."""
    if notification.status != NotificationStatus.PENDING:
        _count(tx, _channel(notification.receiver, notification.webhook), notification.status)
    values = msgspec.structs.asdict(notification)
    names = ("status", "attempts", "next_attempt", "error")
    changes = {name: values[name] for name in names}
    tx.execute(
        _MARK,
        {**changes, "number": notification.id, "now": notification.modify_time, "index": tx.index},
    )
    tx.touch("notifications", TOPIC, topic(notification.namespace, notification.job_id))


def of_job(
    db: ReadSnapshot,
    namespace: str,
    job_id: str,
    start: pages.Key | None = None,
    *,
    reverse: bool = True,
) -> Iterator[Notification]:
    """Yield notifications of a job and its children from `start` on, newest first if `reverse`."""
    key = {"namespace": namespace, "job_id": job_id, **pages.numbers(start, reverse=reverse)}
    for row in db.each(f"{_OF_JOB}{' DESC' if reverse else ''}", key):
        yield _from(row)
