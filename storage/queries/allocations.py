"""Allocations: placement, desired state, and client state."""

import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from storage.queries import evaluations, events, services
from storage.queries.documents import decode_repeated, decode_row, readable
from storage.queries.pages import PageRequest, by_creation
from storage.queries.pages import of_job as of_job_rows
from storage.read_pool import ReadSnapshot
from storage.records import allocation_views
from storage.records.allocation import (
    CLIENT_TERMINAL,
    AllocatedResources,
    Allocation,
    AllocationChange,
    ClientState,
    DeploymentHealth,
    DesiredState,
    Placement,
    StoredTaskEvent,
    TaskEvent,
)
from storage.records.codec import encode
from storage.records.flow import FlowRun
from storage.writer import Transaction


def job_topic(namespace: str, job_id: str) -> str:
    """Return the topic of changes to a job's allocations."""
    return f"job-allocations/{namespace}/{job_id}"


def node_topic(node_id: str) -> str:
    """Return the topic of the scheduler's changes to a node's allocations."""
    return f"node-allocations/{node_id}"


def removed_topic(node_id: str) -> str:
    """Return the topic of deleted allocations of a node."""
    return f"removed-allocations/{node_id}"


def _health(row: sqlite3.Row) -> DeploymentHealth:
    return decode_row(row, DeploymentHealth, "allocations", "health")


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
        placement=decode_repeated(row, Placement, "allocations", "placement"),
        desired=decode_repeated(row, DesiredState, "allocations", "desired"),
        client=decode_repeated(row, ClientState, "allocations", "client"),
        health=_health(row) if health else None,
        create_index=row["create_index"],
        modify_index=row["modify_index"],
        alloc_modify_index=row["alloc_modify_index"],
        create_time=row["create_time"],
        modify_time=row["modify_time"],
        request_id=row["request_id"],
    )


# --- queries ---

_FIND = "SELECT * FROM allocations WHERE id = :id"
_FIND_ALL = "SELECT * FROM allocations WHERE id IN (SELECT value FROM json_each(:ids))"
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


def has_more(db: ReadSnapshot, namespace: str, job_id: str, number: int) -> bool:
    """Return whether a job has more than `number` allocations, without counting all of them."""
    row = db.one(_ANY_BEYOND, {"namespace": namespace, "job_id": job_id, "most": number + 1})
    return row is not None and row["number"] > number


_CONSIDERED = """
    SELECT * FROM allocations INDEXED BY allocations_considered
     WHERE namespace = :namespace AND job_id = :job_id
       AND (desired_status = 'run'
            OR client_status >= 'pending'
            OR desired ->> '$.Transition.MigrateDisablePlacement')
  ORDER BY create_index, id
"""
# Ended allocations of an ended step, or of an older version, change no decision. The exception is a
# step whose elements other steps still need one by one.
_MATTERS_TO_RUN = """
    (client_status >= 'pending'
     OR job_version > :version
     OR job_version = :version
        AND task_group NOT IN
            (SELECT step FROM run_steps
              WHERE namespace = :namespace AND job_id = :job_id AND number = :number
                AND outcome IS NOT NULL
                AND step NOT IN (SELECT value FROM json_each(:kept))))
"""
_OF_RUN = f"""
    SELECT * FROM allocations INDEXED BY allocations_considered
     WHERE namespace = :namespace AND job_id = :job_id
       AND (desired_status = 'run'
            OR client_status >= 'pending'
            OR desired ->> '$.Transition.MigrateDisablePlacement')
       AND {_MATTERS_TO_RUN}
  ORDER BY create_index, id
"""
# The conditions compare with the text of `OVERTIME`, exactly as in the indexes.
IS_OVERTIME = """
    (client_status = 'complete'
     AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
         IS 'allocation exceeded max_run_duration')
"""
_SETTLES = """
    (job_type = 'batch' AND desired_status = 'run' AND client_status = 'complete'
     AND CASE WHEN json_valid(desired) THEN desired ->> '$.NextAllocation' END IS NULL
     AND CASE WHEN json_valid(client) THEN client ->> '$.Description' END
           IS NOT 'allocation exceeded max_run_duration')
"""
_UNSETTLED = f"""
    SELECT * FROM allocations INDEXED BY allocations_unsettled
     WHERE namespace = :namespace AND job_id = :job_id
       AND (desired_status = 'run'
            OR client_status >= 'pending'
            OR CASE WHEN json_valid(desired)
                    THEN desired ->> '$.Transition.MigrateDisablePlacement' END)
       AND NOT {_SETTLES}
  ORDER BY create_index, id
"""
_UNSETTLED_OF_RUN = f"""
    SELECT * FROM allocations INDEXED BY allocations_unsettled
     WHERE namespace = :namespace AND job_id = :job_id
       AND (desired_status = 'run'
            OR client_status >= 'pending'
            OR CASE WHEN json_valid(desired)
                    THEN desired ->> '$.Transition.MigrateDisablePlacement' END)
       AND NOT {_SETTLES}
       AND {_MATTERS_TO_RUN}
  ORDER BY create_index, id
"""
_SETTLED = f"""
    SELECT namespace, job_id, task_group, job_version,
           json_group_array(CAST(substr(name, length(job_id) + length(task_group) + 3) AS INTEGER))
           AS numbers
      FROM allocations INDEXED BY allocations_settled
     WHERE namespace = :namespace AND job_id = :job_id AND {_SETTLES}
  GROUP BY task_group, job_version
  ORDER BY task_group, job_version
"""
_NUMBERS = """
    SELECT :namespace AS namespace, :job_id AS job_id,
           json_group_object(task_group, number) AS numbers
      FROM (SELECT task_group, count(*) AS number FROM allocations INDEXED BY allocations_by_job
             WHERE namespace = :namespace AND job_id = :job_id
          GROUP BY task_group)
"""
# The index contains the names, so only the rows of the elements are read.
_OF_ELEMENTS = """
    SELECT * FROM allocations INDEXED BY allocations_of_job_in_order
     WHERE namespace = :namespace AND job_id = :job_id
       AND name IN (SELECT value FROM json_each(:names)) AND job_version = :version
  ORDER BY create_index, id
"""
_OF_EVALUATION = "SELECT * FROM allocations WHERE eval_id = :id ORDER BY create_index DESC, id"
# The second condition is that of the partial index; without it SQLite cannot use the index.
_OF_DEPLOYMENT = """
    SELECT * FROM allocations
     WHERE deployment_id = :id AND deployment_id <> ''
  ORDER BY create_index DESC, id
"""
_HIGHEST_ON_NODE = "SELECT max(modify_index) AS highest FROM allocations WHERE node_id = :id"
_IN_ORDER = "SELECT * FROM allocations INDEXED BY allocations_in_order"
_HOLDING = "SELECT * FROM allocations INDEXED BY allocations_holding"
_HOLDS = "client_status >= 'pending'"
_TO_RUN = """
    SELECT * FROM allocations
     WHERE node_id = :node_id AND client_status >= 'pending'
  ORDER BY create_index, id
"""
_UNFINISHED_IDS = """
    SELECT id, alloc_modify_index FROM allocations
     WHERE node_id = :node_id AND client_status >= 'pending'
  ORDER BY create_index, id
"""
_NEWEST_RUNNING = """
    SELECT * FROM allocations
     WHERE node_id = :node_id AND client_status >= 'pending'
  ORDER BY create_index DESC, id
     LIMIT :most
"""
_SOME_OF_GROUPS = """
    SELECT * FROM allocations INDEXED BY allocations_by_job
     WHERE namespace = :namespace AND job_id = :job_id
       AND task_group IN (SELECT value FROM json_each(:groups))
       AND create_index >= :since
     LIMIT :most
"""
_CHANGED = """
    SELECT id, alloc_modify_index FROM allocations
     WHERE node_id = :node_id AND alloc_modify_index > :after
  ORDER BY alloc_modify_index
"""
_KNOWN = "SELECT id FROM allocations WHERE id IN (SELECT value FROM json_each(:ids))"
_ENDED = """
    SELECT id FROM allocations
     WHERE id IN (SELECT value FROM json_each(:ids))
       AND client_status < 'pending'
  ORDER BY modify_time, id
"""
_OWNERS = """
    SELECT id, namespace, job_id FROM allocations WHERE id IN (SELECT value FROM json_each(:ids))
"""
_PAGE = "SELECT * FROM allocations"
# Columns that filters compare without decoding the document (storage/queries/pages.py).
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


def find(db: ReadSnapshot, allocation_id: str) -> Allocation | None:
    """Return an allocation, or None."""
    row = db.one(_FIND, {"id": allocation_id})
    return _from(row) if row else None


def find_all(db: ReadSnapshot, ids: Iterable[str]) -> dict[str, Allocation]:
    """Return the existing allocations with these IDs, by ID. Raises `StorageUnreadable`."""
    rows = db.all(_FIND_ALL, {"ids": encode(list(ids)).decode()})
    return {row["id"]: _from(row) for row in rows}


def of_job(db: ReadSnapshot, namespace: str, job_id: str) -> list[Allocation]:
    """Return the allocations of a job, newest first. Raises `StorageUnreadable`."""
    return [_from(row) for row in db.all(_OF_JOB, {"namespace": namespace, "job_id": job_id})]


def readable_of_job(db: ReadSnapshot, namespace: str, job_id: str) -> list[Allocation]:
    """Return the allocations of a job, newest first, without rows that cannot be decoded."""
    rows = db.all(_OF_JOB, {"namespace": namespace, "job_id": job_id})
    return list(readable(db, rows, _from))


def highest_index(db: ReadSnapshot, namespace: str, job_id: str) -> int:
    """Return the index of the last change to any allocation of a job; 0 if the job has none."""
    row = db.one(_HIGHEST, {"namespace": namespace, "job_id": job_id})
    return int(row["highest"]) if row else 0


def for_scheduler(db: ReadSnapshot, namespace: str, job_id: str) -> list[Allocation]:
    """Return the allocations that the scheduler considers, oldest first.

    These allocations are desired, have not ended, or still reserve their name.
    """
    return [_from(row) for row in db.all(_CONSIDERED, {"namespace": namespace, "job_id": job_id})]


def for_run(db: ReadSnapshot, run: FlowRun, kept_steps: Iterable[str] = ()) -> list[Allocation]:
    """Return the allocations that a decision about a run considers, oldest first.

    Ended allocations of ended steps are returned only for the steps in `kept_steps`.
    """
    return [_from(row) for row in db.all(_OF_RUN, _key_of_run(run, kept_steps))]


def unsettled_for_run(
    db: ReadSnapshot, run: FlowRun, kept_steps: Iterable[str] = ()
) -> list[Allocation]:
    """Return the allocations of `for_run` that are not settled (see `settled`)."""
    return [_from(row) for row in db.all(_UNSETTLED_OF_RUN, _key_of_run(run, kept_steps))]


def _key_of_run(run: FlowRun, kept_steps: Iterable[str]) -> dict[str, str | int]:
    key = {
        "namespace": run.namespace,
        "job_id": run.job_id,
        "kept": encode(list(kept_steps)).decode(),
    }
    return {**key, "number": run.number, "version": run.version}


def unsettled(db: ReadSnapshot, namespace: str, job_id: str) -> list[Allocation]:
    """Return the allocations of `for_scheduler` for a batch job that are not settled."""
    return [_from(row) for row in db.all(_UNSETTLED, {"namespace": namespace, "job_id": job_id})]


class SettledRange(msgspec.Struct, frozen=True):
    """Settled allocations of one group and job version whose names have consecutive indexes.

    `first` and `last` are the lowest and the highest index.
    """

    task_group: str
    job_version: int
    first: int
    last: int
    count: int  # more than the length of the range if some allocations have the same name


def settled(db: ReadSnapshot, namespace: str, job_id: str) -> list[SettledRange]:
    """Return the settled allocations of a batch job, in ranges of consecutive indexes of names.

    An allocation is settled if it is desired, has completed within its `max_run_duration`, and has
    not been replaced.
    """
    return [
        SettledRange(row["task_group"], row["job_version"], *span)
        for row in db.all(_SETTLED, {"namespace": namespace, "job_id": job_id})
        for span in _ranges(decode_row(row, list[int], "allocations", "numbers"))
    ]


def _ranges(numbers: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the first number, the last number and the count of each range of consecutive numbers.

    SQLite's window functions would take eight times as long to find the ranges.
    """
    numbers.sort()
    distinct, begin = sorted(set(numbers)), 0
    places = range(len(distinct))
    while begin < len(distinct):
        # Within a range, the difference between number and place is constant.
        distance = distinct[begin] - begin
        end = bisect_right(places, distance, lo=begin, key=lambda place: distinct[place] - place)
        first, last = distinct[begin], distinct[end - 1]
        yield first, last, bisect_right(numbers, last) - bisect_left(numbers, first)
        begin = end


def numbers(db: ReadSnapshot, namespace: str, job_id: str) -> dict[str, int]:
    """Return the number of allocations of each group of a job, in any state."""
    row = db.one(_NUMBERS, {"namespace": namespace, "job_id": job_id})
    return decode_row(row, dict[str, int], "allocations", "numbers") if row else {}


def of_elements(db: ReadSnapshot, run: FlowRun, names: Iterable[str]) -> list[Allocation]:
    """Return the readable allocations of a run that have one of these names, oldest first."""
    key = {"namespace": run.namespace, "job_id": run.job_id, "version": run.version}
    rows = db.all(_OF_ELEMENTS, {**key, "names": encode(list(names)).decode()})
    return list(readable(db, rows, _from))


def of_evaluation(db: ReadSnapshot, eval_id: str) -> list[Allocation]:
    """Return the readable allocations that an evaluation placed."""
    return list(readable(db, db.all(_OF_EVALUATION, {"id": eval_id}), _from))


def of_deployment(db: ReadSnapshot, deployment_id: str) -> list[Allocation]:
    """Return the allocations of a deployment."""
    return [_from(row) for row in db.all(_OF_DEPLOYMENT, {"id": deployment_id})]


def on_node(
    db: ReadSnapshot, node_id: str, page_request: PageRequest, *, holding: bool = False
) -> Iterator[Allocation]:
    """Yield the allocations of a node: oldest first, or newest first for a reverse page request.

    `holding` restricts the list to allocations that hold resources. An index finds these without
    reading ended allocations.
    """
    where, values = (
        ["node_id = :node_id", *([_HOLDS] if holding else []), *page_request.conditions],
        {**page_request.values, "node_id": node_id},
    )
    if page_request.start is not None:
        sign = "<" if page_request.reverse else ">"
        where.append(
            f"create_index {sign}= :first AND (create_index {sign} :first OR id >= :second)"
        )
        values["first"], values["second"] = page_request.start
    direction = " DESC" if page_request.reverse else ""
    sort_order = f"create_index{direction}, id"
    source = _HOLDING if holding else _IN_ORDER
    rows = db.each(f"{source} WHERE {' AND '.join(where)} ORDER BY {sort_order}", values)
    return readable(db, rows, _from)


def highest_on_node(db: ReadSnapshot, node_id: str) -> int:
    """Return the index of the last change to any allocation of a node; 0 if the node has none."""
    row = db.one(_HIGHEST_ON_NODE, {"id": node_id})
    return int(row["highest"] or 0) if row else 0


def to_run(db: ReadSnapshot, node_id: str) -> list[Allocation]:
    """Return the non-terminal allocations of a node, oldest first.

    Raises `StorageUnreadable`.
    """
    return [_from(row) for row in db.all(_TO_RUN, {"node_id": node_id})]


def readable_to_run(db: ReadSnapshot, node_id: str) -> list[Allocation]:
    """Return the allocations of `to_run`, without rows that cannot be decoded."""
    return list(readable(db, db.all(_TO_RUN, {"node_id": node_id}), _from))


def newest_running(db: ReadSnapshot, node_id: str, most: int) -> list[Allocation]:
    """Return up to `most` non-terminal allocations of a node, newest first."""
    rows = db.all(_NEWEST_RUNNING, {"node_id": node_id, "most": most})
    return list(readable(db, rows, _from))


def some_of_groups(
    db: ReadSnapshot, run: FlowRun, groups: Iterable[str], most: int
) -> list[Allocation]:
    """Return up to `most` readable allocations of these `groups` in a run, in any order."""
    values: dict[str, str | int] = {
        "namespace": run.namespace,
        "job_id": run.job_id,
        "since": run.create_index,
        "groups": encode(sorted(groups)).decode(),
        "most": most,
    }
    return list(readable(db, db.all(_SOME_OF_GROUPS, values), _from))


def readable_of_deployment(db: ReadSnapshot, deployment_id: str) -> list[Allocation]:
    """Return the readable allocations of a deployment."""
    return list(readable(db, db.all(_OF_DEPLOYMENT, {"id": deployment_id}), _from))


class DesiredChange(NamedTuple):
    """The ID of an allocation, and the index of the last change of its desired state."""

    id: str
    modify_index: int


def changed(db: ReadSnapshot, node_id: str, after: int) -> list[DesiredChange]:
    """Return the allocations of a node whose desired state changed after the index `after`.

    If `after` is negative, return all non-terminal allocations of the node.
    """
    select = _UNFINISHED_IDS if after < 0 else _CHANGED
    rows = db.all(select, {"node_id": node_id, "after": after})
    return [DesiredChange(row["id"], row["alloc_modify_index"]) for row in rows]


def existing_ids(db: ReadSnapshot, ids: Iterable[str]) -> set[str]:
    """Return the IDs in `ids` that belong to an allocation."""
    return {row["id"] for row in db.all(_KNOWN, {"ids": encode(list(ids)).decode()})}


def terminal(db: ReadSnapshot, ids: Iterable[str]) -> list[str]:
    """Return the IDs of the terminal allocations in `ids`, in the order of their last change."""
    text = msgspec.json.encode(list(ids)).decode()
    return [row["id"] for row in db.all(_ENDED, {"ids": text})]


def owning_jobs(db: ReadSnapshot, ids: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the namespace and job ID of each existing allocation in `ids`, by allocation ID."""
    text = msgspec.json.encode(list(ids)).decode()
    return {row["id"]: (row["namespace"], row["job_id"]) for row in db.all(_OWNERS, {"ids": text})}


def job_page(
    db: ReadSnapshot, namespace: str, job_id: str, page_request: PageRequest
) -> Iterator[Allocation]:
    """Yield the allocations of a job in creation order."""
    return readable(db, of_job_rows(db, _PAGE, page_request, namespace, job_id), _from)


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[Allocation]:
    """Yield allocations in creation order."""
    return readable(db, by_creation(db, _PAGE, page_request), _from)


# --- changes ---

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
    """Store a new allocation with its resources, and reserve its ports on the node."""
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
        values = {"node_id": allocation.node_id, "port": port, "allocation_id": allocation.id}
        tx.execute(_ADD_PORT, values)
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
    """Store the desired state and the job version of an allocation."""
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


def set_client(
    tx: Transaction, allocation: Allocation, now: int, *, is_first: bool = False
) -> None:
    """Store the client state of an allocation: task states and health.

    `is_first` means that the store has no earlier client state, and therefore no services.
    """
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
        if allocation.placement.resources.ports:
            tx.execute(_FREE_PORTS, {"id": allocation.id})
        tx.touch(evaluations.ROOM, evaluations.ROOM)
        if not is_first:
            services.replace_registrations(tx, allocation.id, ())
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


# --- task events ---

SHOWN_EVENTS = 10  # per task, as in Nomad
# Events per task in the store. A task that restarts every minute reaches this number after days.
KEPT_EVENTS = 10_000

_NEXT_EVENT = """
    SELECT coalesce(max(number) + 1, 0) AS number FROM task_events
     WHERE allocation_id = :id AND task = :task
"""
# The statement does not read the next number itself: SQLite would first copy all new rows to a
# table in memory.
_ADD_EVENTS = """
    INSERT INTO task_events (allocation_id, task, number, document)
    SELECT :id, :task, :first + key, value FROM json_each(:documents)
"""
_TRIM_EVENTS = """
    DELETE FROM task_events WHERE allocation_id = :id AND task = :task AND number < :kept
"""
_EVENTS = """
    SELECT allocation_id, task, number, document FROM task_events
     WHERE allocation_id = :id AND task = :task
  ORDER BY number DESC
     LIMIT :most
"""


def add_events(
    tx: Transaction,
    allocation_id: str,
    events_by_task: Mapping[str, Iterable[TaskEvent]],
    new_tasks: Container[str] = (),
) -> None:
    """Append events of an allocation's tasks. The store has no events of `new_tasks` yet."""
    for task, happened in events_by_task.items():
        documents = [StoredTaskEvent(**msgspec.structs.asdict(event)) for event in happened]
        first = 0
        if task not in new_tasks and (
            row := tx.one(_NEXT_EVENT, {"id": allocation_id, "task": task})
        ):
            first = int(row["number"])
        tx.execute(
            _ADD_EVENTS,
            {
                "id": allocation_id,
                "task": task,
                "first": first,
                "documents": encode(documents).decode(),
            },
        )
        kept = first + len(documents) - KEPT_EVENTS
        if kept > 0:
            tx.execute(_TRIM_EVENTS, {"id": allocation_id, "task": task, "kept": kept})


def _event(row: sqlite3.Row) -> TaskEvent:
    return decode_row(row, TaskEvent, "task_events")


def _stored_event(row: sqlite3.Row) -> StoredTaskEvent:
    return decode_row(row, StoredTaskEvent, "task_events")


def newest_events(
    db: ReadSnapshot, allocation_id: str, task: str, most: int = SHOWN_EVENTS
) -> list[TaskEvent]:
    """Return up to `most` events of a task: the newest ones, in chronological order."""
    rows = db.all(_EVENTS, {"id": allocation_id, "task": task, "most": most})
    return list(readable(db, reversed(rows), _event))


def newest_stored_events(
    db: ReadSnapshot, allocation_id: str, task: str, most: int = SHOWN_EVENTS
) -> list[StoredTaskEvent]:
    """Return the events of `newest_events`, with their internal fields."""
    rows = db.all(_EVENTS, {"id": allocation_id, "task": task, "most": most})
    return list(readable(db, reversed(rows), _stored_event))


def task_states(db: ReadSnapshot, allocation: Allocation) -> allocation_views.TaskStates:
    """Return the task states of an allocation, each with its newest events."""
    events = {
        task: newest_events(db, allocation.id, task) for task in allocation.client.task_states or ()
    }
    return allocation_views.with_events(allocation, events)


# --- driver handles ---

_SET_HANDLE = """
    INSERT INTO task_handles (allocation_id, task, handle) VALUES (:id, :task, :handle)
    ON CONFLICT (allocation_id, task) DO UPDATE SET handle = excluded.handle
"""
_HANDLES = "SELECT task, handle FROM task_handles WHERE allocation_id = :id"


def set_handle(tx: Transaction, allocation_id: str, task: str, handle: bytes) -> None:
    """Store the driver's handle of a started task."""
    tx.execute(_SET_HANDLE, {"id": allocation_id, "task": task, "handle": handle})


def handles(db: ReadSnapshot, allocation_id: str) -> dict[str, bytes]:
    """Return the handles of an allocation's started tasks, by task name."""
    return {row["task"]: row["handle"] for row in db.all(_HANDLES, {"id": allocation_id})}
