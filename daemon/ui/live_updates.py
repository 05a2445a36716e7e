"""The event stream of pages: it signals changes, and pages then reload their data."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec

from daemon.web.reply import HandlerReply, of_error
from daemon.web.ui_session import UiRequest
from storage.errors import StewardError
from storage.records.base import Record

_RETRY = 1000  # milliseconds until a browser reconnects
_BEAT = b": still here\n\n"


class _Event(Record, frozen=True, kw_only=True):
    """The fields of an event that a page needs, without its payload."""

    topic: str
    type: str
    key: str
    namespace: str
    filter_keys: list[str] | None = None


class _Line(Record, frozen=True, kw_only=True):
    """A line of the API's event stream; one without events is a heartbeat."""

    index: int = 0
    events: tuple[_Event, ...] = ()


async def events(ui_request: UiRequest) -> HandlerReply:
    """Stream events from now on, or from `back` events ago."""
    last = ui_request.request.parts.store.read(lambda db: db.last_index())
    begin: dict[str, object] = {} if ui_request.query.text("back") else {"index": last + 1}
    try:
        found = await ui_request.ask("GET", "/v1/event/stream", namespace="*", **begin)
    except StewardError as error:
        return of_error(error)
    return HandlerReply(
        stream=_frames(found.stream, last) if found.stream else None,
        content_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _frames(lines: AsyncIterator[bytes], index: int) -> AsyncIterator[bytes]:
    """Yield the lines of the API's stream as server-sent events."""
    yield b"retry: %d\nevent: begin\ndata: %d\n\n" % (_RETRY, index)
    async with aclosing(lines) as open_lines:  # type: ignore[type-var]  # a generator
        async for line in open_lines:
            told = msgspec.json.decode(line, type=_Line)
            yield b"data: " + msgspec.json.encode(told) + b"\n\n" if told.events else _BEAT
