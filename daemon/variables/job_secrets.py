"""The values of sensitive variables of job files, stored so that they can be masked.

A job file declares such a variable with `sensitive = true`. The values of a version of a job are
stored until no version, allocation or event can show them. Children use the values of their parent.
`task_secrets.py` reads the values.
"""

from collections.abc import Sequence

from daemon.acl.seal import EnvelopeCipher
from daemon.variables.task_secrets import JOB_TABLE, job_place
from storage.queries import secrets
from storage.records.codec import encode
from storage.records.job import Job
from storage.writer import Transaction


def keep(tx: Transaction, seal: EnvelopeCipher, job: Job, values: Sequence[str]) -> None:
    """Store the sensitive values of a version of a job."""
    path = job_place(job.namespace, job.id, job.create_index, job.version)
    secrets.put(tx, path, seal.seal(encode(list(values)), path))
    tx.touch(JOB_TABLE)
