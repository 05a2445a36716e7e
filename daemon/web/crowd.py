"""Answers that stay open, and how many there may be: so many that others still find a connection.

Each holds a connection of its own for as long as its reader likes: logs and events that are
followed, and blocking queries that wait.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager

from storage.errors import TooOften

MOST = 3072  # of the connections that there may be (`daemon/web/connections.py`)


class Crowd:
    """Those who wait for what comes."""

    def __init__(self) -> None:
        self._open = 0

    def check(self) -> None:
        """Raise `TooOften` when there is no place for another one."""
        if self._open >= MOST:
            raise TooOften(
                f"{MOST} answers stay open already: end some of them, or ask again later"
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

    def hold(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Return the same pieces, counted from the first that is asked for. Raises `TooOften`."""
        self.check()
        return self._counted(pieces)

    async def _counted(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        self._open += 1
        try:
            async for piece in pieces:
                yield piece
        finally:
            self._open -= 1
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
