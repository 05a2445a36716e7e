"""Evaluations: what is to be done, what waits for room, what was found."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from storage.queries import events
from storage.queries.pages import Wish, by_creation
from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.evaluation import Evaluation
from storage.records.times import nanoseconds
from storage.writer import Transaction

ROOM = "room"  # table and topic that are touched when an allocation lets go of what it holds


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Room on a node: CPU in MHz, memory and disk in MB; all else as whoever asks for it wrote it."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    besides: str = ""


NO_ROOM = Room()


def topics(evaluation: Evaluation) -> tuple[str, str]:
    """Return the topics on which a change of this evaluation is published."""
    return (
        f"evaluations/{evaluation.id}",
        job_topic(evaluation.namespace, evaluation.job_id),
    )


def job_topic(namespace: str, job_id: str) -> str:
    """Return the topic on which changes of a job's evaluations are published."""
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


def put(tx: Transaction, evaluation: Evaluation, now: int, needs: Room = NO_ROOM) -> Evaluation:
    """Store a new evaluation, or the new state of one; return it with its indexes and times.

    A new one has create index 0. `needs` is the least room that can help a blocked one. The caller
    calls `job_status.settle` afterwards.
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


_FIND = "SELECT document FROM evaluations WHERE id = :id"
_REQUEST = "SELECT request_id FROM evaluations WHERE id = :id"


def find(db: Snapshot, eval_id: str) -> Evaluation | None:
    """Return an evaluation."""
    row = db.one(_FIND, {"id": eval_id})
    return msgspec.json.decode(row["document"], type=Evaluation) if row else None


def request_id(db: Snapshot, eval_id: str) -> str:
    """Return the id of the request that an evaluation goes back to; empty for none."""
    row = db.one(_REQUEST, {"id": eval_id})
    return str(row["request_id"]) if row else ""


def wire(db: Snapshot, eval_id: str) -> tuple[bytes, int] | None:
    """Return an evaluation as JSON, and the index of its last change."""
    row = db.one("SELECT document, modify_index FROM evaluations WHERE id = :id", {"id": eval_id})
    return (row["document"].encode(), row["modify_index"]) if row else None


# ---- what is to be done --------------------------------------------------------------------

# A million may be ready: of both kinds only the head is read, in the order of an index.
_READY = """
    SELECT priority, create_index, document FROM evaluations
     WHERE status = 'pending' AND wait_until = 0
  ORDER BY priority DESC, create_index
     LIMIT :most
"""
_DUE = """
    SELECT priority, create_index, document FROM evaluations
     WHERE status = 'pending' AND wait_until > 0 AND wait_until <= :now
  ORDER BY wait_until
     LIMIT :most
"""
_NEXT_TIME = """
    SELECT min(wait_until) AS at FROM evaluations
     WHERE status = 'pending' AND wait_until > 0 AND wait_until > :now
"""


def ready(db: Snapshot, now: int, most: int = 1) -> list[Evaluation]:
    """Return the most urgent evaluations whose time has come: by priority, then by age.

    Of those that waited for their time, the ones that have been due longest are looked at.
    """
    rows = [*db.all(_READY, {"most": most}), *db.all(_DUE, {"now": now, "most": most})]
    rows.sort(key=lambda row: (-row["priority"], row["create_index"]))
    return [msgspec.json.decode(row["document"], type=Evaluation) for row in rows[:most]]


def next_time(db: Snapshot, now: int) -> int | None:
    """Return when the next evaluation that waits for its time becomes ready."""
    row = db.one(_NEXT_TIME, {"now": now})
    return row["at"] if row else None


_UNFINISHED = """
    SELECT document FROM evaluations
     WHERE namespace = :namespace AND job_id = :job_id AND status IN ('pending', 'blocked')
  ORDER BY create_index
"""
# A blocked evaluation is worth another look when room that may be enough has been freed, or a node
# has changed, since the last one. Children of one job all need the same: so what does not fit is
# passed over a need at a time, and not an evaluation at a time. Without any need in particular,
# only another node can help.
_NEED = """
    SELECT needs_memory AS memory, needs_cpu AS cpu, needs_disk AS disk, needs_besides AS besides,
           priority
      FROM evaluations
     WHERE status = 'blocked' AND {}
  ORDER BY needs_memory, needs_cpu, needs_disk, needs_besides, priority DESC
     LIMIT 1
"""
# One comparison of all of them at once would read every row that is equal to the last one.
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
    SELECT priority, create_index, document FROM evaluations
     WHERE status = 'blocked'
       AND needs_memory = :memory AND needs_cpu = :cpu AND needs_disk = :disk
       AND needs_besides = :besides
       AND tried_index < :since
  ORDER BY priority DESC, create_index
     LIMIT 1
"""


def unfinished(db: Snapshot, namespace: str, job_id: str) -> list[Evaluation]:
    """Return the evaluations of a job that are pending or blocked, oldest first."""
    rows = db.all(_UNFINISHED, {"namespace": namespace, "job_id": job_id})
    return [msgspec.json.decode(row["document"], type=Evaluation) for row in rows]


def any_blocked(db: Snapshot) -> bool:
    """Tell whether any evaluation waits for room."""
    return db.one("SELECT 1 FROM evaluations WHERE status = 'blocked' LIMIT 1") is not None


def next_blocked(db: Snapshot, fits: Callable[[Room, int], bool]) -> Evaluation | None:
    """Return the most urgent evaluation that may fit now, of those not tried since something changed.

    `fits` tells whether there is room for a need, given the highest priority of those that have it.
    """
    nodes_index = db.table_index("nodes")
    room_index = max(nodes_index, db.table_index(ROOM))
    found = []
    for need, priority in _needs(db):
        since = nodes_index if need == NO_ROOM else room_index
        untried = db.all(_NEXT_BLOCKED, {**msgspec.structs.asdict(need), "since": since})
        if untried and (need == NO_ROOM or fits(need, priority)):
            found += untried
    if not found:
        return None
    best = min(found, key=lambda row: (-row["priority"], row["create_index"]))
    return msgspec.json.decode(best["document"], type=Evaluation)


def _needs(db: Snapshot) -> Iterator[tuple[Room, int]]:
    """Yield each need that anything blocked has, the smallest first, with the highest priority."""
    key: dict[str, int | str] = {"memory": -1, "cpu": 0, "disk": 0, "besides": ""}
    while (row := next(filter(None, (db.one(sql, key) for sql in _NEXT_NEEDS)), None)) is not None:
        need = Room(cpu=row["cpu"], memory=row["memory"], disk=row["disk"], besides=row["besides"])
        key = msgspec.structs.asdict(need)
        yield need, row["priority"]


# ---- listings ---------------------------------------------------------------------------------

_PAGE = "SELECT namespace, id, create_index, document FROM evaluations"
COLUMNS = {
    "ID": "id",
    "Namespace": "+namespace",
    "JobID": "job_id",
    "Status": "+status",
    "DeploymentID": "deployment_id",
}
_JOB_LIST = """
    SELECT document, modify_index FROM evaluations
     WHERE namespace = :namespace AND job_id = :job_id
  ORDER BY create_index DESC, id
"""


class Line(NamedTuple):
    """An evaluation in a listing."""

    namespace: str
    create_index: int
    id: str
    document: bytes


def page(db: Snapshot, wish: Wish) -> Iterator[Line]:
    """Yield evaluations in the order of their making."""
    for row in by_creation(db, _PAGE, wish):
        yield Line(row["namespace"], row["create_index"], row["id"], row["document"].encode())


def job_list(db: Snapshot, namespace: str, job_id: str) -> tuple[list[bytes], int]:
    """Return a job's evaluations as JSON, newest first, and the highest index among them."""
    rows = db.all(_JOB_LIST, {"namespace": namespace, "job_id": job_id})
    return (
        [row["document"].encode() for row in rows],
        max((row["modify_index"] for row in rows), default=0),
    )


# ---- forgetting -------------------------------------------------------------------------------

_REMOVABLE = """
    SELECT e.document FROM evaluations e
     WHERE NOT EXISTS (SELECT 1 FROM allocations a
                        WHERE a.eval_id = e.id
                          AND a.client_status IN ('pending', 'running', 'unknown'))
"""
_OF_IDS = " AND e.id IN (SELECT value FROM json_each(:ids))"
_IN_ORDER = " ORDER BY e.create_index, e.id"
_REMOVE = "DELETE FROM evaluations WHERE id IN (SELECT value FROM json_each(:ids))"


def removable(db: Snapshot, ids: Sequence[str] | None = None) -> Iterator[Evaluation]:
    """Yield the evaluations of which no allocation still runs; of all, or of `ids` alone, by age."""
    chosen = _REMOVABLE + (_OF_IDS if ids is not None else "") + _IN_ORDER
    values = {} if ids is None else {"ids": msgspec.json.encode(ids).decode()}
    for row in db.each(chosen, values):
        yield msgspec.json.decode(row["document"], type=Evaluation)


def remove(tx: Transaction, ids: Sequence[str]) -> None:
    """Remove evaluations. The caller calls `job_status.settle` for their jobs afterwards."""
    tx.execute(_REMOVE, {"ids": msgspec.json.encode(ids).decode()})
    tx.touch("evaluations")
