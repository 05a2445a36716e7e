"""Timers and counters for the metrics: durations and numbers of recurring operations.

The process has one registry, `TIMERS`. The timers and counters have Nomad's names, which contain
dots. All names come from tables in the code, so their number is limited. Threads may add values
while the event loop reads, so readers copy the data first.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

INTERVAL = 10.0  # seconds that a summary covers, as in Nomad
_RECENT = 512  # durations stored for the quantiles of a timer


class Summary(msgspec.Struct):
    """A summary of one interval: durations in milliseconds, or amounts of a counter."""

    count: int = 0
    sum: float = 0.0
    squares: float = 0.0
    min: float = math.inf
    max: float = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        self.sum += value
        self.squares += value * value
        if value < self.min:
            self.min = value
        if value > self.max:
            self.max = value

    @property
    def mean(self) -> float:
        """Return the mean, or 0 without values."""
        return self.sum / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the sample, or 0 for fewer than two values."""
        if self.count < 2:
            return 0.0
        return math.sqrt(max(0.0, self.squares - self.sum * self.mean) / (self.count - 1))


class Series:
    """The values of one timer or counter: totals, the last two intervals, and recent values."""

    def __init__(self) -> None:
        self.total = Summary()
        self.intervals: dict[int, Summary] = {}  # by the number of the interval; two at most
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    def add(self, now: float, value: float) -> None:
        """Add a value at time `now` of a monotonic clock."""
        self.total.add(value)
        number = int(now // INTERVAL)
        if number not in self.intervals:
            self.intervals = {
                key: interval for key, interval in self.intervals.items() if key == number - 1
            } | {number: Summary()}
        self.intervals[number].add(value)
        self._recent.append((now, value))

    def quantiles(self, now: float, fractions: tuple[float, ...]) -> list[float]:
        """Return quantiles of the values of the last interval; NaN without values."""
        recent = list(self._recent)  # a copy in one step, because threads add values
        values = sorted(value for moment, value in recent if moment > now - INTERVAL)
        if not values:
            return [math.nan for _ in fractions]
        return [values[min(len(values) - 1, int(number * len(values)))] for number in fractions]


class Timers:
    """A registry of timers and counters. `clock` returns the seconds of a monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.timers: dict[str, Series] = {}
        self.counters: dict[str, Series] = {}
        self._began = clock()

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Record the duration of the block, even if it raises."""
        began = self.clock()
        try:
            yield
        finally:
            self.add(name, self.clock() - began)

    def add(self, name: str, seconds: float) -> None:
        """Record a duration in seconds."""
        if (series := self.timers.get(name)) is None:
            series = self.timers.setdefault(name, Series())
        series.add(self.clock(), seconds * 1_000)

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter."""
        if (series := self.counters.get(name)) is None:
            series = self.counters.setdefault(name, Series())
        series.add(self.clock(), number)

    def last_interval(self, kind: dict[str, Series]) -> dict[str, Summary]:
        """Return the summaries of the last full interval, by the name of the timer or counter.

        `kind` is `timers` or `counters`. During the first interval, the summaries cover the
        interval until now.
        """
        number, first = (int(moment // INTERVAL) for moment in (self.clock(), self._began))
        number -= number > first
        intervals = [(name, series.intervals.get(number)) for name, series in list(kind.items())]
        return {name: interval for name, interval in intervals if interval is not None}


TIMERS = Timers()
