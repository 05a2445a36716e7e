"""Deployments: rollouts of job versions."""

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from storage.queries import events
from storage.queries.documents import decode_row, readable, text_of
from storage.queries.pages import PageRequest, by_creation
from storage.queries.pages import of_job as of_job_rows
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation
from storage.records.codec import encode
from storage.records.deployment import Deployment
from storage.writer import Transaction


def job_topic(namespace: str, job_id: str) -> str:
    """Return the topic of changes to a job's deployments."""
    return f"job-deployments/{namespace}/{job_id}"


_PUT = """
    INSERT INTO deployments (id, namespace, job_id, job_version, status, create_index,
                             modify_index, document)
    VALUES (:id, :namespace, :job_id, :job_version, :status, :create_index, :modify_index,
            :document)
    ON CONFLICT (id) DO UPDATE
       SET status = excluded.status, modify_index = excluded.modify_index,
           document = excluded.document
"""


def _has_placed(deployment: Deployment) -> bool:
    return any(state.placed_allocs for state in deployment.task_groups.values())


def put(tx: Transaction, deployment: Deployment, now: int) -> Deployment:
    """Store a deployment, and return it with indexes and times.

    A new deployment must have create index 0. The caller calls `job_status.refresh_summary`
    afterwards.
    """
    new = not deployment.create_index
    stored = msgspec.structs.replace(
        deployment,
        create_index=tx.index if new else deployment.create_index,
        create_time=now if new else deployment.create_time,
        modify_index=tx.index,
        modify_time=0 if new and not _has_placed(deployment) else now,
    )
    document = encode(stored).decode()
    tx.execute(
        _PUT,
        {
            "id": stored.id,
            "namespace": stored.namespace,
            "job_id": stored.job_id,
            "job_version": stored.job_version,
            "status": stored.status,
            "create_index": stored.create_index,
            "modify_index": stored.modify_index,
            "document": document,
        },
    )
    tx.touch(
        "deployments",
        f"deployments/{stored.id}",
        job_topic(stored.namespace, stored.job_id),
    )
    events.add(
        tx,
        "Deployment",
        "DeploymentStatusUpdate",
        namespace=stored.namespace,
        key=stored.id,
        filter_keys=(stored.job_id,),
        payload=f'{{"Deployment":{document}}}',
    )
    return stored


def count_late_health(tx: Transaction, before: Allocation, after: Allocation, now: int) -> None:
    """Count an allocation's new health in its deployment if the deployment has ended.

    While a deployment is active, its watcher updates the health counts.
    """
    deployment = find(tx, after.deployment_id) if after.deployment_id else None
    state = deployment.task_groups.get(after.task_group) if deployment else None
    if deployment is None or state is None or deployment.active or after.desired_status != "run":
        return
    before_end, new = (alloc.health.healthy if alloc.health else None for alloc in (before, after))
    counted = msgspec.structs.replace(
        state,
        healthy_allocs=state.healthy_allocs + (new is True) - (before_end is True),
        unhealthy_allocs=state.unhealthy_allocs + (new is False) - (before_end is False),
    )
    groups = {**deployment.task_groups, after.task_group: counted}
    put(tx, msgspec.structs.replace(deployment, task_groups=groups), now)


_FIND = "SELECT id, document FROM deployments WHERE id = :id"
_LATEST = """
    SELECT id, document FROM deployments
     WHERE namespace = :namespace AND job_id = :job_id
  ORDER BY create_index DESC
     LIMIT 1
"""
_ACTIVE = "SELECT id, namespace, job_id FROM deployments WHERE status IN ('running', 'paused')"
_JOB_PAGE = "SELECT id, document FROM deployments"
_HIGHEST_OF_JOB = """
    SELECT max(modify_index) AS highest FROM deployments
     WHERE namespace = :namespace AND job_id = :job_id
"""


_PAGE = "SELECT namespace, id, create_index, document FROM deployments"
COLUMNS = {"ID": "id", "Namespace": "+namespace", "JobID": "job_id", "Status": "+status"}


class DeploymentLine(NamedTuple):
    """A deployment in a listing."""

    namespace: str
    create_index: int
    id: str
    document: bytes


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[DeploymentLine]:
    """Yield deployments in creation order."""
    return readable(db, by_creation(db, _PAGE, page_request), _line)


def _line(row: sqlite3.Row) -> DeploymentLine:
    document = text_of(row, "deployments")
    return DeploymentLine(row["namespace"], row["create_index"], row["id"], document)


def _from(row: sqlite3.Row) -> Deployment:
    return decode_row(row, Deployment, "deployments")


def find(db: ReadSnapshot, deployment_id: str) -> Deployment | None:
    """Return a deployment, or None."""
    row = db.one(_FIND, {"id": deployment_id})
    return _from(row) if row else None


def latest(db: ReadSnapshot, namespace: str, job_id: str) -> Deployment | None:
    """Return the newest deployment of a job, or None."""
    row = db.one(_LATEST, {"namespace": namespace, "job_id": job_id})
    return _from(row) if row else None


def job_page(
    db: ReadSnapshot, namespace: str, job_id: str, page_request: PageRequest
) -> Iterator[Deployment]:
    """Yield the deployments of a job in creation order."""
    rows = of_job_rows(db, _JOB_PAGE, page_request, namespace, job_id)
    return readable(db, rows, _from)


def highest_of_job(db: ReadSnapshot, namespace: str, job_id: str) -> int:
    """Return the index of the last change to any deployment of a job; 0 if the job has none."""
    row = db.one(_HIGHEST_OF_JOB, {"namespace": namespace, "job_id": job_id})
    return int(row["highest"] or 0) if row else 0


class ActiveDeployment(NamedTuple):
    """The ID and the job of an active deployment. They are read without decoding its document."""

    id: str
    namespace: str
    job_id: str


def active(db: ReadSnapshot) -> list[ActiveDeployment]:
    """Return all active deployments."""
    return [ActiveDeployment(**row) for row in db.all(_ACTIVE)]
