"""Namespaces: list, read, create or change, remove."""

from daemon.jobs import namespaces as rules
from daemon.jobspec.filter import only_wanted
from daemon.web import reply
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Denied, Malformed, NotFound
from storage.queries import namespaces
from storage.readers import Snapshot
from storage.records.namespace import Namespace


def index(request: Request, db: Snapshot) -> Reply:
    """List the namespaces in which the caller may do anything at all."""
    grant = request.caller.grant
    every = namespaces.every(db, request.query.text("prefix"))
    found = [one for one in every if grant.knows(one.name)]
    found = only_wanted(found, request.query.text("filter"), Namespace)
    return reply.read(found, db.table_index("namespaces"))


def read(request: Request, db: Snapshot) -> Reply:
    """Show a namespace."""
    if not request.caller.grant.knows(request["name"]):
        raise Denied
    found = namespaces.find(db, request["name"])
    if found is None:
        raise NotFound("Namespace not found", index=db.table_index("namespaces"))
    return reply.read(found, found.modify_index)


async def create(request: Request) -> Reply:
    """Create a namespace, or change it when it exists."""
    return await _apply(request, await request.decoded(Namespace))


async def update(request: Request) -> Reply:
    """Create the namespace of the path, or change it."""
    namespace = await request.decoded(Namespace)
    if namespace.name != request["name"]:
        raise Malformed("Namespace name does not match request path")
    return await _apply(request, namespace)


async def _apply(request: Request, namespace: Namespace) -> Reply:
    return Reply(index=await rules.apply(request.parts.store, namespace))


async def remove(request: Request) -> Reply:
    """Remove a namespace."""
    parts = request.parts
    return Reply(index=await rules.remove(parts.store, request["name"], parts.config.region))
