"""The poll interval for followers of files that grow without notification.

The interval is short after new data and grows while no data arrives. The total poll rate of all
followers is limited. Ten thousand followers of quiet logs therefore cost as much as a few hundred,
and see new data a few seconds later.

inotify would need a library that Python does not include.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

BEAT = 1.0  # seconds without data, after which a client gets a keep-alive
FIRST, LAST = 0.01, 0.25  # seconds between two polls
LOOKS = 1000  # polls per second for all followers; one poll takes up to 0.1 ms


class PollInterval:
    """The poll interval of one follower; `others` counts all followers, including this one."""

    others = 0

    def __init__(self) -> None:
        self._pause = FIRST
        self._beat = trio.current_time()

    def reset(self) -> None:
        """Reset the interval because data arrived."""
        self._pause = FIRST
        self._beat = trio.current_time()

    def needs_keepalive(self) -> bool:
        """Return whether the client needs a keep-alive now; if so, record it as sent."""
        if trio.current_time() < self._beat + BEAT:
            return False
        self._beat = trio.current_time()
        return True

    async def wait(self) -> None:
        """Wait before the next poll."""
        await trio.sleep(self._pause * max(1.0, PollInterval.others / (LOOKS * LAST)))
        self._pause = min(2 * self._pause, LAST)


@contextmanager
def register_follower() -> Iterator[PollInterval]:
    """Yield the poll interval of a new follower, and count the follower until the block ends."""
    PollInterval.others += 1
    try:
        yield PollInterval()
    finally:
        PollInterval.others -= 1
