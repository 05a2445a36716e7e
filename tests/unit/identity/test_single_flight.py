"""One fetch for all callers of a key: they share its result or error, but no cancellation."""

import pytest
import trio
import trio.testing

from daemon.identity.single_flight import SingleFlight
from storage.errors import Refused


class Fetch:
    """A fetch that ends when the test lets it; each end is a result or an error."""

    def __init__(self, *ends: str | Refused) -> None:
        self.ends, self.began, self.gate = [*ends], 0, trio.Event()

    async def __call__(self) -> str:
        self.began += 1
        await self.gate.wait()
        end = self.ends.pop(0)
        if isinstance(end, Refused):
            raise end
        return end


async def join_all(flights: SingleFlight[str], fetch: Fetch, number: int) -> list[object]:
    """Let `number` callers join the fetch of one key; return their results or errors."""
    seen: list[object] = []

    async def call() -> None:
        try:
            seen.append(await flights.join("key", fetch))
        except Refused as error:
            seen.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        fetch.gate.set()
    return seen


async def test_all_callers_share_one_result() -> None:
    fetch = Fetch("found")
    assert await join_all(SingleFlight(), fetch, 3) == ["found"] * 3
    assert fetch.began == 1


async def test_all_callers_share_one_error() -> None:
    error = Refused("no")
    fetch = Fetch(error, "found")
    assert await join_all(SingleFlight(), fetch, 3) == [error] * 3
    assert fetch.began == 1


async def test_the_next_call_after_an_error_fetches_again() -> None:
    flights, fetch = SingleFlight[str](), Fetch(Refused("no"), "found")
    fetch.gate.set()
    with pytest.raises(Refused):
        await flights.join("key", fetch)
    assert await flights.join("key", fetch) == "found"


async def test_a_waiter_takes_over_when_the_first_caller_is_cancelled() -> None:
    flights, fetch, seen = SingleFlight[str](), Fetch("found"), []

    async def wait() -> None:
        seen.append(await flights.join("key", fetch))

    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def call() -> None:
            with first:
                await flights.join("key", fetch)

        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        fetch.gate.set()
    assert (seen, fetch.began) == (["found"], 2)
