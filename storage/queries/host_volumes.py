"""Host volumes created through the API.

The table `settings` holds the document of each volume. The table `host_volumes` holds the values
for lookups.
"""

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from storage.queries import allocations, events, jobs, settings
from storage.queries.documents import decode_document, decode_row, field, readable
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.host_volume import DELETING, READY, Capability, DynamicVolume
from storage.writer import Transaction

TABLE = "host_volumes"
_PREFIX = "host-volume/"

_COUNT = "SELECT count(*) AS number FROM host_volumes"
_NAMED = "SELECT id FROM host_volumes WHERE name = :name"
_NAMES = "SELECT id, namespace, name FROM host_volumes ORDER BY id"
_PATHS = "SELECT host_path FROM host_volumes WHERE id <> :id"
_UNFINISHED = "SELECT id FROM host_volumes WHERE state <> 'ready' ORDER BY id"
_PAGE = """
    SELECT s.name, s.value FROM host_volumes AS v JOIN settings AS s ON s.name = 'host-volume/' || v.id
"""
_ON_NODE = f"""
    SELECT v.id, v.namespace, v.name, v.host_path,
           {field("s.value", "RequestedCapabilities")} AS capabilities
      FROM host_volumes AS v JOIN settings AS s ON s.name = 'host-volume/' || v.id
     WHERE v.node_id = :node_id AND v.state = 'ready'
     ORDER BY v.name
"""
_PUT = """
    INSERT INTO host_volumes (id, namespace, name, node_id, state, host_path)
    VALUES (:id, :namespace, :name, :node_id, :state, :host_path)
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, host_path = excluded.host_path
"""
_REMOVE = "DELETE FROM host_volumes WHERE id = :id"

_COLUMNS = ("id", "namespace", "name", "node_id", "state", "host_path")


class VolumeName(NamedTuple):
    """A volume in search results."""

    id: str
    namespace: str
    name: str


def page(db: ReadSnapshot, page_request: PageRequest) -> Iterator[DynamicVolume]:
    """Yield volumes by namespace and ID."""
    conditions, values = list[str](), dict[str, object]()
    if page_request.namespace != "*":
        conditions.append("v.namespace = :namespace")
        values["namespace"] = page_request.namespace
    if page_request.start is not None:
        sign = "<=" if page_request.reverse else ">="
        conditions.append(f"(v.namespace, v.id) {sign} (:first, :second)")
        values["first"], values["second"] = page_request.start
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    direction = " DESC" if page_request.reverse else ""
    rows = db.each(f"{_PAGE}{where} ORDER BY v.namespace{direction}, v.id{direction}", values)
    return readable(db, rows, _volume_of)


def _volume_of(row: sqlite3.Row) -> DynamicVolume:
    return decode_row(row, DynamicVolume, "settings", "value")


def names(db: ReadSnapshot) -> Iterator[VolumeName]:
    """Yield all volumes by ID, without their documents."""
    return (VolumeName(*row) for row in db.each(_NAMES))


def count(db: ReadSnapshot) -> int:
    """Return the number of volumes in any state."""
    row = db.one(_COUNT)
    return int(row["number"]) if row else 0


def paths(db: ReadSnapshot, except_id: str) -> list[str]:
    """Return the directories of all volumes except the one with this ID."""
    return [str(row["host_path"]) for row in db.each(_PATHS, {"id": except_id})]


def unfinished(db: ReadSnapshot) -> list[str]:
    """Return the IDs of volumes whose directory is being created or deleted."""
    return [str(row["id"]) for row in db.each(_UNFINISHED)]


def find(db: ReadSnapshot, volume_id: str) -> DynamicVolume | None:
    """Return a volume, or None."""
    name = f"{_PREFIX}{volume_id}"
    text = settings.find(db, name)
    return decode_document(text.encode(), DynamicVolume, "settings", name) if text else None


def named(db: ReadSnapshot, name: str) -> DynamicVolume | None:
    """Return a volume by name, or None."""
    row = db.one(_NAMED, {"name": name})
    return find(db, row["id"]) if row else None


def on_node(db: ReadSnapshot, node_id: str) -> dict[str, dict[str, object]]:
    """Return the usable volumes of a node as node attributes, by name."""
    return {row["name"]: _offered(row) for row in db.each(_ON_NODE, {"node_id": node_id})}


def _offered(row: sqlite3.Row) -> dict[str, object]:
    capabilities = (row["capabilities"] or "[]").encode()
    name = f"{_PREFIX}{row['id']}"
    return DynamicVolume(
        id=row["id"],
        namespace=row["namespace"],
        name=row["name"],
        host_path=row["host_path"],
        requested_capabilities=decode_document(capabilities, list[Capability], "settings", name),
    ).on_node()


def users(db: ReadSnapshot, volume: DynamicVolume) -> list[str]:
    """Return the IDs of non-terminal allocations that may mount a volume."""
    alloc_ids = []
    for alloc in allocations.to_run(db, volume.node_id):
        if alloc.namespace != volume.namespace:
            continue
        job = jobs.version(db, alloc.namespace, alloc.job_id, alloc.job_version)
        for group in (job and job.task_groups) or ():
            sources = {
                f"{volume.source}[{alloc.index}]" if volume.per_alloc else volume.source
                for volume in (group.volumes or {}).values()
                if volume.type == "host"
            }
            if group.name == alloc.task_group and volume.name in sources:
                alloc_ids.append(alloc.id)
    return alloc_ids


# --- changes ---


def put(tx: Transaction, volume: DynamicVolume) -> DynamicVolume:
    """Store a volume; return it with its indexes. An event is added only for a usable volume."""
    stored = msgspec.structs.replace(
        volume, create_index=volume.create_index or tx.index, modify_index=tx.index
    )
    settings.put(tx, f"{_PREFIX}{volume.id}", encode(stored).decode())
    row = {name: getattr(stored, name) for name in _COLUMNS}
    tx.execute(_PUT, row)
    tx.touch(TABLE, f"{TABLE}/{volume.id}")
    if stored.state == READY:
        _add_event(tx, stored, "HostVolumeRegistered")
    return stored


def retire(tx: Transaction, volume: DynamicVolume) -> None:
    """Record that the directory of a usable volume is being deleted."""
    _add_event(tx, put(tx, msgspec.structs.replace(volume, state=DELETING)), "HostVolumeDeleted")


def remove(tx: Transaction, volume: DynamicVolume) -> None:
    """Delete a usable volume."""
    forget(tx, volume.id)
    _add_event(tx, volume, "HostVolumeDeleted")


def forget(tx: Transaction, volume_id: str) -> None:
    """Delete a volume that is not usable."""
    settings.remove(tx, f"{_PREFIX}{volume_id}")
    tx.execute(_REMOVE, {"id": volume_id})
    tx.touch(TABLE, f"{TABLE}/{volume_id}")


def _add_event(tx: Transaction, volume: DynamicVolume, kind: str) -> None:
    payload = f'{{"Volume":{encode(volume).decode()}}}'
    events.add(tx, "HostVolume", kind, key=volume.id, namespace=volume.namespace, payload=payload)
