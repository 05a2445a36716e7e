"""Parsing of job files."""

import secrets
from functools import partial

from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed
from storage.records.base import Record
from storage.records.codec import encode, spell_job_twice


class JobsParseRequest(Record, frozen=True, kw_only=True):
    """The text of a job file, with the values of its variables.

    Nomad ignores `variable_flags` and `hclv1`, so they may have any type.
    """

    job_hcl: str = ""
    canonicalize: bool = False
    variables: str = ""
    variable_flags: object = None
    hclv1: object = None


async def parse(request: Request) -> HandlerReply:
    """Return the job in a job file (source: Nomad's recorded responses `parse`, `hcl`)."""
    body = await request.decoded(JobsParseRequest)
    if not body.job_hcl:
        raise Malformed("Job spec is empty")
    work = partial(_parsed, body, explains=bool(request.accept))
    # A thread keeps other requests responsive: even a short text may take long.
    return await request.parts.admission.run(request.client, work)


def _parsed(body: JobsParseRequest, *, explains: bool) -> HandlerReply:
    # A lazy import, for a faster start; many daemons never parse.
    from daemon.jobspec.complete import complete
    from daemon.jobspec.hcl.scope import FunctionEnvironment
    from daemon.jobspec.hcl.source import HclError
    from daemon.jobspec.parse import FILE_NAME, JobFile, parse_job

    file = JobFile(
        text=body.job_hcl,
        variable_files=((FILE_NAME, body.variables),) if body.variables else (),
        flags=_flags(body.variable_flags),
        is_v1=body.hclv1 is True,
    )
    try:
        job = parse_job(file, FunctionEnvironment(random=secrets.token_bytes))
    except HclError as error:
        # Nomad's clients send no Accept header, and scripts match its errors. A request with that
        # header (browsers, curl) comes from a person, and the error quotes the lines.
        message = error.explained() if explains else str(error)
        return reply.text(f"Failed to parse job: {message}", 400)
    return HandlerReply(body=encode(spell_job_twice(complete(job) if body.canonicalize else job)))


def _flags(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(name): value for name, value in value.items() if isinstance(value, str)}
