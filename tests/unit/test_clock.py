import pytest
import trio
import trio.testing

from daemon.clock import seconds_left, wait_until
from storage.records.base import HOUR, SECOND
from tests.samples import NOW


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> int:
        return self.time


async def test_wait_follows_the_clock_after_any_change(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock, began = Clock(), trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_until, NOW + HOUR, clock, trio.Event())
        await trio.sleep(7200)
        assert nursery.child_tasks  # the clock stands still
        clock.time = NOW + HOUR
    assert trio.current_time() - began < 7200 + 60


async def test_earliest_event_ends_the_wait(autojump_clock: trio.testing.MockClock) -> None:
    for time in (NOW + HOUR, None):
        event, began = trio.Event(), trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_until, time, Clock(), event)
            await trio.sleep(5000)
            event.set()
        assert trio.current_time() - began == 5000


async def test_past_time_causes_no_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    began = trio.current_time()
    await wait_until(NOW - SECOND, Clock(), trio.Event())
    assert trio.current_time() == began


@pytest.mark.parametrize(
    ("now", "left"), [(100, 10.0), (104, 6.0), (110, 0.0), (500, 0.0), (20, 10.0)]
)
def test_span_never_lasts_longer_than_itself_after_a_change_of_the_clock(
    now: int, left: float
) -> None:
    assert seconds_left(100 * SECOND, 10 * SECOND, now * SECOND) == left
