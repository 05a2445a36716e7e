"""The traffic of allocations on the bridge, from the counters of their interfaces on the host.

The launcher names the interface on the host after its allocation. One file of the kernel has the
counters of all interfaces, so all allocations of a round share one read.
"""

import re
from pathlib import Path

from daemon.clock import Clock
from daemon.runner.core.resource_usage import TrafficSample
from storage.records.base import SECOND

_DIGITS = 9  # of an allocation in the name of its interface
# Name, received bytes and sent bytes of an interface on the host, as the launcher names it.
_ROW = re.compile(
    rf"^ *+sw([0-9a-f]{{{_DIGITS}}})[0-9a-f]{{4}}: *+([0-9]++)(?: ++[0-9]++){{7}} ++([0-9]++)",
    re.MULTILINE,
)
_FRESH = SECOND // 2  # a read within it answers from the one before


def counters(net_dev: str, now: int) -> dict[str, TrafficSample]:
    r"""Return the counters by the first digits of an allocation, from the text of `/proc/net/dev`.

    The host sends through its interface the bytes that the allocation receives.

    >>> counters("  sw0123456780002: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n  lo: 7 0", 5)
    {'012345678': TrafficSample(at=5, received=20, sent=10)}
    """
    return {
        digits: TrafficSample(now, int(sent), int(received))
        for digits, received, sent in _ROW.findall(net_dev)
    }


class BridgeTraffic:
    """The counters of all allocations on the bridge."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._read_at = clock, -_FRESH
        self._counters: dict[str, TrafficSample] = {}

    def of(self, alloc_id: str) -> TrafficSample | None:
        """Return the counters of an allocation; None if it has no interface."""
        now = self._clock.now()
        if not 0 <= now - self._read_at < _FRESH:
            self._counters = counters(Path("/proc/net/dev").read_text(), now)
            self._read_at = now
        return self._counters.get(alloc_id.replace("-", "")[:_DIGITS])
