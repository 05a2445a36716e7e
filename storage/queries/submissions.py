"""The source texts of the newest versions of a job."""

import msgspec

from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.job import Submission
from storage.writer import Transaction

KEPT = 6  # spec: limits, retained job source files

_ADD = """
    INSERT INTO job_submissions (namespace, job_id, version, document)
    VALUES (:namespace, :id, :version, :document)
"""
_TRIM = """
    DELETE FROM job_submissions
     WHERE namespace = :namespace AND job_id = :id
       AND version NOT IN (SELECT version FROM job_submissions
                            WHERE namespace = :namespace AND job_id = :id
                         ORDER BY version DESC LIMIT :kept)
"""
_FIND = """
    SELECT document FROM job_submissions
     WHERE namespace = :namespace AND job_id = :id AND version = :version
"""


def add(tx: Transaction, submission: Submission) -> None:
    """Keep a source text, and only the newest `KEPT` of its job."""
    key = {"namespace": submission.namespace, "id": submission.job_id}
    document = encode(submission).decode()
    tx.execute(_ADD, {**key, "version": submission.version, "document": document})
    tx.execute(_TRIM, {**key, "kept": KEPT})


def find(db: Snapshot, namespace: str, job_id: str, version: int) -> Submission | None:
    """Return the source text of a version, if it is still kept."""
    row = db.one(_FIND, {"namespace": namespace, "id": job_id, "version": version})
    return msgspec.json.decode(row["document"], type=Submission) if row else None
