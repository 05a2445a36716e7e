"""The jobs themselves: list, read, register, update, stop."""

from msgspec import UNSET, UnsetType

from daemon.acl.check import EVERYWHERE
from daemon.acl.task_tokens import refusal
from daemon.api.cluster.operator import check_accepts
from daemon.api.paging import Listing, show, wish_of
from daemon.evals.configuration import configuration
from daemon.jobs.evaluate import until_looked_at
from daemon.jobs.periodic import launches, zone_of
from daemon.jobs.register import (
    MAY_OPEN,
    PRIORITIES,
    JobRegisterRequest,
    JobValidateRequest,
    Registered,
    Surroundings,
    look_at,
    register_job,
)
from daemon.jobs.stop import stop_job
from daemon.jobspec.budgets import Budgets, OverBudget
from daemon.jobspec.filter import compile_filter
from daemon.jobspec.validate import Findings
from daemon.web import reply
from daemon.web.parameters import BadParameter
from daemon.web.reply import Reply
from daemon.web.request import DEFAULT_NAMESPACE, Request
from storage.errors import Denied, Malformed, NotFound, Refused
from storage.queries import job_listings, jobs, node_pools
from storage.readers import Snapshot
from storage.records.base import Record
from storage.records.codec import Document, parse
from storage.records.job import Job
from storage.records.times import rfc3339

MAY_PURGE = ("submit-job", "purge-job")

_PATIENCE = 0.02  # seconds that an answer waits for the first look at what was registered


class JobRegisterResponse(Record, frozen=True, kw_only=True):
    """What the peer's clients read after a registration."""

    eval_id: str
    eval_create_index: int
    job_modify_index: int
    warnings: str = ""
    index: int
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


class JobValidateResponse(Record, frozen=True, kw_only=True):
    """What a registration would say."""

    driver_config_validated: bool = True
    next_periodic_launches: list[str] | UnsetType = UNSET  # where they are asked for
    validation_errors: list[str] | None
    error: str
    warnings: str


class JobDeregisterResponse(Record, frozen=True, kw_only=True):
    """What the peer's clients read after a stop."""

    eval_id: str
    eval_create_index: int
    job_modify_index: int
    volume_eval_id: str = ""
    volume_eval_index: int = 0
    index: int
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


def index(request: Request, db: Snapshot) -> Reply:
    """List jobs by namespace and id (golden: list-jobs)."""
    query, everywhere = request.query, request.namespace == EVERYWHERE
    with_meta, expression = query.flag("meta"), query.text("filter")
    matches = compile_filter(expression, Job) if expression else None
    wish = wish_of(request, matches, job_listings.COLUMNS)

    def wanted(db: Snapshot, one: job_listings.Stub) -> bool:
        if everywhere and not request.sees(one.namespace):
            return False
        return matches is None or matches(_document(db, one.namespace, one.id))

    listing = Listing[job_listings.Stub](
        rows=lambda db, start, reverse: job_listings.stubs(
            db, wish(start, reverse), with_meta=with_meta
        ),
        key=lambda one: (one.namespace, one.id),
        line=lambda _, one: one.line,
        wanted=wanted,
        is_number=False,
    )
    return show(listing, query, db, max(db.table_index("jobs"), db.table_index("summaries")))


def _document(db: Snapshot, namespace: str, job_id: str) -> object:
    found = jobs.current_wire(db, namespace, job_id)
    return parse(found[0]) if found else {}


def read(request: Request, db: Snapshot) -> Reply:
    """Show the newest version of a job."""
    found = jobs.current_wire(db, request.namespace, request["job_id"])
    if found is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    return reply.read(*found)


async def register(request: Request) -> Reply:
    """Create a job, or update it when it exists."""
    return await _register(request, await request.decoded(JobRegisterRequest))


async def update(request: Request) -> Reply:
    """Update the job of the path, or create it."""
    body = await request.decoded(JobRegisterRequest)
    if body.job is not None and body.job.get("ID", request["job_id"]) != request["job_id"]:
        raise Malformed("Job ID does not match name")
    return await _register(request, body)


async def _register(request: Request, body: JobRegisterRequest) -> Reply:
    parts = request.parts
    namespace = request.query.text("namespace") or body.namespace or None
    check_right(request, body.job, namespace, override=body.policy_override)
    check_accepts(request)
    done: Registered = await register_job(
        parts.store,
        body,
        namespace=namespace,
        registrar=request.caller.token.accessor if parts.tokens.asks else "",
        surroundings=surroundings(request, secret_in(body.job)),
        now=parts.clock.now(),
        eval_id=next(parts.ids),
        scaling_ids=parts.ids,
        remarks=request.remarks(),
    )
    await until_looked_at(parts.store, done.eval_id, at_most=_PATIENCE)
    response = JobRegisterResponse(
        eval_id=done.eval_id,
        eval_create_index=done.eval_create_index,
        job_modify_index=done.job_modify_index,
        warnings=done.warnings,
        index=done.index,
    )
    return Reply(body=response, index=done.index)


def check_right(
    request: Request, job: Document | None, namespace: str | None, *, override: bool = False
) -> None:
    """Raise `Denied` unless the caller may do this in the namespace of the job itself."""
    target = namespace or (job or {}).get("Namespace") or DEFAULT_NAMESPACE
    request.require(target)
    if override and not request.caller.grant.may(target, "policy-override"):
        raise Denied


async def validate(request: Request) -> Reply:
    """Say what is wrong or dubious with a job, and do nothing."""
    body = await request.decoded(JobValidateRequest)
    namespace = request.query.text("namespace") or None
    check_right(request, body.job, namespace)
    around = surroundings(request, secret_in(body.job))
    unknown = request.remarks()

    def look(db: Snapshot) -> JobValidateResponse:
        job, found = look_at(db, body, namespace, around)
        return JobValidateResponse(
            next_periodic_launches=UNSET if found.errors else shown_launches(request, job),
            error=found.error,
            validation_errors=list(found.errors) or None,
            warnings=found.with_warnings(*unknown).warnings,
        )

    async with request.parts.admission.turn(request.client):  # a large job takes its time
        try:
            return Reply(body=await request.parts.store.read_long(look))
        except OverBudget as error:
            return Reply(body=_invalid(error, unknown))


def _invalid(error: OverBudget, remarks: list[str]) -> JobValidateResponse:
    return JobValidateResponse(
        error=str(error),
        validation_errors=list(error.problems),
        warnings=Findings(remarks=tuple(remarks)).warnings,
    )


def shown_launches(request: Request, job: Job) -> list[str] | UnsetType:
    """Return when a job would launch its next ten children, if the request asks for that."""
    if not request.query.flag("launches"):
        return UNSET
    return [rfc3339(at, zone_of(job)) for at in launches(job, request.parts.clock.now())]


def secret_in(job: Document | None) -> str:
    """Return the token that a job brings along for the secrets that it asks for."""
    given = (job or {}).get("SecretsToken") or (job or {}).get("VaultToken")
    return given if isinstance(given, str) else ""


def surroundings(request: Request, secret: str = "") -> Surroundings:
    """Return what a job may name besides what it brings along.

    `secret` is a token with which its tasks get theirs; without one it is the caller's own.
    """
    parts = request.parts
    caller = parts.tokens.resolve(secret, request.address) if secret else request.caller
    return Surroundings(
        region=parts.config.region,
        node_pools=parts.store.read(node_pools.names),
        oversubscription=parts.store.read(configuration).memory_oversubscription_enabled,
        policies=parts.policies,
        budgets=Budgets.of(parts.config),
        commands=parts.config.notify_commands,
        clusters={name: (pool.engine, *pool.drivers) for name, pool in parts.config.pools.items()},
        secrets=lambda db, block: refusal(db, caller, block),
        may_mount=lambda source, read_only: request.caller.grant.may_with_volume(
            source, "mount-readonly" if read_only else "mount-readwrite"
        ),
        may_open=lambda namespace: request.caller.grant.may(namespace, MAY_OPEN),
    )


async def stop(request: Request) -> Reply:
    """Stop a job, and forget it when `purge` says so."""
    query, parts = request.query, request.parts
    purge = query.flag("purge")
    query.flag("global")
    if purge and not request.caller.grant.may(request.namespace, *MAY_PURGE):
        raise Denied
    no_shutdown_delay = _no_shutdown_delay(request)
    eval_priority = max(query.number("eval_priority") or 0, 0)
    if eval_priority and eval_priority not in PRIORITIES:
        raise Malformed("Eval priority must be between 1 and 100 inclusively")
    if not request["job_id"]:
        raise Refused("missing job ID for deregistering")
    done = await stop_job(
        parts.store,
        request.namespace,
        request["job_id"],
        purge=purge,
        eval_priority=eval_priority,
        no_shutdown_delay=no_shutdown_delay,
        now=parts.clock.now(),
        eval_id=next(parts.ids),
    )
    response = JobDeregisterResponse(
        eval_id=done.eval_id,
        eval_create_index=done.eval_create_index,
        job_modify_index=done.index,
        index=done.index,
    )
    return Reply(body=response, index=done.index)


def _no_shutdown_delay(request: Request) -> bool:
    """Return the flag; the peer's text has a stray letter, which scripts match (golden: stop-options)."""
    try:
        return request.query.flag("no_shutdown_delay")
    except BadParameter as error:
        raise BadParameter(str(error).replace('delay" (', 'delay"q (')) from None
