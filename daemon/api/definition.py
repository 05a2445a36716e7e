"""The source text of a job version, which users can edit and submit again."""

import msgspec

from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import NotFound
from storage.queries import jobs, submissions
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.codec import HEAD_FIELDS
from storage.records.job import Job

SUBMITTED, WRITTEN = "submitted", "written"
_NOT_DEFINED = (*HEAD_FIELDS, "Stop", "ParentID", "Dispatched", "DispatchIdempotencyToken")


class JobDefinitionBody(Record, frozen=True, kw_only=True):
    """A version of a job as source text.

    `format` is hcl2, hcl1 or json. `origin` is `submitted` for the submitted text, and `written`
    for text that the daemon generated from the stored version.
    """

    source: str
    format: str
    origin: str
    version: int
    variable_flags: dict[str, str] | None = None
    variables: str = ""


def definition(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the latest version of a job, or the one in `version`, as source text.

    The response has the submitted text, if it is stored. Otherwise the text is generated: as HCL,
    or as JSON if HCL cannot express the version. `written` always requests generated text.
    """
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
    source = submissions.find(db, namespace, job_id, job.version)
    if source is None or not source.source or request.query.own_flag("written"):
        return reply.read_reply(_written(job), job.job_modify_index)
    return reply.read_reply(
        JobDefinitionBody(
            source=source.source,
            format=source.format or "hcl2",
            origin=SUBMITTED,
            version=job.version,
            variable_flags=source.variable_flags,
            variables=source.variables,
        ),
        job.job_modify_index,
    )


def _written(job: Job) -> JobDefinitionBody:
    from daemon.jobspec.write import write_job  # the parser and its tables are rarely needed

    source = write_job(job)
    return JobDefinitionBody(
        source=_as_json(job) if source is None else source,
        format="json" if source is None else "hcl2",
        origin=WRITTEN,
        version=job.version,
    )


def _as_json(job: Job) -> str:
    """Return the request that registers a job, as indented JSON."""
    document = msgspec.to_builtins(job)
    for name in _NOT_DEFINED:
        document.pop(name, None)
    text = msgspec.json.format(msgspec.json.encode({"Job": document}), indent=2)
    return f"{text.decode()}\n"
