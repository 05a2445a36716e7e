"""Registered services: list, look up, choose by key, delete."""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from daemon.api.paging import Key, Listing, paginate, query_factory, show
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed, Refused
from storage.queries import services
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.numbers import parse_integer
from storage.records.service import Registration, ServiceListItem
from storage.writer import Transaction

_Name = tuple[str, str]  # namespace and name of a service


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the services by namespace and name; `per_page` counts services, across namespaces."""
    expression = request.query.text("filter")
    matches = compile_filter(expression, ServiceListItem) if expression else None
    part = request.query.text("contains").casefold()
    to_page_request = query_factory(request, None, {})

    def rows(db: ReadSnapshot, start: Key | None, reverse: bool) -> Iterator[_Name]:
        first = str(start[0]) if start else None
        begin = ("", first) if first is not None else None
        for namespace in services.namespaces(db, to_page_request(begin, reverse)):
            if not request.sees(namespace):
                continue
            start_name = str(start[1]) if start and namespace == first else None
            for name in services.names(db, namespace, start_name, reverse=reverse):
                yield namespace, name

    def wanted(db: ReadSnapshot, name: _Name) -> bool:
        if part not in name[1].casefold():
            return False
        return matches is None or any(
            matches(msgspec.to_builtins(ServiceListItem(service_name=name[1], tags=tags)))
            for tags in services.tags(db, *name)
        )

    listing = Listing[_Name](
        rows=rows,
        key=lambda service: service,
        line=lambda db, service: encode(_line(service[1], services.tags(db, *service))),
        wanted=wanted,
        is_number=False,
        group=lambda service: b'{"Namespace":%b,"Services":[' % encode(service[0]),
    )
    return show(listing, request.query, db, max(db.table_index("services"), 1))


def _line(name: str, tag_lists: Iterable[Sequence[str]]) -> ServiceListItem:
    return ServiceListItem(
        service_name=name, tags=[*dict.fromkeys(tag for tags in tag_lists for tag in tags)]
    )


def named(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the instances of a service, or the instances chosen for a key."""
    query = request.query
    registrations = services.named(db, request.namespace, request["name"])
    if expression := query.text("filter"):
        matches = compile_filter(expression, Registration)
        registrations = [
            service for service in registrations if matches(msgspec.to_builtins(service))
        ]
    if choice := query.text("choose"):
        registrations = _chosen(registrations, choice)
    page = paginate(registrations, lambda service: ("", service.id), encode, query)
    return reply.read_reply(
        page.body, max(db.table_index("services"), 1), next_token=page.next_token
    )


def _chosen(registrations: list[Registration], choice: str) -> list[Registration]:
    """Return the registrations that `choice`, `NUMBER|KEY`, selects. Raises `Malformed`.

    The same key selects the same instances as long as these exist.
    """
    number, bar, key = choice.partition("|")
    if not bar or "|" in key:
        raise Malformed(
            "failed to choose services: Parameter for choose must be in form '<number>|<key>'"
        )
    if not number.isdecimal():
        raise Malformed(
            f'failed to choose services: strconv.Atoi: parsing "{number}": invalid syntax'
        )
    # Each instance has a score for the key, so a change of one instance does not affect others.
    return heapq.nsmallest(
        parse_integer(number),
        registrations,
        key=lambda registration: hashlib.sha256(f"{key}\0{registration.id}".encode()).digest(),
    )


async def remove(request: Request) -> HandlerReply:
    """Delete one instance of a service."""
    name, registration_id, namespace = request["name"], request["id"], request.namespace
    if not registration_id:
        raise Malformed("missing service id")

    def write(tx: Transaction) -> int:
        registration = services.find(tx, registration_id)
        if registration is None or (registration.namespace, registration.service_name) != (
            namespace,
            name,
        ):
            if "/" in f"{name}{registration_id}":
                raise Malformed("invalid URI")
            raise Refused("service registration not found")
        services.remove(tx, registration)
        return tx.index

    return HandlerReply(index=await request.parts.store.write(write))
