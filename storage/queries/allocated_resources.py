"""Resources of non-terminal allocations: totals per node, and per allocation."""

import sqlite3

import msgspec

from storage.queries.documents import decode_row
from storage.read_pool import ReadSnapshot
from storage.records.allocated_resources import ResourceHolder
from storage.records.allocation import DesiredStatus

_USED = "SELECT number, cpu, memory, disk FROM holdings WHERE node_id = :node_id"
_BY_STATUS = """
    SELECT client_status, count(*) AS number FROM allocations
     WHERE client_status >= 'pending' AND node_id = :node_id
  GROUP BY client_status
"""
_PORTS = "SELECT port FROM allocation_ports WHERE node_id = :node_id"
_ALL_PORTS = "SELECT allocation_id, port FROM allocation_ports"
_EXCLUSIVE = """
    SELECT id, exclusive FROM allocations
     WHERE client_status >= 'pending' AND exclusive IS NOT NULL
       AND node_id = :node_id
"""
_HOLDER = """
    SELECT a.id, a.namespace, a.job_id, a.job_type, a.task_group, a.node_id, a.desired_status,
           a.alloc_modify_index, a.cpu, a.memory, a.disk, a.exclusive,
           coalesce(CASE WHEN json_valid(v.document) THEN v.document ->> '$.Priority' END, 100) AS priority
      FROM allocations a {}
      JOIN job_versions v
        ON v.namespace = a.namespace AND v.job_id = a.job_id AND v.version = a.job_version
     WHERE {}
  ORDER BY a.create_index, a.id
"""
_HOLDERS = _HOLDER.format("INDEXED BY allocations_holding", "a.client_status >= 'pending'")
_OF_PORT = _HOLDER.format(
    "",
    """a.id IN (SELECT allocation_id FROM allocation_ports
                                  WHERE node_id = :node_id AND port = :port)""",
)


class AllocatedTotals(msgspec.Struct):
    """Allocated resources of a node: CPU (MHz), memory and disk (MB), and exclusive resources."""

    number: int = 0
    cpu: int = 0
    memory: int = 0
    disk: int = 0
    ports: set[int] = msgspec.field(default_factory=set)
    cores: set[int] = msgspec.field(default_factory=set)
    devices: set[str] = msgspec.field(default_factory=set)


def allocated_on(db: ReadSnapshot, node_id: str) -> AllocatedTotals:
    """Return the allocated resources of a node."""
    on = {"node_id": node_id}
    allocated_totals = AllocatedTotals(*(db.one(_USED, on) or ()))
    allocated_totals.ports.update(row["port"] for row in db.all(_PORTS, on))
    for row in db.all(_EXCLUSIVE, on):
        cores, devices = _exclusive(row)
        allocated_totals.cores.update(cores)
        allocated_totals.devices.update(devices)
    return allocated_totals


def sums(db: ReadSnapshot, node_id: str) -> AllocatedTotals:
    """Return the allocated CPU, memory and disk of a node, without ports, cores and devices."""
    return AllocatedTotals(*(db.one(_USED, {"node_id": node_id}) or ()))


def by_status(db: ReadSnapshot, node_id: str) -> dict[str, int]:
    """Return the number of non-terminal allocations of a node, by client status."""
    return {row["client_status"]: row["number"] for row in db.all(_BY_STATUS, {"node_id": node_id})}


def holders(db: ReadSnapshot) -> list[ResourceHolder]:
    """Return every non-terminal allocation with its resources, oldest first."""
    ports: dict[str, set[int]] = {}
    for row in db.all(_ALL_PORTS):
        ports.setdefault(row["allocation_id"], set()).add(row["port"])
    return [_holder(row, ports.get(row["id"], set())) for row in db.all(_HOLDERS)]


def of_port(db: ReadSnapshot, node_id: str, port: int) -> list[ResourceHolder]:
    """Return the allocations that hold a port of a node, oldest first."""
    rows = db.all(_OF_PORT, {"node_id": node_id, "port": port})
    return [_holder(row, {port}) for row in rows]


def _exclusive(row: sqlite3.Row) -> tuple[list[int], list[str]]:
    return decode_row(row, tuple[list[int], list[str]], "allocations", "exclusive")


def _holder(row: sqlite3.Row, ports: set[int]) -> ResourceHolder:
    cores, devices = _exclusive(row) if row["exclusive"] else ([], [])
    return ResourceHolder(
        id=row["id"],
        namespace=row["namespace"],
        job_id=row["job_id"],
        job_type=row["job_type"],
        task_group=row["task_group"],
        priority=row["priority"],
        node_id=row["node_id"],
        alloc_modify_index=row["alloc_modify_index"],
        ending=row["desired_status"] != DesiredStatus.RUN,
        cpu=row["cpu"],
        memory=row["memory"],
        disk=row["disk"],
        ports=frozenset(ports),
        cores=frozenset(cores),
        device_ids=frozenset(devices),
    )
