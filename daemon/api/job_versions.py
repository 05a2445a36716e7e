"""The history of a job: versions, differences, sources, and reverts."""

from collections.abc import Sequence

import msgspec

from daemon.api.jobs import JobRegisterResponse, registration_context
from daemon.jobs import version_history
from daemon.jobspec.diff import diff_jobs
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound, Refused
from storage.queries import jobs, submissions, versions
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.diff import JobDiff
from storage.records.job import Job
from storage.records.numbers import parse_integer


class JobVersionsResponse(Record, frozen=True, kw_only=True):
    """All versions of a job, newest first, and their differences."""

    versions: list[msgspec.Raw]
    diffs: list[JobDiff] | None = None
    index: int
    last_contact: int = 0
    known_leader: bool = True
    next_token: str = ""


class JobStabilityResponse(Record, frozen=True, kw_only=True):
    """The response after a version was marked as stable or not."""

    index: int
    job_modify_index: int


class JobTagResponse(Record, frozen=True, kw_only=True):
    """The tag of a version; empty after its removal."""

    name: str = ""
    description: str = ""
    tagged_time: int = 0
    index: int
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


# --- reads
# -------------------------------------------------------------------------------------------


def list_versions(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the versions of a job; `diffs` adds their differences.

    Each is compared with the next older listed version, or with the version in `diff_version` or
    `diff_tag`. `filter` selects versions.
    """
    query, namespace, job_id = request.query, request.namespace, request["job_id"]
    number, with_diffs = query.natural("diff_version"), query.flag("diffs")
    highest = jobs.versions_index(db, namespace, job_id)
    if not highest:
        raise NotFound("job versions not found", index=db.table_index("job_versions"))
    listed, next_token = _page(request, db)
    diffs = None
    if with_diffs:
        if tag := query.text("diff_tag"):
            number = versions.tagged(db, namespace, job_id, tag)
            if number is None:
                raise Refused(f'tag "{tag}" not found')
        known, numbers = jobs.versions(db, namespace, job_id), {version for version, _ in listed}
        diffs = _diffs([one for one in known if one.version in numbers], known, number)
    body = JobVersionsResponse(
        versions=[msgspec.Raw(document) for _, document in listed],
        diffs=diffs,
        index=highest,
        next_token=next_token,
    )
    return reply.read_reply(body, highest, next_token=next_token)


def _page(request: Request, db: ReadSnapshot) -> tuple[list[tuple[int, bytes]], str]:
    """Return the versions on the requested page, and the token of the next page."""
    query, token = request.query, request.query.text("next_token")
    expression, per_page = query.text("filter"), int(query.text("per_page") or 0)
    wanted = compile_filter(expression, Job) if expression else None
    first = min(parse_integer(token), jobs.LARGEST) if token.isdecimal() else jobs.LARGEST
    listed: list[tuple[int, bytes]] = []
    for version, document in jobs.versions_wire(db, request.namespace, request["job_id"], first):
        if wanted is not None and not wanted(msgspec.json.decode(document)):
            continue
        if per_page and len(listed) == max(per_page, 0):
            return listed, str(version)
        listed.append((version, document))
    return listed, ""


def _diffs(shown: Sequence[Job], known: Sequence[Job], number: int | None) -> list[JobDiff] | None:
    """Return the differences of versions, newest first, to the next older one or all to one."""
    bases = shown[1:]
    if number is not None:
        base = next((job for job in known if job.version == number), None)
        if base is None:
            raise Refused(f"version {number} not found")
        bases = [base] * len(shown)
    # The oldest version has no predecessor, unless one is named.
    found = [diff_jobs(old, new) for old, new in zip(bases, shown, strict=False)]
    return found or None


def submission(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the source of a version."""
    version = request.query.text("version")
    found = submissions.find(db, request.namespace, request["job_id"], _number(version))
    if found is None:
        raise NotFound("job source not found", index=0)
    return reply.read_reply(found, found.job_modify_index)


# --- writes
# ------------------------------------------------------------------------------------------


async def revert(request: Request) -> HandlerReply:
    """Revert a job to an older version."""
    parts, body = request.parts, await request.decoded(version_history.JobRevertRequest)
    version_history.check_ids(body.job_id, request["job_id"])
    done = await version_history.revert_job(
        parts.store,
        request.namespace,
        body,
        surroundings=registration_context(request, body.secrets_token),
        now=parts.clock.now(),
        eval_id=next(parts.ids),
    )
    response = JobRegisterResponse(
        eval_id=done.eval_id,
        eval_create_index=done.eval_create_index,
        job_modify_index=done.job_modify_index,
        warnings=done.warnings,
        index=done.index,
    )
    return HandlerReply(body=response, index=done.index, is_read=True, knows_leader=False)


async def set_stable(request: Request) -> HandlerReply:
    """Mark a version as stable or not."""
    body = await request.decoded(version_history.JobStabilityRequest)
    version_history.check_ids(body.job_id, request["job_id"])
    index = await version_history.set_stable(request.parts.store, request.namespace, body)
    return HandlerReply(body=JobStabilityResponse(index=index, job_modify_index=index), index=index)


async def tag(request: Request) -> HandlerReply:
    """Tag a version."""
    parts, body = request.parts, await request.decoded(version_history.TagVersionRequest)
    now = parts.clock.now()
    given, index = await version_history.tag_version(
        parts.store, request.namespace, request["job_id"], request["name"], body, now
    )
    response = JobTagResponse(
        name=given.name,
        description=given.description,
        tagged_time=given.tagged_time,
        index=index,
    )
    return HandlerReply(body=response)


async def untag(request: Request) -> HandlerReply:
    """Remove a tag from a version."""
    index = await version_history.untag_version(
        request.parts.store, request.namespace, request["job_id"], request["name"]
    )
    return HandlerReply(body=JobTagResponse(index=index))


def tag_not_supported(_request: Request, _db: ReadSnapshot) -> HandlerReply:
    """Return Nomad's error for a path that looks like that of a tag."""
    raise NotFound("invalid job tag endpoint")


def _number(version: str) -> int:
    """Return the number of a version; a number that is too large becomes one that does not exist."""
    if not (version.isascii() and version.isdecimal()):
        raise Malformed("Unable to parse job submission version parameter")
    return min(parse_integer(version), jobs.LARGEST)
