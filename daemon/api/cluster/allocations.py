"""Allocations: list, read, stop."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from daemon.api.identifiers import check_id, check_prefix
from daemon.api.paging import Listing, query_factory, show
from daemon.evals import explain, failures
from daemon.jobs.stop import stop_allocation
from daemon.web import reply
from daemon.web.parameters import QueryParameters
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import NotFound, Refused
from storage.queries import allocations, jobs
from storage.queries import services as services_of
from storage.read_pool import ReadSnapshot
from storage.records import allocation_views
from storage.records.allocation import Allocation
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.failure import LastError

if TYPE_CHECKING:
    from daemon.api.cluster.allocation_filter import AllocationFilter


class AllocStopResponse(Record, frozen=True, kw_only=True):
    """The response of Nomad after a stop."""

    eval_id: str
    index: int


def list_items(db: ReadSnapshot, allocs: Iterable[Allocation], query: QueryParameters) -> bytes:
    """Return list entries of allocations as a JSON list."""
    return b"[" + b",".join(line(db, alloc, query) for alloc in allocs) + b"]"


def line(db: ReadSnapshot, allocation: Allocation, query: QueryParameters) -> bytes:
    """Return the list entry of an allocation as JSON."""
    states = None
    if query.text("task_states", "true") != "false":
        states = allocations.task_states(db, allocation)
    return encode(
        allocation_views.allocation_list_item(allocation, states, resources=query.flag("resources"))
    )


def filter_of(query: QueryParameters) -> "AllocationFilter | None":
    """Return the filter of a request for a list of allocations, or None."""
    expression = query.text("filter")
    if not expression:
        return None
    from daemon.api.cluster.allocation_filter import AllocationFilter  # few lists have a filter

    return AllocationFilter(expression)


def list_allocations(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List allocations in the order of their creation."""
    query = request.query
    check_prefix("alloc", query.text("prefix"))
    matches = filter_of(query)
    pattern = matches.matches if matches else None
    to_page_request = query_factory(request, pattern, allocations.COLUMNS)

    def wanted(db: ReadSnapshot, alloc: Allocation) -> bool:
        if not request.sees(alloc.namespace):
            return False
        return matches is None or matches(db, alloc)

    listing = Listing[Allocation](
        rows=lambda db, start, reverse: allocations.page(db, to_page_request(start, reverse)),
        key=lambda alloc: (alloc.create_index, alloc.id),
        line=lambda db, alloc: line(db, alloc, query),
        wanted=wanted,
    )
    return show(listing, query, db, db.table_index("allocations"))


def read_allocation(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show an allocation with all its fields."""
    check_id("alloc", request["alloc_id"])
    alloc = allocations.find(db, request["alloc_id"])
    if alloc is None:
        raise NotFound("alloc not found", index=db.table_index("allocations"))
    if not request.sees(alloc.namespace):
        raise Refused(f'Unknown allocation "{alloc.id}"')
    document = allocation_detail(db, alloc)
    if request.query.own_flag("retry"):  # Steward's own field, which Nomad's clients do not request
        document = msgspec.structs.replace(document, retry=explain.next_retry(db, alloc))
    return reply.read_reply(document, alloc.modify_index)


def allocation_detail(db: ReadSnapshot, allocation: Allocation) -> allocation_views.AllocationView:
    """Return an allocation with the job version that it was placed for."""
    key = (allocation.namespace, allocation.job_id, allocation.job_version)
    job = jobs.version(db, *key)
    wire = jobs.registered_wire(db, *key) or b"null"
    return allocation_views.allocation_view(
        allocation, allocations.task_states(db, allocation), job, wire
    )


def services(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the registered services of an allocation."""
    check_id("alloc", request["alloc_id"])
    alloc = allocations.find(db, request["alloc_id"])
    if alloc is not None:
        request.require(alloc.namespace)
    registered = services_of.of_allocation(db, request["alloc_id"])
    return reply.read_reply(registered, max(db.table_index("services"), 1))


def checks(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the latest results of an allocation's service checks."""
    check_id("alloc", request["alloc_id"])
    alloc = allocations.find(db, request["alloc_id"])
    if alloc is None:
        raise NotFound("alloc not found", index=db.table_index("allocations"))
    request.require(alloc.namespace)
    results = {check.id: check for check in request.parts.tasks.checks(alloc.id)}
    return HandlerReply(body=results or b"null")


def error(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the latest task error of an allocation: exit code, signal, and last lines of stderr."""
    check_id("alloc", request["alloc_id"])
    alloc = allocations.find(db, request["alloc_id"])
    if alloc is None:
        raise NotFound("alloc not found", index=db.table_index("allocations"))
    request.require(alloc.namespace)
    return reply.read_reply(LastError(error=failures.of_allocation(db, alloc)), alloc.modify_index)


async def stop_alloc(request: Request) -> HandlerReply:
    """Stop an allocation; the scheduler replaces it."""
    parts = request.parts
    no_shutdown_delay = request.query.flag("no_shutdown_delay")
    reschedule = request.query.flag("reschedule")
    check_id("alloc", request["alloc_id"])
    alloc = parts.store.read(lambda db: allocations.find(db, request["alloc_id"]))
    if alloc is not None:
        request.require(alloc.namespace)
    done = await stop_allocation(
        parts.store,
        request["alloc_id"],
        no_shutdown_delay=no_shutdown_delay,
        reschedule=reschedule,
        now=parts.clock.now(),
        eval_id=next(parts.ids),
    )
    return HandlerReply(
        body=AllocStopResponse(eval_id=done.eval_id, index=done.index), index=done.index
    )
