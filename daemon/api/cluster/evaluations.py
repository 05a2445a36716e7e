"""Evaluations: list, read, count, delete, and their allocations."""

from collections.abc import Callable
from functools import partial

import msgspec

from daemon.api.cluster.allocations import list_items
from daemon.api.identifiers import check_id, check_prefix
from daemon.api.paging import Key, Listing, query_factory, show
from daemon.evals.removal import remove_evaluations
from daemon.jobspec.filter import Filter, compile_filter
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound, Refused
from storage.queries import allocations, evaluations
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.codec import parse
from storage.records.evaluation import Evaluation


class CountResponse(Record, frozen=True, kw_only=True):
    """The number of evaluations."""

    count: int
    index: int
    last_contact: int = 0
    known_leader: bool = True
    next_token: str = ""


class EvalDeleteRequest(Record, frozen=True, kw_only=True):
    """The body that names evaluations to delete."""

    eval_ids: list[str] | None = None
    filter: str = ""


class EvalDeleteResponse(Record, frozen=True, kw_only=True):
    """The number of deleted evaluations."""

    count: int


def _query_factory(
    request: Request, matches: Filter | None
) -> Callable[[Key | None, bool], PageRequest]:
    """Return a function that creates the query for a page of evaluations. Raises `Malformed`.

    The query has the filters of the request.
    """
    query = request.query
    parameters = {"job_id": query.text("job"), "status": query.text("status")}
    filters = {name: value for name, value in parameters.items() if value}
    if matches is not None and filters:
        raise Malformed("Filter expression cannot be used with other filter parameters")
    check_prefix("eval", query.text("prefix"))
    to_page_request = query_factory(request, matches, evaluations.COLUMNS)
    conditions = tuple(f"{name} = :{name}" for name in filters)

    def made(start: Key | None, reverse: bool) -> PageRequest:
        more = to_page_request(start, reverse)
        return msgspec.structs.replace(
            more, conditions=(*conditions, *more.conditions), values={**more.values, **filters}
        )

    return made


def _matches(request: Request) -> Filter | None:
    expression = request.query.text("filter")
    return compile_filter(expression, Evaluation) if expression else None


def _listing(request: Request) -> Listing[evaluations.EvaluationLine]:
    matches = _matches(request)
    to_page_request = _query_factory(request, matches)

    def wanted(_: ReadSnapshot, evaluation: evaluations.EvaluationLine) -> bool:
        if not request.sees(evaluation.namespace):
            return False
        return matches is None or matches(parse(evaluation.document))

    return Listing[evaluations.EvaluationLine](
        rows=lambda db, start, reverse: evaluations.page(db, to_page_request(start, reverse)),
        key=lambda evaluation: (evaluation.create_index, evaluation.id),
        line=lambda _, evaluation: evaluation.document,
        wanted=wanted,
    )


class _Placed(Record, frozen=True, kw_only=True):
    """The namespace of an evaluation; its other fields are not decoded."""

    namespace: str


def _namespace(document: bytes) -> str:
    return msgspec.json.decode(document, type=_Placed).namespace


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List evaluations in the order of their creation."""
    return show(_listing(request), request.query, db, db.table_index("evaluations"))


def count(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Count evaluations."""
    highest = db.table_index("evaluations")
    try:
        matches = _matches(request)
        page_request = _query_factory(request, matches)(None, False)
    except Malformed as error:
        if isinstance(error.__cause__, Malformed):  # the filter's own error text, as in Nomad
            raise Refused(str(error.__cause__)) from None
        raise
    if matches is None:
        of_namespace = evaluations.numbers(db, page_request)
        number = sum(of_namespace[name] for name in of_namespace if request.sees(name))
    else:
        number = sum(
            request.sees(evaluation.namespace) and matches(parse(evaluation.document))
            for evaluation in evaluations.page(db, page_request)
        )
    return reply.read_reply(CountResponse(count=number, index=highest), highest)


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show an evaluation."""
    try:
        check_id("eval", request["eval_id"])
    except Refused as error:
        raise Refused(f"failed to lookup eval: {error}") from None
    stored = evaluations.wire_document(db, request["eval_id"])
    if stored is None:
        raise NotFound("eval not found", index=db.table_index("evaluations"))
    if not request.sees(_namespace(stored[0])):
        raise Refused(f'Unknown evaluation "{request["eval_id"]}"')
    if request.query.flag("related"):
        return reply.read_reply(_with_related(db, stored[0]), stored[1])
    return reply.read_reply(*stored)


# Fields of the stub of a related evaluation, and the fields that link evaluations.
_OF_STUB = frozenset(
    {
        *("ID", "Priority", "Type", "TriggeredBy", "Namespace", "JobID", "NodeID", "DeploymentID"),
        *("Status", "StatusDescription", "WaitUntil", "NextEval", "PreviousEval", "BlockedEval"),
        *("CreateIndex", "ModifyIndex", "CreateTime", "ModifyTime"),
    }
)
_LINKS = ("NextEval", "PreviousEval", "BlockedEval")
_MOST_RELATED = 100


def _with_related(db: ReadSnapshot, document: bytes) -> dict[str, object]:
    """Return an evaluation with stubs of the evaluations that it links to, directly or indirectly.

    Directly linked evaluations come first. The number of stubs is limited.
    """
    evaluation: dict[str, object] = msgspec.json.decode(document)
    seen_ids, related = {evaluation["ID"]}, list[dict[str, object]]()
    waiting = [evaluation]
    while waiting and len(related) < _MOST_RELATED:
        current = waiting.pop(0)
        for name in _LINKS:
            eval_id = current.get(name)
            if not eval_id or eval_id in seen_ids:
                continue
            seen_ids.add(eval_id)
            if stored := evaluations.wire_document(db, str(eval_id)):
                waiting.append(msgspec.json.decode(stored[0]))
                last = waiting[-1]
                related.append({key: last[key] for key in last.keys() & _OF_STUB})
    return {**evaluation, "RelatedEvals": related} if related else evaluation


def placed(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the allocations that an evaluation placed."""
    allocs = allocations.of_evaluation(db, request["eval_id"])
    visible = [alloc for alloc in allocs if request.sees(alloc.namespace)]
    highest = max((alloc.modify_index for alloc in visible), default=db.table_index("allocations"))
    return reply.read_reply(list_items(db, visible, request.query), highest)


async def remove(request: Request) -> HandlerReply:
    """Delete evaluations by ID or filter, while the scheduler is paused."""
    parts, body = request.parts, await request.decoded(EvalDeleteRequest)
    if body.eval_ids and body.filter:
        raise Malformed("evals cannot be deleted by both ID and filter")
    if not body.eval_ids and not body.filter:
        raise Malformed("evals must be deleted by either ID or filter")
    matches = None
    if text := body.filter:
        work = partial(compile_filter, text, Evaluation)
        # parsing a filter takes four times as long as parsing rules of this length
        matches = await request.worked_out(4 * len(text), work)
    count, index = await remove_evaluations(parts.store, body.eval_ids or (), matches)
    return HandlerReply(body=EvalDeleteResponse(count=count), index=index)
