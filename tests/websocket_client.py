"""WebSocket client with custom headers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)

from tests.time_limits import HAPPENS_WITHIN


class Conversation:
    """A WebSocket from the client's point of view."""

    def __init__(self, stream: trio.SocketStream, address: str, path: str, headers: Any) -> None:
        self._stream = stream
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._first = Request(host=address, target=path, extra_headers=list(headers))
        self.code: int | None = None  # close code
        self.reason: str | None = None
        self.refused: int | None = None  # status of the response if the server rejects the upgrade

    async def send(self, event: Any) -> None:
        await self._stream.send_all(self._protocol.send(event))

    async def open(self) -> None:
        await self.send(self._first)

    async def accepted(self) -> None:
        """Wait until the daemon has accepted the upgrade."""
        self._protocol.receive_data(await self._stream.receive_some())
        events = list(self._protocol.events())
        assert isinstance(events[0], AcceptConnection)

    async def next(self) -> Any:
        """Return the next message; None if there is no further one."""
        text = ""
        while True:
            for event in self._protocol.events():
                match event:
                    case TextMessage():
                        text += event.data
                        if event.message_finished:
                            return json.loads(text)
                    case Ping():
                        await self.send(event.response())
                    case RejectConnection():
                        self.refused = event.status_code
                        return None
                    case CloseConnection():
                        self.code, self.reason = event.code, event.reason
                        return None
            piece = await self._stream.receive_some()
            if not piece:
                return None
            self._protocol.receive_data(piece)

    async def all(self) -> list[Any]:
        """Return all messages until the close."""
        found = []
        while (message := await self.next()) is not None:
            found.append(message)
        return found


@asynccontextmanager
async def talk(
    address: str, path: str, *, headers: Any = (), **query: str
) -> AsyncIterator[Conversation]:
    """Open a WebSocket to a daemon while the block runs."""
    place = address.removeprefix("http://")
    host, _, port = place.rpartition(":")
    with trio.fail_after(HAPPENS_WITHIN):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            socket = Conversation(stream, place, f"{path}?{urlencode(query)}", headers)
            await socket.open()
            yield socket
