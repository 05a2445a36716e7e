"""The fast path: small requests answered without the framework, on the same listeners.

It answers a request if `Dispatcher.is_hot` accepts the route, and if the request has the plainest
form of HTTP/1.1. Checks, handlers and responses are the same as in the HTTP server
(`dispatcher.py`). After any other request, the fast path hands the connection to the HTTP server.
It passes on the bytes received so far, and the time since which the connection has been idle. Only
the HTTP server rejects bad requests, serves streams and closes idle connections.

No request can hide inside another. The fast path answers only if the received data is exactly one
request. The form of this request can be parsed in one way only, and the C parser and this module
must agree on the length (RFC 9112, sections 2.2, 5 and 6.3).
"""

import logging
import os
import re
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import AsyncExitStack, aclosing
from math import inf

import httptools
import msgspec
import trio

from daemon.web.dispatcher import Dispatcher, RouteMatch
from daemon.web.listeners import PeerAddress
from daemon.web.reason import reason
from daemon.web.reply import WireResponse
from daemon.web.request_head import RequestHead
from daemon.web.send import DisconnectWatcher, send_now, send_with_timeout
from daemon.web.turns import ConnectionTurns
from storage.errors import StewardError

log = logging.getLogger("steward.web")

MOST = 64 * 1024  # bytes per read
HEAD_TIMEOUT = 10.0  # seconds until the head of a request must be complete
KEEP_ALIVE = 120  # seconds until an idle connection is closed
_EXACT = 1.0  # seconds of precision for the end of an idle connection
_SHORT = 60.0  # seconds; no non-blocking read takes longer
SOON = 0.05  # seconds for a body that follows its head separately
_MOST_HEAD = 8 * 1024  # bytes

# A request line and headers that every parser reads in the same way. There are no folded lines, no
# bare line feeds, no space before a colon, and only visible characters, spaces and tabs.
_PLAIN = re.compile(
    rb"(?:GET|POST|PUT) /[!-~]*+ HTTP/1\.1\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[\t -~]*+\r\n)++\r\n"
)
_LENGTH = re.compile(r"[0-9]{1,5}", re.ASCII)  # a longer number is not a small request
_FOR_OTHERS = frozenset({"transfer-encoding", "upgrade", "expect", "te", "trailer"})
_END = b"\r\n\r\n"
# `time.strftime` would use the names of the locale
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date(seconds: float) -> str:
    """Format a Unix time in seconds as in the header `Date` (RFC 9110, section 5.6.7).

    >>> http_date(0)
    'Thu, 01 Jan 1970 00:00:00 GMT'
    """
    year, month, day, hour, minute, second, weekday, *_ = time.gmtime(seconds)
    date = f"{_DAYS[weekday]}, {day:02} {_MONTHS[month - 1]} {year}"
    return f"{date} {hour:02}:{minute:02}:{second:02} GMT"


class Handover(msgspec.Struct, frozen=True):
    """A connection for the HTTP server: the bytes received, and its timing.

    `since` is the Trio time at which the wait for this request began. The head of the request must
    be complete by the Trio time `until`.
    """

    data: bytes
    since: float
    has_asked: bool  # an earlier request was answered
    until: float


class SimpleRequest(msgspec.Struct, frozen=True):
    """A request in the plainest form. `missing` is the number of body bytes that have not arrived."""

    method: str
    target: bytes
    headers: dict[str, str]
    body: bytes
    missing: int
    is_last: bool = False  # the client wants the connection closed after the response


class _Events:
    """The parser's events, with header names in lower case."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.target = self.body = b""
        self.number = self.ended = 0  # number of headers, and number of complete requests

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.number += 1
        self.headers[name.decode("ascii").lower()] = value.decode("ascii").strip(" \t")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1


def parse_simple_request(data: bytes) -> SimpleRequest | None:
    """Return the single request in these bytes, complete or not; None for anything else."""
    end = data.find(_END, 0, _MOST_HEAD) + len(_END)
    if end < len(_END) or not _PLAIN.fullmatch(data, 0, end):
        return None
    events = _Events()
    parser = httptools.HttpRequestParser(events)
    try:
        parser.feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    named = events.headers
    # Repeated headers are not accepted, because some of them change how a request is parsed.
    if len(named) != events.number or not _FOR_OTHERS.isdisjoint(named) or "host" not in named:
        return None
    length, then = named.get("content-length", "0"), named.get("connection", "keep-alive").lower()
    if not _LENGTH.fullmatch(length) or then not in ("keep-alive", "close"):
        return None
    missing = int(length) - (len(data) - end)
    if missing < 0 or events.body != data[end:] or events.ended != (missing == 0):
        return None
    method = parser.get_method().decode("ascii")
    return SimpleRequest(method, events.target, named, events.body, missing, then == "close")


class FastPath:
    """The fast path of some listeners."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._answering = dispatcher
        self.departures = DisconnectWatcher()  # the owner of the connections must run it
        self._idle: set[trio.CancelScope] = set()
        self._is_closing = False
        # headers of every response, and the Trio time of their creation
        self._added, self._added_at = b"", -inf

    def close(self) -> None:
        """Pass idle connections to the HTTP server now, and the others after their response."""
        self._is_closing = True
        for scope in self._idle:
            scope.cancel()

    async def serve(
        self, stream: trio.SocketStream, peer: PeerAddress | None, user: str, turns: ConnectionTurns
    ) -> Handover | None:
        """Answer requests until one is for the HTTP server. Each of them waits for a turn.

        Return the connection for that server, or None if it is closed.
        """
        data, since, has_asked = b"", trio.current_time(), False
        try:
            address = stream.socket.getpeername()
            client = "" if stream.socket.family == socket.AF_UNIX else address[0]
            # One scope for all requests: opening one for each would take a seventh of the time.
            with trio.CancelScope() as idleness:
                while not self._is_closing:
                    self._limit(idleness, since, has_asked=has_asked)
                    data = await self._first_bytes(stream, idleness, turns)
                    if not data:
                        return None
                    if idleness.cancel_called:
                        break
                    request, data = await _whole(stream, data, idleness, turns)
                    if (
                        request is None
                        or (hot := self._fast_target(request, client, peer, user)) is None
                    ):
                        break
                    if not await self._answered(stream, *hot, request, idleness):
                        return None
                    # The answered request must not be visible to the next owner of the connection.
                    data, since, has_asked = b"", trio.current_time(), True
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        until = self._latest(since, has_asked=has_asked)
        if data:
            until = min(until, trio.current_time() + HEAD_TIMEOUT)
        return Handover(data, since, has_asked, until)

    def _limit(self, idleness: trio.CancelScope, since: float, *, has_asked: bool) -> None:
        """Set the deadline of a wait for a request that began at `since`.

        `has_asked` means that the connection has sent an earlier request. The deadline may be
        slightly early, because the HTTP server then continues the wait.
        """
        latest = self._latest(since, has_asked=has_asked)
        if not latest - _EXACT <= idleness.deadline <= latest:
            idleness.deadline = latest

    def _latest(self, since: float, *, has_asked: bool) -> float:
        """Return the time at which a connection that sends no request after `since` must be closed.

        `has_asked` means that the connection has sent an earlier request.
        """
        return since + (KEEP_ALIVE if has_asked else HEAD_TIMEOUT)

    async def _first_bytes(
        self, stream: trio.SocketStream, idleness: trio.CancelScope, turns: ConnectionTurns
    ) -> bytes:
        """Return the next bytes; empty if the client has disconnected."""
        self._idle.add(idleness)
        try:
            return await receive_in_turn(stream, turns)
        finally:
            self._idle.discard(idleness)

    def _fast_target(
        self, request: SimpleRequest, client: str, peer: PeerAddress | None, user: str
    ) -> tuple[RequestHead, RouteMatch] | None:
        """Return the head and the target of a request, if the fast path answers it."""
        head = _head(request, client, peer, user)
        match = self._answering.target_of(head)
        return (head, match) if self._answering.is_hot(head, match) else None

    async def _answered(
        self,
        stream: trio.SocketStream,
        head: RequestHead,
        match: RouteMatch,
        request: SimpleRequest,
        idleness: trio.CancelScope,
    ) -> bool:
        """Answer a request; return whether the connection stays open."""

        async def body() -> bytes:
            return request.body

        answering = self._answering.answer(head, body, match)
        if self._answering.may_wait(head) or idleness.deadline < trio.current_time() + _SHORT:
            idleness.deadline = inf  # a client that waits for its response is not idle
            answer = await self._unless_disconnected(stream, answering)
        else:
            answer = await answering
        if answer is None:
            return False
        if answer.stream is not None:
            idleness.deadline = inf
            return await self._streamed(stream, answer, answer.stream, is_last=request.is_last)
        if unsent := send_now(stream, self._written(answer, is_last=request.is_last)):
            idleness.deadline = inf
            await send_with_timeout(stream, unsent)
        return not request.is_last

    async def _unless_disconnected(
        self, stream: trio.SocketStream, answering: Coroutine[object, object, WireResponse]
    ) -> WireResponse | None:
        """Return the response, or None if the client disconnects before it is ready."""
        scope = trio.CancelScope()
        with scope, self.departures.cancelling(stream.socket.fileno(), scope):
            return await answering
        return None

    async def _streamed(
        self,
        stream: trio.SocketStream,
        answer: WireResponse,
        chunks: AsyncIterator[bytes],
        *,
        is_last: bool,
    ) -> bool:
        """Send a list while it is read; return whether the connection stays open.

        With `is_last`, the connection closes after the response.
        """
        await send_with_timeout(stream, self._head(answer, "transfer-encoding: chunked", is_last))
        try:
            async with AsyncExitStack() as stack:
                if isinstance(chunks, AsyncGenerator):
                    await stack.enter_async_context(aclosing(chunks))
                async for chunk in chunks:
                    await send_with_timeout(stream, b"%x\r\n%b\r\n" % (len(chunk), chunk))
        except StewardError as error:
            log.warning("a response was interrupted: %s", error)
            return False  # the client sees that the end is missing
        await send_with_timeout(stream, b"0\r\n\r\n")
        return not is_last

    def _written(self, answer: WireResponse, *, is_last: bool) -> bytes:
        """Return the bytes of a response, in the form of the HTTP server.

        With `is_last`, the headers announce the end of the connection.
        """
        return self._head(answer, f"content-length: {len(answer.body)}", is_last) + answer.body

    def _head(self, answer: WireResponse, length: str, is_last: bool) -> bytes:
        now = trio.current_time()
        if now >= self._added_at + 1:  # the date has a resolution of one second
            self._added_at, self._added = now, f"date: {http_date(time.time())}\r\n".encode()
        lines = [f"{name.lower()}: {value}\r\n" for name, value in answer.headers.items()]
        first = f"HTTP/1.1 {answer.status} {reason(answer.status)}\r\n"
        head = f"{first}{''.join(lines)}{length}\r\n"
        last = b"Connection: close\r\n\r\n" if is_last else b"\r\n"
        return b"".join((head.encode(), self._added, last))


def _head(request: SimpleRequest, client: str, peer: PeerAddress | None, user: str) -> RequestHead:
    target, _, query = request.target.partition(b"?")
    return RequestHead(
        method=request.method,
        target=target,
        query=query.decode("ascii"),
        headers=request.headers,
        client=client,
        peer=peer,
        user=user,
    )


async def _whole(
    stream: trio.SocketStream, data: bytes, idleness: trio.CancelScope, turns: ConnectionTurns
) -> tuple[SimpleRequest | None, bytes]:
    """Wait for the body of a request; return the request and all received bytes.

    The request is None if its body does not arrive soon, or is not in the plainest form.
    """
    request = parse_simple_request(data)
    if request is None or not request.missing:
        return request, data
    idleness.deadline = inf
    with trio.move_on_after(SOON):
        while more := await receive_in_turn(stream, turns):
            data += more
            request = parse_simple_request(data)
            if request is None or not request.missing:
                return request, data
    return None, data


async def receive_in_turn(stream: trio.SocketStream, turns: ConnectionTurns) -> bytes:
    """Wait for bytes and for a turn; return the bytes, empty after the client has closed its side."""
    while True:
        await trio.lowlevel.wait_readable(stream.socket)
        await turns.take()
        try:
            # There must be no await after the read, or a cancelled wait would lose the bytes.
            return os.read(stream.socket.fileno(), MOST)
        except BlockingIOError:  # readable without data: wait again
            continue
