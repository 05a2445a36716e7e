"""The stability and the tags of job versions."""

from collections.abc import Mapping

from storage.queries import jobs
from storage.read_pool import ReadSnapshot
from storage.records.job import VersionTag
from storage.writer import Transaction

_SET_STABLE = """
    UPDATE job_version_states
       SET stable = :stable, modify_index = :index
     WHERE namespace = :namespace AND job_id = :id AND version = :version
"""
_SET_TAG = """
    UPDATE job_version_states
       SET tag_name = :name, tag_description = :description, tagged_time = :tagged_time,
           modify_index = :index
     WHERE namespace = :namespace AND job_id = :id AND version = :version
"""
_TAGGED = """
    SELECT version FROM job_version_states
     WHERE namespace = :namespace AND job_id = :id AND tag_name = :name
"""


def set_stable(tx: Transaction, namespace: str, job_id: str, number: int, *, stable: bool) -> bool:
    """Set the stability of a version; return whether the version exists."""
    return _set(tx, _SET_STABLE, namespace, job_id, number, {"stable": stable})


def tagged(db: ReadSnapshot, namespace: str, job_id: str, name: str) -> int | None:
    """Return the version of a job with this tag, or None."""
    row = db.one(_TAGGED, {"namespace": namespace, "id": job_id, "name": name})
    return row["version"] if row else None


def set_tag(
    tx: Transaction, namespace: str, job_id: str, number: int, tag: VersionTag | None
) -> bool:
    """Set or remove the tag of a version; return whether the version exists."""
    values = {
        "name": tag.name if tag else None,
        "description": tag.description if tag else None,
        "tagged_time": tag.tagged_time if tag else None,
    }
    return _set(tx, _SET_TAG, namespace, job_id, number, values)


def _set(
    tx: Transaction,
    sql: str,
    namespace: str,
    job_id: str,
    number: int,
    values: Mapping[str, object],
) -> bool:
    if number > jobs.LARGEST:
        return False
    key = {"namespace": namespace, "id": job_id, "version": number, "index": tx.index}
    if not tx.execute(sql, {**key, **values}):
        return False
    jobs.version_changed(tx, namespace, job_id, number)
    return True
