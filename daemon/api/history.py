"""What a job was: its versions, what they differ in, their sources; and going back to one."""

from collections.abc import Sequence

import msgspec

from daemon.api.jobs import JobRegisterResponse, surroundings
from daemon.jobs import history
from daemon.jobspec.diff import diff_jobs
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound, Refused
from storage.queries import jobs, submissions, versions
from storage.readers import Snapshot
from storage.records.base import Record
from storage.records.diff import JobDiff
from storage.records.job import Job
from storage.records.numbers import whole


class JobVersionsResponse(Record, frozen=True, kw_only=True):
    """All versions of a job, newest first, and what each changed."""

    versions: list[msgspec.Raw]
    diffs: list[JobDiff] | None = None
    index: int
    last_contact: int = 0
    known_leader: bool = True
    next_token: str = ""


class JobStabilityResponse(Record, frozen=True, kw_only=True):
    """What is answered when it was said whether a version works."""

    index: int
    job_modify_index: int


class JobTagResponse(Record, frozen=True, kw_only=True):
    """The tag that a version has now; empty when it was taken away."""

    name: str = ""
    description: str = ""
    tagged_time: int = 0
    index: int
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


# ---- reading ----------------------------------------------------------------------------------------


def list_versions(request: Request, db: Snapshot) -> Reply:
    """List the versions of a job, and with `diffs` what they differ in.

    Each is compared with the next older one that is listed, or all with the one that `diff_version`
    or `diff_tag` names; `filter` chooses among them.
    """
    query, namespace, job_id = request.query, request.namespace, request["job_id"]
    with_diffs = query.flag("diffs")
    number = query.natural("diff_version")
    documents, highest = jobs.versions_wire(db, namespace, job_id)
    if not documents:
        raise NotFound("job versions not found", index=db.table_index("job_versions"))
    shown = known = jobs.versions(db, namespace, job_id) if with_diffs else []
    if expression := query.text("filter"):
        wanted = compile_filter(expression, Job)
        parsed = [msgspec.json.decode(document) for document in documents]
        numbers = {one["Version"] for one in parsed if wanted(one)}
        pairs = zip(documents, parsed, strict=True)
        documents = [document for document, one in pairs if one["Version"] in numbers]
        shown = [one for one in known if one.version in numbers]
    diffs = None
    if with_diffs:
        if tag := query.text("diff_tag"):
            number = versions.tagged(db, namespace, job_id, tag)
            if number is None:
                raise Refused(f'tag "{tag}" not found')
        diffs = _diffs(shown, known, number)
    body = JobVersionsResponse(
        versions=[msgspec.Raw(document) for document in documents],
        diffs=diffs,
        index=highest,
    )
    return reply.read(body, highest)


def _diffs(shown: Sequence[Job], known: Sequence[Job], number: int | None) -> list[JobDiff] | None:
    """Return what versions change, newest first, each against the next older or all against one."""
    bases = shown[1:]
    if number is not None:
        base = next((job for job in known if job.version == number), None)
        if base is None:
            raise Refused(f"version {number} not found")
        bases = [base] * len(shown)
    # The oldest has nothing to be compared with, unless one is named.
    found = [diff_jobs(old, new) for old, new in zip(bases, shown, strict=False)]
    return found or None


def submission(request: Request, db: Snapshot) -> Reply:
    """Show the source that a version was made from."""
    version = request.query.text("version")
    found = submissions.find(db, request.namespace, request["job_id"], _number(version))
    if found is None:
        raise NotFound("job source not found", index=0)
    return reply.read(found, found.job_modify_index)


# ---- going back, and what is said of versions -------------------------------------------------------


async def revert(request: Request) -> Reply:
    """Make an older version the newest one."""
    parts, body = request.parts, await request.decoded(history.JobRevertRequest)
    history.check_ids(body.job_id, request["job_id"])
    done = await history.revert_job(
        parts.store,
        request.namespace,
        body,
        surroundings=surroundings(request, body.secrets_token),
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
    return Reply(body=response, index=done.index, is_read=True, knows_leader=False)


async def stable(request: Request) -> Reply:
    """Say whether a version works."""
    body = await request.decoded(history.JobStabilityRequest)
    history.check_ids(body.job_id, request["job_id"])
    index = await history.set_stable(request.parts.store, request.namespace, body)
    return Reply(body=JobStabilityResponse(index=index, job_modify_index=index), index=index)


async def tag(request: Request) -> Reply:
    """Give a version a name."""
    parts, body = request.parts, await request.decoded(history.TagVersionRequest)
    now = parts.clock.now()
    given, index = await history.tag_version(
        parts.store, request.namespace, request["job_id"], request["name"], body, now
    )
    response = JobTagResponse(
        name=given.name,
        description=given.description,
        tagged_time=given.tagged_time,
        index=index,
    )
    return Reply(body=response)


async def untag(request: Request) -> Reply:
    """Take a name from a version."""
    index = await history.untag_version(
        request.parts.store, request.namespace, request["job_id"], request["name"]
    )
    return Reply(body=JobTagResponse(index=index))


def no_tag(_request: Request, _db: Snapshot) -> Reply:
    """Answer a path that looks like that of a tag, with the words of the peer."""
    raise NotFound("invalid job tag endpoint")


def _number(version: str) -> int:
    """Return the number of a version; of one that is too large, one that no version has."""
    if not (version.isascii() and version.isdecimal()):
        raise Malformed("Unable to parse job submission version parameter")
    return min(whole(version), versions.LARGEST)
