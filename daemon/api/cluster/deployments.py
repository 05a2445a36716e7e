"""Deployments: list, read, promote, fail, pause, and tell the health of their allocations."""

from daemon.api.cluster.allocations import lines
from daemon.api.identifiers import check_id, check_prefix
from daemon.api.paging import Listing, show, wish_of
from daemon.evals import steering
from daemon.evals.steering import Steered
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound
from storage.queries import allocations, deployments
from storage.readers import Snapshot
from storage.records.base import Record
from storage.records.codec import parse
from storage.records.deployment import Deployment


class DeploymentPromoteRequest(Record, frozen=True, kw_only=True):
    """The body of a promotion: all groups, or some."""

    deployment_id: str = ""
    all: bool = False
    groups: list[str] | None = None


class DeploymentPauseRequest(Record, frozen=True, kw_only=True):
    """The body of a pause, or of its end."""

    deployment_id: str = ""
    pause: bool = False


class DeploymentUnblockRequest(Record, frozen=True, kw_only=True):
    """The body of an unblocking."""

    deployment_id: str = ""


class DeploymentAllocHealthRequest(Record, frozen=True, kw_only=True):
    """The body that tells which allocations are well and which are not."""

    deployment_id: str = ""
    healthy_allocation_ids: list[str] | None = None
    unhealthy_allocation_ids: list[str] | None = None


class DeploymentUpdateResponse(Record, frozen=True, kw_only=True):
    """What the peer's clients read after each of these."""

    deployment_modify_index: int
    eval_id: str
    eval_create_index: int
    index: int
    reverted_job_version: int | None


def index(request: Request, db: Snapshot) -> Reply:
    """List deployments in the order of their making."""
    query = request.query
    check_prefix("deployment", query.text("prefix"))
    expression = query.text("filter")
    matches = compile_filter(expression, Deployment) if expression else None
    wish = wish_of(request, matches, deployments.COLUMNS)

    def wanted(_: Snapshot, one: deployments.Line) -> bool:
        if not request.sees(one.namespace):
            return False
        return matches is None or matches(parse(one.document))

    listing = Listing[deployments.Line](
        rows=lambda db, start, reverse: deployments.page(db, wish(start, reverse)),
        key=lambda one: (one.create_index, one.id),
        line=lambda _, one: one.document,
        wanted=wanted,
    )
    return show(listing, query, db, db.table_index("deployments"))


def read(request: Request, db: Snapshot) -> Reply:
    """Show a deployment."""
    check_id("deployment", request["deployment_id"])
    found = deployments.find(db, request["deployment_id"])
    if found is None:
        raise NotFound("deployment not found", index=db.table_index("deployments"))
    request.require(found.namespace)
    return reply.read(found, found.modify_index)


def placed(request: Request, db: Snapshot) -> Reply:
    """List the allocations of a deployment, newest first."""
    check_id("deployment", request["deployment_id"])
    every = allocations.of_deployment(db, request["deployment_id"])
    found = [one for one in every if request.sees(one.namespace)]
    highest = max((one.modify_index for one in found), default=db.table_index("allocations"))
    return reply.read(lines(db, found, request.query), highest)


async def promote(request: Request) -> Reply:
    """Let the canaries of groups replace the rest; nothing happens to groups that are not named."""
    body = await request.decoded(DeploymentPromoteRequest)
    deployment_id, parts = _named(request, body.deployment_id), request.parts
    groups = None if body.all else body.groups or ()
    now, eval_id = parts.clock.now(), next(parts.ids)
    return _reply(
        await steering.promote(parts.store, deployment_id, groups, now=now, eval_id=eval_id)
    )


async def fail(request: Request) -> Reply:
    """End a deployment; it needs no body."""
    deployment_id, parts = request["deployment_id"], request.parts
    _check(request, deployment_id)
    now, eval_id = parts.clock.now(), next(parts.ids)
    return _reply(await steering.fail(parts.store, deployment_id, now=now, eval_id=eval_id))


async def pause(request: Request) -> Reply:
    """Halt a deployment, or let it go on."""
    body = await request.decoded(DeploymentPauseRequest)
    deployment_id, parts = _named(request, body.deployment_id), request.parts
    done = await steering.pause(
        parts.store,
        deployment_id,
        paused=body.pause,
        now=parts.clock.now(),
        eval_id=next(parts.ids),
    )
    return _reply(done)


async def unblock(request: Request) -> Reply:
    """Refuse: what needs several regions is never blocked here."""
    body = await request.decoded(DeploymentUnblockRequest)
    return _reply(await steering.unblock(request.parts.store, _named(request, body.deployment_id)))


async def allocation_health(request: Request) -> Reply:
    """Take a person's word for the health of allocations; named twice, they are unhealthy."""
    body = await request.decoded(DeploymentAllocHealthRequest)
    deployment_id, parts = _named(request, body.deployment_id), request.parts
    health = {
        **dict.fromkeys(body.healthy_allocation_ids or (), True),
        **dict.fromkeys(body.unhealthy_allocation_ids or (), False),
    }
    now, eval_id = parts.clock.now(), next(parts.ids)
    return _reply(
        await steering.set_health(parts.store, deployment_id, health, now=now, eval_id=eval_id)
    )


def _named(request: Request, body_id: str) -> str:
    """Return the deployment of the path. Raises `Malformed` unless the body names it as well."""
    if not body_id:
        raise Malformed("DeploymentID must be specified")
    if body_id != request["deployment_id"]:
        raise Malformed("Deployment ID does not match")
    _check(request, body_id)
    return body_id


def _check(request: Request, deployment_id: str) -> None:
    """Raise `Denied` unless the caller may do this where the deployment is, if there is one."""
    check_id("deployment", deployment_id)
    found = request.parts.store.read(lambda db: deployments.find(db, deployment_id))
    if found is not None:
        request.require(found.namespace)


def _reply(done: Steered) -> Reply:
    body = DeploymentUpdateResponse(
        deployment_modify_index=done.index,
        eval_id=done.eval_id,
        eval_create_index=done.index if done.eval_id else 0,
        index=done.index,
        reverted_job_version=done.reverted_version,
    )
    return Reply(body=body, index=done.index)
