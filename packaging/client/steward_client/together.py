"""Concurrent requests, up to a limit."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

S = TypeVar("S")
T = TypeVar("T")

_AT_ONCE = 16  # requests that one call sends at the same time


async def each(work: Callable[[S], Awaitable[T]], requests: Sequence[S]) -> list[T]:
    """Return the results of `work` for all requests, in their order. Raises the first error."""
    results: dict[int, T] = {}
    failed: list[Exception] = []
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def do(number: int, own_request: S) -> None:
        async with limiter:
            try:
                results[number] = await work(own_request)
            except Exception as error:  # raised outside the task group, which would wrap it
                failed.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for number, request in enumerate(requests):
            group.start_soon(do, number, request)
    if failed:
        raise failed[0]
    return [results[number] for number in range(len(requests))]
