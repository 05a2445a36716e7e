"""A webhook receiver on loopback with configurable responses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import h11
import msgspec
import trio

from tests.time_limits import HAPPENS_WITHIN


class Received(msgspec.Struct, frozen=True):
    """A request: its path, its headers with lower-case names, and its body."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def told(self) -> Any:
        return msgspec.json.decode(self.body)


class Receiver:
    """The received requests. `answers` are the next statuses; after them, all are 200.

    The status 0 means no response: the connection stays open.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hook?key=secret"
        self.received: list[Received] = []
        self.answers: list[int] = []
        self.moved_to = ""
        self._news = trio.Event()

    async def until(self, count: int) -> list[Received]:
        """Return the received requests when there are this many."""
        with trio.fail_after(HAPPENS_WITHIN):
            while len(self.received) < count:
                await self._news.wait()
        return self.received

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            protocol = h11.Connection(h11.SERVER)
            events = [event async for event in _events(stream, protocol)]
            if not events:  # the client has disconnected without a request
                return
            request = events[0]
            assert isinstance(request, h11.Request)
            self.received.append(
                Received(
                    request.target.decode(),
                    {name.decode().lower(): text.decode() for name, text in request.headers},
                    b"".join(event.data for event in events if isinstance(event, h11.Data)),
                )
            )
            status = self.answers.pop(0) if self.answers else 200
            self._news.set()
            self._news = trio.Event()
            if not status:
                await trio.sleep_forever()
            headers = [("content-length", "0"), ("location", self.moved_to)]
            answer = h11.Response(status_code=status, headers=headers)
            sent = [protocol.send(item) or b"" for item in (answer, h11.EndOfMessage())]
            await stream.send_all(b"".join(sent))


async def _events(stream: trio.SocketStream, protocol: h11.Connection) -> AsyncIterator[h11.Event]:
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            protocol.receive_data(await stream.receive_some(65536))
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return
        elif isinstance(event, h11.Event):
            yield event


@asynccontextmanager
async def open_receiver() -> AsyncIterator[Receiver]:
    """Listen on a free port while the block runs."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        receiver = Receiver(listener.socket.getsockname()[1])
        nursery.start_soon(_serve, receiver, listener)
        yield receiver
        nursery.cancel_scope.cancel()


async def _serve(receiver: Receiver, listener: trio.SocketListener) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, h11.ProtocolError):  # the client has disconnected
            await receiver.serve(stream)

    await trio.serve_listeners(answer, [listener])
