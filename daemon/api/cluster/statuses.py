"""Job lists for dashboards, with allocations and deployments; by default, last change first.

The format is Nomad's (source: Nomad's recorded responses `job-statuses`).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar, NamedTuple

from msgspec import UNSET

from daemon.api.paging import Key, Listing, cut, in_steps, query_factory, show
from daemon.app.status_lines import StatusLines
from daemon.evals import job_states
from daemon.flow.workflow_keys import is_workflow
from daemon.jobspec.filter import compile_filter
from daemon.text.job_state import State
from daemon.web import reply
from daemon.web.parameters import InvalidParameter
from daemon.web.reply import HandlerReply
from daemon.web.request import DEFAULT_NAMESPACE, Request
from storage.errors import Malformed
from storage.queries import (
    allocations,
    deployments,
    job_listings,
    job_stamps,
    job_status,
    jobs,
)
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation
from storage.records.base import Record
from storage.records.codec import encode, parse
from storage.records.deployment import Deployment
from storage.records.job import Job, JobStatus, JobType
from storage.records.statuses import (
    AllocationHealth,
    AllocationStatus,
    JobStatusLine,
    LatestDeployment,
)

_TABLES = ("jobs", "allocations", "deployments")
_SHOWN = 40  # characters of an invalid value in an error
_MOST_NAMED = 5_000  # jobs in a body; sorting more would hold up other requests
_ORDERS = {"change": job_listings.by_change, "name": job_listings.by_name}


class NamedJob(Record, frozen=True, kw_only=True):
    """The ID and namespace of a requested job."""

    id: str = ""
    namespace: str = ""


class JobStatusesRequest(Record, frozen=True, kw_only=True):
    """The body that requests certain jobs."""

    inert: ClassVar[Mapping[str, str]] = {
        "include_children": "the request names every job of the response"
    }

    jobs: list[NamedJob] | None = None
    include_children: bool = False


class LineParts(NamedTuple):
    """The optional parts of a line, which Nomad does not have.

    `state` adds the state of the job, and `strip` the latest results of its children. With
    `counts`, the number of allocations by client status replaces the lists of allocations and of
    child jobs, which are long for some jobs.
    """

    state: bool
    strip: bool
    counts: bool


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show short records of jobs: all jobs of a namespace, or the jobs that a body names.

    Raises `Malformed`.
    """
    query, now = request.query, request.parts.clock.now()
    highest = max(db.table_index(table) for table in _TABLES)
    parts = LineParts(query.own_flag("states"), query.own_flag("strip"), query.own_flag("counts"))
    if parts.strip and not parts.state:
        raise Malformed("strip = true needs states = true, because a strip is a part of a state")
    line = partial(_kept_line, lines=request.parts.status_lines, now=now, parts=parts)
    matches = _job_predicate(request, now)
    if request.body:
        matching = [row for row in _named(request, db) if matches(db, row)]
        page, next_token = cut(matching, _key, request.query, newest_first=True)
        return in_steps(page, line, db, reply.read_reply(None, highest, next_token=next_token))
    sort = query.text("sort", "change")
    for name, value, choices in (
        ("sort", sort, tuple(_ORDERS)),
        ("type", query.text("type"), tuple(JobType)),
        ("status", query.text("status"), tuple(JobStatus)),
    ):
        if value and value not in choices:
            raise Malformed(f"{name} = {value[:_SHOWN]!r} must be one of {', '.join(choices)}")
    is_by_change = sort == "change"
    listing = Listing[job_listings.JobChange](
        rows=_rows(request, _ORDERS[sort]),
        key=_key if is_by_change else lambda row: (row.namespace, row.id),
        line=line,
        wanted=matches,
        is_number=is_by_change,
        newest_first=is_by_change,
    )
    return show(listing, request.query, db, highest)


def _key(row: job_listings.JobChange) -> Key:
    return (row.modify_index, f"{row.namespace}.{row.id}")


def _job_predicate(
    request: Request, now: int
) -> Callable[[ReadSnapshot, job_listings.JobChange], bool]:
    """Return a predicate for the jobs to show."""
    query, states = request.query, _states(request)
    matches = compile_filter(text, Job) if (text := query.text("filter")) else None
    part = query.text("contains").casefold()

    def wanted(db: ReadSnapshot, row: job_listings.JobChange) -> bool:
        return (
            request.sees(row.namespace)
            and (not part or part in row.id.casefold())
            and (matches is None or matches(_document(db, row)))
            and (not states or _state_word(db, row, now) in states)
        )

    return wanted


def _states(request: Request) -> frozenset[str]:
    """Return the states in the query; an empty set means all states. Raises `Malformed`."""
    states = frozenset(filter(None, request.query.text("state").split(",")))
    if unknown := sorted(states - {*State}):
        raise Malformed(f"state = {unknown[0]!r} is unknown; use one of {', '.join(State)}")
    return states


def _state_word(db: ReadSnapshot, row: job_listings.JobChange, now: int) -> str:
    state = job_states.state_of(db, row.namespace, row.id, now)
    return state.word if state else ""


def _rows(
    request: Request, of_order: Callable[..., Iterator[job_listings.JobChange]]
) -> Callable[[ReadSnapshot, Key | None, bool], Iterator[job_listings.JobChange]]:
    query, to_page_request = request.query, query_factory(request, None, {})
    try:
        children = query.flag("include_children")
    except InvalidParameter as error:
        raise Malformed(str(error)) from None
    failed = _states(request) == {State.FAILED}

    def rows(
        db: ReadSnapshot, start: Key | None, reverse: bool
    ) -> Iterator[job_listings.JobChange]:
        return of_order(
            db,
            to_page_request(start, reverse),
            kind=query.text("type"),
            status=query.text("status"),
            children=children,
            failed=failed,
            part=query.text("contains").casefold(),
        )

    return rows


def _named(request: Request, db: ReadSnapshot) -> list[job_listings.JobChange]:
    try:
        body = request.decode(JobStatusesRequest)
    except Malformed as error:
        raise Malformed(f"error decoding request: {error}") from None
    if not body.jobs:
        raise Malformed("no jobs in request")
    if len(body.jobs) > _MOST_NAMED:
        raise Malformed(
            f'"Jobs" names {len(body.jobs)} jobs; the maximum is {_MOST_NAMED}: send fewer in one '
            "request"
        )
    named = {(job.namespace or DEFAULT_NAMESPACE, job.id) for job in body.jobs}
    requested = [jobs.current(db, *key) for key in sorted(named)]
    rows = [
        job_listings.JobChange(current.modify_index, current.namespace, current.id)
        for current in requested
        if current
    ]
    return sorted(rows)


def _document(db: ReadSnapshot, row: job_listings.JobChange) -> object:
    stored = jobs.current_wire(db, row.namespace, row.id)
    return parse(stored[0]) if stored else {}


def _kept_line(
    db: ReadSnapshot,
    row: job_listings.JobChange,
    *,
    lines: StatusLines,
    now: int,
    parts: LineParts,
) -> bytes:
    """Return the line of a job, from the cache if nothing that the line shows has changed."""
    key = (row.namespace, row.id, *parts)
    stamp = job_stamps.load(db, row.namespace, row.id)
    if stamp is not None and (cached_line := lines.find(key, stamp)) is not None:
        return cached_line
    line, is_lasting = _line(db, row, now=now, parts=parts)
    if stamp is not None and is_lasting:
        lines.keep(key, stamp, line)
    return line


def _line(
    db: ReadSnapshot, row: job_listings.JobChange, *, now: int, parts: LineParts
) -> tuple[bytes, bool]:
    """Return the line of a job, and whether it stays valid until one of the job's objects changes.

    Two kinds of lines can also become outdated without such a change. The state of a job changes
    some time after a restart of a task, when the task counts as healthy again. The line of a
    workflow also depends on other jobs that its steps wait for.
    """
    job = jobs.current(db, row.namespace, row.id)
    if job is None:  # the job was purged between two steps
        return b"", False
    summary = job_status.load_summary(db, row.namespace, row.id)
    placed = list[Allocation]()
    if not parts.counts and (summary is None or job_status.has_allocations(summary)):
        placed = allocations.readable_of_job(db, row.namespace, row.id)
    latest = deployments.latest(db, row.namespace, row.id)
    state, is_lasting = None, not is_workflow(job)
    if parts.state and summary:
        facts = job_states.of_row(db, summary, now, job, latest)
        state = job_states.line_of_row(db, summary, facts, with_strip=parts.strip)
        is_lasting &= not (facts.current.failing or facts.older.failing)
    children = None
    if job.launches_children and not parts.counts:
        children = job_listings.child_statuses(db, row.namespace, row.id)
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
        allocs=[_allocation(alloc) for alloc in placed] or None,
        latest_deployment=_deployment(latest),
        steward_state=state or UNSET,
        steward_allocations=job_status.allocation_counts(summary)
        if parts.counts and summary
        else UNSET,
    )
    return encode(line), is_lasting


def _allocation(alloc: Allocation) -> AllocationStatus:
    health = AllocationHealth()
    if alloc.health is not None:
        health = AllocationHealth(canary=alloc.health.canary, healthy=alloc.health.healthy)
    return AllocationStatus(
        id=alloc.id,
        group=alloc.task_group,
        client_status=alloc.client_status,
        node_id=alloc.node_id,
        job_version=alloc.job_version,
        followup_eval_id=alloc.desired.followup_eval_id,
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
