"""Single flight: one fetch for all tasks that wait for the same object."""

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

from storage.errors import StewardError

T = TypeVar("T")


class _Flight(Generic[T]):
    def __init__(self) -> None:
        self.landed = trio.Event()
        self.brought: list[T] = []
        self.error: StewardError | None = None


class SingleFlight(Generic[T]):
    """The fetches that are running now, by key.

    The first caller fetches in its own task. Later callers wait and get the same result or error.
    If the first caller is cancelled, one of the waiters takes over.
    """

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _Flight[T]] = {}

    async def join(self, key: Hashable, fetch: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `fetch`, or of a call with the same key that is already running."""
        while flight := self._under_way.get(key):
            await flight.landed.wait()
            if flight.error:
                raise flight.error
            if flight.brought:
                return flight.brought[0]
        flight = self._under_way[key] = _Flight()
        try:
            result = await fetch()
        except StewardError as error:
            flight.error = error
            raise
        else:
            flight.brought.append(result)
            return result
        finally:
            del self._under_way[key]
            flight.landed.set()
