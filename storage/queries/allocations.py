"""Allocations: where they are, what the scheduler wants of them, what the runner reports."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from storage.queries import evaluations, events, services
from storage.queries.pages import Wish, by_creation
from storage.readers import Snapshot
from storage.records import views
from storage.records.allocation import (
    CLIENT_TERMINAL,
    AllocatedResources,
    Allocation,
    AllocationChange,
    Client,
    DeploymentHealth,
    Desired,
    Placement,
    StoredTaskEvent,
    TaskEvent,
)
from storage.records.codec import encode
from storage.writer import Transaction


def job_topic(namespace: str, job_id: str) -> str:
    """Return the topic on which changes of a job's allocations are published."""
    return f"job-allocations/{namespace}/{job_id}"


def node_topic(node_id: str) -> str:
    """Return the topic on which the scheduler's changes of a node's allocations are published."""
    return f"node-allocations/{node_id}"


def removed_topic(node_id: str) -> str:
    """Return the topic that says that allocations of a node are gone from the store."""
    return f"removed-allocations/{node_id}"


def _from(row: sqlite3.Row) -> Allocation:
    health = row["health"]
    return Allocation(
        id=row["id"],
        namespace=row["namespace"],
        job_id=row["job_id"],
        job_version=row["job_version"],
        job_type=row["job_type"],
        task_group=row["task_group"],
        name=row["name"],
        node_id=row["node_id"],
        eval_id=row["eval_id"],
        deployment_id=row["deployment_id"],
        desired_status=row["desired_status"],
        client_status=row["client_status"],
        placement=msgspec.json.decode(row["placement"], type=Placement),
        desired=msgspec.json.decode(row["desired"], type=Desired),
        client=msgspec.json.decode(row["client"], type=Client),
        health=msgspec.json.decode(health, type=DeploymentHealth) if health else None,
        create_index=row["create_index"],
        modify_index=row["modify_index"],
        alloc_modify_index=row["alloc_modify_index"],
        create_time=row["create_time"],
        modify_time=row["modify_time"],
        request_id=row["request_id"],
    )


# ---- reading ------------------------------------------------------------------------------------

_FIND = "SELECT * FROM allocations WHERE id = :id"
_HIGHEST = """
    SELECT coalesce(max(modify_index), 0) AS highest FROM allocations
     WHERE namespace = :namespace AND job_id = :job_id
"""
_OF_JOB = """
    SELECT * FROM allocations
     WHERE namespace = :namespace AND job_id = :job_id
  ORDER BY create_index DESC, id
"""
_ANY_BEYOND = """
    SELECT count(*) AS number
      FROM (SELECT 1 FROM allocations WHERE namespace = :namespace AND job_id = :job_id LIMIT :most)
"""


def has_more(db: Snapshot, namespace: str, job_id: str, number: int) -> bool:
    """Tell whether a job has more allocations than a number, without looking at all of them."""
    row = db.one(_ANY_BEYOND, {"namespace": namespace, "job_id": job_id, "most": number + 1})
    return row is not None and row["number"] > number


_CONSIDERED = """
    SELECT * FROM allocations INDEXED BY allocations_considered
     WHERE namespace = :namespace AND job_id = :job_id
       AND (desired_status = 'run'
            OR client_status IN ('pending', 'running', 'unknown')
            OR desired ->> '$.Transition.MigrateDisablePlacement')
  ORDER BY create_index, id
"""
_NUMBERS = """
    SELECT task_group, count(*) AS number FROM allocations INDEXED BY allocations_by_job
     WHERE namespace = :namespace AND job_id = :job_id
  GROUP BY task_group
"""
_OF_EVALUATION = "SELECT * FROM allocations WHERE eval_id = :id ORDER BY create_index DESC, id"
# The second condition is the index's: without it SQLite cannot know that it may use it.
_OF_DEPLOYMENT = """
    SELECT * FROM allocations
     WHERE deployment_id = :id AND deployment_id <> ''
  ORDER BY create_index DESC, id
"""
_HIGHEST_ON_NODE = "SELECT max(modify_index) AS highest FROM allocations WHERE node_id = :id"
_IN_ORDER = "SELECT * FROM allocations INDEXED BY allocations_in_order"
_TO_RUN = """
    SELECT * FROM allocations
     WHERE node_id = :node_id AND client_status IN ('pending', 'running', 'unknown')
  ORDER BY create_index, id
"""
_NEWEST_RUNNING = """
    SELECT * FROM allocations
     WHERE node_id = :node_id AND client_status IN ('pending', 'running', 'unknown')
  ORDER BY create_index DESC, id
     LIMIT :most
"""
_CHANGED = """
    SELECT id FROM allocations
     WHERE node_id = :node_id AND alloc_modify_index > :after
  ORDER BY alloc_modify_index
"""
_KNOWN = "SELECT id FROM allocations WHERE id IN (SELECT value FROM json_each(:ids))"
_ENDED = """
    SELECT id FROM allocations
     WHERE id IN (SELECT value FROM json_each(:ids))
       AND client_status IN ('complete', 'failed', 'lost')
  ORDER BY modify_time, id
"""
_OWNERS = """
    SELECT id, namespace, job_id FROM allocations WHERE id IN (SELECT value FROM json_each(:ids))
"""
_PAGE = "SELECT * FROM allocations"
# What filters may compare without looking at more than the row (storage/queries/pages.py).
COLUMNS = {
    "ID": "id",
    "Namespace": "+namespace",
    "JobID": "job_id",
    "TaskGroup": "task_group",
    "Name": "name",
    "NodeID": "+node_id",
    "EvalID": "eval_id",
    "ClientStatus": "client_status",
    "DesiredStatus": "desired_status",
}


def find(db: Snapshot, allocation_id: str) -> Allocation | None:
    """Return an allocation."""
    row = db.one(_FIND, {"id": allocation_id})
    return _from(row) if row else None


def of_job(db: Snapshot, namespace: str, job_id: str) -> list[Allocation]:
    """Return the allocations of a job, newest first."""
    return [_from(row) for row in db.all(_OF_JOB, {"namespace": namespace, "job_id": job_id})]


def highest_index(db: Snapshot, namespace: str, job_id: str) -> int:
    """Return the index of the last change of any allocation of a job, 0 when there is none."""
    row = db.one(_HIGHEST, {"namespace": namespace, "job_id": job_id})
    return int(row["highest"]) if row else 0


def considered(db: Snapshot, namespace: str, job_id: str) -> list[Allocation]:
    """Return the allocations of a job that are wanted, have not ended yet or keep their place.

    The oldest comes first.
    """
    return [_from(row) for row in db.all(_CONSIDERED, {"namespace": namespace, "job_id": job_id})]


def numbers(db: Snapshot, namespace: str, job_id: str) -> dict[str, int]:
    """Return how many allocations each group of a job has, whatever became of them."""
    rows = db.all(_NUMBERS, {"namespace": namespace, "job_id": job_id})
    return {row["task_group"]: row["number"] for row in rows}


def of_evaluation(db: Snapshot, eval_id: str) -> list[Allocation]:
    """Return the allocations that an evaluation placed."""
    return [_from(row) for row in db.all(_OF_EVALUATION, {"id": eval_id})]


def of_deployment(db: Snapshot, deployment_id: str) -> list[Allocation]:
    """Return the allocations that belong to a deployment."""
    return [_from(row) for row in db.all(_OF_DEPLOYMENT, {"id": deployment_id})]


def on_node(db: Snapshot, node_id: str, wish: Wish) -> Iterator[Allocation]:
    """Yield the allocations of a node from any of them on, newest first where that is wished."""
    where, values = ["node_id = :node_id", *wish.conditions], {**wish.values, "node_id": node_id}
    if wish.start is not None:
        sign = "<" if wish.reverse else ">"
        where.append(
            f"create_index {sign}= :first AND (create_index {sign} :first OR id >= :second)"
        )
        values["first"], values["second"] = wish.start
    way = " DESC" if wish.reverse else ""
    order = f"create_index{way}, id"
    rows = db.each(f"{_IN_ORDER} WHERE {' AND '.join(where)} ORDER BY {order}", values)
    return map(_from, rows)


def highest_on_node(db: Snapshot, node_id: str) -> int:
    """Return the index of the last change of any allocation of a node, 0 when there is none."""
    row = db.one(_HIGHEST_ON_NODE, {"id": node_id})
    return int(row["highest"] or 0) if row else 0


def to_run(db: Snapshot, node_id: str) -> list[Allocation]:
    """Return the allocations whose tasks have not ended on this node, oldest first."""
    return [_from(row) for row in db.all(_TO_RUN, {"node_id": node_id})]


def newest_running(db: Snapshot, node_id: str, most: int) -> list[Allocation]:
    """Return allocations whose tasks have not ended on this node, newest first."""
    return [_from(row) for row in db.all(_NEWEST_RUNNING, {"node_id": node_id, "most": most})]


def changed(db: Snapshot, node_id: str, after: int) -> list[str]:
    """Return the ids of allocations whose desired half changed after an index."""
    return [row["id"] for row in db.all(_CHANGED, {"node_id": node_id, "after": after})]


def known(db: Snapshot, ids: Iterable[str]) -> set[str]:
    """Return those of the allocations that there are."""
    return {row["id"] for row in db.all(_KNOWN, {"ids": encode(list(ids)).decode()})}


def ended(db: Snapshot, ids: Iterable[str]) -> list[str]:
    """Return which of these allocations have ended, the one that ended first before all others."""
    text = msgspec.json.encode(list(ids)).decode()
    return [row["id"] for row in db.all(_ENDED, {"ids": text})]


def owners(db: Snapshot, ids: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return namespace and id of the job of each of these allocations, as far as they are known."""
    text = msgspec.json.encode(list(ids)).decode()
    return {row["id"]: (row["namespace"], row["job_id"]) for row in db.all(_OWNERS, {"ids": text})}


def page(db: Snapshot, wish: Wish) -> Iterator[Allocation]:
    """Yield allocations in the order of their making."""
    return map(_from, by_creation(db, _PAGE, wish))


# ---- writing ------------------------------------------------------------------------------------

_ADD = """
    INSERT INTO allocations (id, namespace, job_id, job_version, job_type, task_group, name,
                             node_id, eval_id, deployment_id, desired_status, client_status,
                             cpu, memory, disk, exclusive, placement, desired, client, health,
                             create_index, modify_index, alloc_modify_index,
                             create_time, modify_time, request_id)
    VALUES (:id, :namespace, :job_id, :job_version, :job_type, :task_group, :name,
            :node_id, :eval_id, :deployment_id, :desired_status, :client_status,
            :cpu, :memory, :disk, :exclusive, :placement, :desired, :client, :health,
            :index, :index, :index, :now, :now, :request_id)
"""
_ADD_PORT = """
    INSERT INTO allocation_ports (node_id, port, allocation_id)
    VALUES (:node_id, :port, :allocation_id)
"""


def add(tx: Transaction, allocation: Allocation, now: int) -> None:
    """Store a new allocation; it holds its resources and ports from now on."""
    resources = allocation.placement.resources
    tx.execute(
        _ADD,
        {
            "id": allocation.id,
            "namespace": allocation.namespace,
            "job_id": allocation.job_id,
            "job_version": allocation.job_version,
            "job_type": allocation.job_type,
            "task_group": allocation.task_group,
            "name": allocation.name,
            "node_id": allocation.node_id,
            "eval_id": allocation.eval_id,
            "deployment_id": allocation.deployment_id,
            "desired_status": allocation.desired_status,
            "client_status": allocation.client_status,
            "cpu": resources.cpu,
            "memory": resources.memory,
            "disk": resources.shared.disk_mb,
            "exclusive": _exclusive(resources),
            "placement": encode(allocation.placement).decode(),
            "desired": encode(allocation.desired).decode(),
            "client": encode(allocation.client).decode(),
            "health": encode(allocation.health).decode() if allocation.health else None,
            "index": tx.index,
            "now": now,
            "request_id": tx.request_id,
        },
    )
    for port in resources.ports:
        held = {"node_id": allocation.node_id, "port": port, "allocation_id": allocation.id}
        tx.execute(_ADD_PORT, held)
    tx.touch("allocations", node_topic(allocation.node_id))
    _changed(tx, allocation, "AllocationCreated")


def _exclusive(resources: AllocatedResources) -> str | None:
    cores, devices = resources.cores, resources.device_ids
    return encode((sorted(cores), sorted(devices))).decode() if cores or devices else None


_SET_DESIRED = """
    UPDATE allocations
       SET desired_status = :status, desired = :desired, deployment_id = :deployment_id,
           eval_id = :eval_id, job_version = :job_version, health = :health,
           request_id = :request_id,
           modify_index = :index, alloc_modify_index = :index, modify_time = :now
     WHERE id = :id
"""


def set_desired(tx: Transaction, allocation: Allocation, now: int) -> None:
    """Store the scheduler's half of an allocation: what is wanted, and for which version."""
    health = allocation.health
    tx.execute(
        _SET_DESIRED,
        {
            "id": allocation.id,
            "status": allocation.desired_status,
            "desired": encode(allocation.desired).decode(),
            "deployment_id": allocation.deployment_id,
            "eval_id": allocation.eval_id,
            "job_version": allocation.job_version,
            "health": encode(health).decode() if health else None,
            "index": tx.index,
            "now": now,
            "request_id": tx.request_id,
        },
    )
    tx.touch("allocations", node_topic(allocation.node_id))
    _changed(tx, allocation, "AllocationUpdateDesiredStatus")


_SET_CLIENT = """
    UPDATE allocations
       SET client_status = :status, client = :client, health = :health,
           modify_index = :index, modify_time = :now
     WHERE id = :id
"""
_FREE_PORTS = "DELETE FROM allocation_ports WHERE allocation_id = :id"


def set_client(tx: Transaction, allocation: Allocation, now: int) -> None:
    """Store the runner's half of an allocation: what its tasks do, and its health."""
    health = allocation.health
    if health is not None:
        health = msgspec.structs.replace(health, modify_index=tx.index)
    tx.execute(
        _SET_CLIENT,
        {
            "id": allocation.id,
            "status": allocation.client_status,
            "client": encode(allocation.client).decode(),
            "health": encode(health).decode() if health else None,
            "index": tx.index,
            "now": now,
        },
    )
    if allocation.client_status in CLIENT_TERMINAL:
        tx.execute(_FREE_PORTS, {"id": allocation.id})
        tx.touch(evaluations.ROOM, evaluations.ROOM)
        services.sync(tx, allocation.id, ())
    tx.touch("allocations")
    _changed(tx, allocation, "AllocationUpdated")


def _changed(tx: Transaction, allocation: Allocation, kind: str) -> None:
    tx.touch(
        "allocations",
        f"allocations/{allocation.id}",
        job_topic(allocation.namespace, allocation.job_id),
    )
    change = AllocationChange(
        desired_status=allocation.desired_status,
        desired=allocation.desired,
        client_status=allocation.client_status,
        client=allocation.client,
        health=allocation.health,
    )
    events.add(
        tx,
        "Allocation",
        kind,
        namespace=allocation.namespace,
        key=allocation.id,
        filter_keys=tuple(filter(None, (allocation.job_id, allocation.deployment_id))),
        payload=encode(change).decode(),
    )


# ---- what happened to tasks ----------------------------------------------------------------------

SHOWN_EVENTS = 10  # per task, as the peer keeps
KEPT_EVENTS = 10_000  # in the file: a task that is restarted every minute takes days to get there

_ADD_EVENTS = """
    INSERT INTO task_events (allocation_id, task, number, document)
    SELECT :id, :task,
           key + (SELECT coalesce(max(number) + 1, 0) FROM task_events
                   WHERE allocation_id = :id AND task = :task),
           value
      FROM json_each(:documents)
"""
_TRIM_EVENTS = """
    DELETE FROM task_events
     WHERE allocation_id = :id AND task = :task
       AND number <= (SELECT max(number) FROM task_events
                       WHERE allocation_id = :id AND task = :task) - :kept
"""
_EVENTS = """
    SELECT document FROM task_events
     WHERE allocation_id = :id AND task = :task
  ORDER BY number DESC
     LIMIT :most
"""


def add_events(
    tx: Transaction, allocation_id: str, events_by_task: Mapping[str, Iterable[TaskEvent]]
) -> None:
    """Append what happened to an allocation's tasks."""
    for task, happened in events_by_task.items():
        documents = [StoredTaskEvent(**msgspec.structs.asdict(event)) for event in happened]
        tx.execute(
            _ADD_EVENTS,
            {"id": allocation_id, "task": task, "documents": encode(documents).decode()},
        )
        tx.execute(_TRIM_EVENTS, {"id": allocation_id, "task": task, "kept": KEPT_EVENTS})


def newest_events(
    db: Snapshot, allocation_id: str, task: str, most: int = SHOWN_EVENTS
) -> list[TaskEvent]:
    """Return the newest events of a task, oldest of them first."""
    rows = db.all(_EVENTS, {"id": allocation_id, "task": task, "most": most})
    return [msgspec.json.decode(row["document"], type=TaskEvent) for row in reversed(rows)]


def task_states(db: Snapshot, allocation: Allocation) -> views.TaskStates:
    """Return the states of an allocation's tasks, each with its newest events."""
    events = {
        task: newest_events(db, allocation.id, task) for task in allocation.client.task_states or ()
    }
    return views.with_events(allocation, events)


# ---- how to find started tasks again ---------------------------------------------------------------

_SET_HANDLE = """
    INSERT INTO task_handles (allocation_id, task, handle) VALUES (:id, :task, :handle)
    ON CONFLICT (allocation_id, task) DO UPDATE SET handle = excluded.handle
"""
_HANDLES = "SELECT task, handle FROM task_handles WHERE allocation_id = :id"


def set_handle(tx: Transaction, allocation_id: str, task: str, handle: bytes) -> None:
    """Keep what the driver needs to find a task that it has started."""
    tx.execute(_SET_HANDLE, {"id": allocation_id, "task": task, "handle": handle})


def handles(db: Snapshot, allocation_id: str) -> dict[str, bytes]:
    """Return the handles of an allocation's started tasks, by task."""
    return {row["task"]: row["handle"] for row in db.all(_HANDLES, {"id": allocation_id})}
