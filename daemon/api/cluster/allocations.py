"""Allocations: list, read, stop."""

from collections.abc import Iterable

import msgspec

from daemon.api.identifiers import check_id, check_prefix
from daemon.api.paging import Listing, show, wish_of
from daemon.evals import explain
from daemon.jobs.stop import stop_allocation
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.parameters import Query
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import NotFound, Refused
from storage.queries import allocations, jobs
from storage.queries import services as services_of
from storage.readers import Snapshot
from storage.records import views
from storage.records.allocation import Allocation
from storage.records.base import Record
from storage.records.codec import encode


class AllocStopResponse(Record, frozen=True, kw_only=True):
    """What the peer's clients read after a stop."""

    eval_id: str
    index: int


def lines(db: Snapshot, found: Iterable[Allocation], query: Query) -> bytes:
    """Return allocations as a listing shows them, as a JSON list."""
    return b"[" + b",".join(_line(db, one, query) for one in found) + b"]"


def _line(db: Snapshot, allocation: Allocation, query: Query) -> bytes:
    states = None
    if query.text("task_states", "true") != "false":
        states = allocations.task_states(db, allocation)
    return encode(views.stub(allocation, states, resources=query.flag("resources")))


def index(request: Request, db: Snapshot) -> Reply:
    """List allocations in the order of their making."""
    query = request.query
    check_prefix("alloc", query.text("prefix"))
    expression = query.text("filter")
    matches = compile_filter(expression, views.AllocationStub) if expression else None
    wish = wish_of(request, matches, allocations.COLUMNS)

    def wanted(_: Snapshot, one: Allocation) -> bool:
        if not request.sees(one.namespace):
            return False
        return matches is None or matches(msgspec.to_builtins(views.stub(one, None)))

    listing = Listing[Allocation](
        rows=lambda db, start, reverse: allocations.page(db, wish(start, reverse)),
        key=lambda one: (one.create_index, one.id),
        line=lambda db, one: _line(db, one, query),
        wanted=wanted,
    )
    return show(listing, query, db, db.table_index("allocations"))


def read(request: Request, db: Snapshot) -> Reply:
    """Show an allocation with everything known about it."""
    check_id("alloc", request["alloc_id"])
    found = allocations.find(db, request["alloc_id"])
    if found is None:
        raise NotFound("alloc not found", index=db.table_index("allocations"))
    if not request.sees(found.namespace):
        raise Refused(f'Unknown allocation "{found.id}"')
    shown = whole(db, found)
    if request.query.flag("retry"):  # a field of ours: the peer's clients do not ask for it
        shown = msgspec.structs.replace(shown, retry=explain.retry(db, found))
    return reply.read(shown, found.modify_index)


def whole(db: Snapshot, allocation: Allocation) -> views.WholeAllocation:
    """Return an allocation with its job as it was placed."""
    key = (allocation.namespace, allocation.job_id, allocation.job_version)
    job = jobs.version(db, *key)
    wire = jobs.registered_wire(db, *key) or b"null"
    return views.whole(allocation, allocations.task_states(db, allocation), job, wire)


def services(request: Request, db: Snapshot) -> Reply:
    """List the registered services of an allocation."""
    check_id("alloc", request["alloc_id"])
    found = allocations.find(db, request["alloc_id"])
    if found is not None:
        request.require(found.namespace)
    registered = services_of.of_allocation(db, request["alloc_id"])
    return reply.read(registered, max(db.table_index("services"), 1))


def checks(request: Request, db: Snapshot) -> Reply:
    """Show what the checks of an allocation's services found last."""
    check_id("alloc", request["alloc_id"])
    found = allocations.find(db, request["alloc_id"])
    if found is None:
        raise NotFound("alloc not found", index=db.table_index("allocations"))
    request.require(found.namespace)
    results = {one.id: one for one in request.parts.tasks.checks(found.id)}
    return Reply(body=results or b"null")


async def stop(request: Request) -> Reply:
    """Stop an allocation; the scheduler replaces it."""
    parts = request.parts
    no_shutdown_delay = request.query.flag("no_shutdown_delay")
    reschedule = request.query.flag("reschedule")
    check_id("alloc", request["alloc_id"])
    found = parts.store.read(lambda db: allocations.find(db, request["alloc_id"]))
    if found is not None:
        request.require(found.namespace)
    done = await stop_allocation(
        parts.store,
        request["alloc_id"],
        no_shutdown_delay=no_shutdown_delay,
        reschedule=reschedule,
        now=parts.clock.now(),
        eval_id=next(parts.ids),
    )
    return Reply(body=AllocStopResponse(eval_id=done.eval_id, index=done.index), index=done.index)
