"""Triggers between jobs: the jobs that a job follows, its followers, and its triggers."""

from daemon.api.paging import Listing, show
from daemon.jobspec.steward_meta.job_keys import AFTER_JOIN, AFTER_WHEN
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import NotFound
from storage.queries import jobs, triggers
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.job import Job
from storage.records.trigger import JobLinks, JobTrigger


def list_triggers(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the ended runs of the followed jobs, with their effects on this job, newest first."""
    job = _job(request, db)
    listing = Listing[JobTrigger](
        rows=lambda db, start, reverse: triggers.of_job(
            db, job.namespace, job.id, start, reverse=reverse
        ),
        key=lambda trigger: (trigger.id,),
        line=lambda _, trigger: encode(trigger),
        newest_first=True,
    )
    return show(listing, request.query, db, db.table_index(triggers.TABLE))


def show_links(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the jobs that a job follows, and its followers, as far as the caller may see them."""
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
