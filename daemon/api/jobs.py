"""Jobs: list, read, register, update, stop."""

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from daemon.acl.check import EVERYWHERE
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.task_tokens import why_refused
from daemon.api.cluster.operator import check_accepts
from daemon.api.paging import Listing, query_factory, show
from daemon.evals.placement_precheck import check_placement
from daemon.evals.scheduler_config import configuration
from daemon.jobs.evaluate import wait_for_evaluation
from daemon.jobs.periodic import (
    decided_until,
    holding_freezes,
    next_launches,
    openings_of,
    zone_of,
)
from daemon.jobs.register import (
    MAY_OPEN,
    PRIORITIES,
    JobRegisterRequest,
    JobValidateRequest,
    RegistrationContext,
    RegistrationResult,
    register_job,
    validate_submission,
)
from daemon.jobs.stop import stop_job
from daemon.jobspec.budgets import Budgets, OverBudget
from daemon.jobspec.filter import compile_filter
from daemon.jobspec.validate import ValidationResult
from daemon.net.port_listeners import listeners_on
from daemon.runner.drivers.examine import look
from daemon.text.masking import find_mask, may_have_mask
from daemon.web import reply
from daemon.web.parameters import InvalidParameter
from daemon.web.reply import HandlerReply
from daemon.web.request import DEFAULT_NAMESPACE, SHORT, Request
from storage.errors import Denied, Malformed, NotFound, Refused
from storage.queries import job_listings, jobs, node_pools
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.codec import Document, parse
from storage.records.freeze import MAY_OVERRIDE
from storage.records.job import Job
from storage.records.times import rfc3339
from storage.writer import Transaction

MAY_PURGE = ("submit-job", "purge-job")

_PATIENCE = 0.02  # seconds that a response waits for the evaluation of a registered job


class JobRegisterResponse(Record, frozen=True, kw_only=True):
    """The response of Nomad after a registration."""

    eval_id: str
    eval_create_index: int
    job_modify_index: int
    warnings: str = ""
    index: int
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


class JobValidateResponse(Record, frozen=True, kw_only=True):
    """The errors and warnings that a registration would return."""

    driver_config_validated: bool = True
    next_periodic_launches: list[str] | UnsetType = UNSET  # only on request
    validation_errors: list[str] | None
    error: str
    warnings: str


class JobExamination(Record, frozen=True, kw_only=True):
    """The reasons why no node can ever run a job, and the reasons why it cannot run now."""

    errors: list[str]
    warnings: list[str]


class JobDeregisterResponse(Record, frozen=True, kw_only=True):
    """The response of Nomad after a stop."""

    eval_id: str
    eval_create_index: int
    job_modify_index: int
    volume_eval_id: str = ""
    volume_eval_index: int = 0
    index: int
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List jobs by namespace and ID (source: Nomad's recorded responses `list-jobs`)."""
    query, everywhere = request.query, request.namespace == EVERYWHERE
    with_meta, expression = query.flag("meta"), query.text("filter")
    matches = compile_filter(expression, Job) if expression else None
    to_page_request = query_factory(request, matches, job_listings.COLUMNS)

    def wanted(db: ReadSnapshot, row: job_listings.JobListingRow) -> bool:
        if everywhere and not request.sees(row.namespace):
            return False
        return matches is None or matches(_document(db, row.namespace, row.id))

    listing = Listing[job_listings.JobListingRow](
        rows=lambda db, start, reverse: job_listings.listing_rows(
            db, to_page_request(start, reverse), with_meta=with_meta
        ),
        key=lambda row: (row.namespace, row.id),
        line=lambda _, row: row.line,
        wanted=wanted,
        is_number=False,
    )
    return show(listing, query, db, max(db.table_index("jobs"), db.table_index("summaries")))


def _document(db: ReadSnapshot, namespace: str, job_id: str) -> object:
    stored = jobs.current_wire(db, namespace, job_id)
    return parse(stored[0]) if stored else {}


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the latest version of a job."""
    stored = jobs.current_wire(db, request.namespace, request["job_id"])
    if stored is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    return reply.read_reply(*stored)


async def register(request: Request) -> HandlerReply:
    """Create or update a job."""
    return await _register(request, await request.decoded(JobRegisterRequest))


async def update(request: Request) -> HandlerReply:
    """Create or update the job in the path."""
    body = await request.decoded(JobRegisterRequest)
    if body.job is not None and body.job.get("ID", request["job_id"]) != request["job_id"]:
        raise Malformed("Job ID does not match name")
    return await _register(request, body)


async def _register(request: Request, body: JobRegisterRequest) -> HandlerReply:
    if len(request.body) <= SHORT:
        return await _registered(request, body)
    async with request.parts.admission.slot(request.client):  # a large job takes long
        return await _registered(request, body)


async def _registered(request: Request, body: JobRegisterRequest) -> HandlerReply:
    parts = request.parts
    namespace = request.query.text("namespace") or body.namespace or None
    check_right(request, body.job, namespace, override=body.policy_override)
    check_accepts(request)
    await _check_masks(request, body)
    done: RegistrationResult = await register_job(
        parts.store,
        body,
        namespace=namespace,
        registrar=request.caller.token.accessor if parts.tokens.asks else "",
        surroundings=await registration_context(request, find_secret(body.job)),
        now=parts.clock.now(),
        eval_id=next(parts.ids),
        scaling_ids=parts.ids,
        remarks=request.remarks(),
        size=len(request.body),
    )
    await wait_for_evaluation(parts.store, done.eval_id, at_most=_PATIENCE)
    response = JobRegisterResponse(
        eval_id=done.eval_id,
        eval_create_index=done.eval_create_index,
        job_modify_index=done.job_modify_index,
        warnings=done.warnings,
        index=done.index,
    )
    return HandlerReply(body=response, index=done.index)


async def _check_masks(request: Request, body: JobRegisterRequest) -> None:
    """Raise `Malformed` if the job or its source has a mask in place of a secret."""
    content = request.body
    if len(content) <= SHORT and not may_have_mask(content):
        return

    def find() -> str:
        if not may_have_mask(content):
            return ""
        return find_mask({"Job": body.job, "Submission": msgspec.to_builtins(body.submission)})

    if path := await request.worked_out(len(content), find):
        raise Malformed(
            f"{path} has a mask (‹masked›) in place of a secret: give the secret itself, for "
            "example in a variable of the job file, or read it from a variable in a template"
        )


def check_right(
    request: Request, job: Document | None, namespace: str | None, *, override: bool = False
) -> None:
    """Raise `Denied` unless the caller has the route's capability in the job's namespace.

    `namespace` takes precedence over the job's own. With `override`, the caller also needs
    `policy-override`.
    """
    target = namespace or (job or {}).get("Namespace") or DEFAULT_NAMESPACE
    request.require(target)
    if override and not request.caller.grant.may(target, "policy-override"):
        raise Denied


async def validate(request: Request) -> HandlerReply:
    """Return the errors and warnings of a job, without registering it."""
    body = await request.decoded(JobValidateRequest)
    namespace = request.query.text("namespace") or None
    check_right(request, body.job, namespace)
    around = await registration_context(request, find_secret(body.job))
    unknown = request.remarks()

    def look(db: ReadSnapshot) -> JobValidateResponse:
        job, result = validate_submission(db, body, namespace, around)
        return JobValidateResponse(
            next_periodic_launches=UNSET if result.errors else launch_preview(request, db, job),
            error=result.error,
            validation_errors=list(result.errors) or None,
            warnings=result.with_warnings(*unknown).warnings,
        )

    async with request.parts.admission.slot(request.client):  # a large job takes long
        try:
            return HandlerReply(body=await request.parts.store.read_long(look))
        except OverBudget as error:
            return HandlerReply(body=_invalid(error, unknown))


async def examine(request: Request) -> HandlerReply:
    """Return why no node can run a job: missing resources, and invalid driver configuration."""
    body = await request.decoded(JobValidateRequest)
    namespace = request.query.text("namespace") or None
    check_right(request, body.job, namespace)
    around = await registration_context(request, find_secret(body.job))

    # imported here because this request is rare
    from daemon.evals.dry_run import external_port_listeners, static_ports

    def see(db: ReadSnapshot) -> JobExamination:
        job, _ = validate_submission(db, body, namespace, around)
        check = check_placement(db, job, look)
        listeners = listeners_on({number for _, number in static_ports(job)})
        warnings = [*check.warnings, *external_port_listeners(db, job, listeners)]
        return JobExamination(errors=check.errors, warnings=warnings)

    async with request.parts.admission.slot(request.client):  # a large job takes long
        return HandlerReply(body=await request.parts.store.read_long(see))


def _invalid(error: OverBudget, remarks: list[str]) -> JobValidateResponse:
    return JobValidateResponse(
        error=str(error),
        validation_errors=list(error.problems),
        warnings=ValidationResult(remarks=tuple(remarks)).warnings,
    )


def launch_preview(request: Request, db: ReadSnapshot, job: Job) -> list[str] | UnsetType:
    """Return the next ten launches of a job, if the request asks for them."""
    if not request.query.own_flag("launches"):
        return UNSET
    after, openings = decided_until(db, job, request.parts.clock.now()), openings_of(db, job)
    launches = next_launches(job, after, openings, holding_freezes(db, job))
    return [rfc3339(launch, zone_of(job)) for launch in launches]


def find_secret(job: Document | None) -> str:
    """Return the token in a job that authorizes access to its secrets; empty without one."""
    token = (job or {}).get("SecretsToken") or (job or {}).get("VaultToken")
    return token if isinstance(token, str) else ""


async def registration_context(request: Request, secret: str = "") -> RegistrationContext:
    """Return the objects that a job may refer to, and the checks of the caller's permissions.

    `secret` is the secret ID of the token that authorizes access to the job's secrets. If it is
    empty, the caller's own token is used.
    """
    parts = request.parts
    caller = await parts.tokens.identify(secret, request.address) if secret else request.caller
    return RegistrationContext(
        region=parts.config.region,
        node_pools=parts.store.read(node_pools.names),
        oversubscription=parts.store.read(configuration).memory_oversubscription_enabled,
        policies=parts.policies,
        budgets=Budgets.of(parts.config),
        commands=parts.config.notify_commands,
        receivers=parts.config.notify_receivers,
        clusters={name: (pool.engine, *pool.drivers) for name, pool in parts.config.pools.items()},
        secrets=lambda db, block: why_refused(db, caller, block),
        may_mount=lambda source, read_only: request.caller.grant.may_with_volume(
            source, "mount-readonly" if read_only else "mount-readwrite"
        ),
        look=lambda task: look(task).errors,
        may_override=lambda namespace: request.caller.grant.may(namespace, MAY_OVERRIDE),
        may_open=lambda namespace: request.caller.grant.may(namespace, MAY_OPEN),
        may_read=lambda namespace: request.caller.grant.may(namespace, "read-job"),
        may_dispatch=lambda namespace: request.caller.grant.may(
            namespace, "dispatch-job", "submit-job"
        ),
        keep_sensitive=partial(_keep_sensitive, parts.seal),
    )


def _keep_sensitive(seal: EnvelopeCipher, tx: Transaction, job: Job, values: Sequence[str]) -> None:
    # Imported late, because few job files have sensitive variables.
    from daemon.variables import job_secrets

    job_secrets.keep(tx, seal, job, values)


async def deregister_job(request: Request) -> HandlerReply:
    """Stop a job; with `purge`, also delete it."""
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
        overrides=request.caller.grant.may(request.namespace, MAY_OVERRIDE),
        now=parts.clock.now(),
        eval_id=next(parts.ids),
    )
    if not done.index:
        request.warnings.append(f'nothing was stopped: there is no job "{request["job_id"]}"')
    response = JobDeregisterResponse(
        eval_id=done.eval_id,
        eval_create_index=done.eval_create_index,
        job_modify_index=done.index,
        index=done.index,
    )
    return HandlerReply(body=response, index=done.index)


def _no_shutdown_delay(request: Request) -> bool:
    """Return the query parameter `no_shutdown_delay`. Raises `Malformed`.

    The error text keeps Nomad's typo, because scripts match it (source: Nomad's recorded responses
    `stop-options`).
    """
    try:
        return request.query.flag("no_shutdown_delay")
    except InvalidParameter as error:
        raise InvalidParameter(str(error).replace('delay" (', 'delay"q (')) from None
