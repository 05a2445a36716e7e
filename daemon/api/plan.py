"""Dry run of a registration."""

from collections.abc import Mapping
from functools import partial

from msgspec import UNSET, UnsetType

from daemon.api.jobs import check_right, find_secret, launch_preview, registration_context
from daemon.app.context import JobMaskSource
from daemon.evals.dry_run import dry_run, external_port_listeners, static_ports
from daemon.flow.workflow_keys import is_workflow
from daemon.jobs.periodic import zone_of
from daemon.jobs.preserve import preserve
from daemon.jobs.register import (
    SENSITIVE,
    check_next_version,
    check_place,
    complete,
    sensitive_variables,
    state_warnings,
    step_counts,
)
from daemon.jobspec.rules.job import total_count
from daemon.net.port_listeners import listeners_on
from daemon.text.masking import Matcher
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage import garbage
from storage.errors import Malformed, Refused
from storage.queries import jobs, nodes
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.codec import JobDocument, encode
from storage.records.diff import JobDiff
from storage.records.evaluation import Evaluation, PlacementMetric, PlanAnnotations
from storage.records.flow import PlannedFlow
from storage.records.job import Job, Submission
from storage.records.node import DriverLimit
from storage.records.times import rfc3339


class JobPlanRequest(Record, frozen=True, kw_only=True):
    """The request body of a plan."""

    job: JobDocument | None = None
    diff: bool = False
    policy_override: bool = False
    preserve_counts: bool = False
    preserve_resources: bool = False
    namespace: str = ""
    submission: Submission | None = None  # its sensitive variables are masked in the response


class JobPlanResponse(Record, frozen=True, kw_only=True):
    """The changes to the job, the scheduler's plan for them, and the placement failures."""

    annotations: PlanAnnotations
    failed_tg_allocs: Mapping[str, PlacementMetric] | None
    job_modify_index: int
    created_evals: list[Evaluation] | None
    diff: JobDiff | None
    next_periodic_launch: str | None
    next_periodic_launches: list[str] | UnsetType = UNSET  # only on request
    warnings: str
    limits: Mapping[str, list[DriverLimit]] | UnsetType = UNSET  # only on request
    flow: PlannedFlow | UnsetType = UNSET  # only for a workflow
    index: int


async def plan(request: Request) -> HandlerReply:
    """Show the effect of registering a job."""
    parts, body = request.parts, await request.decoded(JobPlanRequest)
    if body.job is None:
        raise Malformed("Job must be specified")
    if "ID" not in body.job:
        raise Malformed("Job must have a valid ID")
    if body.job["ID"] != request["job_id"]:
        raise Malformed("Job ID does not match")
    namespace = request.query.text("namespace") or body.namespace or None
    check_right(request, body.job, namespace, override=body.policy_override)
    document, around = body.job, await registration_context(request, find_secret(body.job))
    now, unknown = parts.clock.now(), request.remarks()

    def look(db: ReadSnapshot) -> JobPlanResponse:
        job, findings = complete(document, namespace, around)
        if job.region != around.region:
            raise Refused("No path to region")
        listeners = listeners_on({number for _, number in static_ports(job)})
        check_place(db, job, findings, around)
        after = preserve(
            job,
            jobs.current(db, job.namespace, job.id),
            counts=body.preserve_counts,
            resources=body.preserve_resources,
        )
        check_next_version(db, after, around.budgets)
        limit = around.budgets.job_max_count
        for problem in (*total_count(after, limit), *step_counts(after)):
            raise Refused(problem)  # the preserved counts may exceed the limit
        remarks = [
            *unknown,
            *around.policies.check(after, override=body.policy_override),
            *state_warnings(db, after, around),
            *external_port_listeners(db, after, listeners),
        ]
        outlook = dry_run(db, after, now=now, ids=parts.ids)
        launch = outlook.next_launch
        return JobPlanResponse(
            annotations=outlook.annotations,
            failed_tg_allocs=outlook.failed or None,
            job_modify_index=outlook.index,
            created_evals=outlook.evaluations or None,
            diff=outlook.diff if body.diff else None,
            next_periodic_launch=None if launch is None else rfc3339(launch, zone_of(job)),
            next_periodic_launches=launch_preview(request, db, job),
            warnings=findings.with_warnings(*remarks).warnings,
            limits=_limits(db, job) if request.query.own_flag("limits") else UNSET,
            flow=_flow(db, after, outlook.opened, now),
            index=outlook.index,
        )

    async with parts.admission.slot(request.client):  # a large job takes a second
        index, answer = await parts.store.read_long(lambda db: _encoded(look(db)))
    if parts.tokens.asks:
        named = namespace or body.job.get("Namespace")
        key = (named if isinstance(named, str) and named else request.namespace, request["job_id"])
        answer = await _masked(parts.job_masks, answer, body.submission, key)
    return HandlerReply(body=answer, index=index)


async def _masked(
    masks: JobMaskSource | None, answer: bytes, source: Submission | None, key: tuple[str, str]
) -> bytes:
    """Return `answer`, in which the values of sensitive variables are masked.

    The variables are those of the submitted `source`, and of the stored job with this `key`.
    """
    if masks is not None and (matcher := await masks.matcher(key)) is not None:
        answer = await garbage.in_thread(partial(_with_masks, answer, matcher, key))
    if source is None or SENSITIVE not in source.source:
        return answer
    return await garbage.in_thread(partial(_masked_by_source, answer, source, key))


def _masked_by_source(answer: bytes, source: Submission, key: tuple[str, str]) -> bytes:
    # Imported late, because few job files have sensitive variables.
    from daemon.variables.task_secrets import matcher_of

    sensitive = sensitive_variables(source)
    return _with_masks(answer, matcher_of(sensitive.values), key) if sensitive.values else answer


def _with_masks(answer: bytes, matcher: Matcher, key: tuple[str, str]) -> bytes:
    from daemon.text.json_masks import mask_json

    return mask_json(answer, {key: matcher}, key)


def _encoded(response: JobPlanResponse) -> tuple[int, bytes]:
    """Return the index and the JSON of a response.

    This function runs in a thread, because the diff of a large job takes long to encode.
    """
    return response.index, encode(response)


def _flow(db: ReadSnapshot, job: Job, opened: frozenset[str], now: int) -> PlannedFlow | UnsetType:
    """Return the planned workflow of a job; unset for a job that is not a workflow.

    A registration of the job would open the steps `opened`.
    """
    if not is_workflow(job):
        return UNSET
    from daemon.evals.planned_flow import planned_flow  # imported late: few jobs are workflows

    return planned_flow(db, job, opened, now=now)


def _limits(db: ReadSnapshot, job: Job) -> dict[str, list[DriverLimit]]:
    """Return the enforced and the unenforced limits of a job, by driver."""
    drivers = {task.driver for group in job.task_groups or () for task in group.tasks or ()}
    # This host comes first.
    sorted_nodes = sorted(nodes.list_all(db), key=lambda node: bool(node.engine))
    node = next((node for node in sorted_nodes if job.node_pool in ("all", node.node_pool)), None)
    return {driver: node.limits(driver) for driver in sorted(drivers)} if node else {}
