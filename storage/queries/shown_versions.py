"""Find the versions of a job that the store still refers to.

The job itself, its allocations, and events can refer to a version. The functions search all events
of a job, so call them in a thread.
"""

from typing import NamedTuple

from storage.read_pool import ReadSnapshot


class PresentVersions(NamedTuple):
    """The versions of a job and its allocations. `create_index` is 0 if the job does not exist."""

    create_index: int
    versions: frozenset[int]


_CREATED = "SELECT create_index FROM jobs WHERE namespace = :namespace AND id = :id"
_VERSIONS = """
    SELECT version FROM job_versions WHERE namespace = :namespace AND job_id = :id
     UNION
    SELECT job_version FROM allocations WHERE namespace = :namespace AND job_id = :id
"""
_EVENT_VERSIONS = """
    SELECT DISTINCT coalesce(payload ->> '$.Version', payload ->> '$.Job.Version') AS version,
           write_index
      FROM events
     WHERE topic = 'Job' AND namespace = :namespace AND key = :id
"""
# The ID of a child begins with the ID of its parent and a slash. "0" is the character after the
# slash.
_CHILDREN = """
    SELECT 1 FROM jobs WHERE namespace = :namespace AND id > :id || '/' AND id < :id || '0'
     UNION ALL
    SELECT 1 FROM events
     WHERE topic = 'Job' AND namespace = :namespace AND key > :id || '/' AND key < :id || '0'
     LIMIT 1
"""


def present(db: ReadSnapshot, namespace: str, job_id: str) -> PresentVersions:
    """Return the versions that a job and its allocations have."""
    key = {"namespace": namespace, "id": job_id}
    row = db.one(_CREATED, key)
    versions = frozenset(int(version_row["version"]) for version_row in db.all(_VERSIONS, key))
    return PresentVersions(int(row["create_index"]) if row else 0, versions)


def event_versions(db: ReadSnapshot, namespace: str, job_id: str) -> list[tuple[int | None, int]]:
    """Return the job version and the write index of each stored event of a job.

    The version is None for an event without a version.
    """
    rows = db.all(_EVENT_VERSIONS, {"namespace": namespace, "id": job_id})
    return [
        (None if row["version"] is None else int(row["version"]), int(row["write_index"]))
        for row in rows
    ]


def has_children(db: ReadSnapshot, namespace: str, job_id: str) -> bool:
    """Return whether a job has children, or the store has events of its deleted children."""
    return db.one(_CHILDREN, {"namespace": namespace, "id": job_id}) is not None
