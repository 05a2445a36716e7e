"""The event stream of pages: it signals changes, and pages then reload their data."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import lru_cache

import msgspec

from daemon.web.reply import HandlerReply, of_error
from daemon.web.ui_session import UiRequest
from storage.errors import StewardError
from storage.records.base import Record

_RETRY = 1000  # milliseconds until a browser reconnects
_BEAT = b": still here\n\n"
_GATHER = "250ms"  # a dispatch makes about ten writes, and pages then reload only once
_SHORT_LINE = 64 * 1024  # bytes; shorter lines are converted once for all pages


class _Changed(Record, frozen=True, kw_only=True):
    """The time of an object's last change in nanoseconds; 0 if the object has no such field."""

    modify_time: int = 0


class _Payload(Record, frozen=True, kw_only=True):
    """The part of an event's payload that shows when the event's object was changed."""

    allocation: _Changed | None = None
    evaluation: _Changed | None = None


class _Event(Record, frozen=True, kw_only=True):
    """The fields of an event that a page needs, and the times in the event's payload."""

    topic: str
    type: str
    key: str
    namespace: str
    filter_keys: list[str] | None = None
    payload: _Payload | None = None


class EventLine(Record, frozen=True, kw_only=True):
    """A line of the API's event stream; a line without events is a heartbeat."""

    index: int = 0
    events: tuple[_Event, ...] = ()


class _ShownEvent(Record, frozen=True, kw_only=True):
    topic: str
    type: str
    key: str
    namespace: str
    filter_keys: list[str] | None = None


class ShownLine(Record, frozen=True, kw_only=True):
    """The events of one write, with the write's time in milliseconds (0 if unknown)."""

    index: int
    events: list[_ShownEvent]
    time: int = 0


async def events(ui_request: UiRequest) -> HandlerReply:
    """Stream events from now on; with `back`, begin with the latest earlier events."""
    last = ui_request.request.parts.store.read(lambda db: db.last_index())
    begin: dict[str, object] = {"gather": _GATHER}
    if not ui_request.query.text("back"):
        begin |= {"index": last + 1, "brief": True}  # only the list of events shows times
    try:
        answer = await ui_request.ask("GET", "/v1/event/stream", namespace="*", **begin)
    except StewardError as error:
        return of_error(error)
    return HandlerReply(
        stream=_frames(answer.stream, last) if answer.stream else None,
        content_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _frames(lines: AsyncIterator[bytes], index: int) -> AsyncIterator[bytes]:
    """Yield the lines of the API's stream as server-sent events."""
    yield b"retry: %d\nevent: begin\ndata: %d\n\n" % (_RETRY, index)
    async with aclosing(lines) as open_lines:  # type: ignore[type-var]  # a generator
        async for chunk in open_lines:
            yield b"".join(
                _shared_frame(line) if len(line) < _SHORT_LINE else frame(line)
                for line in chunk.splitlines()
            )


def frame(line: bytes) -> bytes:
    """Return a line of the API's stream as a server-sent event."""
    event_line = msgspec.json.decode(line, type=EventLine)
    if not event_line.events:
        return _BEAT
    return b"data: " + msgspec.json.encode(shown_line(event_line)) + b"\n\n"


_shared_frame = lru_cache(maxsize=64)(frame)


def shown_line(line: EventLine) -> ShownLine:
    """Return the events of a write, with the time of the write.

    The time is known only if an event contains an allocation or an evaluation.
    """
    payloads = [event.payload for event in line.events if event.payload is not None]
    objects = [
        changed for payload in payloads for changed in (payload.allocation, payload.evaluation)
    ]
    return ShownLine(
        index=line.index,
        events=[
            _ShownEvent(
                topic=event.topic,
                type=event.type,
                key=event.key,
                namespace=event.namespace,
                filter_keys=event.filter_keys,
            )
            for event in line.events
        ],
        time=max((object_.modify_time for object_ in objects if object_), default=0) // 1_000_000,
    )
