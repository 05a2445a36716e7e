"""Workflows: the graph of a job, and its runs."""

from collections.abc import Iterator
from http import HTTPStatus

import msgspec

from daemon.acl.caller_cache import policy_names
from daemon.acl.check import on_namespace
from daemon.api.jobs import find_secret, registration_context
from daemon.api.paging import Key, Listing, inner_page, query_factory, show
from daemon.evals import run_views
from daemon.flow import graph
from daemon.jobs.register import JobValidateRequest, complete
from daemon.jobs.steer_run import RunActRequest, act_on_run
from daemon.jobs.version_history import RerunVersions
from daemon.jobspec.budgets import Budgets
from daemon.jobspec.filter import compile_filter
from daemon.jobspec.steward_meta.check import problems as key_problems
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage import loop_share
from storage.errors import Denied, Malformed, NotFound
from storage.queries import allocations, entities, jobs, policies, runs
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.flow import FlowRun, FlowRunView, FlowStatus, RunActType, RunElement

APPROVE = on_namespace("approve-run")
SUBMIT = on_namespace("submit-job")
_SHOWN = 200  # characters of an unknown name in a message


async def draw(request: Request) -> HandlerReply:
    """Return the graph of the job in the request body. The job is not stored."""
    body = await request.decoded(JobValidateRequest)
    if body.job is None:
        raise Malformed("Job must be specified")
    document, around = body.job, await registration_context(request, find_secret(body.job))
    namespace = request.query.text("namespace") or None

    def drawn() -> HandlerReply:
        job, _ = complete(document, namespace, around)
        if faults := list(key_problems(job)):
            raise Malformed("; ".join(faults))
        return HandlerReply(body=encode(graph.view(job)))

    return await request.parts.admission.run(request.client, drawn)


def graph_of_job(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Return the graph of a job's latest version, or of the one in `version`."""
    namespace, job_id = request.namespace, request["job_id"]
    number = request.query.own_natural("version")
    job = (
        jobs.current(db, namespace, job_id)
        if number is None
        else jobs.version(db, namespace, job_id, number)
    )
    if job is None:
        message = "job not found" if number is None else f"version {number} not found"
        raise NotFound(message, index=db.table_index("jobs"))
    return reply.read_reply(graph.view(job), job.job_modify_index)


def list_runs(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the runs of all workflows, newest first."""
    query = request.query
    expression, status, job_id = query.text("filter"), query.text("status"), query.text("job")
    if status and status not in (*FlowStatus,):
        raise Malformed(f"status = {status!r} must be one of {', '.join(FlowStatus)}")
    matches = compile_filter(expression, FlowRun) if expression else None
    to_page_request = query_factory(request, None, {})

    def wanted(_: ReadSnapshot, flow_run: FlowRun) -> bool:
        if not request.sees(flow_run.namespace) or not flow_run.job_id.startswith(
            query.text("prefix")
        ):
            return False
        if job_id and flow_run.job_id != job_id and not flow_run.job_id.startswith(f"{job_id}/"):
            return False
        if status and flow_run.status != status:
            return False
        return matches is None or matches(msgspec.to_builtins(flow_run))

    listing = Listing[FlowRun](
        rows=lambda db, start, reverse: runs.page(db, to_page_request(start, reverse)),
        key=lambda run: (run.create_index, run.job_id),
        line=lambda _, run: encode(run),
        wanted=wanted,
        newest_first=True,
    )
    return show(listing, query, db, db.table_index(runs.TABLE))


def read_run(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a run of a job with its steps: the newest run, or the one in `number`.

    `elements` names a step. The response then has only that step, with a page of its elements.
    """
    namespace, job_id = request.namespace, request["job_id"]
    run = _run_of(request, db)
    flow_run_view, next_token = run_views.of_run(db, run), ""
    if name := request.query.text("elements"):
        flow_run_view, next_token = _with_elements(request, db, flow_run_view, name)
    index = max(flow_run_view.modify_index, allocations.highest_index(db, namespace, job_id))
    return reply.read_reply(flow_run_view, index, next_token=next_token)


def _with_elements(
    request: Request, db: ReadSnapshot, run: FlowRunView, name: str
) -> tuple[FlowRunView, str]:
    """Return a run with one step and a page of its elements, and the token of the next page.

    Raises `NotFound`.
    """
    step = next((step for step in run.steps if step.name == name), None)
    if step is None:
        raise _no_step(db, run, name)
    # To find the elements of an array, all allocations of the job are read. So this read always runs
    # in a thread.
    loop_share.spend(loop_share.SHARE + 1)
    from daemon.evals.run_elements import elements  # imported late: few requests need it

    def rows(start: Key | None, reverse: bool) -> Iterator[RunElement]:
        first = int(start[0]) if start is not None else step.total - 1 if reverse else 0
        return elements(db, run, step, max(first, 0), reverse=reverse)

    page_elements, next_token = inner_page(
        rows,
        key=lambda element: (element.index,),
        size=lambda element: len(element.key) + len(element.value),
        query=request.query,
    )
    return msgspec.structs.replace(run, steps=[step], elements=page_elements), next_token


def _no_step(db: ReadSnapshot, run: FlowRun, name: str) -> NotFound:
    return NotFound(
        f"run {run.number} has no step {name[:_SHOWN]!r}", index=db.table_index(runs.TABLE)
    )


def read_outputs(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the outputs of the steps of a run: of all steps, or of the step in `step`."""
    namespace, job_id = request.namespace, request["job_id"]
    run = _run_of(request, db)
    step = request.query.text("step")
    if step and runs.step(db, run, step) is None:
        raise _no_step(db, run, step)
    outputs = list(runs.outputs(db, run, step))
    index = max(run.modify_index, allocations.highest_index(db, namespace, job_id))
    return reply.read_reply(outputs, index)


def _run_of(request: Request, db: ReadSnapshot) -> FlowRun:
    """Return the run in `number`, by default the newest. Raises `NotFound`."""
    namespace, job_id = request.namespace, request["job_id"]
    number = request.query.own_natural("number")
    run = (
        runs.newest(db, namespace, job_id)
        if number is None
        else runs.find(db, namespace, job_id, number)
    )
    if run is not None:
        return run
    if jobs.current_wire(db, namespace, job_id) is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    words = "the job has no run" if number is None else f"run {number} not found"
    raise NotFound(words, index=db.table_index(runs.TABLE))


async def cancel(request: Request) -> HandlerReply:
    """Cancel a run. Its clean-up steps still run, except with `now`."""
    return await _act(request, RunActType.CANCEL)


async def skip(request: Request) -> HandlerReply:
    """Skip steps that have not begun."""
    return await _act(request, RunActType.SKIP)


async def accept(request: Request) -> HandlerReply:
    """Accept failed steps as successful; steps that were skipped because of them wait again."""
    return await _act(request, RunActType.ACCEPT)


async def rerun(request: Request) -> HandlerReply:
    """Run ended steps again, together with all later steps.

    Earlier steps with `redo` also run again.
    """
    return await _act(request, RunActType.RERUN)


async def run_step(request: Request) -> HandlerReply:
    """Begin a run of one step, or of one element of it, without the other steps."""
    return await _act(request, RunActType.STEP)


async def approve(request: Request) -> HandlerReply:
    """Approve a step that is held at its gate."""
    return await _act(request, RunActType.APPROVE)


async def reject(request: Request) -> HandlerReply:
    """Reject a step that is held at its gate."""
    return await _act(request, RunActType.REJECT)


async def _act(request: Request, act: RunActType) -> HandlerReply:
    parts, token = request.parts, request.caller.token
    body = await request.decoded(RunActRequest) if request.body else RunActRequest()
    versions, now = None, parts.clock.now()
    if body.version is not None and act == RunActType.RERUN:
        if not request.caller.has(SUBMIT, request.namespace):
            raise Denied("a re-run with another version stores that version and needs submit-job")
        versions = RerunVersions(await registration_context(request, ""), now)
    outcome = await act_on_run(
        parts.store,
        request.namespace,
        request["job_id"],
        act,
        body,
        caller=token.person if parts.tokens.asks else "anonymous",
        now=now,
        eval_id=next(parts.ids),
        may_approve=request.caller.has(APPROVE, request.namespace),
        labels=_labels(request),
        knows_people=parts.tokens.asks,
        versions=versions,
        budgets=Budgets.of(parts.config),
    )
    if outcome.done is None:
        return reply.text(outcome.refusal, HTTPStatus.CONFLICT)
    return HandlerReply(body=outcome.done, index=outcome.done.index)


def _labels(request: Request) -> frozenset[str] | None:
    """Return the caller's roles and policies in the notation of gates, such as `role:NAME`.

    Return None if the caller may decide at every gate.
    """
    parts, token = request.parts, request.caller.token
    if not parts.tokens.asks or request.caller.grant.everything:
        return None

    def read(db: ReadSnapshot) -> frozenset[str]:
        entity = entities.find(db, token.entity_id) if token.entity_id else None
        roles = [policies.find_role(db, role) for role in token.roles]
        return frozenset(
            [
                *(f"policy:{policy_name}" for policy_name in policy_names(db, token, entity)),
                *(f"role:{role.name}" for role in roles if role is not None),
            ]
        )

    return parts.store.read(read)
