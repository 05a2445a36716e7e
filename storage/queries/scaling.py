"""Scaling events of a job's groups, and scaling policies."""

import sqlite3
from collections.abc import Iterator

import msgspec

from storage.queries.documents import decode_row, readable
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.scaling import ScalingEvent, ScalingPolicy
from storage.writer import Transaction

POLICIES_TOPIC = "scaling-policies"
KEPT = 20  # newest events per group, as in Nomad


def topic(namespace: str, job_id: str) -> str:
    """Return the topic of a job's scaling events."""
    return f"scaling/{namespace}/{job_id}"


# --- events ---

_ADD = """
    INSERT INTO scaling_events (namespace, job_id, task_group, create_index, document)
    VALUES (:namespace, :job_id, :task_group, :index, :document)
"""
_TRIM = """
    DELETE FROM scaling_events
     WHERE namespace = :namespace AND job_id = :job_id AND task_group = :task_group
       AND create_index NOT IN (SELECT create_index FROM scaling_events
                                 WHERE namespace = :namespace AND job_id = :job_id
                                   AND task_group = :task_group
                              ORDER BY create_index DESC LIMIT :kept)
"""
_OF_JOB = """
    SELECT namespace, job_id, task_group, create_index, document FROM scaling_events
     WHERE namespace = :namespace AND job_id = :job_id
  ORDER BY create_index DESC
"""


def add_event(
    tx: Transaction, namespace: str, job_id: str, group: str, event: ScalingEvent
) -> None:
    """Store a scaling event of a group, and delete the events beyond the newest `KEPT`."""
    stored = msgspec.structs.replace(event, create_index=tx.index)
    key = {"namespace": namespace, "job_id": job_id, "task_group": group}
    tx.execute(_ADD, {**key, "index": tx.index, "document": encode(stored).decode()})
    tx.execute(_TRIM, {**key, "kept": KEPT})
    tx.touch("scaling_events", topic(namespace, job_id))


def events(db: ReadSnapshot, namespace: str, job_id: str) -> dict[str, list[ScalingEvent]]:
    """Return the stored events of a job by group, newest first."""
    events_by_group: dict[str, list[ScalingEvent]] = {}
    rows = db.all(_OF_JOB, {"namespace": namespace, "job_id": job_id})
    for group, event in readable(db, rows, _event):
        events_by_group.setdefault(group, []).append(event)
    return events_by_group


def _event(row: sqlite3.Row) -> tuple[str, ScalingEvent]:
    return row["task_group"], decode_row(row, ScalingEvent, "scaling_events")


# --- policies ---

_POLICIES = """
    SELECT v.namespace, v.job_id, v.version, v.document
      FROM jobs j INDEXED BY jobs_scaled
      JOIN job_versions v
        ON v.namespace = j.namespace AND v.job_id = j.id AND v.version = j.version
     WHERE j.has_scaling = 1
"""
_FILTERS = {
    "namespace": "j.namespace = :namespace",
    "job_id": "j.id = :job_id",
}


class _Scaled(msgspec.Struct, rename="pascal"):
    """The part of a job definition that contains scaling policies."""

    task_groups: "list[_ScaledGroup] | None" = None


class _ScaledGroup(msgspec.Struct, rename="pascal"):
    scaling: ScalingPolicy | None = None


class PlacedPolicy(msgspec.Struct, frozen=True):
    """A scaling policy, with the position of its group in the job."""

    namespace: str
    job_id: str
    place: int
    policy: ScalingPolicy


def policies(
    db: ReadSnapshot,
    namespace: str = "*",
    job_id: str = "",
    start: tuple[str, str] | None = None,
    *,
    reverse: bool = False,
) -> Iterator[PlacedPolicy]:
    """Yield the scaling policies of jobs, by namespace, job and group; `*` means all namespaces.

    `start` is the namespace and ID of the first job. Jobs that cannot be decoded are omitted.
    """
    values = {"namespace": namespace, "job_id": job_id}
    filters = {name: value for name, value in values.items() if value and value != "*"}
    sql = _POLICIES + "".join(f" AND {_FILTERS[name]}" for name in filters)
    if start is not None:
        sign = "<=" if reverse else ">="
        sql += f" AND (j.namespace, j.id) {sign} (:first, :second)"
        filters["first"], filters["second"] = start
    direction = " DESC" if reverse else ""
    rows = db.each(f"{sql} ORDER BY j.namespace{direction}, j.id{direction}", filters)
    for job_policies in readable(db, rows, _placed):
        yield from reversed(job_policies) if reverse else job_policies


def _placed(row: sqlite3.Row) -> list[PlacedPolicy]:
    groups = decode_row(row, _Scaled, "job_versions").task_groups or ()
    return [
        PlacedPolicy(row["namespace"], row["job_id"], index, group.scaling)
        for index, group in enumerate(groups)
        if group.scaling is not None
    ]
