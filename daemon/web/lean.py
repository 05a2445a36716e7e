"""The lean door: small requests answered without the framework, on the same listeners.

What a client sends is answered here when it is one whole request for a route of small requests
(`Answering.is_hot`), written in the plainest form that HTTP/1.1 has. The checks, the handlers and the
answers are the same (`answering.py`). All else goes, with the bytes that have come and the time since
when the client is idle, to the server behind, which has the connection from then on: it alone
refuses, streams, and closes.

No request can hide in another: what is answered here is all that has come, there is one way to read
its form, and two readings of its length, by the C parser and by ours, have to agree
(RFC 9112, sections 2.2, 5 and 6.3).
"""

import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import AsyncExitStack, aclosing, suppress
from math import inf

import httptools
import msgspec
import trio
from hypercorn.config import Config as ServerConfig
from hypercorn.utils import parse_socket_addr

from daemon.web.answering import Answering, Way
from daemon.web.head import Head
from daemon.web.listeners import Peer
from daemon.web.reason import reason
from daemon.web.reply import Finished
from daemon.web.sending import Departures, send_now, send_patiently
from storage.errors import StewardError

log = logging.getLogger("steward.web")

MOST = 64 * 1024  # bytes that are read at once
HEAD_TIMEOUT = 10.0  # seconds that a new connection, or a head that has begun, may take to be whole
_EXACT = 1.0  # seconds, to which the end of an idle connection is known here
_SHORT = 60.0  # seconds that no read takes which does not wait
SOON = 0.05  # seconds in which a body follows its head, when a client sends them one by one
_MOST_HEAD = 8 * 1024  # bytes

# A request line and headers without anything that a reader could take in two ways: no folded or bare
# lines, no space before a colon, no octets but visible ones, spaces and tabs.
_PLAIN = re.compile(
    rb"(?:GET|POST|PUT) /[!-~]*+ HTTP/1\.1\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[\t -~]*+\r\n)++\r\n"
)
_LENGTH = re.compile(r"[0-9]{1,5}", re.ASCII)  # what is longer is no small request
_FOR_OTHERS = frozenset({"transfer-encoding", "upgrade", "expect", "te", "trailer"})
_END = b"\r\n\r\n"


class Handed(msgspec.Struct, frozen=True):
    """A connection for the server behind: what has come of a request, and what it is to know.

    `since`: the moment on Trio's clock since when it waits for this request, whose head has to be
    there at the moment `until`.
    """

    data: bytes
    since: float
    has_asked: bool  # and was answered, before
    until: float


class Plain(msgspec.Struct, frozen=True):
    """A request in the plainest form; `missing` bytes of its body have not come yet."""

    method: str
    target: bytes
    headers: dict[str, str]
    body: bytes
    missing: int
    is_last: bool = False  # its client wants the connection closed behind the answer


class _Events:
    """What the parser has seen; the names of headers in lower case."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.target = self.body = b""
        self.number = self.ended = 0  # of headers, of requests

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.number += 1
        self.headers[name.decode("ascii").lower()] = value.decode("ascii").strip(" \t")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1


def plain(data: bytes) -> Plain | None:
    """Return the one request that these bytes are, or begin; None for anything else."""
    end = data.find(_END, 0, _MOST_HEAD) + len(_END)
    if end < len(_END) or not _PLAIN.fullmatch(data, 0, end):
        return None
    seen = _Events()
    parser = httptools.HttpRequestParser(seen)
    try:
        parser.feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    named = seen.headers
    # Without repetitions: of some, a second one would change how a request is read.
    if len(named) != seen.number or not _FOR_OTHERS.isdisjoint(named) or "host" not in named:
        return None
    length, then = named.get("content-length", "0"), named.get("connection", "keep-alive").lower()
    if not _LENGTH.fullmatch(length) or then not in ("keep-alive", "close"):
        return None
    missing = int(length) - (len(data) - end)
    if missing < 0 or seen.body != data[end:] or seen.ended != (missing == 0):
        return None
    method = parser.get_method().decode("ascii")
    return Plain(method, seen.target, named, seen.body, missing, then == "close")


class Lean:
    """The lean door of some listeners."""

    def __init__(self, answering: Answering, settings: ServerConfig) -> None:
        self._answering, self._settings = answering, settings
        self.departures = Departures()  # to be run by whoever has the connections
        self._idle: set[trio.CancelScope] = set()
        self._is_closing = False
        self._added, self._added_at = b"", -inf  # to every answer, and since when on Trio's clock

    def close(self) -> None:
        """Hand over every connection: those that are idle now, others when they are answered."""
        self._is_closing = True
        for scope in self._idle:
            scope.cancel()

    async def serve(self, stream: trio.SocketStream, peer: Peer | None) -> Handed | None:
        """Answer requests until one is not for here; return the connection, None if it is over."""
        data, since, has_asked = b"", trio.current_time(), False
        try:
            address = parse_socket_addr(stream.socket.family, stream.socket.getpeername())
            client = address[0] if address else ""
            # One for all requests: to open another for each would cost a seventh of it.
            with trio.CancelScope() as idleness:
                while not self._is_closing:
                    self._limit(idleness, since, has_asked=has_asked)
                    data = await self._begun(stream, idleness)
                    if not data:
                        return None
                    if idleness.cancel_called:
                        break
                    request, data = await _whole(stream, data, idleness)
                    if request is None or (hot := self._hot(request, client, peer)) is None:
                        break
                    if not await self._answered(stream, *hot, request, idleness):
                        return None
                    # What was answered is over: whoever has the connection next is not to see it.
                    data, since, has_asked = b"", trio.current_time(), True
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        until = self._latest(since, has_asked=has_asked)
        if data:
            until = min(until, trio.current_time() + HEAD_TIMEOUT)
        return Handed(data, since, has_asked, until)

    def _limit(self, idleness: trio.CancelScope, since: float, *, has_asked: bool) -> None:
        """Let a wait that begins end in time; who ends it a little early has the server behind wait."""
        latest = self._latest(since, has_asked=has_asked)
        if not latest - _EXACT <= idleness.deadline <= latest:
            idleness.deadline = latest

    def _latest(self, since: float, *, has_asked: bool) -> float:
        """Return when a client that sends nothing is given up."""
        return since + (self._settings.keep_alive_timeout if has_asked else HEAD_TIMEOUT)

    async def _begun(self, stream: trio.SocketStream, idleness: trio.CancelScope) -> bytes:
        """Return what comes; nothing when the client has gone."""
        self._idle.add(idleness)
        try:
            return await _received(stream)
        finally:
            self._idle.discard(idleness)

    def _hot(self, request: Plain, client: str, peer: Peer | None) -> tuple[Head, Way] | None:
        """Return what is asked for, and where that leads, if it is answered here."""
        head = _head(request, client, peer)
        way = self._answering.way(head)
        return (head, way) if self._answering.is_hot(head, way) else None

    async def _answered(
        self,
        stream: trio.SocketStream,
        head: Head,
        way: Way,
        request: Plain,
        idleness: trio.CancelScope,
    ) -> bool:
        """Answer a request; tell whether the connection goes on."""

        async def body() -> bytes:
            return request.body

        answering = self._answering.answer(head, body, way)
        if self._answering.may_wait(head) or idleness.deadline < trio.current_time() + _SHORT:
            idleness.deadline = inf  # nobody is cut short while he waits for his answer
            answer = await self._unless_gone(stream, answering)
        else:
            answer = await answering
        if answer is None:
            return False
        if answer.stream is not None:
            idleness.deadline = inf
            return await self._streamed(stream, answer, answer.stream, is_last=request.is_last)
        if rest := send_now(stream, self._written(answer, is_last=request.is_last)):
            idleness.deadline = inf
            await send_patiently(stream, rest)
        return not request.is_last

    async def _unless_gone(
        self, stream: trio.SocketStream, answering: Coroutine[object, object, Finished]
    ) -> Finished | None:
        """Return the answer, or None if its client has gone before."""
        scope = trio.CancelScope()
        with scope, self.departures.cancelling(stream.socket.fileno(), scope):
            return await answering
        return None

    async def _streamed(
        self,
        stream: trio.SocketStream,
        answer: Finished,
        pieces: AsyncIterator[bytes],
        *,
        is_last: bool,
    ) -> bool:
        """Send a list as it is read; tell whether the connection goes on."""
        await send_patiently(stream, self._head(answer, "transfer-encoding: chunked", is_last))
        try:
            async with AsyncExitStack() as stack:
                if isinstance(pieces, AsyncGenerator):
                    await stack.enter_async_context(aclosing(pieces))
                async for piece in pieces:
                    await send_patiently(stream, b"%x\r\n%b\r\n" % (len(piece), piece))
        except StewardError as error:
            log.warning("an answer broke off: %s", error)
            return False  # its client sees that the end is missing
        await send_patiently(stream, b"0\r\n\r\n")
        return not is_last

    def _written(self, answer: Finished, *, is_last: bool) -> bytes:
        """Return an answer as it goes over the wire, in the form of the server behind."""
        return self._head(answer, f"content-length: {len(answer.body)}", is_last) + answer.body

    def _head(self, answer: Finished, length: str, is_last: bool) -> bytes:
        now = trio.current_time()
        if now >= self._added_at + 1:  # a date has no parts of a second
            pairs = self._settings.response_headers("h11")
            self._added_at, self._added = now, b"".join(b"%s: %s\r\n" % pair for pair in pairs)
        lines = [f"{name.lower()}: {value}\r\n" for name, value in answer.headers.items()]
        first = f"HTTP/1.1 {answer.status} {reason(answer.status)}\r\n"
        head = f"{first}{''.join(lines)}{length}\r\n"
        last = b"Connection: close\r\n\r\n" if is_last else b"\r\n"
        return b"".join((head.encode(), self._added, last))


def _head(request: Plain, client: str, peer: Peer | None) -> Head:
    target, _, query = request.target.partition(b"?")
    return Head(
        method=request.method,
        target=target,
        query=query.decode("ascii"),
        headers=request.headers,
        client=client,
        peer=peer,
    )


async def _whole(
    stream: trio.SocketStream, data: bytes, idleness: trio.CancelScope
) -> tuple[Plain | None, bytes]:
    """Return the request that has begun, if it is soon whole, and what has come of it."""
    request = plain(data)
    if request is None or not request.missing:
        return request, data
    idleness.deadline = inf
    with trio.move_on_after(SOON):
        while more := await _received(stream):
            data += more
            request = plain(data)
            if request is None or not request.missing:
                return request, data
    return None, data


async def _received(stream: trio.SocketStream) -> bytes:
    """Return what has come; nothing when the client sends no more."""
    while True:
        await trio.lowlevel.wait_readable(stream.socket)
        with suppress(BlockingIOError):
            # No await after this: what has been read is not lost when the wait is cancelled.
            return os.read(stream.socket.fileno(), MOST)
