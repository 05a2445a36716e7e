"""What a job is doing: its counts, allocations, evaluations, deployments and services; and a nudge."""

import msgspec

from daemon.api.cluster.allocations import lines
from daemon.api.jobs import JobRegisterResponse
from daemon.evals import explain as explanation
from daemon.jobs.evaluate import JobEvaluateRequest, check_ids, evaluate_job
from daemon.jobspec.filter import compile_filter, only_wanted
from daemon.web import reply
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import NotFound, Refused
from storage.queries import allocations, deployments, evaluations, job_listings, jobs
from storage.queries import services as services_of
from storage.readers import Snapshot
from storage.records import views
from storage.records.base import Record
from storage.records.codec import parse
from storage.records.deployment import Deployment
from storage.records.evaluation import Evaluation


class JobAction(Record, frozen=True, kw_only=True):
    """A command that may be run inside a task of a job."""

    name: str
    command: str
    args: list[str] | None
    task_group_name: str
    task_name: str


def summary(request: Request, db: Snapshot) -> Reply:
    """Count a job's allocations and children by status."""
    found = job_listings.summary_wire(db, request.namespace, request["job_id"])
    if found is None:
        raise NotFound("job not found", index=db.table_index("summaries"))
    return reply.read(*found)


def explain(request: Request, db: Snapshot) -> Reply:
    """Say why what a job lacks is not running."""
    found = explanation.explain(db, request.namespace, request["job_id"])
    if found is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    index = max(map(db.table_index, ("jobs", "evaluations", "allocations", "deployments", "nodes")))
    return reply.read(found, index)


def job_allocations(request: Request, db: Snapshot) -> Reply:
    """List a job's allocations, newest first."""
    found = allocations.of_job(db, request.namespace, request["job_id"])
    highest = max((one.modify_index for one in found), default=db.table_index("allocations"))
    if expression := request.query.text("filter"):
        wanted = compile_filter(expression, views.AllocationStub)
        found = [one for one in found if wanted(msgspec.to_builtins(views.stub(one, None)))]
    return reply.read(lines(db, found, request.query), highest)


def job_evaluations(request: Request, db: Snapshot) -> Reply:
    """List a job's evaluations, newest first."""
    documents, highest = evaluations.job_list(db, request.namespace, request["job_id"])
    if expression := request.query.text("filter"):
        wanted = compile_filter(expression, Evaluation)
        documents = [one for one in documents if wanted(parse(one))]
    body = b"[" + b",".join(documents) + b"]"
    return reply.read(body, highest or db.table_index("evaluations"))


def job_deployments(request: Request, db: Snapshot) -> Reply:
    """List a job's deployments, newest first."""
    found = deployments.of_job(db, request.namespace, request["job_id"])
    highest = max((one.modify_index for one in found), default=db.table_index("deployments"))
    found = only_wanted(found, request.query.text("filter"), Deployment)
    return reply.read(found, highest)


def latest_deployment(request: Request, db: Snapshot) -> Reply:
    """Show a job's newest deployment, or null."""
    found = deployments.latest(db, request.namespace, request["job_id"])
    if found is None:
        return reply.read(b"null", db.table_index("deployments"))
    return reply.read(found, found.modify_index)


def services(request: Request, db: Snapshot) -> Reply:
    """List the registered services of a job."""
    if jobs.current_wire(db, request.namespace, request["job_id"]) is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    found = services_of.of_job(db, request.namespace, request["job_id"])
    return reply.read(found, max(db.table_index("services"), 1))


def actions(request: Request, db: Snapshot) -> Reply:
    """List the commands that may be run inside the tasks of a job."""
    job = jobs.current(db, request.namespace, request["job_id"])
    if job is None:
        raise Refused(f'Unknown job "{request["job_id"]}"')
    found = [
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
    return Reply(body=found, index=0, is_read=True, knows_leader=False)


async def evaluate(request: Request) -> Reply:
    """Have the scheduler look at a job again."""
    parts, job_id = request.parts, request["job_id"]
    body = JobEvaluateRequest(job_id=job_id)
    if request.body:  # clients of old send none
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
    return Reply(body=response, index=done.index)
