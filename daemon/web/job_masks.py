"""Masks of sensitive job variables in responses.

The sensitive values of a job are masked only in data of this job: in objects that name the job, and
in responses of routes of the job or of its allocations. Text and JSON are masked; files, snapshots,
the output of tasks and variables are not, because other rules protect them.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import cast

import msgspec

from daemon.acl.check import EVERYWHERE, Requirement
from daemon.app.context import JobMaskSource
from daemon.text.json_masks import (
    JobKey,
    JobMaskView,
    mask_json,
    matched,
    named_jobs,
    with_parents,
)
from daemon.text.masking import Matcher
from daemon.web.reply import JSON, HandlerReply
from daemon.web.request import ReadRoute, Request, Route, WriteRoute
from storage import garbage
from storage.queries import allocations
from storage.records.codec import encode

_SEES_SOURCE = "submit-job"  # the capability to see the definition of a job unmasked
_SHORT = 16 * 1024  # bytes that are searched on the event loop
_OTHER_RULES = frozenset({"read-logs", "read-fs"})  # capabilities for output and files of tasks


async def masked(route: Route, request: Request, reply: HandlerReply) -> HandlerReply:
    """Return a reply with the sensitive values of job files masked, if the route requires it."""
    source = request.parts.job_masks
    if source is None or not _is_masked(route, request):
        return reply
    is_json = reply.content_type.startswith(JSON)
    if not (is_json or reply.content_type.startswith("text/")):
        return reply
    job = await _job_of(request)
    if reply.stream is not None:
        # from `StreamLimit.count`
        stream = cast("AsyncGenerator[bytes, None]", reply.stream)
        return msgspec.structs.replace(
            reply, stream=_masked_stream(source, stream, job, is_json=is_json)
        )
    if reply.body is None:
        return reply
    return msgspec.structs.replace(
        reply, body=await _body(source, reply.body, job, is_json=is_json)
    )


async def view(route: Route, request: Request) -> JobMaskView | None:
    """Return the view of a caller whose filter or search must not reveal masked values.

    Return None if the caller sees all values.
    """
    source = request.parts.job_masks
    if source is None or not _is_masked(route, request):
        return None
    # The body of a write may name another namespace than the query.
    is_anywhere = request.namespace == EVERYWHERE or request.method != "GET"
    matchers = {
        key: matcher
        for key in await source.jobs()
        if (is_anywhere or key[0] == request.namespace)
        and (matcher := await source.matcher(key)) is not None
    }
    return JobMaskView(matchers, await _job_of(request)) if matchers else None


def _is_masked(route: Route, request: Request) -> bool:
    needs = route.needs
    if needs.asks is Requirement.VARIABLE or _OTHER_RULES & {*needs.any_of}:
        return False
    if isinstance(route, WriteRoute):
        return route.shows_jobs
    if isinstance(route, ReadRoute) and route.is_definition:
        return not request.caller.grant.may(request.namespace, _SEES_SOURCE)
    return True


async def _job_of(request: Request) -> JobKey | None:
    """Return the job that the path names, directly or through an allocation."""
    if job_id := request.parameters.get("job_id"):
        return request.namespace, job_id
    if alloc_id := request.parameters.get("alloc_id"):
        owners = await request.parts.store.read_any(
            partial(allocations.owning_jobs, ids=[alloc_id])
        )
        return owners.get(alloc_id)
    return None


async def _body(
    source: JobMaskSource, body: object, job: JobKey | None, *, is_json: bool
) -> object:
    """Return the body with secrets masked, or unchanged if it contains no job's secrets."""
    masked_jobs = await source.jobs()
    if not masked_jobs:
        return body
    data = body if isinstance(body, bytes) else encode(body)
    is_short = len(data) <= _SHORT
    names: set[str] = set()
    if is_json:
        names = named_jobs(data) if is_short else await garbage.in_thread(partial(named_jobs, data))
    owners = {owner for name in names for owner in with_parents(name)}
    of_path = {(job[0], owner) for owner in with_parents(job[1])} if job else set()
    matchers: dict[JobKey, Matcher] = {}
    for key in masked_jobs:
        if key in of_path or key[1] in owners:
            matcher = await source.matcher(key)
            if matcher is not None and matcher.may_match(data):
                matchers[key] = matcher
    if not matchers:
        return data
    if is_json:
        return await garbage.in_thread(partial(mask_json, data, matchers, job))
    for matcher in matched(job, matchers):
        data = await garbage.in_thread(partial(matcher.mask, data))
    return data


async def _masked_stream(
    source: JobMaskSource,
    stream: AsyncGenerator[bytes, None],
    job: JobKey | None,
    *,
    is_json: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a stream with secrets masked. Each chunk must contain whole objects.

    The sensitive values of a job are stored in the same transaction as the job. So the values are
    known before a chunk can show the job.
    """
    async with aclosing(stream):
        async for chunk in stream:
            yield cast(bytes, await _body(source, chunk, job, is_json=is_json))
