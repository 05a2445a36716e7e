"""What the wrapper of an attempt is to do: orders with rising numbers, of which it says how many it has seen.

A wrapper outlives us, and so does the number that it has seen: a new daemon's orders have higher ones.
"""

from collections.abc import Callable

import msgspec

from daemon.clock import Clock
from daemon.runner.changes import Changes
from daemon.runner.drivers.process import signal_number
from daemon.runner.drivers.slurm.cluster import seconds

# Besides a stop, the orders that end a task by a signal with which clusters end jobs, too.
_ENDS = frozenset({"signal TERM", "signal KILL"})


class Order(msgspec.Struct):
    """What the wrapper is to do; it has seen those up to a number."""

    number: int
    text: str


class Orders:
    """The orders of one attempt. What happens to them is announced by `changes`."""

    def __init__(self, changes: Changes, clock: Clock) -> None:
        self._changes, self._clock = changes, clock
        self._given: list[Order] = []
        self._waiting = 0  # wrappers, for an order, at this moment
        self._is_known = False  # to the wrapper, which has asked for orders
        self._is_over = False
        self._taken = 0  # the last order of which the wrapper knows

    @property
    def is_heard(self) -> bool:
        """Tell whether a wrapper waits for an order at this moment."""
        return self._waiting > 0

    @property
    def may_have_ended_it(self) -> bool:
        """Tell whether it was told to end its task, or to send it such a signal."""
        return any(one.text in _ENDS or one.text.startswith("stop ") for one in self._given)

    def stop(self, signal: str, grace: float) -> None:
        """Have it signal the task, and end it after so many seconds."""
        self._give(f"stop {_shell_name(signal)} {seconds(grace)}")

    def signal(self, name: str) -> None:
        """Have it send a signal to the main process of the task."""
        self._give(f"signal {_shell_name(name)}")

    def fetch_files(self) -> Order:
        """Have it fetch the files of the task anew."""
        return self._give("files")

    def _give(self, text: str) -> Order:
        """Give an order; its number is higher than those an earlier daemon gave."""
        last = self._given[-1].number if self._given else 0
        order = Order(max(last, self._taken, self._clock.now() // 1_000_000) + 1, text)
        self._given.append(order)
        self._changes.announce()
        return order

    def is_taken(self, order: Order) -> bool:
        """Tell whether the wrapper knows of an order."""
        return self._taken >= order.number

    async def after(self, seen: int, is_wanted: Callable[[], bool]) -> str:
        """Return those behind one, a line each, as soon as there are any; none when nobody wants it any more."""
        if not self._is_known:  # it may have seen orders from before the clock was set back
            self._is_known = True
            for step, order in enumerate(self._given, 1):
                order.number = max(order.number, seen + step)
        if seen > self._taken:
            self._taken = seen
            self._changes.announce()
        self._waiting += 1
        try:
            while is_wanted() and not self._is_over:
                if wanted := [one for one in self._given if one.number > seen]:
                    return "".join(f"{one.number} {one.text}\n" for one in wanted)
                await self._changes.wait()
            return ""
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Let nobody wait any more: the daemon ends."""
        self._is_over = True
        self._changes.announce()


def _shell_name(signal: str) -> str:
    """Return a signal as a shell's `kill` takes it."""
    return signal_number(signal).name.removeprefix("SIG")
