"""A command inside a task, and the frames in which somebody talks with it.

    from the client   {"stdin": {"data": base64}}   {"stdin": {"close": true}}
                      {"tty_size": {"height": 40, "width": 100}}
    to the client     {"stdout": {"data": base64}}  {"stdout": {"close": true}}   likewise stderr
                      {"exited": true, "result": {"exit_code": 3}}

Nothing piles up here: as long as the client does not read, the command waits with its output, and
as long as the command does not read, the client waits with its input. A client that goes away takes
the command along. The last frame comes when the command itself has ended, whatever it left behind.
"""

from collections.abc import Callable

import msgspec
import trio

from daemon.parts import Line
from daemon.runner.drivers.driver import Session
from storage.errors import Malformed

_GRACE = 0.1  # seconds of silence after which nobody waits for what an ended command left behind


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a stream, or its end."""

    data: bytes | None = None
    close: bool = False


class Size(msgspec.Struct, frozen=True):
    """The size of a terminal in characters."""

    height: int = 0
    width: int = 0


class Said(msgspec.Struct, frozen=True):
    """What a client sends."""

    stdin: Piece | None = None
    tty_size: Size | None = None


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a command ended."""

    exit_code: int = 0


_said = msgspec.json.Decoder(Said)


async def converse(session: Session, line: Line) -> None:
    """Let a client talk with a command until that has ended, or the client is gone.

    Raises `Malformed` when what the client sends cannot be read.
    """
    conversation = _Conversation(session, line)
    try:
        await conversation.run()
    finally:
        await session.close()


class _Conversation:
    def __init__(self, session: Session, line: Line) -> None:
        self._session, self._line = session, line
        self._ended = trio.Event()
        self._fault = ""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:

            async def until_over(part: Callable[[], object]) -> None:
                await part()  # type: ignore[misc]  # the parts below
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_over, self._line.until_lost)
            nursery.start_soon(until_over, self._hear)
            nursery.start_soon(until_over, self._tell)
        if self._fault:
            raise Malformed(self._fault)

    async def _hear(self) -> None:
        """Hand on what the client says until it is gone, or cannot be understood."""
        while (message := await self._line.receive()) is not None:
            try:
                said = _said.decode(message)
            except msgspec.MsgspecError as error:
                self._fault = f"a frame cannot be read: {error}"
                return
            if said.tty_size is not None:
                self._session.resize(said.tty_size.height, said.tty_size.width)
            if said.stdin is not None:
                await self._feed(said.stdin)

    async def _feed(self, piece: Piece) -> None:
        if piece.data:
            await self._session.write(piece.data)
        if piece.close:
            await self._session.end_input()

    async def _tell(self) -> None:
        """Show what the command writes, and how it ends."""
        async with trio.open_nursery() as nursery:
            for output in self._session.outputs:
                nursery.start_soon(self._show, output)
            code = await self._session.wait()
            self._ended.set()
        await self._send({"exited": True, "result": Result(exit_code=code)})

    async def _show(self, output: str) -> None:
        while data := await self._next(output):
            await self._send({output: Piece(data=data)})
        await self._send({output: Piece(close=True)})

    async def _next(self, output: str) -> bytes:
        """Return what comes next; nothing when all has been told."""
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
