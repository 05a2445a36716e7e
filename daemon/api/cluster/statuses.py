"""Jobs as dashboards show them: newest change first, with what belongs to each (golden: job-statuses)."""

from daemon.api.paging import cut, in_steps
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.parameters import BadParameter
from daemon.web.reply import Reply
from daemon.web.request import DEFAULT_NAMESPACE, Request
from storage.errors import Malformed
from storage.queries import allocations, deployments, job_listings, jobs
from storage.readers import Snapshot
from storage.records.allocation import Allocation
from storage.records.base import Record
from storage.records.codec import encode, parse
from storage.records.deployment import Deployment
from storage.records.job import Job
from storage.records.statuses import (
    AllocationHealth,
    AllocationStatus,
    JobStatusLine,
    LatestDeployment,
)

_TABLES = ("jobs", "allocations", "deployments")


class NamedJob(Record, frozen=True, kw_only=True):
    """A job that is asked about by its name."""

    id: str = ""
    namespace: str = ""


class JobStatusesRequest(Record, frozen=True, kw_only=True):
    """The body that asks about certain jobs."""

    jobs: list[NamedJob] | None = None
    include_children: bool = False


def index(request: Request, db: Snapshot) -> Reply:
    """Show jobs in short: all of a namespace, or, with a body, certain ones."""
    found = _named(request, db) if request.body else _all(request, db)
    found = [row for row in found if request.sees(row.namespace)]
    if expression := request.query.text("filter"):
        matches = compile_filter(expression, Job)
        found = [row for row in found if matches(_document(db, row))]
    page, next_token = cut(
        found,
        lambda row: (row.modify_index, f"{row.namespace}.{row.id}"),
        request.query,
        newest_first=True,
    )
    highest = max(db.table_index(table) for table in _TABLES)
    return in_steps(page, _line, db, reply.read(None, highest, next_token=next_token))


def _all(request: Request, db: Snapshot) -> list[job_listings.Change]:
    query = request.query
    try:
        children = query.flag("include_children")
    except BadParameter as error:
        raise Malformed(str(error)) from None
    found = job_listings.by_change(
        db,
        request.namespace,
        query.text("prefix"),
        kind=query.text("type"),
        status=query.text("status"),
        children=children,
    )
    part = query.text("contains").casefold()
    return [row for row in found if part in row.id.casefold()] if part else found


def _named(request: Request, db: Snapshot) -> list[job_listings.Change]:
    try:
        body = request.decode(JobStatusesRequest)
    except Malformed as error:
        raise Malformed(f"error decoding request: {error}") from None
    if not body.jobs:
        raise Malformed("no jobs in request")
    named = {(one.namespace or DEFAULT_NAMESPACE, one.id) for one in body.jobs}
    found = [jobs.current(db, *key) for key in sorted(named)]
    rows = [job_listings.Change(one.modify_index, one.namespace, one.id) for one in found if one]
    return sorted(rows)


def _document(db: Snapshot, row: job_listings.Change) -> object:
    found = jobs.current_wire(db, row.namespace, row.id)
    return parse(found[0]) if found else {}


def _line(db: Snapshot, row: job_listings.Change) -> bytes:
    job = jobs.current(db, row.namespace, row.id)
    if job is None:  # it has gone between two steps
        return b""
    placed = allocations.of_job(db, row.namespace, row.id)
    children = (
        job_listings.child_statuses(db, row.namespace, row.id) if job.launches_children else None
    )
    line = JobStatusLine(
        id=job.id,
        namespace=job.namespace,
        name=job.name,
        type=job.type,
        node_pool=job.node_pool,
        datacenters=job.datacenters,
        priority=job.priority,
        version=job.version,
        parent_id=job.parent_id,
        status=job.status,
        stop=job.stop,
        submit_time=job.submit_time,
        modify_index=job.modify_index,
        is_pack=any(name.startswith("pack.") for name in job.meta or ()),
        group_count_sum=sum(group.count for group in job.task_groups or ()),
        child_statuses=children,
        allocs=[_allocation(one) for one in placed] or None,
        latest_deployment=_deployment(deployments.latest(db, row.namespace, row.id)),
    )
    return encode(line)


def _allocation(one: Allocation) -> AllocationStatus:
    health = AllocationHealth()
    if one.health is not None:
        health = AllocationHealth(canary=one.health.canary, healthy=one.health.healthy)
    return AllocationStatus(
        id=one.id,
        group=one.task_group,
        client_status=one.client_status,
        node_id=one.node_id,
        job_version=one.job_version,
        followup_eval_id=one.desired.followup_eval_id,
        deployment_status=health,
    )


def _deployment(latest: Deployment | None) -> LatestDeployment | None:
    if latest is None:
        return None
    on_trial = [state for state in latest.task_groups.values() if state.desired_canaries]
    return LatestDeployment(
        id=latest.id,
        is_active=latest.active,
        job_version=latest.job_version,
        status=latest.status,
        status_description=latest.status_description,
        all_auto_promote=all(state.auto_promote for state in on_trial),
        requires_promotion=any(not state.promoted for state in on_trial),
    )
