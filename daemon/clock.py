"""The wall clock, as something that is handed over: tests bring their own."""

import math
import time
from typing import Protocol

import trio

from storage.records.base import SECOND

_LOOK = 30.0  # seconds: the clock may be set, and stands still in a machine that sleeps


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


class Sooner(Protocol):
    """What may happen before its time: an event, a watch."""

    async def wait(self) -> None:
        """Return when it has happened."""
        ...


async def wait_until(time: int | None, clock: Clock, sooner: Sooner) -> None:
    """Wait until the clock tells a time, however it is set meanwhile, or something happens sooner.

    Without a time that something is all that is waited for.
    """
    while time is None or (rest := time - clock.now()) > 0:
        with trio.move_on_after(math.inf if time is None else min(rest / SECOND, _LOOK)):
            await sooner.wait()
            return
    await trio.lowlevel.checkpoint()
