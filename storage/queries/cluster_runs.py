"""Task attempts that run as jobs of a cluster."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from storage.queries import payload_files
from storage.queries.pages import Key
from storage.read_pool import ReadSnapshot
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.writer import Transaction

_FIND = """
    SELECT * FROM cluster_runs
     WHERE allocation_id = :allocation_id AND task = :task AND number = :number
"""
_OF = "SELECT * FROM cluster_runs WHERE allocation_id = :allocation_id ORDER BY task, number"
_VOID = (
    "SELECT * FROM cluster_runs INDEXED BY cluster_runs_void WHERE pool = :pool AND status = 'void'"
)
_PUT = """
    INSERT INTO cluster_runs (allocation_id, task, number, pool, status, claim_hash, token_hash, nonce,
                              job_id, host, submitted_at, claimed_at, stdout_base, stderr_base, result,
                              array, element)
    VALUES (:allocation_id, :task, :number, :pool, :status, :claim_hash, :token_hash, :nonce,
            :job_id, :host, :submitted_at, :claimed_at, :stdout_base, :stderr_base, :result,
            :array, :element)
    ON CONFLICT (allocation_id, task, number) DO UPDATE SET
        status = excluded.status, claim_hash = excluded.claim_hash,
        token_hash = excluded.token_hash, nonce = excluded.nonce, job_id = excluded.job_id,
        host = excluded.host, submitted_at = excluded.submitted_at,
        claimed_at = excluded.claimed_at, stdout_base = excluded.stdout_base,
        stderr_base = excluded.stderr_base, result = excluded.result,
        array = excluded.array, element = excluded.element
"""
_RUNNING = """
    SELECT r.host, r.allocation_id, r.task, a.namespace
      FROM allocations a INDEXED BY allocations_holding
      JOIN cluster_runs r ON r.allocation_id = a.id
     WHERE a.node_id = :node_id AND a.client_status >= 'pending'
       AND r.status = 'running' AND r.host <> ''
"""
_RUNNING_FROM = f"""{_RUNNING}
       AND (r.allocation_id, r.task) >= (:allocation_id, :task)
  ORDER BY r.allocation_id, r.task
"""
_RUNNING_BACK = f"""{_RUNNING}
       AND (:allocation_id IS NULL OR (r.allocation_id, r.task) <= (:allocation_id, :task))
  ORDER BY r.allocation_id DESC, r.task DESC
"""
_FORGET = """
    DELETE FROM cluster_runs
     WHERE allocation_id = :allocation_id AND task = :task AND number < :number AND status = 'ended'
"""
_REMOVE = """
    DELETE FROM cluster_runs
     WHERE allocation_id = :allocation_id AND task = :task AND number = :number
"""

_PRUNE = """
    DELETE FROM cluster_runs
     WHERE status = 'ended' AND pool = :pool
       AND NOT EXISTS (SELECT 1 FROM allocations WHERE id = allocation_id)
"""
_ACTIVE = """
    SELECT * FROM cluster_runs
     WHERE pool = :pool AND status IN ('submitting', 'waiting', 'running')
"""
_WITHDRAW = """
    UPDATE cluster_runs SET status = 'void'
     WHERE pool = :pool AND status IN ('submitting', 'waiting', 'running')
"""


class RunningTask(NamedTuple):
    """A running task on a host of a cluster."""

    host: str
    allocation_id: str
    task: str
    namespace: str


def running_on(
    db: ReadSnapshot, node_id: str, start: Key | None, *, reverse: bool
) -> Iterator[RunningTask]:
    """Yield the running tasks of a node that represents a cluster, by allocation and task.

    `start` is the key of the first task.
    """
    allocation_id, task = start or ((None, "") if reverse else ("", ""))
    values = {"node_id": node_id, "allocation_id": allocation_id, "task": task}
    for row in db.each(_RUNNING_BACK if reverse else _RUNNING_FROM, values):
        yield RunningTask(*row)


def find(db: ReadSnapshot, allocation_id: str, task: str, number: int) -> ClusterRun | None:
    """Return an attempt, or None."""
    key = {"allocation_id": allocation_id, "task": task, "number": number}
    row = db.one(_FIND, key)
    return msgspec.convert(dict(row), ClusterRun) if row else None


def of_allocation(db: ReadSnapshot, allocation_id: str) -> list[ClusterRun]:
    """Return the attempts of an allocation."""
    rows = db.all(_OF, {"allocation_id": allocation_id})
    return [msgspec.convert(dict(row), ClusterRun) for row in rows]


def pending_cancellation(db: ReadSnapshot, pool: str) -> list[ClusterRun]:
    """Return the attempts of a pool that must be cancelled."""
    return [msgspec.convert(dict(row), ClusterRun) for row in db.all(_VOID, {"pool": pool})]


def put(tx: Transaction, run: ClusterRun) -> ClusterRun:
    """Store an attempt, and delete earlier ended attempts of the same task.

    If the attempt has ended or is withdrawn, the files that its host sent are released.
    """
    values = msgspec.structs.asdict(run)
    tx.execute(_PUT, {**values, "status": str(run.status)})
    if run.status == RunStatus.SUBMITTING:
        tx.execute(_FORGET, values)
    if run.status in (RunStatus.ENDED, RunStatus.VOID):
        payload_files.release(tx, run.comment)
    return run


def withdraw(tx: Transaction, run: ClusterRun) -> ClusterRun:
    """Withdraw an attempt, so that its cluster job is canceled. Return the attempt.

    If the attempt has ended already, delete the attempt instead.
    """
    if run.status == RunStatus.ENDED:
        remove(tx, run)
        return run
    return put(tx, msgspec.structs.replace(run, status=RunStatus.VOID))


def withdraw_all(tx: Transaction, pool: str) -> int:
    """Withdraw all attempts of a pool; return their number."""
    for row in tx.each(_ACTIVE, {"pool": pool}):
        payload_files.release(tx, msgspec.convert(dict(row), ClusterRun).comment)
    return tx.execute(_WITHDRAW, {"pool": pool})


def remove(tx: Transaction, run: ClusterRun) -> None:
    """Delete an attempt."""
    tx.execute(_REMOVE, msgspec.structs.asdict(run))


def prune(tx: Transaction, pool: str) -> int:
    """Delete ended attempts of deleted allocations; return their number."""
    return tx.execute(_PRUNE, {"pool": pool})
