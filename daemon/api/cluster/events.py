"""The event stream: what changes, from any index on, as far as the caller may see it.

Events are rows of the store, so a reader takes them at his own pace and loses none: neither to
his slowness nor to a restart. What was collected before he came is told in an event of its own.
"""

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import groupby

import msgspec
import trio

from daemon.acl.check import EVERYWHERE
from daemon.acl.grant import Grant
from daemon.api.cluster.closed import check_events
from daemon.feed import Made
from daemon.web.parameters import Query
from daemon.web.readers import Reader
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Malformed
from storage.queries import events
from storage.queries.events import Event
from storage.readers import Snapshot
from storage.records.codec import encode

HEARTBEAT = 10.0  # seconds of silence
BACK = 100  # events that a reader gets who names no index: as many as the peer remembers
_BEAT = b"{}\n"
_ALL = "*"
_IN_NAMESPACE = frozenset({"Job", "Allocation", "Deployment", "Evaluation", "Service"})
_OF_NODES = frozenset({"Node", "NodePool"})
_INT64 = range(-(2**63), 2**63)


class _Wanted(msgspec.Struct, frozen=True):
    """What a reader wants to see."""

    topics: dict[str, set[str]]  # topic -> keys
    namespace: str

    def has(self, event: Event) -> bool:
        """Tell whether an event is among it."""
        if event.namespace and self.namespace not in (EVERYWHERE, event.namespace):
            return False
        keys = self.topics.get(event.topic, set()) | self.topics.get(_ALL, set())
        return _ALL in keys or event.key in keys or not keys.isdisjoint(event.filter_keys)


async def stream(request: Request) -> Reply:
    """Show what changes, from an index on."""
    check_events(request)
    index = _index(request.query)
    wanted = _Wanted(_topics(request.query), request.namespace)
    frames = _frames(request, wanted, index)
    return Reply(stream=frames, is_endless=True, headers={"Cache-Control": "no-cache"})


def _index(query: Query) -> int:
    """Return the index to begin at, 0 when none is named. Raises `Malformed`."""
    text = query.text("index") or "0"
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        reason = "invalid syntax"
    elif int(text) not in _INT64:
        reason = "value out of range"
    else:
        return max(int(text), 0)
    raise Malformed(f'Unable to parse index: strconv.Atoi: parsing "{text}": {reason}')


def _topics(query: Query) -> dict[str, set[str]]:
    """Return the topics that are asked for, with the keys of each. Raises `Malformed`."""
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


# ---- the stream --------------------------------------------------------------------------------------


async def _frames(request: Request, wanted: _Wanted, index: int) -> AsyncIterator[bytes]:
    """Yield a line for each write of which something is wanted, and one in times of silence."""
    store, feed = request.parts.store, request.parts.feed
    reader = Reader(request)
    yield _BEAT  # the answer begins at once
    number = store.read(lambda db: _begin(db, index))
    collected = store.read(events.collected)
    if index and index <= collected:
        yield _gap(index, collected)
    while reader.is_known():
        with store.watch(events.TOPIC) as change:
            await trio.lowlevel.checkpoint()  # a client that is behind shares the loop
            found = feed.after(store, number)
            if found:
                if found[0].event.number != number + 1:
                    yield _gap(index, store.read(events.collected))
                number, index = found[-1].event.number, found[-1].event.index + 1
                for line in _lines(
                    one
                    for one in found
                    if wanted.has(one.event) and _may_see(reader.grant, one.event)
                ):
                    yield line
                continue
            with trio.move_on_after(HEARTBEAT) as silence:
                await change.wait()
        if silence.cancelled_caught:
            yield _BEAT


def _begin(db: Snapshot, index: int) -> int:
    return events.before_index(db, index) if index else events.before_last(db, BACK)


def _may_see(grant: Grant, event: Event) -> bool:
    if event.topic in _IN_NAMESPACE:
        return grant.may(event.namespace, "read-job")
    if event.topic in _OF_NODES:
        return grant.may_in("node", "read")
    if event.topic == "Namespace":
        return grant.knows(event.namespace)
    return grant.everything


def _lines(chosen: Iterable[Made]) -> Iterator[bytes]:
    """Yield a line for the events of each write."""
    for index, together in groupby(chosen, key=lambda one: one.event.index):
        joined = b",".join(one.wire for one in together)
        yield b'{"Index":%d,"Events":[%b]}\n' % (index, joined)


def _gap(first: int, last: int) -> bytes:
    """Return the line that tells that events of these indexes are no longer kept."""
    told = {
        "Topic": "Gap",
        "Type": "EventsCollected",
        "Key": "",
        "Namespace": "",
        "FilterKeys": None,
        "Index": last,
        "Payload": {"Gap": {"FirstIndex": first, "LastIndex": last}},
    }
    return encode({"Index": last, "Events": [told]}) + b"\n"
