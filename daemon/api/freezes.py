"""Freezes: list, make and end them."""

from http import HTTPStatus

import msgspec

from daemon.api.paging import Listing, query_factory, show
from daemon.jobs import freezes as rules
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Conflict, NotFound
from storage.queries import freezes
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.freeze import EVERYTHING, Freeze


class FreezeResponse(Record, frozen=True, kw_only=True):
    """The ID of a freeze, and the index of the write."""

    id: str
    index: int
    warnings: str = ""


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the freezes of a namespace and the freezes of all namespaces.

    With `active`, only active freezes are listed.
    """
    query, now = request.query, request.parts.clock.now()
    expression, is_active = query.text("filter"), query.own_flag("active")
    matches = compile_filter(expression, Freeze) if expression else None
    to_page_request = query_factory(request, None, {})

    def wanted(_: ReadSnapshot, freeze: Freeze) -> bool:
        if freeze.namespace != EVERYTHING and not request.sees(freeze.namespace):
            return False
        if is_active and (freeze.ended or not freeze.holds_at(now)):
            return False
        return matches is None or matches(msgspec.to_builtins(freeze))

    listing = Listing[Freeze](
        rows=lambda db, start, reverse: freezes.page(db, to_page_request(start, reverse)),
        key=lambda freeze: (freeze.create_index, freeze.id),
        line=lambda _, freeze: encode(freeze),
        wanted=wanted,
        newest_first=True,
    )
    return show(listing, query, db, max(db.table_index(freezes.TABLE), 1))


async def make(request: Request) -> HandlerReply:
    """Create a freeze."""
    parts, body = request.parts, await request.decoded(rules.FreezeRequest)
    freeze = rules.freeze_of(
        body, body.namespace or request.namespace, next(parts.ids), parts.clock.now()
    )
    _check_scope(request, freeze.namespace)
    done = await rules.make(parts.store, freeze)
    warnings = parts.store.read(lambda db: _warnings(db, freeze))
    response = FreezeResponse(id=freeze.id, index=done, warnings=warnings)
    return HandlerReply(body=response, index=done)


def _warnings(db: ReadSnapshot, freeze: Freeze) -> str:
    """Return a warning if a freeze names a queue that has no limit and that no job uses.

    Return an empty string for any other freeze.
    """
    from storage.queries import concurrency  # imported late: few freezes name a queue

    if not freeze.queue or freeze.namespace == EVERYTHING:
        return ""
    key = (freeze.namespace, freeze.queue)
    if (
        concurrency.has_limit(db, key)
        or concurrency.has_run(db, key)
        or concurrency.is_used(db, key)
    ):
        return ""
    return f'no job of namespace "{freeze.namespace}" names the queue "{freeze.queue}"'


async def thaw(request: Request) -> HandlerReply:
    """End a freeze."""
    parts = request.parts
    freeze = parts.store.read(lambda db: freezes.find(db, request["freeze_id"]))
    if freeze is None:
        raise NotFound("freeze not found", index=1)
    _check_scope(request, freeze.namespace)
    try:
        done = await rules.thaw(parts.store, freeze.id, now=parts.clock.now())
    except Conflict as error:
        return reply.text(str(error), HTTPStatus.CONFLICT)
    return HandlerReply(body=FreezeResponse(id=freeze.id, index=done), index=done)


def _check_scope(request: Request, namespace: str) -> None:
    """Raise `Denied` unless the caller may freeze a namespace; `*` needs `operator:write`."""
    if namespace == EVERYTHING:
        request.check(lambda caller: caller.grant.may_in("operator", "write"))
    else:
        request.require(namespace)
