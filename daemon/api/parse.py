"""Job files: from their text to the job that they describe."""

import secrets
from functools import partial

from daemon.web import reply
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Malformed
from storage.records.base import Record
from storage.records.codec import encode, spell_job_twice


class JobsParseRequest(Record, frozen=True, kw_only=True):
    """The text of a job file, with the values of its variables.

    The peer's parser does not look at the last two: of another type they count for nothing.
    """

    job_hcl: str = ""
    canonicalize: bool = False
    variables: str = ""
    variable_flags: object = None
    hclv1: object = None


async def parse(request: Request) -> Reply:
    """Return the job that a job file describes (golden: parse, golden/hcl)."""
    body = await request.decoded(JobsParseRequest)
    if not body.job_hcl:
        raise Malformed("Job spec is empty")
    work = partial(_parsed, body, explains=bool(request.accept))
    # In a thread, so that the others' requests need not wait: a short text may be much work too.
    return await request.parts.admission.run(request.client, work)


def _parsed(body: JobsParseRequest, *, explains: bool) -> Reply:
    # Imported when first used: the daemon starts sooner, and many never parse.
    from daemon.jobspec.complete import complete
    from daemon.jobspec.hcl.scope import Outside
    from daemon.jobspec.hcl.source import Faulty
    from daemon.jobspec.parse import FILE_NAME, JobFile, parse_job

    file = JobFile(
        text=body.job_hcl,
        variable_files=((FILE_NAME, body.variables),) if body.variables else (),
        flags=_flags(body.variable_flags),
        is_v1=body.hclv1 is True,
    )
    try:
        job = parse_job(file, Outside(random=secrets.token_bytes))
    except Faulty as error:
        # The peer's clients name nothing that they accept, and scripts match its texts; who
        # does (browsers, curl) is a person and gets to see the lines.
        said = error.explained() if explains else str(error)
        return reply.text(f"Failed to parse job: {said}", 400)
    return Reply(body=encode(spell_job_twice(complete(job) if body.canonicalize else job)))


def _flags(given: object) -> dict[str, str]:
    if not isinstance(given, dict):
        return {}
    return {str(name): value for name, value in given.items() if isinstance(value, str)}
