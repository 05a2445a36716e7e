"""The stream by which pages learn that something has changed; what, they ask themselves."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec

from daemon.web.reply import Reply, of_error
from daemon.web.visits import Visit
from storage.errors import StewardError
from storage.records.base import Record

_RETRY = 1000  # milliseconds after which a browser that has lost the stream asks again
_BEAT = b": still here\n\n"


class _Event(Record, frozen=True, kw_only=True):
    """Of an event, what a page needs: not its payload."""

    topic: str
    type: str
    key: str
    namespace: str
    filter_keys: list[str] | None = None


class _Line(Record, frozen=True, kw_only=True):
    """A line of the API's stream; one without events says that it is still there."""

    index: int = 0
    events: tuple[_Event, ...] = ()


async def events(visit: Visit) -> Reply:
    """Tell what changes from now on, or from some events ago with `back`."""
    last = visit.request.parts.store.read(lambda db: db.last_index())
    begin: dict[str, object] = {} if visit.query.text("back") else {"index": last + 1}
    try:
        found = await visit.ask("GET", "/v1/event/stream", namespace="*", **begin)
    except StewardError as error:
        return of_error(error)
    return Reply(
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
