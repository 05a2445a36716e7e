"""Helpers for tests of checks: a listener, and a check of it."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from daemon.runner.core.task_script import ScriptResult
from daemon.runner.services.registrations import CheckTarget
from storage.errors import Refused
from storage.records.base import SECOND
from storage.records.task import Check

Serve = Callable[[trio.SocketStream], Any]


async def nothing_runs(task: str, command: Sequence[str]) -> ScriptResult:
    raise Refused("task not found")


def probe(kind: str, port: int = 0, **fields: Any) -> CheckTarget:
    check = Check(name="c", type=kind, **{"timeout": SECOND, "interval": SECOND, **fields})
    return CheckTarget(
        id="x", check=check, service="web", task="main", address="127.0.0.1", port=port
    )


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        start = partial(trio.serve_tcp, host="127.0.0.1")
        (listener,) = await nursery.start(start, serve, 0)
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


OK = [("grpc-status", "0")]


def message(status: int) -> bytes:
    return b"\x00\x00\x00\x00\x02\x08" + bytes([status])


class Health:
    """A server of the health checking protocol with a configured status."""

    def __init__(
        self, body: bytes, trailers: list[tuple[str, str]] = OK, status: str = "200"
    ) -> None:
        self._body, self._trailers, self._status = body, trailers, status
        self.heads: dict[str, str] = {}
        self.question = b""

    async def serve(self, stream: trio.abc.Stream) -> None:
        protocol = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        protocol.initiate_connection()
        async with stream:
            await stream.send_all(protocol.data_to_send())
            while data := await stream.receive_some():
                for event in protocol.receive_data(bytes(data)):
                    if isinstance(event, RequestReceived):
                        self.heads = {str(name): str(text) for name, text in event.headers}
                    elif isinstance(event, DataReceived):
                        self.question += event.data
                    elif isinstance(event, StreamEnded):
                        self._answer(protocol, event.stream_id)
                await stream.send_all(protocol.data_to_send())

    def _answer(self, protocol: H2Connection, number: int) -> None:
        head = [(":status", self._status), ("content-type", "application/grpc")]
        protocol.send_headers(number, head)
        if self._body:
            protocol.send_data(number, self._body)
        protocol.send_headers(number, self._trailers, end_stream=True)
