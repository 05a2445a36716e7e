"""Evaluations: list, read, count, and what they placed."""

import msgspec

from daemon.acl.check import EVERYWHERE
from daemon.api.cluster.allocations import lines
from daemon.api.identifiers import check_id, check_prefix
from daemon.api.paging import paginate
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


def _found(request: Request, db: Snapshot) -> list[tuple[int, str, bytes]]:
    query = request.query
    expression = query.text("filter")
    if expression and (query.text("job") or query.text("status")):
        raise Malformed("Filter expression cannot be used with other filter parameters")
    check_prefix("eval", query.text("prefix"))
    found = evaluations.page(
        db,
        request.namespace,
        prefix=query.text("prefix"),
        job_id=query.text("job") or None,
        status=query.text("status") or None,
    )
    if request.namespace == EVERYWHERE:
        found = [one for one in found if request.sees(_namespace(one[2]))]
    if not expression:
        return found
    matches = compile_filter(expression, Evaluation)
    return [one for one in found if matches(parse(one[2]))]


class _Placed(Record, frozen=True, kw_only=True):
    """The part of an evaluation that says where it belongs."""

    namespace: str


def _namespace(document: bytes) -> str:
    return msgspec.json.decode(document, type=_Placed).namespace


def index(request: Request, db: Snapshot) -> Reply:
    """List evaluations in the order of their making."""
    page = paginate(
        _found(request, db), lambda one: (one[0], one[1]), lambda one: one[2], request.query
    )
    return reply.read(page.body, db.table_index("evaluations"), next_token=page.next_token)


def count(request: Request, db: Snapshot) -> Reply:
    """Count evaluations."""
    highest = db.table_index("evaluations")
    return reply.read(CountResponse(count=len(_found(request, db)), index=highest), highest)


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
    """Refuse to forget evaluations: they go with their job, and the scheduler is never paused."""
    body = request.decode(EvalDeleteRequest)
    if body.eval_ids and body.filter:
        raise Malformed("evals cannot be deleted by both ID and filter")
    if not body.eval_ids and not body.filter:
        raise Malformed("evals must be deleted by either ID or filter")
    raise Refused("eval broker is enabled; eval broker must be paused to delete evals")
