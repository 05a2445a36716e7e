"""Blocking queries: a read that waits until what it shows is newer than what the client has.

`index=N` waits while the answer's index is N or less, at most for `wait` (default and most
five minutes) and up to a sixteenth longer, so that a thousand clients do not come back at once
(golden: blocking-queries). A reader is woken by the change of what it watches, never by a clock.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import suppress

import msgspec
import trio

from daemon.web.crowd import Crowd
from daemon.web.kept import Kept
from daemon.web.parameters import duration
from daemon.web.reply import Part, Reply
from daemon.web.request import Read, Request
from storage.errors import Malformed, NotFound
from storage.readers import LongRead
from storage.records.base import MINUTE, SECOND
from storage.records.codec import encode
from storage.records.numbers import whole
from storage.store import Store

LONGEST_WAIT = 5 * MINUTE
_JITTER = 16  # the wait grows by up to one part in so many


def parameters(request: Request) -> tuple[int, float]:
    """Return the index that must be exceeded (0: do not wait), and the longest wait in seconds.

    Raises `Malformed` with the peer's texts.
    """
    if not request.query:
        return 0, LONGEST_WAIT / SECOND
    index = request.query.text("index")
    if index and not (index.isascii() and index.isdecimal() and whole(index) < 2**64):
        raise Malformed("Invalid index")
    text = request.query.text("wait")
    wait = duration(text) if text else LONGEST_WAIT
    if wait is None:
        raise Malformed("Invalid wait time")
    wait = min(wait, LONGEST_WAIT) if wait > 0 else LONGEST_WAIT
    return whole(index or "0"), wait / SECOND


async def answer(
    route: Read,
    request: Request,
    *,
    kept: Kept,
    crowd: Crowd,
    closing: trio.Event,
    random: Callable[[], float],
) -> Reply:
    """Answer a read, at once or when its index is high enough. Raises `TooOften` instead of waiting.

    `closing` ends all waiting, when whoever sets it wakes the watchers: the state as it is then goes
    out. `random` is uniform in [0, 1).
    """
    after, wait = parameters(request)
    if not after or not route.watch:
        return await _read(route, request, kept)
    topics = _topics(route, request)
    deadline = trio.current_time() + wait * (1 + random() / _JITTER)
    while True:
        with request.parts.store.watch(*topics) as change:
            reply = await _attempt(route, request, kept, after)
            if reply is not None:
                return reply
            with crowd.place(), trio.move_on_at(deadline) as scope:
                if not closing.is_set():
                    await change.wait()
            if scope.cancelled_caught or closing.is_set():
                return await _read(route, request, kept)


async def _attempt(route: Read, request: Request, kept: Kept, after: int) -> Reply | None:
    """Return the answer if it is newer than `after`; that something is missing is one as well."""
    try:
        reply = await _read(route, request, kept)
    except NotFound as error:
        if error.index is None or error.index > after:
            raise
        return None
    return reply if reply.index is None or reply.index > after else None


async def _read(route: Read, request: Request, kept: Kept) -> Reply:
    """Return the answer: made here and now if that is short, else in a thread."""
    store = request.parts.store
    moment = store.moment
    if (reply := kept.at(moment, route, request)) is not None:
        return reply
    made: Reply | None = None
    if not route.long:
        with suppress(LongRead):
            made = store.read_short(lambda db: kept.reply(route, request, db, moment))
    if made is None:
        made = await _made_by_thread(route, request, kept)
    while made.later is not None:
        made = await store.read_long(made.later)
    if made.part is None:
        return made
    is_pretty = request.query.text("pretty", "0") != "0"
    stream = _pieces(store, made.part, is_pretty=is_pretty)
    return msgspec.structs.replace(made, part=None, stream=stream)


async def _made_by_thread(route: Read, request: Request, kept: Kept) -> Reply:
    indexes, made = await request.parts.store.read_long(
        lambda db: (kept.indexes(route, request, db), _encoded(route.handler(request, db)))
    )
    kept.keep(route, request, indexes, made)
    return made


def _encoded(made: Reply) -> Reply:
    """Return an answer whose body is JSON already: a long one takes its time."""
    if made.body is None or isinstance(made.body, bytes):
        return made
    return msgspec.structs.replace(made, body=encode(made.body))


async def _pieces(store: Store, part: Part, *, is_pretty: bool) -> AsyncGenerator[bytes, None]:
    """Yield a list as it is read. Between two pieces nothing is held."""
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


def _topics(route: Read, request: Request) -> list[str]:
    """Return what a read watches; from a namespace that means all on, everything."""
    values = {
        **request.parameters,
        "namespace": request.namespace,
        "prefix": request.query.text("prefix"),
    }
    topics = [topic.format_map(values) for topic in route.watch]
    if request.namespace != "*":
        return topics
    return [topic.partition("*")[0] + "*" if "*" in topic else topic for topic in topics]
