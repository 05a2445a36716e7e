"""Workflows: the graph of a job."""

from daemon.api.jobs import find_secret, registration_context
from daemon.flow import graph
from daemon.jobs.register import JobValidateRequest, complete
from daemon.jobspec import steward_meta
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound
from storage.queries import jobs
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode


async def draw(request: Request) -> HandlerReply:
    """Return the graph of the job in the request, which is not stored."""
    body = await request.decoded(JobValidateRequest)
    if body.job is None:
        raise Malformed("Job must be specified")
    document, around = body.job, registration_context(request, find_secret(body.job))
    namespace = request.query.text("namespace") or None

    def drawn() -> HandlerReply:
        job, _ = complete(document, namespace, around)
        if faults := list(steward_meta.problems(job)):
            raise Malformed("; ".join(faults))
        return HandlerReply(body=encode(graph.view(job)))

    return await request.parts.admission.run(request.client, drawn)


def graph_of_job(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Return the graph of a job's latest version, or of the one in `version`."""
    namespace, job_id = request.namespace, request["job_id"]
    number = request.query.natural("version")
    job = (
        jobs.current(db, namespace, job_id)
        if number is None
        else jobs.version(db, namespace, job_id, number)
    )
    if job is None:
        known = "job not found" if number is None else f"version {number} not found"
        raise NotFound(known, index=db.table_index("jobs"))
    return reply.read_reply(graph.view(job), job.job_modify_index)
