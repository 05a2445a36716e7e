"""Creation of many objects of every kind except jobs.

The objects are tokens, policies, roles, entities, groups, variables and services.
"""

from pathlib import Path

from daemon.config.data_directory import store_dir
from storage.queries import (
    audit,
    entities,
    groups,
    identity,
    mounts,
    namespaces,
    policies,
    services,
    tokens,
    variables,
)
from storage.queries.variables import VariableRow
from storage.records.acl import AclRole, Policy, PolicyLink, Token, TokenRole
from storage.records.audit import AuditEntry
from storage.records.identity import Alias, Entity, Group, GroupAlias, LoginRole, Mount
from storage.records.namespace import Namespace
from storage.records.service import Registration, ServiceAddress
from storage.store import open_store
from storage.writer import Transaction

MOUNT = "auth_many_00000001"
FEW = 20  # divisor for objects that users create by hand


async def fill_others(data_dir: Path, number: int) -> None:
    """Add the objects to a store without a daemon; services belong to its first allocation."""
    async with open_store(store_dir(data_dir), cluster_id="", now=0) as store:
        row = store.read(lambda db: db.one("SELECT id FROM allocations"))
        assert row is not None
        await store.write(lambda tx: add(tx, number, row["id"], 0))


def identifier(kind: str, number: int) -> str:
    """Return the identifier of an object; like real IDs, identifiers are spread evenly."""
    return f"{number * 2654435761 % 2**32:08x}-0000-4000-8000-{ord(kind):04x}{number:08x}"


def add(tx: Transaction, number: int, alloc_id: str, now: int) -> None:
    """Add this many objects of each kind; the services belong to one allocation."""
    add_without_services(tx, number, now)
    services.replace_registrations(
        tx, alloc_id, [ServiceAddress(_service(n, alloc_id), True) for n in range(number // FEW)]
    )


def add_without_services(tx: Transaction, number: int, now: int) -> None:
    """Add this many objects of each kind except services."""
    path, uuid = "many/", identifier("m", 1)
    mounts.put(tx, Mount(path=path, type="azure", accessor=MOUNT, uuid=uuid))
    for n in range(number):
        _add_login(tx, n, now)
        entry = AuditEntry(time=now, method="POST", path=f"/v1/job/{n}")
        audit.add(tx, entry)
        variables.put(
            tx,
            VariableRow(namespace="default", path=f"many/{n:08}", create_time=now, modify_time=now),
        )
    for n in range(number // FEW):
        _add_rights(tx, n, now)


def _add_login(tx: Transaction, n: int, now: int) -> None:
    """Add an entity with its alias at the mount, and a token that a login issued."""
    entity_id = identifier("e", n)
    times = {"created_at": now, "updated_at": now}
    entities.put(tx, Entity(id=entity_id, name=f"entity-{n}", **times))
    alias = Alias(
        id=identifier("a", n), entity_id=entity_id, mount=MOUNT, name=f"name-{n}", **times
    )
    entities.put_alias(tx, alias)
    token = Token(
        accessor=identifier("t", n),
        name=f"many-{n}",
        policies=("default",),
        path="auth/many/login",
        mount=MOUNT,
        entity_id=entity_id,
        created_at=now,
    )
    tokens.add(tx, token, f"{n:032}".encode())


def _add_rights(tx: Transaction, n: int, now: int) -> None:
    times = {"created_at": now, "updated_at": now}
    policies.put(tx, Policy(name=f"many-{n}", rules='path "secret/*" { capabilities = ["read"] }'))
    links = [PolicyLink(name=f"many-{n}")]
    policies.put_role(tx, AclRole(id=identifier("r", n), name=f"many-{n}", policies=links))
    tokens.put_role(tx, TokenRole(name=f"many-{n}"))
    identity.put_role(tx, MOUNT, f"many-{n}", LoginRole())
    namespaces.put(tx, Namespace(name=f"many-{n}"))
    group_id = identifier("g", n)
    groups.put(tx, Group(id=group_id, name=f"group-{n}", type="external", **times))
    alias = GroupAlias(
        id=identifier("b", n), group_id=group_id, mount=MOUNT, name=f"group-{n}", **times
    )
    groups.put_alias(tx, alias)
    groups.add_member(tx, group_id, identifier("e", n), is_group=False)


def _service(n: int, alloc_id: str) -> Registration:
    return Registration(
        id=f"_service-{n:08}",
        service_name=f"many-{n}",
        namespace="default",
        node_id="node",
        datacenter="dc1",
        job_id="old",
        alloc_id=alloc_id,
        tags=["many"],
        address="127.0.0.1",
        port=8080,
        create_index=0,
        modify_index=0,
    )
