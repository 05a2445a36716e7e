"""Notifications: stored in the write of their cause, and how their sending goes."""

import sqlite3

import msgspec

from storage.readers import Snapshot
from storage.records.notification import (
    Notification,
    NotificationStatus,
    NotifyEvent,
    Wishes,
    decoded,
)
from storage.writer import Transaction

TOPIC = "notifications"  # something is to be sent, or has been
Key = tuple[str, str]  # namespace and id of a job


def topic(namespace: str, job_id: str) -> str:
    """Return the topic on which what is told of a job is published."""
    return f"notifications/{namespace}/{job_id}"


_ADD = """
    INSERT INTO notifications (namespace, job_id, run_id, event, reason, webhook, command, status,
                               attempts, next_attempt, error, create_time, modify_time,
                               create_index, modify_index)
    VALUES (:namespace, :job_id, :run_id, :event, :reason, :webhook, :command, 'pending',
            0, :now, '', :now, :now, :index, :index)
"""


def add(
    tx: Transaction,
    key: Key,
    wanted: Wishes,
    event: NotifyEvent,
    *,
    run_id: str,
    reason: str,
    now: int,
) -> None:
    """Have it told that something happened to a job or to a child of it, if that is wished for."""
    if event not in wanted.events:
        return
    ways = (("webhook", wanted.webhook), ("command", wanted.command))
    for way, name in ways:
        if name:
            values = {"namespace": key[0], "job_id": key[1], "run_id": run_id, "event": event}
            values |= {"reason": reason, "webhook": "", "command": "", way: name}
            tx.execute(_ADD, {**values, "now": now, "index": tx.index})
    tx.touch("notifications", TOPIC, topic(*key))


# ---- what follows from the end of a run ---------------------------------------------------------

_OUTCOME = "SELECT outcome FROM jobs WHERE namespace = :namespace AND id = :id"
_SET_OUTCOME = "UPDATE jobs SET outcome = :outcome WHERE namespace = :namespace AND id = :id"
_ENDED = """
    SELECT client_status IN ('failed', 'lost') AS failed FROM allocations
     WHERE namespace = :namespace AND job_id = :id AND job_version = :version
       AND desired_status = 'run' AND client_status IN ('complete', 'failed', 'lost')
       AND desired ->> '$.NextAllocation' IS NULL
  ORDER BY failed DESC
     LIMIT 1
"""
_LAST = """
    SELECT id, task_group, client ->> '$.Description' AS description, modify_time AS time
      FROM allocations
     WHERE namespace = :namespace AND job_id = :id
       AND (client_status IN ('failed', 'lost') OR NOT :failed)
  ORDER BY modify_time DESC
     LIMIT 1
"""


def follow(tx: Transaction, row: sqlite3.Row, *, ended: bool, failed: bool, runs: bool) -> None:
    """Tell of a failure, or of a success after one, of a job that wishes for it.

    `row` is the job's before the change. It has come to its `ended` just now, or one more of its
    allocations has `failed`, or all that is wanted `runs`. What runs once is judged at its end, by
    what no other allocation has replaced; what runs on, by each that fails. What is told to stop
    fails no more. Whether a success comes after a failure is asked of the parent of children.
    """
    key = {"namespace": row["namespace"], "id": row["id"]}
    if row["stop"] or row["launches_children"]:
        return
    if row["type"] in ("batch", "sysbatch"):
        last = tx.one(_ENDED, {**key, "version": row["version"]}) if ended else None
        if last is None:
            return
        failed = bool(last["failed"])
    elif not failed:
        last = tx.one(_ENDED, {**key, "version": row["version"]})
        if not runs or (last is not None and last["failed"]):
            return
    owner = {**key, "id": row["parent_id"] or row["id"]}
    found = tx.one(_OUTCOME, owner)
    before, after = found["outcome"] if found else "", "failed" if failed else "good"
    if before != after:
        tx.execute(_SET_OUTCOME, {**owner, "outcome": after})
    if failed or before == "failed":
        _tell(tx, row, owner["id"], failed=failed)


def _tell(tx: Transaction, row: sqlite3.Row, owner_id: str, *, failed: bool) -> None:
    last = tx.one(_LAST, {"namespace": row["namespace"], "id": row["id"], "failed": failed})
    if last is None:
        return
    said = f": {last['description']}" if last["description"] else ""
    reason = f'allocation {last["id"]} of group "{last["task_group"]}" has failed{said}'
    if not failed:
        ended = row["type"] in ("batch", "sysbatch")
        reason = "it has succeeded after a failure" if ended else "it runs again after a failure"
    add(
        tx,
        (row["namespace"], owner_id),
        decoded(row["notify"]),
        NotifyEvent.FAILURE if failed else NotifyEvent.RECOVERY,
        run_id=row["id"],
        reason=reason,
        now=last["time"],  # of this very write: it has changed what ended or began last
    )


_WISH = "SELECT notify FROM jobs WHERE namespace = :namespace AND id = :id"


def deployment_failed(tx: Transaction, key: Key, reason: str, now: int) -> None:
    """Tell that a new version of a job could not be deployed, if that is wished for."""
    values = {"namespace": key[0], "id": key[1]}
    row = tx.one(_WISH, values)
    if row and row["notify"]:
        tx.execute(_SET_OUTCOME, {**values, "outcome": "failed"})
        failure = NotifyEvent.FAILURE
        add(tx, key, decoded(row["notify"]), failure, run_id=key[1], reason=reason, now=now)


# ---- sending ------------------------------------------------------------------------------------

_DUE = """
    SELECT namespace, job_id, min(next_attempt) AS at FROM notifications
     WHERE status = 'pending'
  GROUP BY namespace, job_id
    HAVING min(next_attempt) <= :now
  ORDER BY at
     LIMIT :most
"""
_FIRST = """
    SELECT * FROM notifications
     WHERE status = 'pending' AND namespace = :namespace AND job_id = :job_id
       AND next_attempt <= :now
  ORDER BY next_attempt, number
     LIMIT 1
"""
_NEXT_TIME = """
    SELECT min(next_attempt) AS at FROM notifications INDEXED BY notifications_by_time
     WHERE status = 'pending' AND next_attempt > :now
"""
_MARK = """
    UPDATE notifications
       SET status = :status, attempts = :attempts, next_attempt = :next_attempt, error = :error,
           modify_time = :now, modify_index = :index
     WHERE number = :number
"""
_OF_JOB = """
    SELECT * FROM notifications
     WHERE namespace = :namespace AND job_id = :job_id
  ORDER BY number DESC
"""


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
        status=NotificationStatus(row["status"]),
        attempts=row["attempts"],
        next_attempt=row["next_attempt"],
        error=row["error"],
        create_time=row["create_time"],
        modify_time=row["modify_time"],
        create_index=row["create_index"],
        modify_index=row["modify_index"],
    )


def due(db: Snapshot, now: int, most: int) -> list[Notification]:
    """Return what is to be sent now: of each job one, of most jobs those that wait longest."""
    found = [
        db.one(_FIRST, {"namespace": row["namespace"], "job_id": row["job_id"], "now": now})
        for row in db.all(_DUE, {"now": now, "most": most})
    ]
    return [_from(row) for row in found if row is not None]


def next_time(db: Snapshot, now: int) -> int | None:
    """Return when the next one that waits is to be tried; None: none waits."""
    row = db.one(_NEXT_TIME, {"now": now})
    return row["at"] if row else None


def mark(tx: Transaction, one: Notification) -> None:
    """Note how an attempt has gone."""
    values = msgspec.structs.asdict(one)
    names = ("status", "attempts", "next_attempt", "error")
    given = {name: values[name] for name in names}
    tx.execute(_MARK, {**given, "number": one.id, "now": one.modify_time, "index": tx.index})
    tx.touch("notifications", TOPIC, topic(one.namespace, one.job_id))


def of_job(db: Snapshot, namespace: str, job_id: str) -> list[Notification]:
    """Return what is told, or was, of a job and its children; newest first."""
    return [_from(row) for row in db.all(_OF_JOB, {"namespace": namespace, "job_id": job_id})]
