"""Services that are registered: listed by name, looked up, chosen from, taken off by hand."""

import hashlib
import heapq
from itertools import groupby

import msgspec

from daemon.api.paging import paginate
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Malformed, Refused
from storage.queries import services
from storage.readers import Snapshot
from storage.records.codec import encode
from storage.records.numbers import whole
from storage.records.service import NamespaceServices, Registration, ServiceLine
from storage.writer import Transaction


def index(request: Request, db: Snapshot) -> Reply:
    """List the services by namespace and name."""
    found = [one for one in services.every(db, request.namespace) if request.sees(one.namespace)]
    if expression := request.query.text("filter"):
        matches = compile_filter(expression, ServiceLine)
        kept = {
            (one.namespace, one.service_name)
            for one in found
            if matches(msgspec.to_builtins(_line(one.service_name, [one])))
        }
        found = [one for one in found if (one.namespace, one.service_name) in kept]
    lists = [
        _of_namespace(name, list(of)) for name, of in groupby(found, lambda one: one.namespace)
    ]
    page = paginate(lists, lambda one: ("", one.namespace), encode, request.query)
    return reply.read(page.body, max(db.table_index("services"), 1), next_token=page.next_token)


def _of_namespace(namespace: str, found: list[Registration]) -> NamespaceServices:
    lines = [_line(name, list(of)) for name, of in groupby(found, lambda one: one.service_name)]
    return NamespaceServices(namespace=namespace, services=lines)


def _line(name: str, instances: list[Registration]) -> ServiceLine:
    tags = dict.fromkeys(tag for one in instances for tag in one.tags)
    return ServiceLine(service_name=name, tags=list(tags))


def named(request: Request, db: Snapshot) -> Reply:
    """List the instances of a service, or those that suit a key best."""
    query = request.query
    found = services.named(db, request.namespace, request["name"])
    if expression := query.text("filter"):
        matches = compile_filter(expression, Registration)
        found = [one for one in found if matches(msgspec.to_builtins(one))]
    if wish := query.text("choose"):
        found = _chosen(found, wish)
    page = paginate(found, lambda one: ("", one.id), encode, query)
    return reply.read(page.body, max(db.table_index("services"), 1), next_token=page.next_token)


def _chosen(found: list[Registration], wish: str) -> list[Registration]:
    """Return as many instances as wished: the same for a key as long as they exist."""
    number, bar, key = wish.partition("|")
    if not bar or "|" in key:
        raise Malformed(
            "failed to choose services: Parameter for choose must be in form '<number>|<key>'"
        )
    if not number.isdecimal():
        raise Malformed(
            f'failed to choose services: strconv.Atoi: parsing "{number}": invalid syntax'
        )
    # Each instance draws a number for the key; who comes or goes moves nobody else's.
    return heapq.nsmallest(
        whole(number), found, key=lambda one: hashlib.sha256(f"{key}\0{one.id}".encode()).digest()
    )


async def remove(request: Request) -> Reply:
    """Take one instance of a service off by hand."""
    name, registration_id, namespace = request["name"], request["id"], request.namespace

    def write(tx: Transaction) -> int:
        found = services.find(tx, registration_id)
        if found is None or (found.namespace, found.service_name) != (namespace, name):
            raise Refused("service registration not found")
        services.remove(tx, found)
        return tx.index

    return Reply(index=await request.parts.store.write(write))
