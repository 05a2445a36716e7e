"""Exec sessions: a command inside a task, with its streams, over a WebSocket.

To read the output, iterate over the session, in a single async task. `send` waits while the command
does not read its input. So a program that sends much data must read the output in another async
task.
"""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal
from urllib.parse import urlencode, urlsplit

import anyio
import msgspec
from anyio.abc import ByteStream
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError

from steward_client.errors import ExecFailed, InvalidResponse, Unreachable, error_of
from steward_client.transport import Connection, Query, headers_of, not_connected, segment
from steward_client.wire import UNREADABLE

_CONNECT_WITHIN = 10.0  # timeout in seconds
_READ = 64 * 1024
_PIECE = 32 * 1024  # bytes of input in one frame


class _Chunk(msgspec.Struct, frozen=True, omit_defaults=True):
    data: bytes = b""
    close: bool = False


class _Size(msgspec.Struct, frozen=True):
    height: int
    width: int


class _Sent(msgspec.Struct, frozen=True, omit_defaults=True):
    stdin: _Chunk | None = None
    tty_size: _Size | None = None


class _Result(msgspec.Struct, frozen=True):
    exit_code: int = 0


class _Received(msgspec.Struct, frozen=True):
    stdout: _Chunk | None = None
    stderr: _Chunk | None = None
    exited: bool = False
    result: _Result | None = None


def _received(message: bytes) -> _Received:
    try:
        return msgspec.json.decode(message, type=_Received)
    except UNREADABLE as error:
        raise InvalidResponse(f"the server sent an invalid frame: {error}") from error


class Output(msgspec.Struct, frozen=True):
    """A piece of a command's output; `stream` is `stdout` or `stderr`."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """The exit code and the whole output of a command."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class ExecSession:
    """A command inside a task. Iterate to read its output; then `exit_code` is known."""

    def __init__(self, socket: "_Socket") -> None:
        self._socket = socket
        self.exit_code: int | None = None

    async def send(self, data: bytes) -> None:
        """Send input to the command."""
        for start in range(0, len(data), _PIECE):
            await self._write(_Sent(stdin=_Chunk(data=data[start : start + _PIECE])))

    async def end_input(self) -> None:
        """Close the standard input of the command."""
        await self._write(_Sent(stdin=_Chunk(close=True)))

    async def resize(self, *, height: int, width: int) -> None:
        """Set the size of the terminal, in characters."""
        await self._write(_Sent(tty_size=_Size(height=height, width=width)))

    async def _write(self, frame: _Sent) -> None:
        await self._socket.send(msgspec.json.encode(frame))

    def __aiter__(self) -> "ExecSession":
        return self

    async def __anext__(self) -> Output:
        while self.exit_code is None:
            frame = _received(await self._socket.receive())
            if frame.exited:
                self.exit_code = (frame.result or _Result()).exit_code
            elif frame.stdout and frame.stdout.data:
                return Output("stdout", frame.stdout.data)
            elif frame.stderr and frame.stderr.data:
                return Output("stderr", frame.stderr.data)
        raise StopAsyncIteration

    async def run(self, stdin: bytes = b"") -> ExecResult:
        """Send the whole input; return the exit code and the output when the command has ended."""
        failed: list[Exception] = []
        results: list[ExecResult] = []

        async def read() -> None:
            try:
                results.append(await self._collect())
            except Exception as error:  # raised outside the task group, which would wrap it
                failed.append(error)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            with suppress(Unreachable):  # the reader raises the reason
                await self.send(stdin)
                await self.end_input()
            await anyio.sleep_forever()
        if failed:
            raise failed[0]
        return results[0]

    async def _collect(self) -> ExecResult:
        parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        async for output in self:
            parts[output.stream].append(output.data)
        assert self.exit_code is not None  # noqa: S101  # the iteration ends with it
        return ExecResult(
            exit_code=self.exit_code,
            stdout=b"".join(parts["stdout"]),
            stderr=b"".join(parts["stderr"]),
        )


@asynccontextmanager
async def open_session(
    connection: Connection, alloc_id: str, command: Sequence[str], *, task: str, tty: bool
) -> AsyncIterator[ExecSession]:
    """Run a command inside a task while the block runs; kill the command at the end of the block.

    Raises `ApiError` if the server refuses the connection. A read raises `ExecFailed` if the server
    refuses the command.
    """
    if isinstance(command, str):  # its type permits a text, as a sequence of characters
        raise TypeError(f"the command {command!r} is a text; pass a list such as ['/bin/ls', '-l']")
    query: Query = {
        "task": task,
        "command": msgspec.json.encode(list(command)).decode(),
        "tty": tty,
    }
    path = f"/v1/client/allocation/{segment(alloc_id)}/exec"
    target = f"{path}?{urlencode(connection.query(query))}"
    token = await connection.tokens.token()
    async with await _connect(connection) as stream:
        socket = _Socket(stream, connection.address)
        await socket.open(target, token)
        yield ExecSession(socket)


async def _connect(connection: Connection) -> ByteStream:
    address = urlsplit(connection.address)
    host = address.hostname or "localhost"
    try:
        with anyio.fail_after(_CONNECT_WITHIN):
            if connection.socket:
                return await anyio.connect_unix(connection.socket)
            if address.scheme != "https":
                return await anyio.connect_tcp(host, address.port or 80)
            # The closing frame of the WebSocket already marks the end. The standard's own end of
            # TLS would replace the reason for a refusal, if the server has closed the connection.
            return await anyio.connect_tcp(
                host,
                address.port or 443,
                tls=True,
                ssl_context=_context(connection.verify),
                tls_standard_compatible=False,
            )
    except (OSError, TimeoutError) as error:
        raise not_connected(connection.given_address, error) from error


def _context(verify: ssl.SSLContext | bool) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _Socket:
    """A WebSocket: whole messages in both directions."""

    def __init__(self, stream: ByteStream, address: str) -> None:
        self._stream, self._address = stream, address
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._sending = anyio.Lock()  # a reader answers pings while a writer sends
        self._parts: list[bytes] = []

    async def open(self, target: str, token: str) -> None:
        """Upgrade the connection to a WebSocket. Raises `ApiError` if the server refuses."""
        host = urlsplit(self._address).netloc
        headers = [(name.encode(), text.encode()) for name, text in headers_of(token).items()]
        request = Request(host=host, target=target, extra_headers=headers)
        await self._write(self._protocol.send(request))
        status, body = 0, b""
        while True:
            for event in self._protocol.events():
                if isinstance(event, AcceptConnection):
                    return
                if isinstance(event, RejectConnection):
                    status = event.status_code
                if isinstance(event, RejectData):
                    body += event.data
                if isinstance(event, RejectData | RejectConnection) and _is_last(event):
                    raise error_of(status, body.decode(errors="replace").strip())
            await self._read()

    async def send(self, message: bytes) -> None:
        """Send a text message. Raises `Unreachable`, including after the session has ended."""
        try:
            data = self._protocol.send(TextMessage(data=message.decode()))
        except LocalProtocolError as error:
            raise Unreachable(f"{self._address}: the exec session has ended") from error
        await self._write(data)

    async def receive(self) -> bytes:
        """Return the next message. Raises `ExecFailed` when the server has closed the session."""
        while True:
            for event in self._protocol.events():
                if isinstance(event, Ping):
                    await self._write(self._protocol.send(event.response()))
                elif isinstance(event, CloseConnection):
                    raise ExecFailed(event.code, event.reason or "")
                elif isinstance(event, TextMessage | BytesMessage) and self._complete(event):
                    return self._whole()
            await self._read()

    def _complete(self, event: TextMessage | BytesMessage) -> bool:
        """Store a part of a message; return whether the message is complete."""
        data = event.data
        self._parts.append(data.encode() if isinstance(data, str) else bytes(data))
        return bool(event.message_finished)

    def _whole(self) -> bytes:
        message = b"".join(self._parts)
        self._parts.clear()
        return message

    async def _read(self) -> None:
        try:
            self._protocol.receive_data(await self._stream.receive(_READ))
        except (anyio.EndOfStream, anyio.BrokenResourceError, OSError) as error:
            raise Unreachable(
                f"{self._address}: the connection of the exec session broke"
            ) from error

    async def _write(self, data: bytes) -> None:
        async with self._sending:
            try:
                await self._stream.send(data)
            except (anyio.BrokenResourceError, OSError) as error:
                raise Unreachable(
                    f"{self._address}: the connection of the exec session broke"
                ) from error


def _is_last(event: RejectData | RejectConnection) -> bool:
    return event.body_finished if isinstance(event, RejectData) else not event.has_body
