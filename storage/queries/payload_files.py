"""Input files of jobs and kept files of tasks: their digests, and the jobs that use them."""

from collections.abc import Iterator

import msgspec

from storage.read_pool import ReadSnapshot
from storage.writer import Transaction

_FIND = """
    SELECT size, is_complete, modify_time FROM payload_files
     WHERE namespace = :namespace AND digest = :digest
"""
_USED = """
    SELECT count(*) AS number, coalesce(sum(size), 0) AS bytes
      FROM payload_files WHERE namespace = :namespace AND (:holder = '' OR holder <> :holder)
"""
_PUT = """
    INSERT INTO payload_files (namespace, digest, size, is_complete, modify_time, holder)
    VALUES (:namespace, :digest, :size, :is_complete, :now, :holder)
    ON CONFLICT (namespace, digest) DO UPDATE
       SET size = excluded.size, is_complete = excluded.is_complete,
           modify_time = excluded.modify_time, holder = excluded.holder
"""
_ATTACH = """
    INSERT INTO job_files (namespace, job_id, name, digest)
    VALUES (:namespace, :job_id, :name, :digest)
    ON CONFLICT (namespace, job_id, name) DO UPDATE SET digest = excluded.digest
"""
_DETACH_UNNAMED = """
    DELETE FROM job_files
     WHERE namespace = :namespace AND job_id = :job_id
       AND NOT EXISTS (SELECT 1 FROM job_versions AS v
                        WHERE v.namespace = :namespace AND v.job_id = :job_id
                          AND instr(v.document, 'payload://' || job_files.name) > 0)
"""
_NUMBER_OF_JOB = """
    SELECT count(*) AS number FROM job_files WHERE namespace = :namespace AND job_id = :job_id
"""
_OF_JOB = """
    SELECT digest FROM job_files
     WHERE namespace = :namespace AND job_id = :job_id AND name = :name
"""
_UNUSED = """
    SELECT namespace, digest FROM payload_files AS f
     WHERE modify_time < :before
       AND NOT EXISTS (SELECT 1 FROM job_files AS j
                        WHERE j.namespace = f.namespace AND j.digest = f.digest)
       AND NOT EXISTS (SELECT 1 FROM kept_files AS k
                        WHERE k.namespace = f.namespace AND k.digest = f.digest)
  ORDER BY modify_time
     LIMIT :most
"""
_TOUCH = """
    UPDATE payload_files SET modify_time = :now WHERE namespace = :namespace AND digest = :digest
"""
_RELEASE = "UPDATE payload_files SET holder = '' WHERE holder = :holder AND holder <> ''"
_IS_UNUSED = """
    NOT EXISTS (SELECT 1 FROM job_files AS j
                 WHERE j.namespace = payload_files.namespace AND j.digest = payload_files.digest)
    AND NOT EXISTS (SELECT 1 FROM kept_files AS k
                     WHERE k.namespace = payload_files.namespace
                       AND k.digest = payload_files.digest)
"""
_RETIRE = f"""
    UPDATE payload_files SET is_complete = 0
     WHERE namespace = :namespace AND digest = :digest AND modify_time < :before AND {_IS_UNUSED}
"""
_REMOVE = f"""
    DELETE FROM payload_files
     WHERE namespace = :namespace AND digest = :digest AND {_IS_UNUSED}
"""
_SET_INCOMPLETE = """
    UPDATE payload_files SET is_complete = 0 WHERE namespace = :namespace AND digest = :digest
"""
_EVERY = "SELECT namespace, digest FROM payload_files"
_WITH_DIGEST = "SELECT namespace FROM payload_files WHERE digest = :digest"


class PayloadFile(msgspec.Struct, frozen=True, kw_only=True):
    """An input file. `size` is in bytes, `modify_time` in nanoseconds since the epoch."""

    size: int
    is_complete: bool
    modify_time: int


def find(db: ReadSnapshot, namespace: str, digest: str) -> PayloadFile | None:
    """Return a file, or None."""
    row = db.one(_FIND, {"namespace": namespace, "digest": digest})
    if row is None:
        return None
    return PayloadFile(
        size=row["size"], is_complete=bool(row["is_complete"]), modify_time=row["modify_time"]
    )


def used(db: ReadSnapshot, namespace: str, holder: str = "") -> tuple[int, int]:
    """Return the number of a namespace's files and their total bytes.

    Incomplete files are included. Files that belong to `holder` are excluded.
    """
    row = db.one(_USED, {"namespace": namespace, "holder": holder})
    return (row["number"], row["bytes"]) if row else (0, 0)


def list_all(db: ReadSnapshot) -> Iterator[tuple[str, str]]:
    """Yield the namespace and the digest of each file."""
    for row in db.each(_EVERY):
        yield row["namespace"], row["digest"]


def namespaces_with(db: ReadSnapshot, digest: str) -> list[str]:
    """Return the namespaces that have a file. This reads all rows, so run it in a thread."""
    return [row["namespace"] for row in db.all(_WITH_DIGEST, {"digest": digest})]


def put(
    tx: Transaction,
    namespace: str,
    digest: str,
    size: int,
    *,
    is_complete: bool,
    now: int,
    holder: str = "",
) -> None:
    """Store the row of a file. `holder` names the task or attempt that stores the file.

    The file belongs to the holder until `release` is called.
    """
    tx.execute(
        _PUT,
        {
            "namespace": namespace,
            "digest": digest,
            "size": size,
            "is_complete": is_complete,
            "now": now,
            "holder": holder,
        },
    )


def release(tx: Transaction, holder: str) -> None:
    """Record that a task or an attempt has ended, and no longer holds the files that it stored."""
    tx.execute(_RELEASE, {"holder": holder})


def attach(tx: Transaction, namespace: str, job_id: str, name: str, digest: str) -> None:
    """Assign a file to a job. The job and the complete file must exist."""
    tx.execute(_ATTACH, {"namespace": namespace, "job_id": job_id, "name": name, "digest": digest})


def detach_unnamed(tx: Transaction, namespace: str, job_id: str) -> None:
    """Detach a file from a job if no stored version of the job refers to the file."""
    tx.execute(_DETACH_UNNAMED, {"namespace": namespace, "job_id": job_id})


def number_of_job(db: ReadSnapshot, namespace: str, job_id: str) -> int:
    """Return the number of files of a job."""
    row = db.one(_NUMBER_OF_JOB, {"namespace": namespace, "job_id": job_id})
    return int(row["number"]) if row else 0


def digest_of(db: ReadSnapshot, namespace: str, job_id: str, name: str) -> str:
    """Return the digest of a job's file; empty if the job has no file with this name."""
    row = db.one(_OF_JOB, {"namespace": namespace, "job_id": job_id, "name": name})
    return str(row["digest"]) if row else ""


def unused(db: ReadSnapshot, before: int, most: int) -> list[tuple[str, str]]:
    """Return the namespace and the digest of up to `most` unused files.

    A file is unused if no job and no allocation uses it, and if it has not changed since `before`.
    """
    rows = db.all(_UNUSED, {"before": before, "most": most})
    return [(row["namespace"], row["digest"]) for row in rows]


def touch(tx: Transaction, namespace: str, digest: str, now: int) -> None:
    """Set the time of the last upload or dispatch of a file."""
    tx.execute(_TOUCH, {"namespace": namespace, "digest": digest, "now": now})


def retire(tx: Transaction, namespace: str, digest: str, before: int) -> bool:
    """Mark a file as incomplete if nothing uses it and it is unchanged since `before`.

    Return whether the file was marked. No dispatch can use a marked file.
    """
    values = {"namespace": namespace, "digest": digest, "before": before}
    return tx.execute(_RETIRE, values) > 0


def remove(tx: Transaction, namespace: str, digest: str) -> None:
    """Delete the row of a file whose content is lost.

    If the file is still in use, mark it as incomplete instead.
    """
    values = {"namespace": namespace, "digest": digest}
    if not tx.execute(_REMOVE, values):
        tx.execute(_SET_INCOMPLETE, values)
