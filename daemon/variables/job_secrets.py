"""The values of sensitive variables of job files, stored so that they can be masked.

A job file declares such a variable with `sensitive = true`. The values of all versions of a job
count until the job is purged, because allocations of older versions show them too. Children use the
values of their parent. `task_secrets.py` reads the values.
"""

from collections.abc import Sequence

from daemon.acl.seal import EnvelopeCipher
from daemon.variables.task_secrets import JOB_TABLE, job_prefix
from storage.queries import secrets
from storage.records.codec import encode
from storage.writer import Transaction


def keep(
    tx: Transaction, seal: EnvelopeCipher, key: tuple[str, str, int], values: Sequence[str]
) -> None:
    """Store the sensitive values of a version of a job: namespace, ID, version."""
    namespace, job_id, version = key
    place = f"{job_prefix(namespace, job_id)}{version:010d}"
    secrets.put(tx, place, seal.seal(encode(list(values)), place))
    tx.touch(JOB_TABLE)
