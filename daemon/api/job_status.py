"""The state of a job: counts, allocations, evaluations, deployments, services; and re-evaluation."""

from collections.abc import Iterator
from datetime import date

import msgspec

from daemon.api.cluster.allocations import filter_of, line
from daemon.api.jobs import JobRegisterResponse
from daemon.api.paging import Key, Listing, show
from daemon.evals import explain as explanation
from daemon.evals import job_states, run_history, run_views
from daemon.evals.failures import newest_error
from daemon.jobs.evaluate import JobEvaluateRequest, check_ids, evaluate_job
from daemon.jobspec.filter import compile_filter
from daemon.text.job_state import TROUBLE, State
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound, Refused
from storage.queries import allocations, deployments, evaluations, job_listings, jobs
from storage.queries import services as services_of
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation
from storage.records.base import Record
from storage.records.codec import encode, parse
from storage.records.deployment import Deployment
from storage.records.evaluation import Evaluation
from storage.records.job import Job
from storage.records.service import Registration
from storage.records.state import StateLine

_RUNS, _MOST_RUNS = 50, 500  # child jobs in one response


class JobAction(Record, frozen=True, kw_only=True):
    """A command that may be run inside a task of a job."""

    name: str
    command: str
    args: list[str] | None
    task_group_name: str
    task_name: str


def summary(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Count a job's allocations and children by status."""
    stored = job_listings.summary_wire(db, request.namespace, request["job_id"])
    if stored is None:
        raise NotFound("job not found", index=db.table_index("summaries"))
    return reply.read_reply(*stored)


def explain(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Explain why allocations of a job are not running."""
    answer = explanation.explain_job(db, request.namespace, request["job_id"])
    if answer is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    answer = msgspec.structs.replace(answer, state=_state(request, db))
    index = max(map(db.table_index, ("jobs", "evaluations", "allocations", "deployments", "nodes")))
    return reply.read_reply(answer, index)


def state(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the state of a job in one word, with the reason and a summary of its children."""
    return reply.read_reply(_state(request, db), _index(db))


def _state(request: Request, db: ReadSnapshot) -> StateLine:
    """Return the state of a job, with its newest error. Raises `NotFound`."""
    status = job_states.line(db, request.namespace, request["job_id"], request.parts.clock.now())
    if status is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    error = None
    if status.state in (*TROUBLE, State.DEPLOYING):
        failed = status.runs.last_run_id if status.runs else request["job_id"]
        error = newest_error(db, request.namespace, failed)
    return msgspec.structs.replace(status, error=error)


def runs(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the latest children of a periodic or parameterized job, or the runs of a workflow.

    `day` and `result` select some of the children. Raises `NotFound` and `Malformed`.
    """
    job, now = _job(request, db), request.parts.clock.now()
    most = min(request.query.own_natural("per_page") or _RUNS, _MOST_RUNS)
    run_filter = _filter(request.query.text("day"), request.query.text("result"))
    if of_workflow := run_views.listed(db, job.namespace, job.id, most):
        return reply.read_reply(of_workflow, max(_index(db), db.table_index("runs")))
    if run_filter == run_history.RunFilter():
        rows = list(job_states.runs(db, job.namespace, job.id, now, most))
    else:
        rows = run_history.selected(db, job, now, most, run_filter)
    return reply.read_reply(rows, _index(db))


def _job(request: Request, db: ReadSnapshot) -> Job:
    job = jobs.current(db, request.namespace, request["job_id"])
    if job is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    return job


def _filter(day: str, result: str) -> run_history.RunFilter:
    if result and result not in run_history.RESULTS:
        results = ", ".join(run_history.RESULTS)
        raise Malformed(f"result={result[:40]!r} is not known: give one of {results}")
    try:
        iso_day = date.fromisoformat(day).isoformat() if day else ""
    except ValueError:
        raise Malformed(f"day={day[:40]!r} is not a date such as 2026-11-21") from None
    return run_history.RunFilter(iso_day, result)


def calendar(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the results of the children of a job by day. Raises `NotFound`."""
    days = run_history.calendar(db, _job(request, db), request.parts.clock.now())
    return reply.read_reply(days, _index(db))


def _index(db: ReadSnapshot) -> int:
    return max(map(db.table_index, ("jobs", "evaluations", "allocations", "deployments")))


def job_allocations(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List a job's allocations, newest first."""
    query, key = request.query, (request.namespace, request["job_id"])
    listing = Listing[Allocation](
        rows=lambda db, start, reverse: allocations.job_page(db, *key, _from(start, reverse)),
        key=lambda alloc: (alloc.create_index, alloc.id),
        line=lambda db, alloc: line(db, alloc, query),
        wanted=filter_of(query),
        newest_first=True,
    )
    index = allocations.highest_index(db, *key) or db.table_index("allocations")
    return show(listing, query, db, index)


def _from(start: Key | None, reverse: bool) -> PageRequest:
    return PageRequest(namespace="*", start=start, reverse=reverse)


def job_evaluations(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List a job's evaluations, newest first."""
    key, expression = (request.namespace, request["job_id"]), request.query.text("filter")
    matches = compile_filter(expression, Evaluation) if expression else None
    listing = Listing[evaluations.EvaluationLine](
        rows=lambda db, start, reverse: evaluations.job_page(db, *key, _from(start, reverse)),
        key=lambda evaluation: (evaluation.create_index, evaluation.id),
        line=lambda _, evaluation: evaluation.document,
        wanted=None
        if matches is None
        else lambda _, evaluation: matches(parse(evaluation.document)),
        newest_first=True,
    )
    index = evaluations.highest_of_job(db, *key) or db.table_index("evaluations")
    return show(listing, request.query, db, index)


def job_deployments(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List a job's deployments, newest first."""
    key, expression = (request.namespace, request["job_id"]), request.query.text("filter")
    matches = compile_filter(expression, Deployment) if expression else None
    listing = Listing[Deployment](
        rows=lambda db, start, reverse: deployments.job_page(db, *key, _from(start, reverse)),
        key=lambda deployment: (deployment.create_index, deployment.id),
        line=lambda _, deployment: encode(deployment),
        wanted=None
        if matches is None
        else lambda _, deployment: matches(msgspec.to_builtins(deployment)),
        newest_first=True,
    )
    index = deployments.highest_of_job(db, *key) or db.table_index("deployments")
    return show(listing, request.query, db, index)


def newest_deployment(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a job's latest deployment, or null."""
    deployment = deployments.latest(db, request.namespace, request["job_id"])
    if deployment is None:
        return reply.read_reply(b"null", db.table_index("deployments"))
    return reply.read_reply(deployment, deployment.modify_index)


def services(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the registered services of a job."""
    if jobs.current_wire(db, request.namespace, request["job_id"]) is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    key = (request.namespace, request["job_id"])

    def rows(db: ReadSnapshot, start: Key | None, reverse: bool) -> Iterator[Registration]:
        first = str(start[1]) if start else None
        return services_of.of_job(db, *key, first, reverse=reverse)

    listing = Listing[Registration](
        rows=rows,
        key=lambda service: ("", service.id),
        line=lambda _, service: encode(service),
        is_number=False,
    )
    return show(listing, request.query, db, max(db.table_index("services"), 1))


def actions(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the commands that may be run inside the tasks of a job."""
    job = jobs.current(db, request.namespace, request["job_id"])
    if job is None:
        raise Refused(f'Unknown job "{request["job_id"]}"')
    listed = [
        JobAction(
            name=action.name,
            command=action.command,
            args=action.args,
            task_group_name=group.name,
            task_name=task.name,
        )
        for group in job.task_groups or ()
        for task in group.tasks or ()
        for action in task.actions or ()
    ]
    return HandlerReply(body=listed, index=0, is_read=True, knows_leader=False)


async def evaluate(request: Request) -> HandlerReply:
    """Evaluate a job again."""
    parts, job_id = request.parts, request["job_id"]
    body = JobEvaluateRequest(job_id=job_id)
    if request.body:  # old clients send no body
        body = await request.decoded(JobEvaluateRequest)
    check_ids(body.job_id, job_id)
    done = await evaluate_job(
        parts.store,
        request.namespace,
        job_id,
        body.eval_options,
        now=parts.clock.now(),
        eval_id=next(parts.ids),
    )
    response = JobRegisterResponse(
        eval_id=done.eval_id,
        eval_create_index=done.index,
        job_modify_index=done.job_modify_index,
        index=done.index,
    )
    return HandlerReply(body=response, index=done.index)
