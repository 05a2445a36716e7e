"""Metrics in Nomad's JSON format, and for Prometheus."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial

import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from daemon.api.cluster.gauges import GaugeValue, Labels, gauges
from daemon.api.cluster.metric_help import MEANINGS
from daemon.api.cluster.token_required import visible_metrics
from daemon.timers import INTERVAL, TIMERS, Series
from daemon.web.reply import JSON, HandlerReply
from daemon.web.request import Request
from storage.records.base import SECOND, Record
from storage.records.codec import encode

_QUANTILES = (0.5, 0.9, 0.99)
_FEW = 200  # values that are written on the event loop, in 2 ms
_TEXT = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"


class GaugeShown(Record, frozen=True, kw_only=True):
    """The value of a gauge with its labels."""

    name: str
    value: float
    labels: Labels


class SampleShown(Record, frozen=True, kw_only=True):
    """A counter, or a timer in milliseconds, over the last 10 seconds; `rate` is per second."""

    name: str
    labels: Labels
    count: int
    rate: float
    sum: float
    min: float
    max: float
    mean: float
    stddev: float


class MetricsSummary(Record, frozen=True, kw_only=True):
    """All metrics. `Points` is empty, because every value is a gauge, a counter or a sample."""

    timestamp: str
    gauges: list[GaugeShown]
    counters: list[SampleShown]
    samples: list[SampleShown]
    points: tuple[()] = ()


async def show(request: Request) -> HandlerReply:
    """Show all metrics; `format=prometheus` selects Prometheus' text format."""
    parts = request.parts
    visible = visible_metrics(request, await gauges(parts))
    if request.query.text("format") == "prometheus":
        values = await _written(partial(_exposed, _Collected(visible)), len(visible))
        return HandlerReply(body=values + _exposed(_Timed()), content_type=_TEXT)
    write = partial(
        _summary,
        visible,
        timestamp=_format_time(parts.clock.now()),
        counters=_samples(TIMERS.counters),
        samples=_samples(TIMERS.timers),
    )
    return HandlerReply(body=await _written(write, len(visible)), content_type=JSON)


async def _written(write: Callable[[], bytes], number: int) -> bytes:
    """Return the text that `write` returns. If there are many values, a thread calls `write`."""
    return write() if number <= _FEW else await trio.to_thread.run_sync(write)


def _summary(
    values: Iterable[GaugeValue],
    *,
    timestamp: str,
    counters: list[SampleShown],
    samples: list[SampleShown],
) -> bytes:
    gauges_shown = [
        GaugeShown(name=gauge.name, value=gauge.value, labels=gauge.labels) for gauge in values
    ]
    return encode(
        MetricsSummary(timestamp=timestamp, gauges=gauges_shown, counters=counters, samples=samples)
    )


def _samples(kind: dict[str, Series]) -> list[SampleShown]:
    return [
        SampleShown(
            name=name,
            labels={},
            count=series.count,
            rate=series.sum / INTERVAL,
            sum=series.sum,
            min=series.min,
            max=series.max,
            mean=series.mean,
            stddev=series.deviation,
        )
        for name, series in sorted(TIMERS.last_interval(kind).items())
    ]


class _Collected(Collector):
    """A collector of gauges for Prometheus.

    Gauges with the same name form a family. Every gauge of a family has the same label names.
    """

    def __init__(self, values: Iterable[GaugeValue]) -> None:
        self._by_name: dict[str, list[GaugeValue]] = {}
        for gauge in values:
            self._by_name.setdefault(gauge.name, []).append(gauge)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, same in self._by_name.items():
            labels = sorted({label for gauge in same for label in gauge.labels})
            family = GaugeMetricFamily(_spelled(name), MEANINGS.get(name, name), labels=labels)
            for gauge in same:
                family.add_metric([gauge.labels.get(label, "") for label in labels], gauge.value)
            yield family


class _Timed(Collector):
    """A collector of timers and counters for Prometheus.

    Timers become summaries with Nomad's quantiles. The library would append `_total` to the name of
    a counter. Nomad does not, so counters become untyped metrics.
    """

    def collect(self) -> Iterator[Metric]:
        now = TIMERS.clock()
        for name, series in sorted(TIMERS.timers.items()):
            spelled = _spelled(name)
            family = Metric(spelled, MEANINGS.get(name, f"{name}, in milliseconds."), "summary")
            for quantile, value in zip(_QUANTILES, series.quantiles(now, _QUANTILES), strict=True):
                family.add_sample(spelled, {"quantile": str(quantile)}, value)
            family.add_sample(f"{spelled}_sum", {}, series.total.sum)
            family.add_sample(f"{spelled}_count", {}, series.total.count)
            yield family
        for name, series in sorted(TIMERS.counters.items()):
            family = Metric(_spelled(name), MEANINGS.get(name, name), "unknown")
            family.add_sample(_spelled(name), {}, series.total.sum)
            yield family


def _spelled(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def _exposed(collector: Collector) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def _format_time(now: int) -> str:
    """Format a time as Nomad's metrics do: `2026-11-21 01:40:00 +0000 UTC`."""
    return f"{datetime.fromtimestamp(now // SECOND, UTC):%Y-%m-%d %H:%M:%S} +0000 UTC"
