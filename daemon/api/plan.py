"""What a registration would do, without doing it."""

from collections.abc import Mapping

from msgspec import UNSET, UnsetType

from daemon.api.jobs import check_right, secret_in, shown_launches, surroundings
from daemon.evals.dry_run import dry_run, in_use, static_ports
from daemon.jobs.periodic import zone_of
from daemon.jobs.preserve import preserve
from daemon.jobs.register import check_place, complete
from daemon.listening import on
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Malformed, Refused
from storage.queries import jobs, nodes
from storage.readers import Snapshot
from storage.records.base import Record
from storage.records.codec import JobDocument
from storage.records.diff import JobDiff
from storage.records.evaluation import Evaluation, PlacementMetric, PlanAnnotations
from storage.records.job import Job
from storage.records.node import DriverLimit
from storage.records.times import rfc3339


class JobPlanRequest(Record, frozen=True, kw_only=True):
    """The body of a plan (spec: Create Job Plan)."""

    job: JobDocument | None = None
    diff: bool = False
    policy_override: bool = False
    preserve_counts: bool = False
    preserve_resources: bool = False
    namespace: str = ""


class JobPlanResponse(Record, frozen=True, kw_only=True):
    """What would change, what the scheduler would do about it, and what would find no place."""

    annotations: PlanAnnotations
    failed_tg_allocs: Mapping[str, PlacementMetric] | None
    job_modify_index: int
    created_evals: list[Evaluation] | None
    diff: JobDiff | None
    next_periodic_launch: str | None
    next_periodic_launches: list[str] | UnsetType = UNSET  # where they are asked for
    warnings: str
    limits: Mapping[str, list[DriverLimit]] | UnsetType = UNSET  # likewise
    index: int


async def plan(request: Request) -> Reply:
    """Show what registering a job would do."""
    parts, body = request.parts, await request.decoded(JobPlanRequest)
    if body.job is None:
        raise Malformed("Job must be specified")
    if "ID" not in body.job:
        raise Malformed("Job must have a valid ID")
    if body.job["ID"] != request["job_id"]:
        raise Malformed("Job ID does not match")
    namespace = request.query.text("namespace") or body.namespace or None
    check_right(request, body.job, namespace, override=body.policy_override)
    document, around = body.job, surroundings(request, secret_in(body.job))
    now, unknown = parts.clock.now(), request.remarks()

    def look(db: Snapshot) -> JobPlanResponse:
        job, findings = complete(document, namespace, around)
        if job.region != around.region:
            raise Refused("No path to region")
        listeners = on({number for _, number in static_ports(job)})
        check_place(db, job, findings, around)
        after = preserve(
            job,
            jobs.current(db, job.namespace, job.id),
            counts=body.preserve_counts,
            resources=body.preserve_resources,
        )
        remarks = [
            *unknown,
            *around.policies.check(after, override=body.policy_override),
            *in_use(db, after, listeners),
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
            next_periodic_launches=shown_launches(request, job),
            warnings=findings.with_warnings(*remarks).warnings,
            limits=_limits(db, job) if request.query.flag("limits") else UNSET,
            index=outlook.index,
        )

    async with parts.admission.turn(request.client):  # a large job takes a second
        response = await parts.store.read_long(look)
    return Reply(body=response, index=response.index)


def _limits(db: Snapshot, job: Job) -> dict[str, list[DriverLimit]]:
    """Return what each driver of a job holds its tasks to, and what not, where they would run."""
    drivers = {task.driver for group in job.task_groups or () for task in group.tasks or ()}
    known = sorted(nodes.every(db), key=lambda one: bool(one.engine))  # this machine comes first
    node = next((one for one in known if job.node_pool in ("all", one.node_pool)), None)
    return {driver: node.limits(driver) for driver in sorted(drivers)} if node else {}
