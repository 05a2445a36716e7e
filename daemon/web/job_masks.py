"""Masks of sensitive job variables in responses.

A response keeps its length. Texts and JSON are masked; files, snapshots, the output of tasks and
variables are not, because other rules protect them.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import cast

import msgspec

from daemon.acl.check import Requirement
from daemon.app.context import JobMaskSource
from daemon.text.masking import Matcher
from daemon.web.reply import HandlerReply
from daemon.web.request import ReadRoute, Request, Route, WriteRoute
from storage import garbage
from storage.records.codec import encode

_SEES_SOURCE = "submit-job"  # the capability to see the definition of a job as it is
_SHORT = 16 * 1024  # bytes that are searched on the event loop
_OTHER_RULES = frozenset({"read-logs", "read-fs"})  # of output and files of tasks


async def masked(route: Route, asked: Request, reply: HandlerReply) -> HandlerReply:
    """Return a reply with the sensitive values of job files masked, if the route requires it."""
    source = asked.parts.job_masks
    if source is None or not _is_masked(route, asked):
        return reply
    if not reply.content_type.startswith(("application/json", "text/")):
        return reply
    if reply.stream is not None:
        stream = cast("AsyncGenerator[bytes, None]", reply.stream)  # `StreamLimit` holds it
        return msgspec.structs.replace(reply, stream=_pieces(source, stream))
    matcher = await source.matcher()
    if matcher is None or reply.body is None:
        return reply
    return msgspec.structs.replace(reply, body=await _body(matcher, reply.body))


def _is_masked(route: Route, asked: Request) -> bool:
    needs = route.needs
    if needs.asks is Requirement.VARIABLE or _OTHER_RULES & {*needs.any_of}:
        return False
    if isinstance(route, WriteRoute):
        return route.shows_jobs
    if isinstance(route, ReadRoute) and route.is_definition:
        return not asked.caller.grant.may(asked.namespace, _SEES_SOURCE)
    return True


async def _body(matcher: Matcher, body: object) -> bytes:
    if not isinstance(body, bytes):
        body = encode(body)
    if not matcher.may_match(body):
        return body
    work = partial(matcher.mask, body)
    return work() if matcher.is_quick and len(body) <= _SHORT else await garbage.in_thread(work)


async def _pieces(
    source: JobMaskSource, stream: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield a stream with masks. Each piece has whole values.

    A value is stored with the job that has it, so it is known when a piece shows the job.
    """
    async with aclosing(stream):
        async for piece in stream:
            matcher = await source.matcher()
            yield piece if matcher is None else await _body(matcher, piece)
