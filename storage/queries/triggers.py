"""Triggers between jobs: the jobs that follow others, and the ledger of ended runs.

This module is imported only when a job follows another job; `storage/queries/runs.py` checks that.

The write that ends a run adds a row for each follower. The row changes its state in the write that
dispatches the child, so each end has exactly one effect.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec

from storage.queries import events
from storage.queries.allocations import IS_OVERTIME
from storage.queries.documents import decode_row
from storage.queries.pages import Key, numbers
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.flow import ARRIVED, FlowStatus, Source, TriggerWhen, sources_of, when_of
from storage.records.job import Job, JobType
from storage.records.trigger import (
    MOST_WAITING,
    FollowerLine,
    JobTrigger,
    SourceLine,
    TriggerState,
)
from storage.writer import Transaction

TABLE = "triggers"
KEPT = 1000  # final rows of a follower; those with an active child are retained in addition


def topic(namespace: str, job_id: str) -> str:
    """Return the topic of changes to the triggers of a follower."""
    return f"triggers/{namespace}/{job_id}"


# --- followers ---

_SOURCES = """
    SELECT source_namespace, source_id, since FROM job_sources
     WHERE namespace = :namespace AND job_id = :job_id
  ORDER BY place
"""
_FOLLOWERS = """
    SELECT namespace, job_id, wanted FROM job_sources
     WHERE source_namespace = :namespace AND source_id = :job_id AND since <= :index
  ORDER BY namespace, job_id
"""
_FOLLOW = """
    INSERT INTO job_sources (namespace, job_id, source_namespace, source_id, place, wanted, since)
    VALUES (:namespace, :job_id, :source_namespace, :source_id, :place, :wanted, :since)
"""
_LEAVE = "DELETE FROM job_sources WHERE namespace = :namespace AND job_id = :job_id"
_DECIDE_AGAIN = """
    UPDATE triggers SET state = 'arrived', expires = 0
     WHERE namespace = :namespace AND job_id = :job_id AND state = 'waiting'
"""


def sync_sources(tx: Transaction, job: Job) -> None:
    """Store the jobs that a new version of a job follows.

    Ended runs that wait for runs of other sources get a new decision.
    """
    key = {"namespace": job.namespace, "job_id": job.id}
    desired_sources, when = sources_of(job), when_of(job)
    rows = tx.all(_SOURCES, key)
    since = {(row["source_namespace"], row["source_id"]): row["since"] for row in rows}
    tx.execute(_LEAVE, key)
    for position, source in enumerate(desired_sources):
        row = {"source_namespace": source.namespace, "source_id": source.job_id}
        index = since.get((source.namespace, source.job_id), tx.index)
        tx.execute(_FOLLOW, {**key, **row, "place": position, "wanted": when, "since": index})
    tx.execute(_DECIDE_AGAIN, key)
    tx.touch(TABLE, ARRIVED, topic(job.namespace, job.id))


def sources(db: ReadSnapshot, namespace: str, job_id: str) -> list[Source]:
    """Return the jobs that a follower names, in the order of its definition."""
    rows = db.all(_SOURCES, {"namespace": namespace, "job_id": job_id})
    return [Source(row["source_namespace"], row["source_id"]) for row in rows]


def followers(
    db: ReadSnapshot, namespace: str, job_id: str, index: int = 2**62
) -> list[FollowerLine]:
    """Return the followers of a job.

    With an `index`, return only the followers that already named the job at this index.
    """
    rows = db.all(_FOLLOWERS, {"namespace": namespace, "job_id": job_id, "index": index})
    return [
        FollowerLine(
            namespace=row["namespace"], job_id=row["job_id"], when=TriggerWhen(row["wanted"])
        )
        for row in rows
    ]


_SOURCE_LINES = """
    SELECT s.source_namespace, s.source_id,
           EXISTS (SELECT 1 FROM jobs j
                    WHERE j.namespace = s.source_namespace AND j.id = s.source_id) AS there,
           (SELECT count(*) FROM triggers t
             WHERE t.namespace = s.namespace AND t.job_id = s.job_id AND t.state = 'waiting'
               AND t.source_namespace = s.source_namespace AND t.source_id = s.source_id) AS waiting
      FROM job_sources s
     WHERE s.namespace = :namespace AND s.job_id = :job_id
  ORDER BY s.place
"""


def source_lines(db: ReadSnapshot, namespace: str, job_id: str) -> list[SourceLine]:
    """Return the sources of a follower, each with the number of its ended runs that wait."""
    return [
        SourceLine(
            namespace=row["source_namespace"],
            job_id=row["source_id"],
            exists=bool(row["there"]),
            waiting=row["waiting"],
        )
        for row in db.all(_SOURCE_LINES, {"namespace": namespace, "job_id": job_id})
    ]


# --- ends of runs ---

_ADD = """
    INSERT INTO triggers (namespace, job_id, source_namespace, source_id, run_job_id, number,
                          version, attempt, status, state, reason, value, child_id, depth, ended,
                          decided, expires, create_index, modify_index)
    VALUES (:namespace, :job_id, :source_namespace, :source_id, :run_job_id, :number,
            :version, :attempt, :status, :state, :reason, :value, :child_id, :depth, :ended,
            :decided, :expires, :index, :index)
    ON CONFLICT (namespace, job_id, source_namespace, run_job_id, number, attempt) DO NOTHING
"""
_DEPTH = """
    SELECT max(depth) AS depth FROM triggers
     WHERE namespace = :namespace AND child_id = :job_id AND child_id <> ''
"""
_WAIT = """
    SELECT count(*) AS number
      FROM (SELECT 1 FROM triggers
             WHERE namespace = :namespace AND job_id = :job_id AND state IN ('arrived', 'waiting')
             LIMIT :most)
"""
_WANTS = {
    TriggerWhen.SUCCESS: (FlowStatus.SUCCEEDED,),
    TriggerWhen.FAILURE: (FlowStatus.FAILED,),
    TriggerWhen.ANY: (FlowStatus.SUCCEEDED, FlowStatus.FAILED, FlowStatus.CANCELED),
}


class EndedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has just ended. A job that is not a workflow has a run for each version.

    `index` is the index of the write in which its last task ended.
    """

    namespace: str
    job_id: str
    parent_id: str  # of a child; empty for other jobs
    number: int
    version: int
    attempt: int = 1
    status: FlowStatus
    ended: int
    index: int


def note_end(tx: Transaction, run: EndedRun) -> None:
    """Add a row for each follower of a job whose run has just ended."""
    key: dict[str, object] = {"namespace": run.namespace, "job_id": run.job_id}
    depth_row: Any = tx.one(_DEPTH, key)
    depth = 1 + (depth_row["depth"] or 0)
    for source_id in dict.fromkeys(filter(None, (run.job_id, run.parent_id))):
        for row in followers(tx, run.namespace, source_id, run.index):
            state, reason = _first_state(tx, row, run)
            values = {
                "namespace": row.namespace,
                "job_id": row.job_id,
                "source_namespace": run.namespace,
                "source_id": source_id,
                "run_job_id": run.job_id,
                "number": run.number,
                "version": run.version,
                "attempt": run.attempt,
                "status": run.status,
                "state": state,
                "reason": reason,
                "value": "",
                "child_id": "",
                "depth": depth,
                "ended": run.ended,
                "decided": run.ended if state.is_final else 0,
                "expires": 0,
                "index": tx.index,
            }
            if tx.execute(_ADD, values):
                _count(tx, state)
                _trim(tx, row.namespace, row.job_id)
                tx.touch(TABLE, ARRIVED, topic(row.namespace, row.job_id))


def _first_state(
    tx: Transaction, follower: FollowerLine, run: EndedRun
) -> tuple[TriggerState, str]:
    if run.status not in _WANTS[follower.when]:
        reason = f"the run {run.status}" if run.status == FlowStatus.SUCCEEDED else ""
        reason = reason or f"the run {_was(run.status)}"
        return (
            TriggerState.IGNORED,
            f"{reason}; the job starts after {_describe_condition(follower.when)}",
        )
    key = {"namespace": follower.namespace, "job_id": follower.job_id}
    waiting: Any = tx.one(_WAIT, {**key, "most": MOST_WAITING})
    if waiting["number"] >= MOST_WAITING:
        return TriggerState.REFUSED, f"{MOST_WAITING} ended runs wait already, which is the maximum"
    return TriggerState.ARRIVED, ""


def _was(status: FlowStatus) -> str:
    return "failed" if status == FlowStatus.FAILED else f"was {status}"


def _describe_condition(when: TriggerWhen) -> str:
    return {TriggerWhen.SUCCESS: "a success", TriggerWhen.FAILURE: "a failure"}.get(when, "any end")


_NEWEST = """
    SELECT max(job_version) AS version,
           max(client_status >= 'pending') AS is_alive
      FROM allocations
     WHERE namespace = :namespace AND job_id = :id
"""
_JUDGED = f"""
    SELECT max(client_status IN ('failed', 'lost')
               OR EXISTS (SELECT 1 FROM allocations INDEXED BY allocations_overtime
                           WHERE namespace = :namespace AND job_id = :id
                             AND job_version = :version AND desired_status = 'run'
                             AND desired ->> '$.NextAllocation' IS NULL
                             AND {IS_OVERTIME})) AS failed,
           max(modify_time) AS time,
           max(modify_index) AS last, max(create_index) AS newest
      FROM allocations
     WHERE namespace = :namespace AND job_id = :id AND job_version = :version
       AND (desired_status = 'run' OR :stop) AND desired ->> '$.NextAllocation' IS NULL
"""
_IS_RUN = """
    SELECT 1 FROM runs
     WHERE namespace = :namespace AND job_id = :id AND version = :version
"""
_LAST_END = "SELECT * FROM job_ends WHERE namespace = :namespace AND job_id = :job_id"
_SET_LAST_END = """
    INSERT INTO job_ends (namespace, job_id, version, attempt, status, newest)
    VALUES (:namespace, :job_id, :version, :attempt, :status, :newest)
    ON CONFLICT (namespace, job_id) DO UPDATE
       SET version = excluded.version, attempt = excluded.attempt, status = excluded.status,
           newest = excluded.newest
"""
# Only an earlier job with the same ID, which was purged, can have left these ends.
_LAST_ATTEMPT = """
    SELECT coalesce(max(t.attempt), 0) AS attempt
      FROM job_sources s
      JOIN triggers t INDEXED BY triggers_once
        ON t.namespace = s.namespace AND t.job_id = s.job_id
       AND t.source_namespace = :namespace AND t.run_job_id = :job_id AND t.number = :number
     WHERE s.source_namespace = :namespace AND s.source_id IN (:job_id, :parent_id)
"""


def note_job_end(tx: Transaction, row: sqlite3.Row) -> None:
    """Add a row for each follower of a dead batch job without workflow, if its tasks have ended.

    `row` is the job's row in the table `jobs`. A version without any allocation has not ended.
    Repeated calls for the same end add no further rows.
    """
    key = {"namespace": row["namespace"], "id": row["id"], "stop": bool(row["stop"])}
    newest: Any = tx.one(_NEWEST, key)
    version = newest["version"]
    if version is None or newest["is_alive"] or (version != row["version"] and not row["stop"]):
        return
    judged_row: Any = tx.one(_JUDGED, {**key, "version": version})
    if judged_row["time"] is None or tx.one(_IS_RUN, {**key, "version": version}) is not None:
        return
    status = FlowStatus.FAILED if judged_row["failed"] else FlowStatus.SUCCEEDED
    status = FlowStatus.CANCELED if row["stop"] else status
    mark: dict[str, object] = {
        "namespace": row["namespace"],
        "job_id": row["id"],
        "version": version,
        "status": status,
        "newest": judged_row["newest"],
    }
    attempt = _attempt(tx, row, mark)
    if not attempt:
        return
    tx.execute(_SET_LAST_END, {**mark, "attempt": attempt})
    ended = EndedRun(
        namespace=row["namespace"],
        job_id=row["id"],
        parent_id=row["parent_id"],
        number=version,
        version=version,
        attempt=attempt,
        status=status,
        ended=judged_row["time"],
        index=judged_row["last"],
    )
    note_end(tx, ended)


def _attempt(tx: Transaction, row: sqlite3.Row, end: dict[str, Any]) -> int:
    """Return the attempt number for this end of a job version; 0 if the end is already recorded.

    A batch job has ended again only if it has new allocations, for example after a forced
    reschedule. A sysbatch job gets new allocations on each new node, so its result must also be
    different.
    """
    last = tx.one(_LAST_END, end)
    before = 0
    if last is not None and last["version"] >= end["version"]:
        before = last["attempt"]
        is_newer = last["version"] == end["version"] and last["newest"] < end["newest"]
        if not is_newer or (row["type"] != JobType.BATCH and last["status"] == end["status"]):
            return 0
    earlier_attempt = last_attempt(
        tx, row["namespace"], row["id"], row["parent_id"], end["version"]
    )
    return 1 + max(before, earlier_attempt)


def last_attempt(db: ReadSnapshot, namespace: str, job_id: str, parent_id: str, number: int) -> int:
    """Return the highest attempt number that the ledgers of the job's followers have for a run.

    Return 0 if no ledger has the run. A ledger can have a run that has not ended yet only if an
    earlier job with the same ID was purged.
    """
    key = {"namespace": namespace, "job_id": job_id, "parent_id": parent_id, "number": number}
    attempt_row: Any = db.one(_LAST_ATTEMPT, key)
    return int(attempt_row["attempt"])


# --- decisions ---

_UNDECIDED = "SELECT * FROM triggers WHERE state = 'arrived' ORDER BY id LIMIT :most"
_FIND = "SELECT * FROM triggers WHERE id = :id"
_EXPIRED = """
    SELECT * FROM triggers WHERE state = 'waiting' AND expires <= :now ORDER BY expires LIMIT :most
"""
_NEXT_EXPIRY = "SELECT min(expires) AS at FROM triggers WHERE state = 'waiting'"
_WAITING = """
    SELECT * FROM triggers
     WHERE namespace = :namespace AND job_id = :job_id AND value = :value AND state = 'waiting'
  ORDER BY id
"""
_PUT = """
    UPDATE triggers
       SET state = :state, reason = :reason, value = :value, child_id = :child_id,
           decided = :decided, expires = :expires, meta = :meta, modify_index = :index
     WHERE id = :id
"""
_META = "SELECT id, meta FROM triggers WHERE id = :id"
_TRIM = """
    DELETE FROM triggers
     WHERE namespace = :namespace AND job_id = :job_id
       AND id <= (SELECT id FROM triggers
                   WHERE namespace = :namespace AND job_id = :job_id
                ORDER BY id DESC LIMIT 1 OFFSET :kept)
       AND state NOT IN ('arrived', 'waiting')
       AND NOT EXISTS (SELECT 1 FROM jobs j
                        WHERE j.namespace = triggers.namespace AND j.id = triggers.child_id
                          AND j.status <> 'dead')
"""
_TOTAL = """
    INSERT INTO trigger_totals (state, number) VALUES (:state, 1)
    ON CONFLICT (state) DO UPDATE SET number = number + 1
"""
_TOTALS = "SELECT state, number FROM trigger_totals"
_TOLD = {
    TriggerState.WAITING: "TriggerWaits",
    TriggerState.FIRED: "TriggerFired",
    TriggerState.REFUSED: "TriggerRefused",
    TriggerState.REPLACED: "TriggerReplaced",
    TriggerState.EXPIRED: "TriggerExpired",
}


def _trigger(row: sqlite3.Row) -> JobTrigger:
    names = JobTrigger.__struct_fields__
    values = {name: row[name] for name in names}
    return JobTrigger(**{**values, "state": TriggerState(row["state"])})


def undecided(db: ReadSnapshot, most: int) -> list[JobTrigger]:
    """Return up to `most` ended runs without a decision, oldest first."""
    return [_trigger(row) for row in db.all(_UNDECIDED, {"most": most})]


def expired(db: ReadSnapshot, now: int, most: int) -> list[JobTrigger]:
    """Return up to `most` ended runs whose wait for other sources has expired."""
    return [_trigger(row) for row in db.all(_EXPIRED, {"now": now, "most": most})]


def next_expiry(db: ReadSnapshot) -> int | None:
    """Return the next time at which the wait of an ended run expires; None if no run waits."""
    row = db.one(_NEXT_EXPIRY)
    return row["at"] if row else None


def find(db: ReadSnapshot, trigger_id: int) -> JobTrigger | None:
    """Return a row by its ID; None if it does not exist."""
    row = db.one(_FIND, {"id": trigger_id})
    return _trigger(row) if row else None


def waiting(db: ReadSnapshot, namespace: str, job_id: str, value: str) -> list[JobTrigger]:
    """Return the ended runs that cannot start the follower yet, oldest first.

    They wait until runs of all other sources with the same `value` of the joining key have ended.
    """
    key = {"namespace": namespace, "job_id": job_id, "value": value}
    return [_trigger(row) for row in db.all(_WAITING, key)]


def meta_of(db: ReadSnapshot, trigger_id: int) -> dict[str, str]:
    """Return the meta that an ended run passes to the follower."""
    row = db.one(_META, {"id": trigger_id})
    return decode_row(row, dict[str, str], "triggers", "meta") if row else {}


def put(tx: Transaction, trigger: JobTrigger, meta: dict[str, str] | None = None) -> None:
    """Store a decision about an ended run.

    While the run waits, `meta` is the meta that it will pass to the follower.
    """
    values = {**msgspec.structs.asdict(trigger), "index": tx.index}
    tx.execute(_PUT, {**values, "meta": encode(meta or {}).decode()})
    _count(tx, trigger.state)
    if trigger.state.is_final:
        _trim(tx, trigger.namespace, trigger.job_id)
    tx.touch(TABLE, ARRIVED, topic(trigger.namespace, trigger.job_id))
    stored = msgspec.structs.replace(trigger, modify_index=tx.index)
    keys = tuple(filter(None, (trigger.job_id, trigger.source_id, trigger.child_id)))
    events.add(
        tx,
        "Trigger",
        _TOLD[trigger.state],
        namespace=trigger.namespace,
        key=f"{trigger.job_id}/{trigger.id}",
        filter_keys=keys,
        payload=f'{{"Trigger":{encode(stored).decode()}}}',
    )


def _trim(tx: Transaction, namespace: str, job_id: str) -> None:
    tx.execute(_TRIM, {"namespace": namespace, "job_id": job_id, "kept": KEPT})


def _count(tx: Transaction, state: TriggerState) -> None:
    if state.is_final:
        tx.execute(_TOTAL, {"state": state})


def totals(db: ReadSnapshot) -> dict[str, int]:
    """Return how many ended runs had each effect since the store was created."""
    return {row["state"]: row["number"] for row in db.all(_TOTALS)}


# --- ledger ---

_OF_JOB = """
    SELECT * FROM triggers
     WHERE namespace = :namespace AND job_id = :job_id AND id BETWEEN :low AND :high
  ORDER BY id"""


def of_job(
    db: ReadSnapshot,
    namespace: str,
    job_id: str,
    start: Key | None = None,
    *,
    reverse: bool = True,
) -> Iterator[JobTrigger]:
    """Yield the ledger of a follower, beginning at `start`; newest first with `reverse`."""
    key = {"namespace": namespace, "job_id": job_id, **numbers(start, reverse=reverse)}
    for row in db.each(f"{_OF_JOB}{' DESC' if reverse else ''}", key):
        yield _trigger(row)
