"""The system clock as an argument, so that tests can replace it."""

import math
import time
from typing import Protocol

import trio

from storage.records.base import SECOND

# seconds between checks, because the clock can be set and stops while the host is suspended
_LOOK = 30.0


class Clock(Protocol):
    """A source of the current time."""

    def now(self) -> int:
        """Return the current time in nanoseconds since the epoch."""
        ...


class SystemClock:
    """The clock of the host."""

    def now(self) -> int:
        """Return the current time in nanoseconds since the epoch."""
        return time.time_ns()


def seconds_left(began: int, span: int, now: int) -> float:
    """Return the seconds until a span ends that began at `began`.

    The arguments are in nanoseconds. The result is never negative. It is at most the whole span,
    because the system clock may have been set back since then.
    """
    return min(max(began + span - now, 0), span) / SECOND


class EarlyWake(Protocol):
    """Something that can end a wait early, such as an event or a watch."""

    async def wait(self) -> None:
        """Wait until the event has happened."""
        ...


async def wait_until(time: int | None, clock: Clock, sooner: EarlyWake) -> None:
    """Wait until the clock reaches `time`, or until `sooner` happens.

    The clock may be adjusted during the wait. Without a time, wait only for `sooner`.
    """
    while time is None or (remaining := time - clock.now()) > 0:
        with trio.move_on_after(math.inf if time is None else min(remaining / SECOND, _LOOK)):
            await sooner.wait()
            return
    await trio.lowlevel.checkpoint()
