"""Deployments: list, read, promote, fail, pause, and set the health of allocations."""

from daemon.api.cluster.allocations import list_items
from daemon.api.identifiers import check_id, check_prefix
from daemon.api.paging import Listing, query_factory, show
from daemon.evals import deployment_actions
from daemon.evals.deployment_actions import DeploymentChange
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound
from storage.queries import allocations, deployments
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.codec import parse
from storage.records.deployment import Deployment


class DeploymentPromoteRequest(Record, frozen=True, kw_only=True):
    """The body of a promotion: all groups, or some."""

    deployment_id: str = ""
    all: bool = False
    groups: list[str] | None = None


class DeploymentPauseRequest(Record, frozen=True, kw_only=True):
    """The body that pauses or resumes a deployment."""

    deployment_id: str = ""
    pause: bool = False


class DeploymentUnblockRequest(Record, frozen=True, kw_only=True):
    """The body that unblocks a deployment."""

    deployment_id: str = ""


class DeploymentAllocHealthRequest(Record, frozen=True, kw_only=True):
    """The body that sets allocations healthy or unhealthy."""

    deployment_id: str = ""
    healthy_allocation_ids: list[str] | None = None
    unhealthy_allocation_ids: list[str] | None = None


class DeploymentUpdateResponse(Record, frozen=True, kw_only=True):
    """The response of Nomad after a deployment action."""

    deployment_modify_index: int
    eval_id: str
    eval_create_index: int
    index: int
    reverted_job_version: int | None


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List deployments in the order of their creation."""
    query = request.query
    check_prefix("deployment", query.text("prefix"))
    expression = query.text("filter")
    matches = compile_filter(expression, Deployment) if expression else None
    to_page_request = query_factory(request, matches, deployments.COLUMNS)

    def wanted(_: ReadSnapshot, deployment_line: deployments.DeploymentLine) -> bool:
        if not request.sees(deployment_line.namespace):
            return False
        return matches is None or matches(parse(deployment_line.document))

    listing = Listing[deployments.DeploymentLine](
        rows=lambda db, start, reverse: deployments.page(db, to_page_request(start, reverse)),
        key=lambda deployment: (deployment.create_index, deployment.id),
        line=lambda _, deployment: deployment.document,
        wanted=wanted,
    )
    return show(listing, query, db, db.table_index("deployments"))


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a deployment."""
    check_id("deployment", request["deployment_id"])
    deployment = deployments.find(db, request["deployment_id"])
    if deployment is None:
        raise NotFound("deployment not found", index=db.table_index("deployments"))
    request.require(deployment.namespace)
    return reply.read_reply(deployment, deployment.modify_index)


def placed(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the allocations of a deployment, newest first."""
    check_id("deployment", request["deployment_id"])
    allocs = allocations.readable_of_deployment(db, request["deployment_id"])
    visible = [alloc for alloc in allocs if request.sees(alloc.namespace)]
    highest = max((alloc.modify_index for alloc in visible), default=db.table_index("allocations"))
    return reply.read_reply(list_items(db, visible, request.query), highest)


async def promote(request: Request) -> HandlerReply:
    """Promote the canaries of the named groups; other groups stay unchanged."""
    body = await request.decoded(DeploymentPromoteRequest)
    deployment_id, parts = _named(request, body.deployment_id), request.parts
    groups = None if body.all else body.groups or ()
    now, eval_id = parts.clock.now(), next(parts.ids)
    return _reply(
        await deployment_actions.promote(
            parts.store, deployment_id, groups, now=now, eval_id=eval_id
        )
    )


async def fail(request: Request) -> HandlerReply:
    """Fail a deployment; no body is needed."""
    deployment_id, parts = request["deployment_id"], request.parts
    _check(request, deployment_id)
    now, eval_id = parts.clock.now(), next(parts.ids)
    return _reply(
        await deployment_actions.fail(parts.store, deployment_id, now=now, eval_id=eval_id)
    )


async def pause(request: Request) -> HandlerReply:
    """Pause or resume a deployment."""
    body = await request.decoded(DeploymentPauseRequest)
    deployment_id, parts = _named(request, body.deployment_id), request.parts
    done = await deployment_actions.pause(
        parts.store,
        deployment_id,
        paused=body.pause,
        now=parts.clock.now(),
        eval_id=next(parts.ids),
    )
    return _reply(done)


async def unblock(request: Request) -> HandlerReply:
    """Reject the request, because Steward has no multi-region deployments."""
    body = await request.decoded(DeploymentUnblockRequest)
    return _reply(
        await deployment_actions.unblock(request.parts.store, _named(request, body.deployment_id))
    )


async def allocation_health(request: Request) -> HandlerReply:
    """Set the health of allocations; an allocation in both lists becomes unhealthy."""
    body = await request.decoded(DeploymentAllocHealthRequest)
    deployment_id, parts = _named(request, body.deployment_id), request.parts
    health = {
        **dict.fromkeys(body.healthy_allocation_ids or (), True),
        **dict.fromkeys(body.unhealthy_allocation_ids or (), False),
    }
    now, eval_id = parts.clock.now(), next(parts.ids)
    return _reply(
        await deployment_actions.set_health(
            parts.store, deployment_id, health, now=now, eval_id=eval_id
        )
    )


def _named(request: Request, body_id: str) -> str:
    """Return the ID of the deployment in the path. `body_id` is the ID in the body.

    Raises `Malformed` if `body_id` is empty or different. Raises `Denied` if the caller lacks the
    route's capability.
    """
    if not body_id:
        raise Malformed("DeploymentID must be specified")
    if body_id != request["deployment_id"]:
        raise Malformed("Deployment ID does not match")
    _check(request, body_id)
    return body_id


def _check(request: Request, deployment_id: str) -> None:
    """Raise `Denied` unless the caller has the route's capability in the deployment's namespace."""
    check_id("deployment", deployment_id)
    deployment = request.parts.store.read(lambda db: deployments.find(db, deployment_id))
    if deployment is not None:
        request.require(deployment.namespace)


def _reply(done: DeploymentChange) -> HandlerReply:
    body = DeploymentUpdateResponse(
        deployment_modify_index=done.index,
        eval_id=done.eval_id,
        eval_create_index=done.index if done.eval_id else 0,
        index=done.index,
        reverted_job_version=done.reverted_version,
    )
    return HandlerReply(body=body, index=done.index)
