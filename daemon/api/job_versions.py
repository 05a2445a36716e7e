"""The history of a job: versions, differences, sources, and reverts."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial

import msgspec

from daemon.api.jobs import JobRegisterResponse, registration_context
from daemon.api.paging import STEP_BYTES, STEP_ROWS
from daemon.jobs import version_history
from daemon.jobspec.diff import diff_jobs
from daemon.jobspec.filter import Filter, compile_filter
from daemon.web import reply
from daemon.web.blocking import list_pieces
from daemon.web.reply import HandlerReply, ListPart
from daemon.web.request import Request
from storage.errors import Malformed, NotFound, Refused
from storage.queries import jobs, submissions, versions
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.job import Job
from storage.records.numbers import parse_integer
from storage.store import Store

_LARGEST_NUMBER = 2**64 - 1  # the largest version number that Nomad parses
_NO_VERSION = "Unable to parse job submission version parameter"
_MOST_PAGE = 4 * STEP_BYTES  # bytes of the versions on a page; each page has at least one version


class JobVersionsResponse(Record, frozen=True, kw_only=True):
    """All versions of a job, newest first, and their differences."""

    versions: list[msgspec.Raw]
    diffs: list[msgspec.Raw] | None = None
    index: int
    last_contact: int = 0
    known_leader: bool = True
    next_token: str = ""


class JobStabilityResponse(Record, frozen=True, kw_only=True):
    """The response after a version was marked as stable or not."""

    index: int
    job_modify_index: int


class JobTagResponse(Record, frozen=True, kw_only=True):
    """The response with the tag of a version. After a removal, the fields of the tag are empty."""

    name: str = ""
    description: str = ""
    tagged_time: int = 0
    index: int
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


# --- reads ---


def list_versions(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the versions of a job; `diffs` adds their differences.

    Each version is compared with the next older listed version, or with the version in
    `diff_version` or `diff_tag`. `filter` selects versions. A page ends early after `_MOST_PAGE`
    bytes. A long list without pages is sent in parts, and only a part of it is in memory.
    """
    query, base = request.query, request.query.natural("diff_version")
    with_diffs = query.flag("diffs")
    highest = jobs.versions_index(db, request.namespace, request["job_id"])
    if not highest:
        raise NotFound("job versions not found", index=db.table_index("job_versions"))
    walk = _walk(request, db, base, with_diffs=with_diffs)
    token, per_page = query.text("next_token"), int(query.text("per_page") or 0)
    first = min(parse_integer(token), jobs.LARGEST) if token.isdecimal() else jobs.LARGEST
    if per_page:
        documents, next_token = walk.page(db, first, max(per_page, 0))
    else:
        part = walk.versions(db, first)
        if part.rest is not None:
            diffs = walk.diffs(db, first) if with_diffs else None
            stream = _stream_lists(request.parts.store, part, diffs, highest)
            return HandlerReply(stream=stream, index=highest, is_read=True)
        documents, next_token = part.lines, ""
    diff_lines = walk.all_diffs(db, first, len(documents)) if with_diffs else []
    body = JobVersionsResponse(
        versions=[msgspec.Raw(document) for document in documents],
        diffs=[msgspec.Raw(line) for line in diff_lines] or None,
        index=highest,
        next_token=next_token,
    )
    return reply.read_reply(body, highest, next_token=next_token)


class _Walk(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of a job's versions, read from the newest to the oldest.

    A response can read them more than once, for example for the versions and for their differences.
    """

    namespace: str
    job_id: str
    wanted: Filter | None
    base: int | None  # the version with which all others are compared

    def _wanted_versions(self, db: ReadSnapshot, first: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield version numbers from `first` on, each with the version as JSON.

        The JSON is None for a version that is not selected.
        """
        for version, document in jobs.versions_wire(db, self.namespace, self.job_id, first):
            is_wanted = self.wanted is None or self.wanted(msgspec.json.decode(document))
            yield version, document if is_wanted else None

    def page(self, db: ReadSnapshot, first: int, most: int) -> tuple[list[bytes], str]:
        """Return the selected versions from `first` on as JSON, and the token of the next page."""
        documents, size = list[bytes](), 0
        for version, document in self._wanted_versions(db, first):
            if document is None:
                continue
            if len(documents) == most or size >= _MOST_PAGE:
                return documents, str(version)
            documents.append(document)
            size += len(document)
        return documents, ""

    def versions(self, db: ReadSnapshot, first: int) -> ListPart:
        """Return the next part of the selected versions."""
        lines, bytes_left = list[bytes](), STEP_BYTES
        for number, (version, document) in enumerate(self._wanted_versions(db, first)):
            if bytes_left <= 0 or number == STEP_ROWS:
                return ListPart(lines, partial(self.versions, first=version))
            if document is not None:
                lines.append(document)
                bytes_left -= len(document)
        return ListPart(lines)

    def diffs(self, db: ReadSnapshot, first: int, newer: Job | None = None) -> ListPart:
        """Return the next part of the differences of selected versions. Raises `Refused`.

        `newer` is the last version of the previous part. Only two versions are in memory at a time.
        """
        base = self._base(db)
        lines, bytes_left = list[bytes](), STEP_BYTES
        for number, (version, document) in enumerate(self._wanted_versions(db, first)):
            if bytes_left <= 0 or number == STEP_ROWS:
                return ListPart(lines, partial(self.diffs, first=version, newer=newer))
            if document is None or (job_version := self._version(db, version)) is None:
                continue
            # The oldest version has no predecessor, unless one is named.
            pair = (base, job_version) if base else (job_version, newer) if newer else None
            if pair is not None:
                lines.append(encode(diff_jobs(*pair)))
                bytes_left -= len(lines[-1]) + len(document)
            newer = job_version
        return ListPart(lines)

    def all_diffs(self, db: ReadSnapshot, first: int, number: int) -> list[bytes]:
        """Return the differences of the first `number` selected versions. Raises `Refused`."""
        most, part = number if self.base is not None else number - 1, self.diffs(db, first)
        lines = part.lines
        while part.rest is not None and len(lines) < most:
            part = part.rest(db)
            lines += part.lines
        return lines[: max(most, 0)]

    def _base(self, db: ReadSnapshot) -> Job | None:
        if self.base is None:
            return None
        if (document := self._version(db, self.base)) is None:
            raise Refused(f"version {self.base} not found")
        return document

    def _version(self, db: ReadSnapshot, number: int) -> Job | None:
        return jobs.version(db, self.namespace, self.job_id, number)


def _walk(request: Request, db: ReadSnapshot, base: int | None, *, with_diffs: bool) -> _Walk:
    """Return the requested selection of versions.

    Differences are computed against the version `base`, unless the request names a tag. Raises
    `Malformed`, and `Refused` for an unknown tag.
    """
    query, namespace, job_id = request.query, request.namespace, request["job_id"]
    expression = query.text("filter")
    matches = compile_filter(expression, Job) if expression else None
    if with_diffs and (tag := query.text("diff_tag")):
        base = versions.tagged(db, namespace, job_id, tag)
        if base is None:
            raise Refused(f'tag "{tag}" not found')
    return _Walk(namespace=namespace, job_id=job_id, wanted=matches, base=base)


async def _stream_lists(
    store: Store, list_part: ListPart, diffs: ListPart | None, index: int
) -> AsyncGenerator[bytes, None]:
    """Yield a response with all versions and differences, which are read in parts."""
    for name, part in (("Versions", list_part), ("Diffs", diffs)):
        yield b'%b"%b":' % (b"{" if name == "Versions" else b",", name.encode())
        if part is None:
            yield b"null"
            continue
        async with aclosing(list_pieces(store, part)) as chunks:
            async for chunk in chunks:
                yield chunk
    yield b',"Index":%d,"LastContact":0,"KnownLeader":true,"NextToken":""}' % index


def submission(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the source of a version."""
    version = request.query.text("version")
    stored = submissions.find(db, request.namespace, request["job_id"], _number(version))
    if stored is None:
        raise NotFound("job source not found", index=0)
    return reply.read_reply(stored, stored.job_modify_index)


# --- writes ---


async def revert(request: Request) -> HandlerReply:
    """Revert a job to an older version."""
    parts, body = request.parts, await request.decoded(version_history.JobRevertRequest)
    version_history.check_ids(body.job_id, request["job_id"])
    done = await version_history.revert_job(
        parts.store,
        request.namespace,
        body,
        surroundings=await registration_context(request, body.secrets_token),
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
    version_tag, index = await version_history.tag_version(
        parts.store, request.namespace, request["job_id"], request["name"], body, now
    )
    response = JobTagResponse(
        name=version_tag.name,
        description=version_tag.description,
        tagged_time=version_tag.tagged_time,
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
    """Return Nomad's error for a path that looks like the path of a tag."""
    raise NotFound("invalid job tag endpoint")


def _number(version: str) -> int:
    """Return the number of a version.

    A number that is too large for the store becomes the number of a version that does not exist.
    """
    if not (version.isascii() and version.isdecimal()):
        raise Malformed(_NO_VERSION)
    number = parse_integer(version)
    if number > _LARGEST_NUMBER:
        raise Malformed(_NO_VERSION)
    return min(number, jobs.LARGEST)
