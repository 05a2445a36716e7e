"""Jobs: append-only versions, current state, summaries and sources."""

import sqlite3
from collections.abc import Iterator

import msgspec

from storage import loop_share
from storage.queries import (
    allocations,
    children,
    deployments,
    evaluations,
    events,
    job_status,
    periodic,
    runs,
    scaling,
    services,
)
from storage.queries.documents import decode_row, readable, text_of, unreadable
from storage.read_pool import ReadSnapshot
from storage.records import notification
from storage.records.codec import encode, job_document
from storage.records.group import TaskGroup
from storage.records.job import (
    Job,
    JobHead,
    JobListing,
    JobStatus,
    VersionTag,
)
from storage.writer import Transaction

LARGEST = 2**63 - 1  # the largest integer in a row

# The cache has definitions of this length in characters. Shorter definitions decode in 0.2 ms.
_LONG = range(16 * 1024, 2 * 1024 * 1024)
_KEPT = 2
_SLOW = 64 * 1024  # characters; a thread decodes longer definitions for the cache

# --- queries ---

_HEAD = """
       v.namespace, v.job_id, v.version, v.submit_time, v.create_index AS job_modify_index,
       s.stable, s.tag_name, s.tag_description, s.tagged_time,
       j.create_index,
       iif(v.version = j.version, j.status, s.status) AS status,
       iif(v.version = j.version, j.modify_index, s.modify_index) AS modify_index
"""
_FROM = """
  FROM jobs j
  JOIN job_versions v ON v.namespace = j.namespace AND v.job_id = j.id
  JOIN job_version_states s
    ON s.namespace = v.namespace AND s.job_id = v.job_id AND s.version = v.version
 WHERE j.namespace = :namespace AND j.id = :id
"""
_CURRENT = f"SELECT v.document, {_HEAD} {_FROM} AND v.version = j.version"
_LENGTH = f"SELECT length(v.document) AS length {_FROM} AND v.version = j.version"
_VERSION = f"SELECT v.document, {_HEAD} {_FROM} AND v.version = :version"
_VERSIONS = f"SELECT v.document, {_HEAD} {_FROM} ORDER BY v.version DESC"
_VERSIONS_FROM = f"""
    SELECT v.document, {_HEAD} {_FROM} AND v.version <= :first
  ORDER BY v.version DESC
"""
_DEFINED = """
    SELECT job_modify_index, forgotten FROM jobs WHERE namespace = :namespace AND id = :id
"""
_LISTING = "SELECT namespace, id, listing FROM jobs WHERE namespace = :namespace AND id = :id"
_LAST_CHANGE = """
    SELECT max(iif(s.version = j.version, j.modify_index, s.modify_index)) AS modify_index
      FROM jobs j
      JOIN job_version_states s ON s.namespace = j.namespace AND s.job_id = j.id
     WHERE j.namespace = :namespace AND j.id = :id
"""


def _head(row: sqlite3.Row) -> JobHead:
    tag = None
    if row["tag_name"] is not None:
        tag = VersionTag(
            name=row["tag_name"],
            description=row["tag_description"],
            tagged_time=row["tagged_time"],
        )
    return JobHead(
        status=row["status"],
        stable=bool(row["stable"]),
        version=row["version"],
        version_tag=tag,
        submit_time=row["submit_time"],
        create_index=row["create_index"],
        modify_index=row["modify_index"],
        job_modify_index=row["job_modify_index"],
    )


class _Decoded:
    """A cache of the most recently decoded definitions of large jobs.

    Decoding a job of a thousand groups takes 7 ms. Each decision, task start and task end reads
    the definition, and a version never changes.
    """

    def __init__(self) -> None:
        self._newest: tuple[tuple[str, Job], ...] = ()

    def job(self, db: ReadSnapshot, row: sqlite3.Row) -> Job:
        """Return the job of a row. Raises `StorageUnreadable`, or `LongRead` on the event loop."""
        document: str = row["document"]
        if len(document) not in _LONG:
            return decode_row(row, Job, "job_versions")
        for stored_document, job in self._newest:
            if stored_document == document:
                db.uncount(document)
                return job
        if len(document) > _SLOW:
            loop_share.spend(loop_share.SHARE + 1)
        job = _in_pieces(document) or decode_row(row, Job, "job_versions")
        self._newest = ((document, job), *self._newest)[:_KEPT]
        return job


_DECODED = _Decoded()


def _in_pieces(document: str) -> Job | None:
    """Decode a long definition of a job group by group, and return the job.

    Return None if the definition is short or cannot be decoded.
    """
    if len(document) <= loop_share.AT_ONCE:
        return None
    try:
        members = _MEMBERS.decode(document)
        groups = members.pop("TaskGroups", None)
        job = msgspec.json.decode(encode(members), type=Job)
        raw = _GROUPS.decode(groups) if groups is not None else None
        groups_decoded = None if raw is None else [_decoded_group(group) for group in raw]
    except (msgspec.DecodeError, UnicodeError):
        return None
    return msgspec.structs.replace(job, task_groups=groups_decoded)


def _decoded_group(text: msgspec.Raw) -> TaskGroup:
    loop_share.spend(_GROUP)
    return _ONE_GROUP.decode(text)


_GROUP = 6  # units of work for a group
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_GROUPS = msgspec.json.Decoder(list[msgspec.Raw] | None)
_ONE_GROUP = msgspec.json.Decoder(TaskGroup)


def _job(db: ReadSnapshot, row: sqlite3.Row) -> Job:
    job, head = _DECODED.job(db, row), _head(row)
    return msgspec.structs.replace(job, **msgspec.structs.asdict(head))


def _job_json(row: sqlite3.Row) -> bytes:
    """Return the JSON of a job: the text of its `JobHead`, joined with the stored definition."""
    return _joined(_head(row), row)


def _joined(head: JobHead, row: sqlite3.Row) -> bytes:
    return encode(head)[:-1] + b"," + text_of(row, "job_versions")[1:]


def current(db: ReadSnapshot, namespace: str, job_id: str) -> Job | None:
    """Return the newest version of a job, or None."""
    row = db.one(_CURRENT, {"namespace": namespace, "id": job_id})
    return _job(db, row) if row else None


def listing(db: ReadSnapshot, namespace: str, job_id: str) -> JobListing | None:
    """Return the listing values of the newest version of a job, or None. Raises `StorageUnreadable`.

    Reading these values takes microseconds. Reading the definition of a job of a thousand groups
    takes milliseconds.
    """
    row = db.one(_LISTING, {"namespace": namespace, "id": job_id})
    if row is None:
        return None
    try:
        return msgspec.json.decode(row["listing"] + "}", type=JobListing)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise unreadable(row, "jobs", error) from None


def definition_index(db: ReadSnapshot, namespace: str, job_id: str) -> int | None:
    """Return the index of the last change to a job's definition.

    Return None if the job does not exist or is being deleted. The history of a job that is being
    deleted may be incomplete, so the scheduler treats it as deleted.
    """
    row = db.one(_DEFINED, {"namespace": namespace, "id": job_id})
    return int(row["job_modify_index"]) if row and not row["forgotten"] else None


def size_of_versions(db: ReadSnapshot, namespace: str, job_id: str) -> tuple[int, int]:
    """Return the number of versions of a job, and their total size in bytes."""
    row = job_status.load_summary(db, namespace, job_id)
    return (row["version"] + 1, row["versions_bytes"]) if row else (0, 0)


def definition_length(db: ReadSnapshot, namespace: str, job_id: str) -> int:
    """Return the length of the newest definition in characters; 0 if the job does not exist."""
    row = db.one(_LENGTH, {"namespace": namespace, "id": job_id})
    return int(row["length"]) if row else 0


def version(db: ReadSnapshot, namespace: str, job_id: str, number: int) -> Job | None:
    """Return one version of a job, or None."""
    row = db.one(_VERSION, {"namespace": namespace, "id": job_id, "version": number})
    return _job(db, row) if row else None


def versions(db: ReadSnapshot, namespace: str, job_id: str) -> list[Job]:
    """Return all versions of a job, newest first."""
    return [_job(db, row) for row in db.all(_VERSIONS, {"namespace": namespace, "id": job_id})]


def current_wire(db: ReadSnapshot, namespace: str, job_id: str) -> tuple[bytes, int] | None:
    """Return the newest version as JSON, and the index of the job's last change.

    Return None if the job does not exist.
    """
    row = db.one(_CURRENT, {"namespace": namespace, "id": job_id})
    return (_job_json(row), row["modify_index"]) if row else None


def versions_wire(
    db: ReadSnapshot, namespace: str, job_id: str, first: int = LARGEST
) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the JSON of each version up to the number `first`, newest first."""
    values = {"namespace": namespace, "id": job_id, "first": first}
    return readable(db, db.each(_VERSIONS_FROM, values), _numbered)


def _numbered(row: sqlite3.Row) -> tuple[int, bytes]:
    return row["version"], _job_json(row)


def versions_index(db: ReadSnapshot, namespace: str, job_id: str) -> int:
    """Return the index of the last change to any version of a job; 0 if the job does not exist."""
    row = db.one(_LAST_CHANGE, {"namespace": namespace, "id": job_id})
    return int(row["modify_index"] or 0) if row else 0


def registered_wire(db: ReadSnapshot, namespace: str, job_id: str, number: int) -> bytes | None:
    """Return one version as JSON, for allocations and events that contain the job.

    The JSON shows the version as it was right after its registration: pending, not stable, and
    without a tag. Return None if the version does not exist.
    """
    row = db.one(_VERSION, {"namespace": namespace, "id": job_id, "version": number})
    if row is None:
        return None
    head = msgspec.structs.replace(
        _head(row),
        status=JobStatus.PENDING,
        stable=False,
        version_tag=None,
        modify_index=row["job_modify_index"],
    )
    return _joined(head, row)


def has_active_children(db: ReadSnapshot, job: Job) -> bool:
    """Return whether any child of a job is not dead."""
    row = job_status.load_summary(db, job.namespace, job.id)
    return row is not None and row["children_pending"] + row["children_running"] > 0


_DISPATCHED_WITH = """
    SELECT id, create_index FROM jobs
     WHERE namespace = :namespace AND parent_id = :parent_id AND parent_id <> ''
       AND dispatch_token = :token
"""


def find_by_idempotency_token(
    db: ReadSnapshot, namespace: str, parent_id: str, token: str
) -> tuple[str, int] | None:
    """Return the ID and create index of the child that was dispatched with an idempotency token.

    Return None if there is no such child.
    """
    values = {"namespace": namespace, "parent_id": parent_id, "token": token}
    row = db.one(_DISPATCHED_WITH, values)
    return (row["id"], row["create_index"]) if row else None


# --- changes ---

_ADD_JOB = """
    INSERT INTO jobs (namespace, id, version, type, parent_id, dispatch_token,
                      launches_children, stop, has_scaling, status, listing, queued, children_pending, children_running, children_dead, summary,
                      summary_index, create_index, modify_index, job_modify_index, held, notify,
                      versions_bytes)
    VALUES (:namespace, :id, :version, :type, :parent_id, :dispatch_token,
            :launches_children, :stop, :has_scaling, 'pending', :listing, :queued, 0, 0, 0, '', :index, :index, :index, :index, :held, :notify,
            :bytes)
    ON CONFLICT (namespace, id) DO UPDATE
       SET version = excluded.version, type = excluded.type,
           launches_children = excluded.launches_children, stop = excluded.stop,
           has_scaling = excluded.has_scaling,
           listing = excluded.listing, queued = excluded.queued, modify_index = excluded.modify_index,
           job_modify_index = excluded.job_modify_index, held = excluded.held, forgotten = 0,
           notify = excluded.notify, versions_bytes = versions_bytes + excluded.versions_bytes
"""
# Children outlive a purge of their parent. A new job with the parent's name becomes their parent.
# Any kind of job can be named as a parent, even a child.
_ADOPT = """
    UPDATE jobs
       SET (children_pending, children_running, children_dead)
           = (SELECT count(*) FILTER (WHERE c.status = 'pending'),
                     count(*) FILTER (WHERE c.status = 'running'),
                     count(*) FILTER (WHERE c.status = 'dead')
                FROM jobs c
               WHERE c.namespace = :namespace AND c.parent_id = :id AND c.parent_id <> '')
     WHERE namespace = :namespace AND id = :id
       AND EXISTS (SELECT 1 FROM jobs c
                    WHERE c.namespace = :namespace AND c.parent_id = :id AND c.parent_id <> '')
"""
ADD_VERSION = """
    INSERT INTO job_versions (namespace, job_id, version, submit_time, create_index, document)
    VALUES (:namespace, :id, :version, :submit_time, :index, :document)
"""
ADD_STATE = """
    INSERT INTO job_version_states (namespace, job_id, version, stable, status, modify_index, person)
    VALUES (:namespace, :id, :version, :stable, 'pending', :index, :person)
"""
_FREEZE_STATE = """
    UPDATE job_version_states AS s
       SET status = j.status, modify_index = j.modify_index
      FROM jobs j
     WHERE j.namespace = :namespace AND j.id = :id
       AND s.namespace = j.namespace AND s.job_id = j.id AND s.version = j.version
"""


def append_version(tx: Transaction, job: Job, *, is_held: bool = False) -> Job:
    """Store `job` as the newest version; return it with version number and indexes.

    `submit_time` and `stable` are stored as given. The store sets version and indexes. The caller
    calls `job_status.refresh_summary` after its other changes. With `is_held`, the job is queued
    until other children of its parent end. A later version without `is_held` is not queued.
    """
    row = job_status.load_summary(tx, job.namespace, job.id)
    queued = dict.fromkeys((group.name for group in job.task_groups or ()), 0)
    # Children inherit their parent's scaling policies, which apply to the parent only.
    has_scaling = not job.parent_id and any(group.scaling for group in job.task_groups or ())
    if row:
        tx.execute(_FREEZE_STATE, {"namespace": job.namespace, "id": job.id})
        before = decode_row(row, dict[str, int], "jobs", "queued")
        queued = {group: before.get(group, 0) for group in queued}
    stored = msgspec.structs.replace(
        job,
        version=row["version"] + 1 if row else 0,
        create_index=row["create_index"] if row else tx.index,
        modify_index=tx.index,
        job_modify_index=tx.index,
    )
    document = job_document(stored)
    values = {
        "namespace": stored.namespace,
        "id": stored.id,
        "version": stored.version,
        "type": stored.type,
        "parent_id": stored.parent_id,
        "dispatch_token": stored.dispatch_idempotency_token,
        "launches_children": stored.launches_children,
        "stop": stored.stop,
        "has_scaling": has_scaling,
        "stable": stored.stable,
        "listing": encode(listing_of(stored)).decode().removesuffix("}"),
        "queued": encode(queued).decode(),
        "submit_time": stored.submit_time,
        "document": document,
        "bytes": len(document.encode()),
        "index": tx.index,
        "held": is_held,
        "person": tx.person,
        "notify": notification.encoded(notification.notify_settings(stored.meta)),
    }
    tx.execute(_ADD_JOB, values)
    if not row:
        tx.execute(_ADOPT, values)
    tx.execute(ADD_VERSION, values)
    tx.execute(ADD_STATE, values)
    periodic.sync_schedule(tx, stored)
    runs.sync_sources(tx, stored)
    runs.sync_queues(tx, stored)
    if stored.stop:
        runs.note_stop(tx, stored)
    periodic.sync_calendars(tx, stored)
    if not row and stored.parent_id:
        job_status.count_child(tx, stored.namespace, stored.parent_id, None, JobStatus.PENDING)
    tx.touch("job_versions")
    if has_scaling or (row and row["has_scaling"]):
        tx.touch("scaling_policies", scaling.POLICIES_TOPIC)
    if stored.launches_children:
        children.publish_free_slot(tx, stored.namespace, stored.id)
    job_status.changed(tx, stored.namespace, stored.id)
    events.add(
        tx,
        "Job",
        "JobDeregistered" if stored.stop else "JobRegistered",
        namespace=stored.namespace,
        key=stored.id,
        payload=encode({"Version": stored.version}).decode(),
    )
    return stored


_PERSON = """
    SELECT person FROM job_version_states
     WHERE namespace = :namespace AND job_id = :job_id AND version = :version
"""


def author_of(db: ReadSnapshot, namespace: str, job_id: str, version: int) -> str:
    """Return the author of a version of a job; empty if it has none."""
    row = db.one(_PERSON, {"namespace": namespace, "job_id": job_id, "version": version})
    return str(row["person"]) if row else ""


def listing_of(job: Job) -> JobListing:
    """Return the listing values of a job. Only a new version of the job changes these values."""
    return JobListing(
        id=job.id,
        parent_id=job.parent_id,
        name=job.name,
        namespace=job.namespace,
        datacenters=job.datacenters,
        node_pool=job.node_pool,
        multiregion=job.multiregion,
        type=job.type,
        priority=job.priority,
        periodic=job.periodic is not None,
        parameterized_job=job.parameterized_job is not None and not job.dispatched,
        stop=job.stop,
        create_index=job.create_index,
        job_modify_index=job.job_modify_index,
        submit_time=job.submit_time,
    )


_NODES = """
    SELECT DISTINCT node_id FROM allocations WHERE namespace = :namespace AND job_id = :id
"""
_PURGE = "DELETE FROM jobs WHERE namespace = :namespace AND id = :id"


def purge(tx: Transaction, job: Job) -> None:
    """Delete a job with all its objects except evaluations."""
    key = {"namespace": job.namespace, "id": job.id}
    row = job_status.load_summary(tx, job.namespace, job.id)
    nodes = [node["node_id"] for node in tx.all(_NODES, key)]
    for registration in list(services.of_job(tx, job.namespace, job.id)):
        services.remove(tx, registration)
    queues = runs.queues_of_job(tx, job.namespace, job.id)
    tx.execute(_PURGE, key)
    for name in queues:
        runs.queue_changed(tx, job.namespace, name)
    children.publish_free_slot(tx, job.namespace, job.id)
    if row and row["parent_id"]:
        job_status.count_child(tx, job.namespace, row["parent_id"], row["status"], None)
    if row and row["has_scaling"]:
        tx.touch("scaling_policies", scaling.POLICIES_TOPIC)
    tx.touch("job_versions")
    tx.touch("summaries", job_status.summary_topic(job.namespace, job.id))
    tx.touch("allocations", allocations.job_topic(job.namespace, job.id))
    tx.touch("allocations", *(allocations.node_topic(node) for node in nodes))
    tx.touch("allocations", *(allocations.removed_topic(node) for node in nodes))
    tx.touch("deployments", deployments.job_topic(job.namespace, job.id))
    tx.touch(evaluations.ROOM, evaluations.ROOM)
    job_status.changed(tx, job.namespace, job.id)
    events.add(
        tx,
        "Job",
        "JobDeregistered",
        namespace=job.namespace,
        key=job.id,
        payload=f'{{"Job":{job_document(job)}}}',
    )


_MARK = """
    UPDATE jobs SET modify_index = :index
     WHERE namespace = :namespace AND id = :id AND version = :version
"""


def version_changed(tx: Transaction, namespace: str, job_id: str, number: int) -> None:
    """Publish that a version of a job has changed.

    If it is the current version, also update the modify index and the summary of the job.
    """
    key = {"namespace": namespace, "id": job_id, "version": number, "index": tx.index}
    if tx.execute(_MARK, key):
        job_status.refresh_summary(tx, namespace, job_id)
    tx.touch("job_versions")
    job_status.changed(tx, namespace, job_id)
