"""Notify all waiters of a change, and wait for the first of several events."""

from collections.abc import Awaitable, Callable

import trio


class Notifier:
    """A condition without a value. A waiter checks the state itself and waits again.

    No change is missed if there is no `await` between the check and the wait.
    """

    def __init__(self) -> None:
        self._rung = trio.Event()

    def announce(self) -> None:
        """Wake all waiters."""
        self._rung.set()
        self._rung = trio.Event()

    async def wait(self) -> None:
        """Return at the next announcement."""
        await self._rung.wait()


async def wait_any(*waits: Callable[[], Awaitable[object]]) -> None:
    """Run the functions concurrently; return when the first returns, and cancel the others."""
    async with trio.open_nursery() as nursery:

        async def wait(awaitable: Callable[[], Awaitable[object]]) -> None:
            await awaitable()
            nursery.cancel_scope.cancel()

        for wait_function in waits:
            nursery.start_soon(wait, wait_function)
