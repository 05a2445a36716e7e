"""Service registrations with their addresses."""

import sqlite3
from collections.abc import Iterable, Iterator

import msgspec

from storage.queries import events
from storage.queries.documents import decode_row, readable
from storage.queries.pages import PageRequest, by_name
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.service import Registration, ServiceAddress
from storage.writer import Transaction

_COLUMNS = """
    SELECT id, name, namespace, node_id, datacenter, job_id, allocation_id, tags, address, port,
           create_index, modify_index
      FROM services
"""
_OF_ALLOCATION = f"{_COLUMNS} WHERE allocation_id = :allocation_id ORDER BY id"
_OF_JOB = f"{_COLUMNS} INDEXED BY services_by_job WHERE namespace = :namespace AND job_id = :job_id"
_NAMED = f"{_COLUMNS} WHERE namespace = :namespace AND name = :name ORDER BY id"
_READY = f"{_COLUMNS} WHERE namespace = :namespace AND name = :name AND ready = 1 ORDER BY id"
_ALL = f"{_COLUMNS} INDEXED BY services_by_name ORDER BY namespace, name, id"
_IN_NAMESPACE = f"{_COLUMNS} WHERE namespace = :namespace ORDER BY name, id"
# One index search per name, because a service may have thousands of instances.
_NAME = "SELECT name FROM services INDEXED BY services_by_name WHERE namespace = :namespace"
_NEXT_NAME, _NAME_BEFORE = (
    f"{_NAME} AND name > :name ORDER BY name LIMIT 1",
    f"{_NAME} AND name < :name ORDER BY name DESC LIMIT 1",
)
_FIRST_NAME, _LAST_NAME = (
    f"{_NAME} AND name >= :name ORDER BY name LIMIT 1",
    f"{_NAME} AND name <= :name ORDER BY name DESC LIMIT 1",
)
_BEYOND = chr(0x10FFFF)  # sorts after all names
_TAGS = """
    SELECT min(id) AS id, tags
      FROM services INDEXED BY services_by_name
     WHERE namespace = :namespace AND name = :name
  GROUP BY tags
  ORDER BY min(id)
"""
_NAMESPACES = "SELECT name FROM namespaces"
_HAS_ANY = "EXISTS (SELECT 1 FROM services s WHERE s.namespace = namespaces.name)"
_FIND = f"{_COLUMNS} WHERE id = :id"
_PUT = """
    INSERT INTO services (id, name, namespace, node_id, datacenter, job_id, allocation_id, tags,
                          address, port, create_index, modify_index, ready)
    VALUES (:id, :name, :namespace, :node_id, :datacenter, :job_id, :allocation_id, :tags,
            :address, :port, :create_index, :index, 0)
    ON CONFLICT (id) DO UPDATE
       SET tags = excluded.tags, address = excluded.address, port = excluded.port,
           modify_index = excluded.modify_index
"""
_SET_READY = "UPDATE services SET ready = :ready WHERE id = :id AND ready <> :ready"
_REMOVE = "DELETE FROM services WHERE id = :id"
_REMOVE_OTHERS = """
    DELETE FROM services
     WHERE allocation_id = :allocation_id AND id NOT IN (SELECT value FROM json_each(:kept))
"""


def job_topic(namespace: str, job_id: str) -> str:
    """Return the topic of a job's services."""
    return f"services/{namespace}/{job_id}"


def name_topic(namespace: str, name: str) -> str:
    """Return the topic of a service's instances."""
    return f"service/{namespace}/{name}"


def of_allocation(db: ReadSnapshot, allocation_id: str) -> list[Registration]:
    """Return the registrations of an allocation."""
    return list(readable(db, db.all(_OF_ALLOCATION, {"allocation_id": allocation_id}), _from))


def of_job(
    db: ReadSnapshot,
    namespace: str,
    job_id: str,
    start: str | None = None,
    *,
    reverse: bool = False,
) -> Iterator[Registration]:
    """Yield the registrations of a job, sorted by ID, beginning at the ID `start`."""
    values = {"namespace": namespace, "job_id": job_id, "start": start}
    since = "" if start is None else f" AND id {'<=' if reverse else '>='} :start"
    rows = db.each(f"{_OF_JOB}{since} ORDER BY id{' DESC' if reverse else ''}", values)
    return readable(db, rows, _from)


def named(db: ReadSnapshot, namespace: str, name: str) -> list[Registration]:
    """Return the instances of a service."""
    return list(readable(db, db.all(_NAMED, {"namespace": namespace, "name": name}), _from))


def ready(db: ReadSnapshot, namespace: str, name: str) -> list[Registration]:
    """Return the instances of a service whose checks pass."""
    return list(readable(db, db.all(_READY, {"namespace": namespace, "name": name}), _from))


def list_all(db: ReadSnapshot, namespace: str) -> list[Registration]:
    """Return the registrations of a namespace (`*` means all), sorted by namespace and name."""
    if namespace == "*":
        return list(readable(db, db.all(_ALL), _from))
    return list(readable(db, db.all(_IN_NAMESPACE, {"namespace": namespace}), _from))


def namespaces(db: ReadSnapshot, page_request: PageRequest) -> Iterator[str]:
    """Yield the sorted names of the namespaces that have registered services."""
    conditions, values = [_HAS_ANY], dict[str, object]()
    if page_request.namespace != "*":
        conditions.append("name = :namespace")
        values["namespace"] = page_request.namespace
    parameters = msgspec.structs.replace(
        page_request, prefix="", conditions=tuple(conditions), values=values
    )
    for row in by_name(db, _NAMESPACES, "name", parameters):
        yield row["name"]


def names(
    db: ReadSnapshot, namespace: str, start: str | None, *, reverse: bool = False
) -> Iterator[str]:
    """Yield the sorted names of a namespace's services, beginning at `start`."""
    first, following = (_LAST_NAME, _NAME_BEFORE) if reverse else (_FIRST_NAME, _NEXT_NAME)
    if start is None:
        start = _BEYOND if reverse else ""
    row = db.one(first, {"namespace": namespace, "name": start})
    while row is not None:
        yield row["name"]
        row = db.one(following, {"namespace": namespace, "name": row["name"]})


def tags(db: ReadSnapshot, namespace: str, name: str) -> list[list[str]]:
    """Return each distinct tag list of a service's instances, in the order of the instance IDs."""
    rows = db.all(_TAGS, {"namespace": namespace, "name": name})
    return list(readable(db, rows, _tags))


def _tags(row: sqlite3.Row) -> list[str]:
    return decode_row(row, list[str], "services", "tags")


def find(db: ReadSnapshot, registration_id: str) -> Registration | None:
    """Return a registration, or None."""
    row = db.one(_FIND, {"id": registration_id})
    return _from(row) if row else None


def replace_registrations(
    tx: Transaction, allocation_id: str, service_addresses: Iterable[ServiceAddress]
) -> None:
    """Replace the registrations of an allocation.

    A new registration is not ready until its checks have passed.
    """
    stored = tx.all(_OF_ALLOCATION, {"allocation_id": allocation_id})
    before, kept_ids = (
        {
            stored_registration.id: stored_registration
            for stored_registration in readable(tx, stored, _from)
        },
        list[str](),
    )
    for offer in service_addresses:
        registration = offer.registration
        kept_ids.append(registration.id)
        earlier = before.pop(registration.id, None)
        if earlier is None or (earlier.tags, earlier.address, earlier.port) != (
            registration.tags,
            registration.address,
            registration.port,
        ):
            _put(
                tx,
                msgspec.structs.replace(
                    registration, create_index=earlier.create_index if earlier else tx.index
                ),
            )
        if offer.ready is not None and tx.execute(
            _SET_READY, {"id": registration.id, "ready": offer.ready}
        ):
            _touch_topics(tx, registration)
    for removed in before.values():
        remove(tx, removed)
    if stored:  # an unreadable registration is not in `before`
        kept = encode(kept_ids).decode()
        tx.execute(_REMOVE_OTHERS, {"allocation_id": allocation_id, "kept": kept})


def _put(tx: Transaction, registration: Registration) -> None:
    tx.execute(
        _PUT,
        {
            "id": registration.id,
            "name": registration.service_name,
            "namespace": registration.namespace,
            "node_id": registration.node_id,
            "datacenter": registration.datacenter,
            "job_id": registration.job_id,
            "allocation_id": registration.alloc_id,
            "tags": encode(registration.tags).decode(),
            "address": registration.address,
            "port": registration.port,
            "create_index": registration.create_index,
            "index": tx.index,
        },
    )
    _changed(
        tx, msgspec.structs.replace(registration, modify_index=tx.index), "ServiceRegistration"
    )


def remove(tx: Transaction, registration: Registration) -> None:
    """Delete a registration."""
    tx.execute(_REMOVE, {"id": registration.id})
    _changed(tx, registration, "ServiceDeregistration")


def _changed(tx: Transaction, registration: Registration, kind: str) -> None:
    _touch_topics(tx, registration)
    events.add(
        tx,
        "Service",
        kind,
        namespace=registration.namespace,
        key=registration.id,
        filter_keys=(registration.job_id, registration.service_name),
        payload=f'{{"Service":{encode(registration).decode()}}}',
    )


def _touch_topics(tx: Transaction, registration: Registration) -> None:
    tx.touch(
        "services",
        job_topic(registration.namespace, registration.job_id),
        name_topic(registration.namespace, registration.service_name),
    )


def _from(row: sqlite3.Row) -> Registration:
    return Registration(
        id=row["id"],
        service_name=row["name"],
        namespace=row["namespace"],
        node_id=row["node_id"],
        datacenter=row["datacenter"],
        job_id=row["job_id"],
        alloc_id=row["allocation_id"],
        tags=decode_row(row, list[str], "services", "tags"),
        address=row["address"],
        port=row["port"],
        create_index=row["create_index"],
        modify_index=row["modify_index"],
    )
