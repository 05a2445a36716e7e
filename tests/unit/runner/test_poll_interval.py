"""Followers of files poll often, but all together within the capacity of the daemon."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import trio
import trio.testing

from daemon.runner.core.poll_interval import LOOKS, PollInterval, register_follower


@pytest.fixture(autouse=True)
def nobody_else() -> Iterator[None]:
    assert PollInterval.others == 0
    yield
    assert PollInterval.others == 0


async def pauses(poll_interval: PollInterval, number: int) -> list[float]:
    found = []
    for _ in range(number):
        began = trio.current_time()
        await poll_interval.wait()
        found.append(round(trio.current_time() - began, 3))
    return found


async def test_idle_polling_becomes_less_frequent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with register_follower() as pace:
        assert await pauses(pace, 7) == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25]
        pace.reset()
        assert await pauses(pace, 2) == [0.01, 0.02]


async def test_heartbeat_is_sent_after_a_second_without_output(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with register_follower() as pace:
        await trio.sleep(0.9)
        pace.reset()
        await trio.sleep(0.9)
        assert not pace.needs_keepalive()
        await trio.sleep(0.1)
        assert [pace.needs_keepalive(), pace.needs_keepalive()] == [True, False]


@pytest.mark.parametrize("many", [250, 1000, 10_000])
async def test_many_followers_do_not_increase_the_polling_rate(
    autojump_clock: trio.testing.MockClock, many: int
) -> None:
    with ExitStack() as others:
        for _ in range(many - 1):
            others.enter_context(register_follower())
        with register_follower() as pace:
            *_, last = await pauses(pace, 7)
    assert many / last == pytest.approx(LOOKS)
