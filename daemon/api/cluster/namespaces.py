"""Namespaces: list, read, create, update, delete."""

import msgspec

from daemon.api.paging import Listing, query_factory, show
from daemon.jobs import namespaces as rules
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Denied, Malformed, NotFound
from storage.queries import namespaces
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.namespace import Namespace


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the namespaces in which the caller has any capability."""
    grant, expression = request.caller.grant, request.query.text("filter")
    matches = compile_filter(expression, Namespace) if expression else None
    to_page_request = query_factory(request, None, {})

    def wanted(_: ReadSnapshot, namespace: Namespace) -> bool:
        if not grant.knows(namespace.name):
            return False
        return matches is None or matches(msgspec.to_builtins(namespace))

    listing = Listing[Namespace](
        rows=lambda db, start, reverse: namespaces.page(db, to_page_request(start, reverse)),
        key=lambda namespace: ("", namespace.name),
        line=lambda _, namespace: encode(namespace),
        wanted=wanted,
        is_number=False,
    )
    return show(listing, request.query, db, db.table_index("namespaces"))


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a namespace."""
    if not request.caller.grant.knows(request["name"]):
        raise Denied
    namespace = namespaces.find(db, request["name"])
    if namespace is None:
        raise NotFound("Namespace not found", index=db.table_index("namespaces"))
    return reply.read_reply(namespace, namespace.modify_index)


async def create(request: Request) -> HandlerReply:
    """Create or update a namespace."""
    return await _apply(request, await request.decoded(Namespace))


async def update(request: Request) -> HandlerReply:
    """Create or update the namespace in the path."""
    namespace = await request.decoded(Namespace)
    if namespace.name != request["name"]:
        raise Malformed("Namespace name does not match request path")
    return await _apply(request, namespace)


async def _apply(request: Request, namespace: Namespace) -> HandlerReply:
    return HandlerReply(index=await rules.apply(request.parts.store, namespace))


async def remove(request: Request) -> HandlerReply:
    """Delete a namespace."""
    parts = request.parts
    return HandlerReply(index=await rules.remove(parts.store, request["name"], parts.config.region))
