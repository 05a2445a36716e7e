"""Blocking queries: a read waits until the index of its response exceeds the client's index.

`index=N` waits while the response's index is N or less, up to `wait` (default and maximum five
minutes). A random extension of up to a sixteenth spreads the load of many clients (source: Nomad's
recorded responses `blocking-queries`). Changes of the watched topics wake a reader, without
polling.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import suppress

import msgspec
import trio

from daemon.web.parameters import duration
from daemon.web.reply import HandlerReply, ListPart
from daemon.web.request import ReadRoute, Request
from daemon.web.response_cache import ResponseCache
from daemon.web.stream_auth import StreamSubscriber
from daemon.web.stream_limit import StreamLimit
from daemon.web.turns import resume_after
from storage.errors import Denied, Malformed, NotFound
from storage.loop_share import LongRead
from storage.records.base import MINUTE, SECOND
from storage.records.codec import encode
from storage.records.numbers import parse_integer
from storage.request_context import mask_view_scope
from storage.store import Store

LONGEST_WAIT = 5 * MINUTE
_JITTER = 16  # the wait is extended by up to 1/16 of its length


def parameters(request: Request) -> tuple[int, float]:
    """Return the index that the response must exceed (0: no wait), and the longest wait in seconds.

    Raises `Malformed` with Nomad's error texts.
    """
    if not request.query:
        return 0, LONGEST_WAIT / SECOND
    index = request.query.text("index")
    if index and not (index.isascii() and index.isdecimal() and parse_integer(index) < 2**64):
        raise Malformed("Invalid index")
    text = request.query.text("wait")
    wait = duration(text) if text else LONGEST_WAIT
    if wait is None:
        raise Malformed("Invalid wait time")
    wait = min(wait, LONGEST_WAIT) if wait > 0 else LONGEST_WAIT
    return parse_integer(index or "0"), wait / SECOND


async def answer(
    route: ReadRoute,
    request: Request,
    *,
    cache: ResponseCache,
    stream_limit: StreamLimit,
    closing: trio.Event,
    random: Callable[[], float],
) -> HandlerReply:
    """Answer a read when its index is high enough.

    Raises `TooOften` if it would have to wait, but the limit on open streams is reached. Raises
    `Denied` if the reader loses its rights while it waits. `closing` stops all waits: the code that
    sets this event also wakes the watchers, and each read returns the current state. `random` is
    uniform in [0, 1).
    """
    after, wait = parameters(request)
    if not after or not route.watch:
        return await _read(route, request, cache)
    topics = _topics(route, request)
    deadline = trio.current_time() + wait * (1 + random() / _JITTER)
    reader = StreamSubscriber(request)
    while True:
        with request.parts.store.watch(*topics) as change:
            reply = await _attempt(route, request, cache, after)
            if reply is not None:
                return reply
            with stream_limit.reserve(), trio.move_on_at(deadline) as scope:
                if not closing.is_set():
                    await resume_after(change)
            if not await reader.is_allowed():
                raise Denied
            request = msgspec.structs.replace(request, caller=reader.caller, passed=[])
            if scope.cancelled_caught or closing.is_set():
                return await _read(route, request, cache)


async def _attempt(
    route: ReadRoute, request: Request, response_cache: ResponseCache, after: int
) -> HandlerReply | None:
    """Return the response if its index is above `after`, otherwise None.

    If the object does not exist, the index of the searched state is compared instead: if that index
    is above `after`, `NotFound` is raised.
    """
    try:
        reply = await _read(route, request, response_cache)
    except NotFound as error:
        if error.index is None or error.index > after:
            raise
        return None
    return reply if reply.index is None or reply.index > after else None


async def _read(route: ReadRoute, request: Request, response_cache: ResponseCache) -> HandlerReply:
    """Return the response. Filters and searches of the request apply to the data that the caller sees."""
    if request.parts.job_masks is None or not (route.searches or request.query.text("filter")):
        return await _made(route, request, response_cache)
    from daemon.web import job_masks  # imported late: few stores have such values

    with mask_view_scope(await job_masks.view(route, request)):
        return await _made(route, request, response_cache)


async def _made(route: ReadRoute, request: Request, response_cache: ResponseCache) -> HandlerReply:
    """Return the response, made on the event loop if it is short, else in a thread."""
    store = request.parts.store
    moment = store.change_number
    if (reply := response_cache.at(moment, route, request)) is not None:
        return reply
    computed: HandlerReply | None = None
    if not route.long:
        with suppress(LongRead):  # a thread then reads it again from the start
            computed = store.read_short(lambda db: response_cache.reply(route, request, db, moment))
    if computed is None:
        computed = await _computed_in_thread(route, request, response_cache)
    while computed.later is not None:
        computed = await store.read_long(computed.later)
    if computed.part is None:
        return computed
    is_pretty = request.query.text("pretty", "0") != "0" and not computed.part.is_cut
    stream = list_pieces(store, computed.part, is_pretty=is_pretty)
    return msgspec.structs.replace(computed, part=None, stream=stream)


async def _computed_in_thread(
    route: ReadRoute, request: Request, response_cache: ResponseCache
) -> HandlerReply:
    indexes, computed = await request.parts.store.read_long(
        lambda db: (
            response_cache.indexes(route, request, db),
            _encoded(route.handler(request, db)),
        )
    )
    response_cache.store(route, request, indexes, computed)
    return computed


def _encoded(handler_reply: HandlerReply) -> HandlerReply:
    """Return a reply with its body encoded as JSON.

    This function runs in a thread, because encoding a long body takes time.
    """
    if handler_reply.body is None or isinstance(handler_reply.body, bytes):
        return handler_reply
    return msgspec.structs.replace(handler_reply, body=encode(handler_reply.body))


async def list_pieces(
    store: Store, part: ListPart, *, is_pretty: bool = False
) -> AsyncGenerator[bytes, None]:
    """Yield a list while it is read. No lock is held between two chunks."""
    separator, following, end = b"[", b",", b"]"
    if is_pretty:
        separator, following, end = b"[\n    ", b",\n    ", b"\n]\n"
    while True:
        if part.lines:
            yield separator + following.join(_pretty(part.lines) if is_pretty else part.lines)
            separator = following
        if part.rest is None:
            yield end if separator is following else b"[]"
            return
        part = await store.read_long(part.rest)


def _pretty(lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield msgspec.json.format(line, indent=4).replace(b"\n", b"\n    ")


def _topics(route: ReadRoute, request: Request) -> list[str]:
    """Return the topics that a read watches.

    A read of all namespaces watches the topics of all namespaces.
    """
    values = {
        **request.parameters,
        "namespace": request.namespace,
        "prefix": request.query.text("prefix"),
    }
    topics = [topic.format_map(values) for topic in route.watch]
    if request.namespace != "*":
        return topics
    return [topic.partition("*")[0] + "*" if "*" in topic else topic for topic in topics]
