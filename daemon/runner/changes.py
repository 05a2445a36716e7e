"""Telling everyone who waits that something has changed, and waiting for the first of several."""

from collections.abc import Awaitable, Callable

import trio


class Changes:
    """A bell. Who waits looks for what has changed himself, and waits again.

    Nothing is missed between looking and waiting as long as there is no `await` in between.
    """

    def __init__(self) -> None:
        self._rung = trio.Event()

    def announce(self) -> None:
        """Wake everyone who waits."""
        self._rung.set()
        self._rung = trio.Event()

    async def wait(self) -> None:
        """Return at the next announcement."""
        await self._rung.wait()


async def first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when one of these has returned; the others are cancelled."""
    async with trio.open_nursery() as nursery:

        async def wait(one: Callable[[], Awaitable[object]]) -> None:
            await one()
            nursery.cancel_scope.cancel()

        for one in waits:
            nursery.start_soon(wait, one)
