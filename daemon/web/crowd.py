"""Answers that stay open, and how many there may be: so many that others still find a connection.

Each holds a connection of its own for as long as its reader likes: logs and events that are
followed, and blocking queries that wait.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from storage.errors import TooOften

MOST = 3072  # and no more than three quarters of the connections (`daemon/web/admission.py`)


NextOf = Callable[[AsyncIterator[bytes]], Awaitable[bytes | None]]


class Crowd:
    """Those who wait for what comes."""

    def __init__(self, connections: int) -> None:
        """Leave a quarter of so many connections to others."""
        self._connections = connections
        self._open = 0
        self._waiting: set[trio.CancelScope] = set()  # for the next piece of what has no end
        self._is_closing = False

    def close(self) -> None:
        """End all answers that have no end of their own; their clients see them end, not break off."""
        self._is_closing = True
        for scope in self._waiting:
            scope.cancel()

    def check(self) -> None:
        """Raise `TooOften` when there is no place for another one."""
        most = min(MOST, self._connections * 3 // 4)
        if self._open >= most:
            raise TooOften(
                f"{most} answers stay open already: end some of them, or ask again later"
            )

    @contextmanager
    def place(self) -> Iterator[None]:
        """Count somebody who waits while the block runs. Raises `TooOften`."""
        self.check()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def hold(
        self, pieces: AsyncIterator[bytes], *, is_endless: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Return the same pieces, counted from the first that is asked for. Raises `TooOften`."""
        self.check()
        return self._counted(pieces, self._next if is_endless else _next)

    async def _counted(
        self, pieces: AsyncIterator[bytes], next_of: NextOf
    ) -> AsyncGenerator[bytes, None]:
        self._open += 1
        try:
            while (piece := await next_of(pieces)) is not None:
                yield piece
        finally:
            self._open -= 1
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        """Return the next piece; None at the end, and when the daemon ends."""
        if self._is_closing:
            return None
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                return await _next(pieces)
            finally:
                self._waiting.discard(scope)
        return None


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)
