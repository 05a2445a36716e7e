"""OTLP messages in JSON: IDs in hexadecimal digits, 64-bit integers as text, enums as numbers.

No I/O.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from daemon.otlp.recorder import Span
from daemon.timers import INTERVAL, Series
from daemon.version import VERSION
from storage.request_context import Attributes

_ERROR = 2  # status code
_CUMULATIVE = 2
_QUANTILES = (0.5, 0.9, 0.99)
_SCOPE = {"name": "steward", "version": VERSION}
_SAMPLED = 1  # the flag `sampled` of W3C Trace Context


def resource_of(node: str, region: str) -> dict[str, object]:
    """Return the OTLP resource that describes this daemon."""
    attributes = {
        "service.name": "steward",
        "service.version": VERSION,
        "service.instance.id": node,
        "host.name": node,
        "steward.region": region,
    }
    return {"attributes": _attributes(attributes)}


def _attributes(attributes: Mapping[str, str | int | bool | float]) -> list[dict[str, object]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: str | float | bool) -> dict[str, object]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": value} if isinstance(value, str) else {"doubleValue": value}


# --- spans ---


def spans_message(resource: Mapping[str, object], spans: Sequence[Span]) -> bytes:
    """Return the body of `POST /v1/traces`."""
    scope = {"scope": _SCOPE, "spans": [_span(span) for span in spans]}
    return msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def _span(span: Span) -> dict[str, object]:
    fields: dict[str, object] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "flags": _SAMPLED,
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
    }
    if span.parent_id:
        fields["parentSpanId"] = span.parent_id
    attributes: Attributes = span.attributes
    if span.error:
        attributes = {**attributes, "error.type": span.error}
        fields["status"] = {"code": _ERROR}
    if attributes:
        fields["attributes"] = _attributes(attributes)
    if span.links:
        fields["links"] = [
            {"traceId": link.trace_id, "spanId": link.span_id, "flags": _SAMPLED}
            for link in span.links
        ]
    return fields


# --- metrics ---


class Gauge(Protocol):
    """A current value with its labels."""

    @property
    def name(self) -> str:
        """Return the name of the metric."""
        ...

    @property
    def value(self) -> float:
        """Return the value."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels."""
        ...


def metrics_message(
    resource: Mapping[str, object],
    gauges: Iterable[Gauge],
    counters: Mapping[str, Series],
    timers: Mapping[str, Series],
    *,
    since: int,
    now: int,
    clock: float,
) -> bytes:
    """Return the body of `POST /v1/metrics`.

    `since` is the time at which the counters began, and `now` the current time, in nanoseconds
    since the epoch. `clock` is the present reading of the monotonic clock of the timers, in seconds.
    """
    times: dict[str, object] = {"startTimeUnixNano": str(since), "timeUnixNano": str(now)}
    metrics = [
        *_gauges(gauges, now),
        *(_counter(name, counter, times) for name, counter in sorted(counters.items())),
        *(_timer(name, timer, times, clock) for name, timer in sorted(timers.items())),
    ]
    scope = {"scope": _SCOPE, "metrics": metrics}
    return msgspec.json.encode(
        {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}
    )


def _gauges(gauges: Iterable[Gauge], now: int) -> Iterator[dict[str, object]]:
    by_name: dict[str, list[dict[str, object]]] = {}
    for gauge in gauges:
        if math.isfinite(gauge.value):
            point = {
                "attributes": _attributes(gauge.labels),
                "timeUnixNano": str(now),
                "asDouble": float(gauge.value),
            }
            by_name.setdefault(gauge.name, []).append(point)
    for name, points in by_name.items():
        yield {"name": name, "gauge": {"dataPoints": points}}


def _counter(name: str, series: Series, times: Mapping[str, object]) -> dict[str, object]:
    return {
        "name": name,
        "sum": {
            "dataPoints": [{**times, "asDouble": float(series.total.sum)}],
            "aggregationTemporality": _CUMULATIVE,
            "isMonotonic": True,
        },
    }


def _timer(
    name: str, series: Series, times: Mapping[str, object], clock: float
) -> dict[str, object]:
    """Return a timer as a summary.

    If the last interval has values, the summary includes their quantiles. `clock` is the present
    reading of the monotonic clock of the timers, in seconds.
    """
    values = zip(_QUANTILES, series.quantiles(clock, _QUANTILES), strict=True)
    quantiles = [
        {"quantile": quantile, "value": value} for quantile, value in values if math.isfinite(value)
    ]
    point = {
        **times,
        "count": str(series.total.count),
        "sum": series.total.sum,
        "quantileValues": quantiles,
    }
    description = f"quantiles of the last {INTERVAL:.0f} seconds"
    return {
        "name": name,
        "unit": "ms",
        "description": description,
        "summary": {"dataPoints": [point]},
    }
