"""Long requests: a few run, some wait, and no client takes all slots."""

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from daemon.app.context import _AT_ONCE as AT_ONCE
from daemon.app.context import _EACH as EACH
from daemon.app.context import AdmissionControl
from storage.errors import TooOften


def holding(
    admission: AdmissionControl, client: str, end: trio.Event
) -> Callable[[], Awaitable[None]]:
    async def hold() -> None:
        async with admission.slot(client):
            await end.wait()

    return hold


async def test_a_client_with_many_large_requests_is_refused_and_others_are_not() -> None:
    admission, end = AdmissionControl(), trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(EACH):
            nursery.start_soon(holding(admission, "one", end))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TooOften, match=f"already has {EACH} large requests"):
            await admission.run("one", lambda: None)
        nursery.start_soon(holding(admission, "other", end))
        await trio.testing.wait_all_tasks_blocked()
        end.set()
    assert await admission.run("one", lambda: 7) == 7


async def test_few_large_requests_are_processed_concurrently() -> None:
    admission, end = AdmissionControl(), trio.Event()
    begun: list[str] = []

    async def hold(client: str) -> None:
        async with admission.slot(client):
            begun.append(client)
            await end.wait()

    async with trio.open_nursery() as nursery:
        for number in range(AT_ONCE + 3):
            nursery.start_soon(hold, f"client {number}")
        await trio.testing.wait_all_tasks_blocked()
        assert len(begun) == AT_ONCE
        end.set()
    assert len(begun) == AT_ONCE + 3


async def test_canceled_request_releases_its_slot() -> None:
    admission = AdmissionControl()
    for _ in range(2 * EACH):
        with trio.CancelScope() as scope:
            scope.cancel()
            await admission.run("one", lambda: None)
    assert await admission.run("one", lambda: 7) == 7


async def test_request_with_a_slot_uses_a_thread_without_another_slot() -> None:
    admission = AdmissionControl()
    async with admission.slot("one"):
        assert await admission.run("one", lambda: 7) == 7
    assert await admission.run("one", lambda: 8) == 8
