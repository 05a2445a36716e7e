"""One fetch for any number of those who wait for the same thing."""

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


class Flights(Generic[T]):
    """The fetches under way, by what is fetched.

    The first who asks fetches, in their own task; whoever comes meanwhile waits and gets the
    same result or error. When the one who fetches is cancelled, one of the waiting takes over.
    """

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _Flight[T]] = {}

    async def join(self, key: Hashable, fetch: Callable[[], Awaitable[T]]) -> T:
        """Return what `fetch` returns, or what it returned to somebody else just now."""
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
