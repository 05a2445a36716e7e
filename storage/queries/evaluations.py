"""Evaluations, which are pending, blocked or completed."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from storage.errors import StorageUnreadable
from storage.queries import events
from storage.queries.documents import decode_document, decode_row, readable, text_of
from storage.queries.pages import PageRequest, by_creation, numbers_by_namespace, of_job
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.evaluation import Evaluation
from storage.records.times import nanoseconds
from storage.writer import Transaction

ROOM = "room"  # table and topic that change when an allocation releases resources


class FreedResources(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that a blocked evaluation needs: CPU in MHz, memory and disk in MB.

    `besides` holds all other resources, in an encoding that `daemon/evals/unblocker.py` defines.
    """

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    besides: str = ""


NO_ROOM = FreedResources()


class Unreadable(Exception):
    """The row of a pending evaluation cannot be decoded, because another program changed it."""

    def __init__(self, eval_id: str, reason: object) -> None:
        super().__init__(str(reason))
        self.eval_id = eval_id


def _from(row: sqlite3.Row) -> Evaluation:
    return decode_row(row, Evaluation, "evaluations")


def _evaluation_of(row: sqlite3.Row, eval_id: str) -> Evaluation:
    """Return the evaluation of a row. Raises `Unreadable`."""
    try:
        return decode_document(row["document"], Evaluation, "evaluations", eval_id)
    except StorageUnreadable as error:
        raise Unreadable(eval_id, error) from error


def topics(evaluation: Evaluation) -> tuple[str, str]:
    """Return the topics of changes to this evaluation."""
    return (
        f"evaluations/{evaluation.id}",
        job_topic(evaluation.namespace, evaluation.job_id),
    )


def job_topic(namespace: str, job_id: str) -> str:
    """Return the topic of changes to a job's evaluations."""
    return f"job-evaluations/{namespace}/{job_id}"


_PUT = """
    INSERT INTO evaluations (id, namespace, job_id, priority, status, wait_until, tried_index,
                             needs_cpu, needs_memory, needs_disk, needs_besides, deployment_id,
                             create_index, modify_index, modify_time, document, request_id)
    VALUES (:id, :namespace, :job_id, :priority, :status, :wait_until, :tried_index,
            :cpu, :memory, :disk, :besides, :deployment_id, :create_index, :modify_index, :modify_time,
            :document, :request_id)
    ON CONFLICT (id) DO UPDATE
       SET status = excluded.status, wait_until = excluded.wait_until,
           tried_index = excluded.tried_index, needs_cpu = excluded.needs_cpu,
           needs_memory = excluded.needs_memory, needs_disk = excluded.needs_disk,
           needs_besides = excluded.needs_besides,
           deployment_id = excluded.deployment_id, modify_index = excluded.modify_index,
           modify_time = excluded.modify_time, document = excluded.document
"""


def put(
    tx: Transaction, evaluation: Evaluation, now: int, needs: FreedResources = NO_ROOM
) -> Evaluation:
    """Store an evaluation, and return it with indexes and times.

    A new evaluation must have create index 0.

    `needs` are the smallest resources with which a blocked evaluation can make progress. The caller
    calls `job_status.refresh_summary` afterwards.
    """
    new = not evaluation.create_index
    stored = msgspec.structs.replace(
        evaluation,
        create_index=tx.index if new else evaluation.create_index,
        create_time=now if new else evaluation.create_time,
        modify_index=tx.index,
        modify_time=now,
    )
    document = encode(stored).decode()
    tx.execute(
        _PUT,
        {
            "id": stored.id,
            "namespace": stored.namespace,
            "job_id": stored.job_id,
            "priority": stored.priority,
            "status": stored.status,
            "wait_until": nanoseconds(stored.wait_until) if stored.wait_until else 0,
            "tried_index": stored.snapshot_index,
            "cpu": needs.cpu,
            "memory": needs.memory,
            "disk": needs.disk,
            "besides": needs.besides,
            "deployment_id": stored.deployment_id,
            "create_index": stored.create_index,
            "modify_index": stored.modify_index,
            "modify_time": now,
            "document": document,
            "request_id": tx.request_id,
        },
    )
    tx.touch("evaluations", *topics(stored))
    events.add(
        tx,
        "Evaluation",
        "EvaluationUpdated",
        namespace=stored.namespace,
        key=stored.id,
        filter_keys=tuple(filter(None, (stored.job_id, stored.deployment_id))),
        payload=f'{{"Evaluation":{document}}}',
    )
    return stored


_FIND = "SELECT CAST(document AS BLOB) AS document FROM evaluations WHERE id = :id"
_REQUEST = "SELECT request_id FROM evaluations WHERE id = :id"


def find(db: ReadSnapshot, eval_id: str) -> Evaluation | None:
    """Return an evaluation, or None. Raises `Unreadable`."""
    row = db.one(_FIND, {"id": eval_id})
    return _evaluation_of(row, eval_id) if row else None


def request_id(db: ReadSnapshot, eval_id: str) -> str:
    """Return the ID of the request that caused an evaluation; empty if no request caused it."""
    row = db.one(_REQUEST, {"id": eval_id})
    return str(row["request_id"]) if row else ""


_DOCUMENT = "SELECT id, document, modify_index FROM evaluations WHERE id = :id"


def wire_document(db: ReadSnapshot, eval_id: str) -> tuple[bytes, int] | None:
    """Return an evaluation as JSON, and the index of its last change; None if it does not exist."""
    row = db.one(_DOCUMENT, {"id": eval_id})
    return (text_of(row, "evaluations"), row["modify_index"]) if row else None


# --- pending and blocked evaluations ---

# There may be a million pending evaluations, so only the first ones of each kind are read, in index
# order. `_OF_TYPES` restricts them to job types if an operator has restricted the workers. It also
# selects rows that cannot be decoded, so that a fence can report such a row.
_OF_TYPES = """
       AND CASE WHEN json_valid(document)
                THEN document ->> '$.Type' IN (SELECT value FROM json_each(:types))
                ELSE 1 END"""
_READY = """
    SELECT id, priority, create_index, CAST(document AS BLOB) AS document FROM evaluations
     WHERE status = 'pending' AND wait_until = 0 {}
  ORDER BY priority DESC, create_index
     LIMIT :most
"""
_DUE = """
    SELECT id, priority, create_index, CAST(document AS BLOB) AS document FROM evaluations
     WHERE status = 'pending' AND wait_until > 0 AND wait_until <= :now {}
  ORDER BY wait_until
     LIMIT :most
"""
_NEXT_TIME = """
    SELECT min(wait_until) AS at FROM evaluations
     WHERE status = 'pending' AND wait_until > 0 AND wait_until > :now
"""


def runnable(
    db: ReadSnapshot,
    now: int,
    most: int = 1,
    types: Sequence[str] | None = None,
    paused: frozenset[str] = frozenset(),
) -> list[Evaluation]:
    """Return up to `most` pending evaluations that are due, by priority, then by age.

    They come from the first `most` evaluations without a delay, and from the `most` delayed
    evaluations that have been due for longest. With `types`, only jobs of these types are
    considered. Evaluations in `paused` are removed last, so the result may be shorter than `most`.
    Raises `Unreadable`.
    """
    parameters = {"most": most, "now": now, "types": json.dumps(types)}
    condition = "" if types is None else _OF_TYPES
    rows = [
        *db.all(_READY.format(condition), parameters),
        *db.all(_DUE.format(condition), parameters),
    ]
    rows.sort(key=lambda row: (-row["priority"], row["create_index"]))
    return [_evaluation_of(row, row["id"]) for row in rows[:most] if row["id"] not in paused]


def next_time(db: ReadSnapshot, now: int) -> int | None:
    """Return the time at which the next delayed evaluation is due, or None."""
    row = db.one(_NEXT_TIME, {"now": now})
    return row["at"] if row else None


_UNFINISHED = """
    SELECT id, document FROM evaluations
     WHERE namespace = :namespace AND job_id = :job_id AND status IN ('pending', 'blocked')
  ORDER BY create_index
"""
# A blocked evaluation is retried after sufficient resources were freed, or after a node has
# changed. Children of one job have equal needs, so the search skips one need at a time instead of
# one evaluation. Evaluations without needs only depend on changes of nodes.
_NEED = """
    SELECT needs_memory AS memory, needs_cpu AS cpu, needs_disk AS disk, needs_besides AS besides,
           priority
      FROM evaluations
     WHERE status = 'blocked' AND {}
  ORDER BY needs_memory, needs_cpu, needs_disk, needs_besides, priority DESC
     LIMIT 1
"""
# A single comparison of all columns would read every row with the same needs as the last row.
_NEXT_NEEDS = (
    _NEED.format(
        "needs_memory = :memory AND needs_cpu = :cpu AND needs_disk = :disk"
        " AND needs_besides > :besides"
    ),
    _NEED.format("needs_memory = :memory AND needs_cpu = :cpu AND needs_disk > :disk"),
    _NEED.format("needs_memory = :memory AND needs_cpu > :cpu"),
    _NEED.format("needs_memory > :memory"),
)
_NEXT_BLOCKED = """
    SELECT id, priority, create_index, CAST(document AS BLOB) AS document FROM evaluations
     WHERE status = 'blocked'
       AND needs_memory = :memory AND needs_cpu = :cpu AND needs_disk = :disk
       AND needs_besides = :besides
       AND tried_index < :since
       AND id NOT IN (SELECT value FROM json_each(:held)) {}
  ORDER BY priority DESC, create_index
     LIMIT 1
"""


def unfinished(db: ReadSnapshot, namespace: str, job_id: str) -> list[Evaluation]:
    """Return the pending and blocked evaluations of a job, oldest first."""
    rows = db.all(_UNFINISHED, {"namespace": namespace, "job_id": job_id})
    return [_from(row) for row in rows]


_LATEST = """
    SELECT id, document FROM evaluations INDEXED BY evaluations_by_job
     WHERE namespace = :namespace AND job_id = :job_id
  ORDER BY modify_index DESC
     LIMIT 1
"""


def latest(db: ReadSnapshot, namespace: str, job_id: str) -> Evaluation | None:
    """Return the most recently changed evaluation of a job, or None."""
    row = db.one(_LATEST, {"namespace": namespace, "job_id": job_id})
    return _from(row) if row else None


def any_blocked(db: ReadSnapshot) -> bool:
    """Return whether any evaluation is blocked."""
    return db.one("SELECT 1 FROM evaluations WHERE status = 'blocked' LIMIT 1") is not None


def next_blocked(
    db: ReadSnapshot,
    fits: Callable[[FreedResources, int], bool],
    types: Sequence[str] | None = None,
    paused: frozenset[str] = frozenset(),
) -> Evaluation | None:
    """Return the most urgent blocked evaluation for which capacity may be sufficient, or None.

    Evaluations that were tried since capacity or nodes last changed are not considered.

    `fits` returns whether capacity is sufficient for the needed resources. Its second argument is
    the highest priority among the evaluations with this need. With `types`, only jobs of these
    types are considered. Evaluations in `paused` are not considered. Raises `Unreadable`.
    """
    nodes_index = db.table_index("nodes")
    room_index = max(nodes_index, db.table_index(ROOM))
    condition = "" if types is None else _OF_TYPES
    candidates = []
    for need, priority in _blocked_needs(db):
        since = nodes_index if need == NO_ROOM else room_index
        parameters = {
            **msgspec.structs.asdict(need),
            "since": since,
            "held": json.dumps(sorted(paused)),
            "types": json.dumps(types),
        }
        untried = db.all(_NEXT_BLOCKED.format(condition), parameters)
        if untried and (need == NO_ROOM or fits(need, priority)):
            candidates += untried
    if not candidates:
        return None
    best = min(candidates, key=lambda row: (-row["priority"], row["create_index"]))
    return _evaluation_of(best, best["id"])


def _blocked_needs(db: ReadSnapshot) -> Iterator[tuple[FreedResources, int]]:
    """Yield the distinct resource needs of blocked evaluations, smallest first.

    Each need comes with the highest priority among the evaluations that have it.
    """
    key: dict[str, int | str] = {"memory": -1, "cpu": 0, "disk": 0, "besides": ""}
    while (row := next(filter(None, (db.one(sql, key) for sql in _NEXT_NEEDS)), None)) is not None:
        need = FreedResources(
            cpu=row["cpu"], memory=row["memory"], disk=row["disk"], besides=row["besides"]
        )
        key = msgspec.structs.asdict(need)
        yield need, row["priority"]


# --- listings ---

_PAGE = "SELECT namespace, id, create_index, document FROM evaluations"
COLUMNS = {
    "ID": "id",
    "Namespace": "+namespace",
    "JobID": "job_id",
    "Status": "+status",
    "DeploymentID": "deployment_id",
}
_HIGHEST_OF_JOB = """
    SELECT max(modify_index) AS highest FROM evaluations
     WHERE namespace = :namespace AND job_id = :job_id
"""


_NUMBERS = "SELECT namespace, count(*) AS number FROM evaluations"


class EvaluationLine(NamedTuple):
    """An evaluation in a listing."""

    namespace: str
    create_index: int
    id: str
    document: bytes


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[EvaluationLine]:
    """Yield evaluations in creation order."""
    return readable(db, by_creation(db, _PAGE, page_request), _line)


def numbers(db: ReadSnapshot, page_request: PageRequest) -> dict[str, int]:
    """Return the number of evaluations per namespace."""
    return numbers_by_namespace(db, _NUMBERS, page_request)


def job_page(
    db: ReadSnapshot, namespace: str, job_id: str, page_request: PageRequest
) -> Iterator[EvaluationLine]:
    """Yield the evaluations of a job in creation order."""
    return readable(db, of_job(db, _PAGE, page_request, namespace, job_id), _line)


def _line(row: sqlite3.Row) -> EvaluationLine:
    document = text_of(row, "evaluations")
    return EvaluationLine(row["namespace"], row["create_index"], row["id"], document)


def highest_of_job(db: ReadSnapshot, namespace: str, job_id: str) -> int:
    """Return the index of the last change to any evaluation of a job; 0 if the job has none."""
    row = db.one(_HIGHEST_OF_JOB, {"namespace": namespace, "job_id": job_id})
    return int(row["highest"] or 0) if row else 0


# --- deletion ---

_REMOVABLE = """
    SELECT e.id, e.document FROM evaluations e
     WHERE NOT EXISTS (SELECT 1 FROM allocations a
                        WHERE a.eval_id = e.id
                          AND a.client_status >= 'pending')
"""
_OF_IDS = " AND e.id IN (SELECT value FROM json_each(:ids))"
_IN_ORDER = " ORDER BY e.create_index, e.id"
_REMOVE = "DELETE FROM evaluations WHERE id IN (SELECT value FROM json_each(:ids))"


def removable(db: ReadSnapshot, ids: Sequence[str] | None = None) -> Iterator[Evaluation]:
    """Yield evaluations whose allocations are all terminal, oldest first.

    With `ids`, yield only the evaluations among these IDs.
    """
    chosen = _REMOVABLE + (_OF_IDS if ids is not None else "") + _IN_ORDER
    values = {} if ids is None else {"ids": msgspec.json.encode(ids).decode()}
    return readable(db, db.each(chosen, values), _from)


def remove(tx: Transaction, ids: Sequence[str]) -> None:
    """Delete evaluations.

    The caller calls `job_status.refresh_summary` for their jobs afterwards.
    """
    tx.execute(_REMOVE, {"ids": msgspec.json.encode(ids).decode()})
    tx.touch("evaluations")
