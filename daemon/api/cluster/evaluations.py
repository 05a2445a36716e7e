"""Evaluations: list, read, count, and what they placed."""

from collections.abc import Iterator

import msgspec

from daemon.api.cluster.allocations import lines
from daemon.api.identifiers import check_id, check_prefix
from daemon.api.paging import Key, Listing, show, wish_of
from daemon.evals.removal import remove_evaluations
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound, Refused
from storage.queries import allocations, evaluations
from storage.readers import Snapshot
from storage.records.base import Record
from storage.records.codec import parse
from storage.records.evaluation import Evaluation


class CountResponse(Record, frozen=True, kw_only=True):
    """How many there are."""

    count: int
    index: int
    last_contact: int = 0
    known_leader: bool = True
    next_token: str = ""


class EvalDeleteRequest(Record, frozen=True, kw_only=True):
    """The body that names evaluations to be forgotten."""

    eval_ids: list[str] | None = None
    filter: str = ""


class EvalDeleteResponse(Record, frozen=True, kw_only=True):
    """How many evaluations were removed."""

    count: int


def _listing(request: Request) -> Listing[evaluations.Line]:
    query = request.query
    expression = query.text("filter")
    if expression and (query.text("job") or query.text("status")):
        raise Malformed("Filter expression cannot be used with other filter parameters")
    check_prefix("eval", query.text("prefix"))
    matches = compile_filter(expression, Evaluation) if expression else None
    wish = wish_of(request, matches, evaluations.COLUMNS)
    asked = {"job_id": query.text("job"), "status": query.text("status")}
    given = {name: value for name, value in asked.items() if value}
    conditions = tuple(f"{name} = :{name}" for name in given)

    def rows(db: Snapshot, start: Key | None, reverse: bool) -> Iterator[evaluations.Line]:
        more = wish(start, reverse)
        return evaluations.page(
            db,
            msgspec.structs.replace(
                more, conditions=(*conditions, *more.conditions), values={**more.values, **given}
            ),
        )

    def wanted(_: Snapshot, one: evaluations.Line) -> bool:
        if not request.sees(one.namespace):
            return False
        return matches is None or matches(parse(one.document))

    return Listing[evaluations.Line](
        rows=rows,
        key=lambda one: (one.create_index, one.id),
        line=lambda _, one: one.document,
        wanted=wanted,
    )


class _Placed(Record, frozen=True, kw_only=True):
    """The part of an evaluation that says where it belongs."""

    namespace: str


def _namespace(document: bytes) -> str:
    return msgspec.json.decode(document, type=_Placed).namespace


def index(request: Request, db: Snapshot) -> Reply:
    """List evaluations in the order of their making."""
    return show(_listing(request), request.query, db, db.table_index("evaluations"))


def count(request: Request, db: Snapshot) -> Reply:
    """Count evaluations."""
    highest = db.table_index("evaluations")
    try:
        listing = _listing(request)
    except Malformed as error:
        if isinstance(error.__cause__, Malformed):  # the filter's own text, as the peer has it here
            raise Refused(str(error.__cause__)) from None
        raise
    number = sum(
        listing.wanted is None or listing.wanted(db, one) for one in listing.rows(db, None, False)
    )
    return reply.read(CountResponse(count=number, index=highest), highest)


def read(request: Request, db: Snapshot) -> Reply:
    """Show an evaluation."""
    try:
        check_id("eval", request["eval_id"])
    except Refused as error:
        raise Refused(f"failed to lookup eval: {error}") from None
    found = evaluations.wire(db, request["eval_id"])
    if found is None:
        raise NotFound("eval not found", index=db.table_index("evaluations"))
    if not request.sees(_namespace(found[0])):
        raise Refused(f'Unknown evaluation "{request["eval_id"]}"')
    return reply.read(*found)


def placed(request: Request, db: Snapshot) -> Reply:
    """List the allocations that an evaluation placed."""
    every = allocations.of_evaluation(db, request["eval_id"])
    found = [one for one in every if request.sees(one.namespace)]
    highest = max((one.modify_index for one in found), default=db.table_index("allocations"))
    return reply.read(lines(db, found, request.query), highest)


async def remove(request: Request) -> Reply:
    """Remove evaluations by id or filter, while the scheduler is paused."""
    parts, body = request.parts, await request.decoded(EvalDeleteRequest)
    if body.eval_ids and body.filter:
        raise Malformed("evals cannot be deleted by both ID and filter")
    if not body.eval_ids and not body.filter:
        raise Malformed("evals must be deleted by either ID or filter")
    matches = compile_filter(body.filter, Evaluation) if body.filter else None
    count, index = await remove_evaluations(parts.store, body.eval_ids or (), matches)
    return Reply(body=EvalDeleteResponse(count=count), index=index)
