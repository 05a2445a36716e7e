"""How often those look who follow files, of which nobody tells that they have grown.

Soon after something came, and ever more seldom while nothing comes. All together they look no more
often than the daemon can bear beside its work: ten thousand who follow quiet logs cost as much as
some hundred, and hear of what comes a few seconds later.

The kernel's own notice would need a library that the interpreter does not have.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

BEAT = 1.0  # seconds of silence after which a client is shown that its stream is alive
FIRST, LAST = 0.01, 0.25  # seconds between two looks
LOOKS = 1000  # per second, of all who wait; each takes up to a tenth of a millisecond


class Pace:
    """The pace of one who follows; `others` counts all of them."""

    others = 0

    def __init__(self) -> None:
        self._pause = FIRST
        self._beat = trio.current_time()

    def hurry(self) -> None:
        """Note that something came."""
        self._pause = FIRST
        self._beat = trio.current_time()

    def beats(self) -> bool:
        """Tell whether nothing came, and this told nothing, for the time of a beat."""
        if trio.current_time() < self._beat + BEAT:
            return False
        self._beat = trio.current_time()
        return True

    async def rest(self) -> None:
        """Wait before the next look."""
        await trio.sleep(self._pause * max(1.0, Pace.others / (LOOKS * LAST)))
        self._pause = min(2 * self._pause, LAST)


@contextmanager
def following() -> Iterator[Pace]:
    """Give somebody who follows a file his pace, and count him while the block runs."""
    Pace.others += 1
    try:
        yield Pace()
    finally:
        Pace.others -= 1
