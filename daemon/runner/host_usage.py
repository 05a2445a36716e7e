"""The usage of this host for the usage history, and the traffic of allocations on the bridge.

The name of an allocation's interface on the host contains digits of the allocation ID. The counters
of all interfaces are in `/proc/net/dev`, so one read serves all allocations.
"""

import os
import re
from pathlib import Path

import msgspec

from daemon.clock import Clock
from daemon.runner.core.resource_usage import TrafficSample, memory, sample_cpus
from storage.records.base import SECOND
from storage.records.usage_history import UsageMetric, UsageSamples

# Interfaces that repeat the traffic of others, by the beginning of their names.
_REPEATING = ("lo", "veth", "docker0", "br-", "cni", "podman", "virbr", "nomad", "ifb", "dummy")
_OF_BRIDGE = re.compile(r"sw[0-9a-f]{13}")  # the interface of an allocation
_KIBIBYTE = 1024
_RECEIVED, _SENT = 0, 8  # fields after the name

_DIGITS = 9  # digits of the allocation ID in the interface name
# Name, received bytes and sent bytes of an interface on the host, as the launcher names it.
_ROW = re.compile(
    rf"^ *+sw([0-9a-f]{{{_DIGITS}}})[0-9a-f]{{4}}: *+([0-9]++)(?: ++[0-9]++){{7}} ++([0-9]++)",
    re.MULTILINE,
)
_FRESH = SECOND // 2  # a read within this time reuses the previous result


class _Counters(msgspec.Struct, frozen=True):
    """Counters since boot: CPU ticks by core, and bytes of traffic. `at` is in nanoseconds.

    The ticks have the form that `sample_cpus` returns.
    """

    at: int
    ticks: dict[str, tuple[int, int, int]]
    received: int
    sent: int


def traffic(net_dev: str, bridge: str = "") -> tuple[int, int]:
    r"""Return the received and sent bytes, from the text of `/proc/net/dev`.

    The `bridge` of allocations and similar interfaces repeat the traffic of other interfaces, so
    they do not count.

    >>> traffic("eth0: 10 0 0 0 0 0 0 0 20 0 0 0 0 0 0 0\n  lo: 7 0 0 0 0 0 0 0 7 0 0 0 0 0 0 0")
    (10, 20)
    """
    received = sent = 0
    for line in net_dev.splitlines():
        name, colon, rest = line.strip().partition(":")
        is_repeating = name.startswith(_REPEATING) or name == bridge or _OF_BRIDGE.fullmatch(name)
        if colon and not is_repeating:
            fields = rest.split()
            received, sent = received + int(fields[_RECEIVED]), sent + int(fields[_SENT])
    return received, sent


class HostMeter:
    """Measures the usage of the host. Each `reader` gets the usage since its own last call."""

    def __init__(self, clock: Clock, alloc_dir: Path, bridge: str) -> None:
        self._clock, self._alloc_dir, self._bridge = clock, alloc_dir, bridge
        self._before: dict[str, _Counters] = {}

    def measure(self, reader: str) -> UsageSamples:
        """Return the usage since the last call with `reader`; the first call returns no rates."""
        received, sent = traffic(Path("/proc/net/dev").read_text(), self._bridge)
        ticks = dict(sample_cpus().processors)
        now = _Counters(self._clock.now(), ticks, received, sent)
        before, self._before[reader] = self._before.get(reader), now
        usage_samples = {
            UsageMetric.MEMORY: memory(Path("/proc/meminfo").read_text()).used // _KIBIBYTE
        }
        if (disk := _disk_used(self._alloc_dir)) is not None:
            usage_samples[UsageMetric.DISK] = disk
        return {**usage_samples, **_rates(before, now)} if before else usage_samples


def _disk_used(path: Path) -> int | None:
    try:
        facts = os.statvfs(path)
    except OSError:  # without any allocation, the directory does not exist yet
        return None
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize // _KIBIBYTE


def _rates(before: _Counters, now: _Counters) -> UsageSamples:
    span = max(now.at - before.at, SECOND // 10)
    busy = 0.0
    for name, (user, system, idle) in now.ticks.items():
        earlier = before.ticks.get(name, (0, 0, 0))
        used = user + system - earlier[0] - earlier[1]
        busy += 1000 * max(0, used) / max(1, used + idle - earlier[2])
    return {
        UsageMetric.CPU: round(busy),
        UsageMetric.RECEIVED: max(0, now.received - before.received) * SECOND // span,
        UsageMetric.SENT: max(0, now.sent - before.sent) * SECOND // span,
    }


def counters(net_dev: str, now: int) -> dict[str, TrafficSample]:
    r"""Return counters by the first digits of the allocation ID, from the text of `/proc/net/dev`.

    Sent and received are from the allocation's view: it receives the bytes that the host sends
    through the interface.

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
