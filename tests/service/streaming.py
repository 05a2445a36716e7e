"""Endless responses, read piece by piece over a separate connection."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlencode, urlsplit

import h11
import trio

from tests.service.daemon import Steward
from tests.time_limits import HAPPENS_WITHIN


class Stream:
    """An open stream."""

    def __init__(self, connection: trio.SocketStream) -> None:
        self._connection = connection
        self._protocol = h11.Connection(h11.CLIENT)
        self._rest = b""
        self.status = 0

    async def ask(self, target: str, host: str, token: str) -> None:
        headers = [("Host", host), *([("X-Service-Token", token)] if token else [])]
        request = h11.Request(method="GET", target=target, headers=headers)
        sent = self._protocol.send(request)
        assert sent is not None
        await self._connection.send_all(sent + (self._protocol.send(h11.EndOfMessage()) or b""))
        head = await self._event()
        assert isinstance(head, h11.Response)
        self.status = head.status_code

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        with trio.fail_after(HAPPENS_WITHIN):
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                self._protocol.receive_data(await self._connection.receive_some())
        assert event is not h11.NEED_DATA
        return event

    async def piece(self) -> bytes:
        """Return the next piece of the body; empty when the answer has ended."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def line(self) -> bytes:
        """Return the next line of the body; empty when the answer has ended."""
        while b"\n" not in self._rest:
            piece = await self.piece()
            if not piece:
                return b""
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line


@asynccontextmanager
async def open_stream(
    steward: Steward, path: str, token: str = "", /, **query: object
) -> AsyncIterator[Stream]:
    """Open a response without an end, and close it at the end of the block."""
    address = urlsplit(steward.address)
    assert address.hostname
    assert address.port
    async with await trio.open_tcp_stream(address.hostname, address.port) as connection:
        stream = Stream(connection)
        target = f"{path}?{urlencode(query, doseq=True)}" if query else path
        await stream.ask(target, address.netloc, token or steward.token)
        yield stream
