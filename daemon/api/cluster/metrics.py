"""Metrics: for programs that speak the peer's JSON, and for Prometheus."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from daemon.api.cluster.closed import seen_metrics
from daemon.api.cluster.gauges import Gauge, Labels, gauges
from daemon.api.cluster.meanings import MEANINGS
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.records.base import SECOND, Record

_TEXT = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"


class GaugeShown(Record, frozen=True, kw_only=True):
    """A value with its labels."""

    name: str
    value: float
    labels: Labels


class MetricsSummary(Record, frozen=True, kw_only=True):
    """All metrics; of these kinds only gauges are kept here."""

    timestamp: str
    gauges: list[GaugeShown]
    points: tuple[()] = ()
    counters: tuple[()] = ()
    samples: tuple[()] = ()


async def show(request: Request) -> Reply:
    """Show all metrics; `format=prometheus` as text for Prometheus."""
    parts = request.parts
    found = seen_metrics(request, await gauges(parts))
    if request.query.text("format") == "prometheus":
        return Reply(body=_exposed(found), content_type=_TEXT)
    shown = [GaugeShown(name=one.name, value=one.value, labels=one.labels) for one in found]
    return Reply(body=MetricsSummary(timestamp=_moment(parts.clock.now()), gauges=shown))


class _Collected:
    """Gauges as the library reads them: those of a name together, all with the same labels."""

    def __init__(self, found: Iterable[Gauge]) -> None:
        self._by_name: dict[str, list[Gauge]] = {}
        for one in found:
            self._by_name.setdefault(one.name, []).append(one)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, same in self._by_name.items():
            labels = sorted({label for one in same for label in one.labels})
            spelled = name.replace(".", "_").replace("-", "_")
            family = GaugeMetricFamily(spelled, MEANINGS.get(name, name), labels=labels)
            for one in same:
                family.add_metric([one.labels.get(label, "") for label in labels], one.value)
            yield family


def _exposed(found: Iterable[Gauge]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(found))
    return generate_latest(registry)


def _moment(now: int) -> str:
    """Return a time as the peer's metrics have it: `2026-11-21 01:40:00 +0000 UTC`."""
    return f"{datetime.fromtimestamp(now // SECOND, UTC):%Y-%m-%d %H:%M:%S} +0000 UTC"
