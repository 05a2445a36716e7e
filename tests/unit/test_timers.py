"""Timers and counters: totals, intervals, quantiles."""

import math
import threading

import pytest

from daemon.api.routes import ROUTES as API
from daemon.timers import INTERVAL, Timers
from daemon.web.request_timers import ROUTES


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timers(clock: Clock) -> Timers:
    return Timers(clock)


def test_duration_is_measured_in_milliseconds_for_any_outcome(timers: Timers, clock: Clock) -> None:
    with pytest.raises(ValueError), timers.measured("a"):  # noqa: PT011, PT012  # any error passes through
        clock.now += 0.25
        raise ValueError
    assert timers.timers["a"].total.sum == 250


def test_summary_covers_the_last_complete_interval(timers: Timers, clock: Clock) -> None:
    timers.add("a", 1)
    assert timers.last_interval(timers.timers)["a"].count == 1  # no interval is complete yet
    clock.now += INTERVAL
    timers.add("a", 3)
    timers.add("a", 5)
    assert timers.last_interval(timers.timers)["a"].sum == 1_000
    clock.now += INTERVAL
    found = timers.last_interval(timers.timers)["a"]
    assert (found.count, found.min, found.max, found.mean) == (2, 3_000, 5_000, 4_000)
    assert found.deviation == pytest.approx(math.sqrt(2) * 1_000)
    clock.now += INTERVAL
    assert timers.last_interval(timers.timers) == {}
    assert timers.timers["a"].total.count == 3


def test_quantiles_cover_the_newest_values(timers: Timers, clock: Clock) -> None:
    for value in range(100):
        timers.add("a", value / 1_000)
    series = timers.timers["a"]
    assert series.quantiles(clock.now, (0.5, 0.9, 0.99)) == [50, 90, 99]
    assert all(map(math.isnan, series.quantiles(clock.now + INTERVAL, (0.5,))))


def test_memory_of_a_series_is_bounded(timers: Timers, clock: Clock) -> None:
    for _ in range(10_000):
        clock.now += 1
        timers.count("a")
    series = timers.counters["a"]
    assert (series.total.sum, len(series.intervals), len(series._recent)) == (10_000, 2, 512)


def test_values_are_read_during_additions_of_a_thread() -> None:
    timers = Timers()
    ended = threading.Event()

    def add() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            timers.add(f"name {number % 1_000}", 0.001)
            timers.add("same", 0.001)

    thread = threading.Thread(target=add)
    thread.start()
    try:
        for _ in range(500):
            timers.last_interval(timers.timers)
            if "same" in timers.timers:
                timers.timers["same"].quantiles(timers.clock(), (0.5,))
    finally:
        ended.set()
        thread.join()
    assert timers.timers["same"].total.count


def test_every_timer_of_a_route_belongs_to_a_route() -> None:
    known = {(method, route.path) for route in API for method in route.methods}
    assert set(ROUTES) - known == set()
