"""Triggers between jobs: which jobs follow which, and the ledger of a follower."""

from daemon.api.paging import paginate
from daemon.jobspec.steward_meta import AFTER_JOIN, AFTER_WHEN
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import NotFound
from storage.queries import jobs, triggers
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.job import Job
from storage.records.trigger import JobLinks


def list_triggers(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the ended runs that a job has received, with their effects, newest first."""
    job = _job(request, db)
    found = list(triggers.of_job(db, job.namespace, job.id))[::-1]
    list_page = paginate(
        found, lambda trigger: (trigger.id,), encode, request.query, newest_first=True
    )
    index = max((trigger.modify_index for trigger in found), default=db.table_index(triggers.TABLE))
    return HandlerReply(
        body=list_page.body, index=index, is_read=True, next_token=list_page.next_token
    )


def show_links(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show which jobs a job follows, and which jobs follow it, as far as the caller sees them."""
    job = _job(request, db)
    links = JobLinks(
        job_id=job.id,
        namespace=job.namespace,
        when=AFTER_WHEN.of(job.meta),
        join=AFTER_JOIN.of(job.meta),
        sources=triggers.source_lines(db, job.namespace, job.id),
        followers=[
            follower
            for follower in triggers.followers(db, job.namespace, job.id)
            if follower.namespace == job.namespace or request.sees(follower.namespace)
        ],
    )
    return reply.read_reply(links, db.table_index(triggers.TABLE))


def _job(request: Request, db: ReadSnapshot) -> Job:
    """Return the job in the path. Raises `NotFound`."""
    job = jobs.current(db, request.namespace, request["job_id"])
    if job is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    return job
