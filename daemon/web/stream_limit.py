"""Limit on open streams, so that connections remain for other requests.

Each stream occupies a connection. Streams are followed logs and events, and blocking queries.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from daemon.web.turns import resume
from storage.errors import TooOften

MOST = 3072  # also at most three quarters of the connections (`daemon/web/admission.py`)


NextOf = Callable[[AsyncIterator[bytes]], Awaitable[bytes | None]]


class StreamLimit:
    """A limit on the number of open streams."""

    def __init__(self, connections: int) -> None:
        """Leave a quarter of `connections` to other requests."""
        self._connections = connections
        self._open = 0
        # waits for the next piece of an endless stream
        self._waiting: set[trio.CancelScope] = set()
        self._is_closing = False

    def close(self) -> None:
        """End all endless streams as if they were complete, so that their clients see no error."""
        self._is_closing = True
        for scope in self._waiting:
            scope.cancel()

    def check(self) -> None:
        """Raise `TooOften` if the limit is reached."""
        most = min(MOST, self._connections * 3 // 4)
        if self._open >= most:
            raise TooOften(
                f"the limit of {most} open streams is reached: close some of them, or retry later"
            )

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Count a stream during the block. Raises `TooOften`."""
        self.check()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def count(
        self, chunks: AsyncIterator[bytes], *, is_endless: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a stream, which counts as open from the first read on.

        Raises `TooOften`.
        """
        self.check()
        return self._counted(chunks, self._next if is_endless else _next)

    async def _counted(
        self, chunks: AsyncIterator[bytes], next_of: NextOf
    ) -> AsyncGenerator[bytes, None]:
        self._open += 1
        try:
            while (chunk := await next_of(chunks)) is not None:
                await resume()
                yield chunk
        finally:
            self._open -= 1
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        """Return the next chunk; None at the end, and at the shutdown of the daemon."""
        if self._is_closing:
            return None
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                return await _next(chunks)
            finally:
                self._waiting.discard(scope)
        return None


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)
