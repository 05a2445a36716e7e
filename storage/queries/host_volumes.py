"""API-created host volumes; they are few, and stored as settings."""

import msgspec

from storage.queries import allocations, events, jobs, settings
from storage.queries.documents import decode_document
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.host_volume import DynamicVolume
from storage.writer import Transaction

TABLE = "host_volumes"
_PREFIX = "host-volume/"


def every(db: ReadSnapshot) -> list[DynamicVolume]:
    """Return all volumes, by ID."""
    return [_from(text) for text in settings.under(db, _PREFIX)]


def find(db: ReadSnapshot, volume_id: str) -> DynamicVolume | None:
    """Return a volume, or None."""
    text = settings.find(db, f"{_PREFIX}{volume_id}")
    return _from(text) if text else None


def _from(text: str) -> DynamicVolume:
    return decode_document(text.encode(), DynamicVolume, f"a setting below {_PREFIX!r}")


def named(db: ReadSnapshot, name: str) -> DynamicVolume | None:
    """Return a volume by name, or None."""
    return next((one for one in every(db) if one.name == name), None)


def on_node(db: ReadSnapshot, node_id: str) -> dict[str, dict[str, object]]:
    """Return the volumes of a node as node attributes, by name."""
    return {one.name: one.on_node() for one in every(db) if one.node_id == node_id}


def users(db: ReadSnapshot, volume: DynamicVolume) -> list[str]:
    """Return the IDs of non-terminal allocations that may mount a volume."""
    found = []
    for one in allocations.to_run(db, volume.node_id):
        if one.namespace != volume.namespace:
            continue
        job = jobs.version(db, one.namespace, one.job_id, one.job_version)
        for group in (job and job.task_groups) or ():
            sources = {
                f"{wanted.source}[{one.index}]" if wanted.per_alloc else wanted.source
                for wanted in (group.volumes or {}).values()
                if wanted.type == "host"
            }
            if group.name == one.task_group and volume.name in sources:
                found.append(one.id)
    return found


# --- changes ---


def put(tx: Transaction, volume: DynamicVolume) -> DynamicVolume:
    """Store a volume; return it with its indexes."""
    stored = msgspec.structs.replace(
        volume, create_index=volume.create_index or tx.index, modify_index=tx.index
    )
    settings.put(tx, f"{_PREFIX}{volume.id}", encode(stored).decode())
    _changed(tx, stored, "HostVolumeRegistered")
    return stored


def remove(tx: Transaction, volume: DynamicVolume) -> None:
    """Delete a volume."""
    settings.remove(tx, f"{_PREFIX}{volume.id}")
    _changed(tx, volume, "HostVolumeDeleted")


def _changed(tx: Transaction, volume: DynamicVolume, kind: str) -> None:
    tx.touch(TABLE, f"{TABLE}/{volume.id}")
    payload = f'{{"Volume":{encode(volume).decode()}}}'
    events.add(tx, "HostVolume", kind, key=volume.id, namespace=volume.namespace, payload=payload)
