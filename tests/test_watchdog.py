"""A test that exceeds its time limit fails alone."""

import signal
import time
from collections.abc import Iterator

import pytest
import trio

from tests.watchdog import TookTooLong, limit


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    """Replace the limit of this module, which has the same timer."""
    yield
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_limit_cancels_a_trio_run_and_lets_it_clean_up() -> None:
    is_clean = False

    async def wait() -> None:
        nonlocal is_clean
        try:
            await trio.sleep_forever()
        finally:
            is_clean = True

    with pytest.raises(TookTooLong), limit(0.05), pytest.raises(trio.Cancelled):
        trio.run(wait)
    assert is_clean
    trio.run(trio.sleep, 0)


def test_limit_ends_a_test_without_trio() -> None:
    with pytest.raises(TookTooLong), limit(0.05):
        time.sleep(60)  # until the limit interrupts it


def test_fast_test_passes() -> None:
    with limit(60):
        trio.run(trio.sleep, 0)
