"""Output of tasks: read once, or as a stream that continues after a disconnection."""

import json
from collections.abc import AsyncGenerator
from typing import Self

import anyio

from steward_client.errors import InvalidResponse, Unreachable
from steward_client.transport import LONGEST_PIECE, Call, Chunks, Connection, Query, segment
from steward_client.wire import Record, decode

_Position = tuple[int, int]  # number of the log file, and offset in this file
_objects = json.JSONDecoder()


class _Frame(Record, frozen=True, kw_only=True):
    """A piece of a log file. `offset` is the offset of the end of the piece in the file."""

    data: bytes = b""
    file: str = ""
    offset: int = 0
    file_event: str = ""

    @property
    def end(self) -> _Position:
        """Return the position after the data."""
        number = self.file.rpartition(".")[2]
        return (int(number) if number.isdecimal() else 0, self.offset)

    def after(self, position: _Position) -> bytes:
        """Return the data after a position."""
        number, end = self.end
        if number != position[0]:
            return self.data if number > position[0] else b""
        fresh = min(end - position[1], len(self.data))
        return self.data[-fresh:] if fresh > 0 else b""


async def read_log(
    connection: Connection,
    alloc_id: str,
    *,
    task: str,
    kind: str,
    origin: str,
    offset: int,
) -> bytes:
    """Return the current output of a task. Raises `NotFound`.

    `kind` is `stdout` or `stderr`. `offset` counts from `origin`, which is `start` or `end`.
    """
    query: Query = {"task": task, "type": kind, "plain": True, "origin": origin, "offset": offset}
    call = Call(method="GET", path=_path(alloc_id), query=query, repeatable=True)
    return (await connection.send(call)).body


async def follow_log(
    connection: Connection, alloc_id: str, *, task: str, kind: str, origin: str, offset: int
) -> AsyncGenerator[bytes, None]:
    """Yield the output of a task until the task ends, each byte once.

    After a disconnection, the stream continues after the last byte. Raises `Unreachable` if the
    server is still unreachable after all retries.
    """
    query: Query = {"task": task, "type": kind, "follow": True, "origin": origin, "offset": offset}
    seen: _Position = (-1, 0)
    failures, last_sign = 0, anyio.current_time()
    while True:
        call = Call(method="GET", path=_path(alloc_id), query=query)
        try:
            async with connection.stream(call) as chunks:
                async for frame in _Frames(chunks):
                    failures, last_sign = 0, anyio.current_time()
                    if frame.data:
                        data, seen = frame.after(seen), max(seen, frame.end)
                        if data:
                            yield data
        except Unreachable as error:
            delay = connection.delay(failures)
            if (
                error.untrusted
                or anyio.current_time() + delay > last_sign + connection.retry.within
            ):
                raise
        else:
            return
        await anyio.sleep(delay)
        failures += 1
        if seen >= (0, 0):
            query = {**query, "origin": "start", "offset": 0}


class _Frames:
    """The frames of a stream: JSON objects, one after the other without separators."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._rest = ""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Frame:
        while True:
            try:
                _, end = _objects.raw_decode(self._rest)
            except RecursionError as error:
                raise InvalidResponse("a frame of the stream is nested too deeply") from error
            except ValueError:  # the object is not complete
                if len(self._rest) > LONGEST_PIECE:
                    raise InvalidResponse(
                        f"a frame of the stream has more than {LONGEST_PIECE} characters"
                    ) from None
                chunk = await anext(self._chunks)
                self._rest = (self._rest + chunk.decode(errors="surrogateescape")).lstrip()
            else:
                text, self._rest = self._rest[:end], self._rest[end:].lstrip()
                return decode(text.encode(errors="surrogateescape"), _Frame)


def _path(alloc_id: str) -> str:
    return f"/v1/client/fs/logs/{segment(alloc_id)}"
