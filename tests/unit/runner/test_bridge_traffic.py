"""Traffic of allocations on the bridge, from the counters of the host."""

import pytest

from daemon.launcher import bridge
from daemon.runner.core.resource_usage import TrafficSample
from daemon.runner.host_usage import BridgeTraffic, counters, traffic
from storage.records.base import SECOND

ALLOC = "5d3c9a12-0b1e-4f00-8000-000000000000"
HEAD = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
"""


def row(name: str, received: int, sent: int) -> str:
    return f"{name:>6}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"


def table(received: int = 10, sent: int = 20) -> str:
    own = row(bridge._name(ALLOC, 2), received, sent)
    return HEAD + row("lo", 9, 9) + row("eth0", 300, 400) + row("steward", 9, 9) + own


class Clock:
    def __init__(self) -> None:
        self.time = 5 * SECOND

    def now(self) -> int:
        return self.time


def test_host_sends_what_the_allocation_receives() -> None:
    assert counters(table(), 5) == {"5d3c9a120": TrafficSample(5, received=20, sent=10)}


def test_host_does_not_count_the_traffic_of_allocations_again() -> None:
    assert traffic(table(), "steward") == (300, 400)
    assert traffic(HEAD + row("swp1", 1, 2), "steward") == (1, 2)  # a port of a switch


def test_allocations_of_a_round_share_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, texts = Clock(), iter([table(), table(30, 40)])
    monkeypatch.setattr("pathlib.Path.read_text", lambda _path: next(texts))
    bridge_traffic = BridgeTraffic(clock)
    before = bridge_traffic.of(ALLOC)
    clock.time += SECOND // 4
    assert bridge_traffic.of(ALLOC) is before
    assert bridge_traffic.of(ALLOC.replace("5d", "6d")) is None
    clock.time += SECOND
    assert bridge_traffic.of(ALLOC) == TrafficSample(clock.time, received=40, sent=30)
