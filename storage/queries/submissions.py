"""The sources of a job's newest versions."""

from storage.queries.documents import decode_row
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.job import Submission
from storage.writer import Transaction

KEPT = 6  # as in Nomad: retained sources per job

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
    SELECT namespace, job_id, version, document FROM job_submissions
     WHERE namespace = :namespace AND job_id = :id AND version = :version
"""


def add(tx: Transaction, submission: Submission) -> None:
    """Store the source of a job version, and keep only the newest `KEPT` sources of the job."""
    key = {"namespace": submission.namespace, "id": submission.job_id}
    document = encode(submission).decode()
    tx.execute(_ADD, {**key, "version": submission.version, "document": document})
    tx.execute(_TRIM, {**key, "kept": KEPT})


def find(db: ReadSnapshot, namespace: str, job_id: str, version: int) -> Submission | None:
    """Return the source of a version, if it is stored."""
    row = db.one(_FIND, {"namespace": namespace, "id": job_id, "version": version})
    return decode_row(row, Submission, "job_submissions") if row else None
