"""The event stream: the changes that the caller may see, from any index on.

Events are rows of the store. So neither a slow reader nor a restart loses events. If the requested
events were already deleted, the stream begins with an event that reports the loss.
"""

import re
from collections.abc import AsyncIterator
from itertools import groupby

import msgspec
import trio

from daemon.acl.check import EVERYWHERE
from daemon.acl.grant import CapabilitySet
from daemon.api.cluster.token_required import check_events
from daemon.app.event_feed import EncodedEvent, EventFeed
from daemon.web.parameters import QueryParameters, duration
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from daemon.web.stream_auth import StreamSubscriber
from daemon.web.turns import resume, resume_after
from storage.errors import Malformed
from storage.queries import events
from storage.queries.events import StoredEvent
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.codec import encode
from storage.records.numbers import parse_integer, shorten

HEARTBEAT = 10.0  # seconds without an event
LONGEST_GATHER = 10.0  # seconds
BACK = 100  # events for a reader without an index: the number that Nomad buffers
_TURN = 256  # events of one write handled before other tasks run
_BEAT = b"{}\n"
_ALL = "*"
_IN_NAMESPACE = frozenset(
    {
        "Job",
        "Allocation",
        "Deployment",
        "Evaluation",
        "Service",
        "Run",
        "Step",
        "Trigger",
        "Calendar",
        "Concurrency",
    }
)
_OF_NODES = frozenset({"Node", "NodePool"})
_INT64 = range(-(2**63), 2**63)


class _Wanted(msgspec.Struct, frozen=True):
    """The namespace, topics and keys of the events that a client requests."""

    topics: dict[str, set[str]]  # topic -> keys
    namespace: str

    def has(self, event: StoredEvent) -> bool:
        """Return whether an event is selected."""
        if event.namespace and self.namespace not in (EVERYWHERE, event.namespace):
            return False
        keys = self.topics.get(event.topic, set()) | self.topics.get(_ALL, set())
        return _ALL in keys or event.key in keys or not keys.isdisjoint(event.filter_keys)


async def stream(request: Request) -> HandlerReply:
    """Stream events from an index on."""
    check_events(request)
    index = _index(request.query)
    selection = _Wanted(_topics(request.query), request.namespace)
    parts = request.parts
    feed = parts.brief_feed if request.query.own_flag("brief") else parts.feed
    frames = _frames(request, feed, selection, index, _gather(request.query))
    return HandlerReply(stream=frames, is_endless=True, headers={"Cache-Control": "no-cache"})


def _index(query: QueryParameters) -> int:
    """Return the first requested index, or 0 if the query has none. Raises `Malformed`."""
    text = query.text("index") or "0"
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        reason = "invalid syntax"
    elif parse_integer(text) not in _INT64:
        reason = "value out of range"
    else:
        return max(parse_integer(text), 0)
    raise Malformed(f'Unable to parse index: strconv.Atoi: parsing "{shorten(text)}": {reason}')


def _gather(query: QueryParameters) -> float:
    """Return the number of seconds for which the stream collects events before it sends them.

    Raises `Malformed`.
    """
    text = query.text("gather")
    nanoseconds = duration(text) if text else 0
    if nanoseconds is None or not 0 <= nanoseconds <= LONGEST_GATHER * SECOND:
        raise Malformed(
            f"gather = {shorten(text)!r} must be a duration of at most {LONGEST_GATHER:g}s, "
            "such as 250ms"
        )
    return nanoseconds / SECOND


def _topics(query: QueryParameters) -> dict[str, set[str]]:
    """Return the selected topics, with the keys of each. Raises `Malformed`."""
    topics: dict[str, set[str]] = {}
    for name, text in query.pairs:
        if name != "topic":
            continue
        topic, *keys = text.split(":")
        if len(keys) > 1:
            raise Malformed(
                "Invalid topic query: error parsing topics: "
                f"Invalid key value pair for topic, topic: {text}"
            )
        topics.setdefault(topic, set()).update(keys or (_ALL,))
    return topics or {_ALL: {_ALL}}


# --- the stream ---


async def _frames(
    request: Request, feed: EventFeed, selection: _Wanted, index: int, gather: float
) -> AsyncIterator[bytes]:
    """Yield chunks of lines with the selected events, and heartbeats in between.

    A line contains the events of one database write. After the first write of a chunk, the stream
    waits `gather` seconds, and adds the events of this time to the chunk.
    """
    store = request.parts.store
    reader = StreamSubscriber(request)
    yield _BEAT  # the response starts immediately
    sent = trio.current_time()
    number = store.read(lambda db: _begin(db, index))
    collected = store.read(events.collected)
    if index and index <= collected:
        yield _gap(index, collected)
    while await reader.is_allowed():
        with store.watch(events.TOPIC) as change:
            # a reader that lags behind must not block the event loop
            await trio.lowlevel.checkpoint()
            await resume()
            new_events = await feed.after(store, number)
            if new_events:
                if new_events[0].event.number != number + 1:
                    yield _gap(index, store.read(events.collected))
                number, index = new_events[-1].event.number, new_events[-1].event.index + 1
                if lines := await _lines(new_events, selection, reader):
                    yield b"".join(lines)
                    sent = trio.current_time()
            else:
                with trio.move_on_at(sent + HEARTBEAT):
                    await resume_after(change)
                    if gather:
                        await trio.sleep(gather)
        # Writes without a selected event do not replace the heartbeat.
        if trio.current_time() >= sent + HEARTBEAT:
            yield _BEAT
            sent = trio.current_time()


def _begin(db: ReadSnapshot, index: int) -> int:
    return events.before_index(db, index) if index else events.before_last(db, BACK)


def _may_see(grant: CapabilitySet, event: StoredEvent) -> bool:
    if event.topic in _IN_NAMESPACE:
        return grant.may(event.namespace, "read-job")
    if event.topic == "Freeze":
        return not event.namespace or grant.may(event.namespace, "list-jobs")
    if event.topic == "HostVolume":
        return grant.may(event.namespace, "host-volume-read")
    if event.topic in _OF_NODES:
        return grant.may_in("node", "read")
    if event.topic == "Namespace":
        return grant.knows(event.namespace)
    return grant.everything


async def _lines(
    encoded_events: list[EncodedEvent], selection: _Wanted, reader: StreamSubscriber
) -> list[bytes]:
    """Return a line for each database write, with those selected events that the client may see."""
    lines = []
    for index, together in groupby(
        encoded_events, key=lambda encoded_event: encoded_event.event.index
    ):
        chosen = []
        for number, event in enumerate(together, 1):
            if selection.has(event.event) and _may_see(reader.caller.grant, event.event):
                chosen.append(event.wire)
            if number % _TURN == 0:
                await trio.lowlevel.checkpoint()
        if chosen:
            lines.append(b'{"Index":%d,"Events":[%b]}\n' % (index, b",".join(chosen)))
    return lines


def _gap(first: int, last: int) -> bytes:
    """Return the line that reports deleted events in this range of indexes."""
    gap = {
        "Topic": "Gap",
        "Type": "EventsCollected",
        "Key": "",
        "Namespace": "",
        "FilterKeys": None,
        "Index": last,
        "Payload": {"Gap": {"FirstIndex": first, "LastIndex": last}},
    }
    return encode({"Index": last, "Events": [gap]}) + b"\n"
