"""Exec sessions: run a command inside a task and exchange frames with a client.

    from the client   {"stdin": {"data": base64}}   {"stdin": {"close": true}}
                      {"tty_size": {"height": 40, "width": 100}}
    to the client     {"stdout": {"data": base64}}  {"stdout": {"close": true}}   likewise stderr
                      {"exited": true, "result": {"exit_code": 3}}

There is backpressure in both directions. If the client does not read, the command blocks on output;
if the command does not read, the client blocks on input. The command is killed when its client
disconnects. The last frame is sent when the command itself has ended, even if its children keep the
output open.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import trio

from daemon.app.context import MessageChannel
from daemon.runner.core.driver import ExecStream
from storage.account import charged
from storage.errors import Malformed

_GRACE = 0.1  # seconds without output, after which output of left-over children is ignored


class ExecChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chunk of a stream, or the end of the stream."""

    data: bytes | None = None
    close: bool = False


class TerminalSize(msgspec.Struct, frozen=True):
    """The size of a terminal in characters."""

    height: int = 0
    width: int = 0


class ExecMessage(msgspec.Struct, frozen=True):
    """A frame from a client."""

    stdin: ExecChunk | None = None
    tty_size: TerminalSize | None = None


class ExecResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The exit result of a command."""

    exit_code: int = 0


_said = msgspec.json.Decoder(ExecMessage)


async def run_exec_session(session: ExecStream, line: MessageChannel) -> None:
    """Connect a client to a command, until the command ends or the client disconnects.

    Raises `Malformed` when a frame of the client is invalid.
    """
    conversation = _Conversation(session, line)
    try:
        await conversation.run()
    finally:
        await session.close()


class _Conversation:
    def __init__(self, session: ExecStream, line: MessageChannel) -> None:
        self._session, self._line = session, line
        self._ended = trio.Event()
        self._fault = ""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:

            async def until_over(part: Callable[[], Coroutine[Any, Any, None]]) -> None:
                await charged(part())
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_over, self._line.until_lost)
            nursery.start_soon(until_over, self._forward_input)
            nursery.start_soon(until_over, self._send_output)
        if self._fault:
            raise Malformed(self._fault)

    async def _forward_input(self) -> None:
        """Forward the client's frames until it disconnects or sends an invalid one."""
        while (message := await self._line.receive()) is not None:
            try:
                decoded = _said.decode(message)
            except (msgspec.MsgspecError, RecursionError) as error:  # the second: nested too deeply
                self._fault = f"a frame cannot be read: {error}"
                return
            if decoded.tty_size is not None:
                self._session.resize(decoded.tty_size.height, decoded.tty_size.width)
            if decoded.stdin is not None:
                await self._feed(decoded.stdin)

    async def _feed(self, chunk: ExecChunk) -> None:
        if chunk.data:
            await self._session.write(chunk.data)
        if chunk.close:
            await self._session.end_input()

    async def _send_output(self) -> None:
        """Send the output of the command and its exit code."""
        async with trio.open_nursery() as nursery:
            for output in self._session.outputs:
                nursery.start_soon(charged, self._show(output))
            code = await self._session.wait()
            self._ended.set()
        await self._send({"exited": True, "result": ExecResult(exit_code=code)})

    async def _show(self, output: str) -> None:
        while data := await self._next(output):
            await self._send({output: ExecChunk(data=data)})
        await self._send({output: ExecChunk(close=True)})

    async def _next(self, output: str) -> bytes:
        """Return the next bytes of an output; empty at the end of the output."""
        data = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up, nursery.cancel_scope)
            data = await self._session.read(output)
            nursery.cancel_scope.cancel()
        return data

    async def _give_up(self, reading: trio.CancelScope) -> None:
        await self._ended.wait()
        await trio.sleep(_GRACE)
        reading.cancel()

    async def _send(self, frame: object) -> None:
        await self._line.send(msgspec.json.encode(frame))
