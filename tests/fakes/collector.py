"""An OTLP/HTTP receiver that refuses every field, type and value that OTLP's JSON does not have.

The records follow the messages of opentelemetry-proto 1.x and its rules for JSON: IDs are
hexadecimal digits, 64-bit integers are strings, enums are numbers, unknown fields are errors.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

import msgspec
import trio
from msgspec import UNSET, Meta, Struct, UnsetType

from tests.fakes.receiver import Received, Receiver, open_receiver
from tests.time_limits import HAPPENS_WITHIN

T = TypeVar("T")

TraceId = Annotated[str, Meta(pattern="^(?!0{32})[0-9a-f]{32}$")]
SpanId = Annotated[str, Meta(pattern="^(?!0{16})[0-9a-f]{16}$")]
Integer = Annotated[str, Meta(pattern="^-?[0-9]{1,20}$")]
Time = Annotated[str, Meta(pattern="^[1-9][0-9]{17,19}$")]


class _Message(Struct, forbid_unknown_fields=True, rename="camel", kw_only=True, frozen=True):
    pass


class AnyValue(_Message, frozen=True, kw_only=True):
    string_value: str | UnsetType = UNSET
    bool_value: bool | UnsetType = UNSET
    int_value: Integer | UnsetType = UNSET
    double_value: float | UnsetType = UNSET

    @property
    def value(self) -> object:
        given = [
            item for item in map(self.__getattribute__, self.__struct_fields__) if item is not UNSET
        ]
        assert len(given) == 1, "exactly one of the values must be set"
        return given[0] if self.int_value is UNSET else int(str(self.int_value))


class KeyValue(_Message, frozen=True, kw_only=True):
    key: Annotated[str, Meta(min_length=1)]
    value: AnyValue


class Resource(_Message, frozen=True, kw_only=True):
    attributes: list[KeyValue]


class Scope(_Message, frozen=True, kw_only=True):
    name: str
    version: str


class Link(_Message, frozen=True, kw_only=True):
    trace_id: TraceId
    span_id: SpanId
    flags: int = 0
    attributes: list[KeyValue] = []


class Status(_Message, frozen=True, kw_only=True):
    code: Annotated[int, Meta(ge=0, le=2)] = 0
    message: str = ""


class Span(_Message, frozen=True, kw_only=True):
    trace_id: TraceId
    span_id: SpanId
    parent_span_id: SpanId | UnsetType = UNSET
    flags: Annotated[int, Meta(ge=0, le=0x3FF)] = 0
    name: Annotated[str, Meta(min_length=1)]
    kind: Annotated[int, Meta(ge=1, le=5)]
    start_time_unix_nano: Time
    end_time_unix_nano: Time
    attributes: list[KeyValue] = []
    links: list[Link] = []
    status: Status = Status()

    @property
    def about(self) -> dict[str, object]:
        return attributes(self.attributes)


class ScopeSpans(_Message, frozen=True, kw_only=True):
    scope: Scope
    spans: Annotated[list[Span], Meta(min_length=1)]


class ResourceSpans(_Message, frozen=True, kw_only=True):
    resource: Resource
    scope_spans: list[ScopeSpans]


class TracesRequest(_Message, frozen=True, kw_only=True):
    resource_spans: list[ResourceSpans]


class NumberPoint(_Message, frozen=True, kw_only=True):
    attributes: list[KeyValue] = []
    start_time_unix_nano: Time | UnsetType = UNSET
    time_unix_nano: Time
    as_double: float


class Quantile(_Message, frozen=True, kw_only=True):
    quantile: Annotated[float, Meta(ge=0, le=1)]
    value: float


class SummaryPoint(_Message, frozen=True, kw_only=True):
    start_time_unix_nano: Time
    time_unix_nano: Time
    count: Integer
    sum: float
    quantile_values: list[Quantile]


class GaugePoints(_Message, frozen=True, kw_only=True):
    data_points: list[NumberPoint]


class SumPoints(_Message, frozen=True, kw_only=True):
    data_points: list[NumberPoint]
    aggregation_temporality: Annotated[int, Meta(ge=1, le=2)]
    is_monotonic: bool


class SummaryPoints(_Message, frozen=True, kw_only=True):
    data_points: list[SummaryPoint]


class Metric(_Message, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1)]
    description: str = ""
    unit: str = ""
    gauge: GaugePoints | UnsetType = UNSET
    sum: SumPoints | UnsetType = UNSET
    summary: SummaryPoints | UnsetType = UNSET


class ScopeMetrics(_Message, frozen=True, kw_only=True):
    scope: Scope
    metrics: list[Metric]


class ResourceMetrics(_Message, frozen=True, kw_only=True):
    resource: Resource
    scope_metrics: list[ScopeMetrics]


class MetricsRequest(_Message, frozen=True, kw_only=True):
    resource_metrics: list[ResourceMetrics]


def attributes(key_values: list[KeyValue]) -> dict[str, object]:
    """Return attributes by key; each key must be unique."""
    keys = Counter(key_value.key for key_value in key_values)
    assert not key_values or max(keys.values()) == 1, f"repeated keys: {keys}"
    return {key_value.key: key_value.value.value for key_value in key_values}


def spans_of(body: bytes) -> list[Span]:
    """Return the spans of a message. Raises `msgspec.ValidationError` or `AssertionError`."""
    message = msgspec.json.decode(body, type=TracesRequest)
    found = list[Span]()
    for resource in message.resource_spans:
        assert attributes(resource.resource.attributes)["service.name"] == "steward"
        for scope in resource.scope_spans:
            found += scope.spans
    for span in found:
        assert int(span.start_time_unix_nano) <= int(span.end_time_unix_nano), span.name
        assert span.about is not None
    return found


def metrics_of(body: bytes) -> dict[str, Metric]:
    """Return the metrics of a message by name. Raises `msgspec.ValidationError`."""
    message = msgspec.json.decode(body, type=MetricsRequest)
    every = [
        metric
        for resource in message.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    names = Counter(item.name for item in every)
    assert max(names.values()) == 1, "a metric appears twice"
    for metric in every:
        kinds = [kind for kind in (metric.gauge, metric.sum, metric.summary) if kind is not UNSET]
        assert len(kinds) == 1, f"{metric.name} has {len(kinds)} kinds"
    return {item.name: item for item in every}


class Collector:
    """The messages of a receiver, checked as they are read."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.url = receiver.url.partition("/hook")[0]

    def requests(self, path: str) -> list[Received]:
        """Return the requests of a path; each must be JSON."""
        found = [item for item in self.receiver.received if item.path == path]
        assert all(item.headers["content-type"] == "application/json" for item in found)
        return found

    def spans(self) -> list[Span]:
        """Return all spans; no ID may appear twice."""
        found = [span for request in self.requests("/v1/traces") for span in spans_of(request.body)]
        assert len({(span.trace_id, span.span_id) for span in found}) == len(found)
        return found

    async def until(self, find: Callable[[list[Span]], T | None]) -> T:
        """Return the result of `find` on the spans, as soon as it is not None."""
        with trio.fail_after(HAPPENS_WITHIN):
            while (found := find(self.spans())) is None:
                await self.receiver.until(len(self.receiver.received) + 1)
        return found


@asynccontextmanager
async def open_collector() -> AsyncIterator[Collector]:
    """Receive messages on loopback while the block runs."""
    async with open_receiver() as receiver:
        yield Collector(receiver)
