"""The wall clock, as something that is handed over: tests bring their own."""

import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time."""

    def now(self) -> int:
        """Return the nanoseconds since the epoch."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        """Return the nanoseconds since the epoch."""
        return time.time_ns()
