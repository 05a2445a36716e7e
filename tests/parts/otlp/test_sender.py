"""Sending spans: batches, retries by status code, the bounded queue, and the messages themselves."""

from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from threading import Thread

import msgspec
import pytest
import trio

from daemon.clock import SystemClock
from daemon.fences import Fences
from daemon.net.egress_policy import EgressDenied
from daemon.otlp import sender
from daemon.otlp.encoding import metrics_message, resource_of, spans_message
from daemon.otlp.recorder import Span, SpanKind
from daemon.otlp.sender import OtlpReceiver, ReceiverFailed, SpanQueue, open_traces
from daemon.otlp.trace_context import TraceContext
from daemon.timers import TIMERS, Timers
from storage.request_context import TRACING
from tests.fakes.collector import Collector, metrics_of, open_collector, spans_of

NOW = 1_764_000_000_000_000_000
ABOUT = resource_of("node-1", "global")


def span(number: int = 1, **changes: object) -> Span:
    one = Span(
        name="write",
        trace_id="a" * 32,
        span_id=f"{number:016x}",
        parent_id="b" * 16,
        start=NOW,
        end=NOW + 5,
    )
    return msgspec.structs.replace(one, **changes)


def counted(name: str) -> float:
    series = TIMERS.counters.get(name)
    return series.total.sum if series else 0


@pytest.fixture
def dropped() -> Callable[[], float]:
    """Return a function that returns the number of spans dropped since the start of the test."""
    before = counted(sender.DROPPED)
    return lambda: counted(sender.DROPPED) - before


class Answers:
    """A receiver with prepared answers: bytes, or a failure with a pause or None."""

    def __init__(self, *answers: float | bytes | None) -> None:
        self.answers, self.sent = [*answers], list[tuple[float, list[str]]]()

    async def send(self, path: str, body: bytes) -> bytes:
        assert path == "/v1/traces"
        await trio.lowlevel.checkpoint()
        self.sent.append((trio.current_time(), [span.span_id for span in spans_of(body)]))
        answer = self.answers.pop(0) if self.answers else b"{}"
        if isinstance(answer, bytes):
            return answer
        raise ReceiverFailed("no", pause=answer)


@pytest.fixture
async def running(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[Answers], SpanQueue]]:
    async def inline(work: Callable[..., object], *arguments: object) -> object:
        await trio.lowlevel.checkpoint()
        return work(*arguments)

    # The clock would jump while a thread works.
    monkeypatch.setattr("daemon.otlp.sender.trio.to_thread.run_sync", inline)

    def start(answers: Answers) -> SpanQueue:
        queue = SpanQueue(answers.send, ABOUT)
        nursery.start_soon(queue.run)
        return queue

    yield start
    nursery.cancel_scope.cancel()


async def test_spans_of_some_seconds_share_a_message(
    running: Callable[[Answers], SpanQueue],
    autojump_clock: trio.abc.Clock,
) -> None:
    answers = Answers()
    queue = running(answers)
    queue.put(span(1))
    await trio.sleep(sender.INTERVAL / 2)
    queue.put(span(2))
    await trio.sleep(sender.INTERVAL)
    queue.put(span(3))
    await trio.sleep(sender.INTERVAL * 2)
    assert [ids for _, ids in answers.sent] == [[f"{1:016x}", f"{2:016x}"], [f"{3:016x}"]]


async def test_full_batch_is_sent_immediately(
    running: Callable[[Answers], SpanQueue], autojump_clock: trio.abc.Clock
) -> None:
    answers = Answers()
    queue = running(answers)
    began = trio.current_time()
    for number in range(sender.BATCH):
        queue.put(span(number + 1))
    await trio.sleep(sender.INTERVAL / 4)
    assert [(at - began < sender.INTERVAL / 4, len(ids)) for at, ids in answers.sent] == [
        (True, sender.BATCH)
    ]


async def test_failed_batch_is_retried_with_growing_delays(
    running: Callable[[Answers], SpanQueue],
    autojump_clock: trio.abc.Clock,
    dropped: Callable[[], float],
) -> None:
    answers = Answers(0.0, 30.0, 0.0)
    running(answers).put(span())
    await trio.sleep(120)
    times = [at for at, _ in answers.sent]
    pauses = [round(later - earlier) for earlier, later in pairwise(times)]
    assert pauses == [1, 30, 4]  # the receiver asked for 30 seconds
    assert dropped() == 0


async def test_batch_is_dropped_after_the_last_attempt(
    running: Callable[[Answers], SpanQueue],
    autojump_clock: trio.abc.Clock,
    dropped: Callable[[], float],
) -> None:
    answers = Answers(*[0.0] * 6)
    queue = running(answers)
    queue.put(span(1))
    await trio.sleep(60)
    queue.put(span(2))
    await trio.sleep(60)
    assert [ids for _, ids in answers.sent] == [[f"{1:016x}"]] * 6 + [[f"{2:016x}"]]
    assert dropped() == 1


async def test_batch_with_a_permanent_error_is_dropped_immediately(
    running: Callable[[Answers], SpanQueue],
    autojump_clock: trio.abc.Clock,
    dropped: Callable[[], float],
) -> None:
    answers = Answers(None)
    running(answers).put(span())
    await trio.sleep(60)
    assert len(answers.sent) == 1
    assert dropped() == 1


@pytest.mark.parametrize("number", ['"2"', "2"])
async def test_spans_refused_by_the_receiver_are_counted(
    running: Callable[[Answers], SpanQueue],
    autojump_clock: trio.abc.Clock,
    dropped: Callable[[], float],
    number: str,
) -> None:
    text = f'{{"partialSuccess":{{"rejectedSpans":{number},"errorMessage":"too old"}}}}'
    queue = running(Answers(text.encode()))
    queue.put(span(1))
    queue.put(span(2))
    await trio.sleep(60)
    assert dropped() == 2


async def test_full_queue_drops_new_spans_and_counts_them(dropped: Callable[[], float]) -> None:
    queue = SpanQueue(Answers().send, ABOUT)
    for number in range(sender.QUEUE + 3):
        queue.put(span(number + 1))
    assert dropped() == 3


async def test_span_of_a_thread_is_sent(
    running: Callable[[Answers], SpanQueue], autojump_clock: trio.abc.Clock
) -> None:
    answers = Answers()
    queue = running(answers)
    await trio.sleep(sender.INTERVAL)
    thread = Thread(target=queue.put, args=[span()])
    thread.start()
    thread.join()
    await trio.sleep(sender.INTERVAL * 2)
    assert len(answers.sent) == 1


# --- over the network ---


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with open_collector() as one:
        yield one


def receiver_at(collector: Collector, token: str = "") -> OtlpReceiver:
    return OtlpReceiver(f"{collector.url}/", lambda _host, _port: None, lambda: token)


async def test_remaining_spans_are_sent_at_the_end(collector: Collector) -> None:
    opening = open_traces(
        receiver_at(collector, "s3cret"),
        Fences(SystemClock()),
        ABOUT,
        now=lambda: NOW,
        random=lambda: 0.0,
        percent=100,
    )
    async with opening:
        assert TRACING.recorder is not None
        origin = TRACING.recorder.begin_request("one", "POST", "")
        TRACING.recorder.end_request(origin, "", "POST /v1/jobs", NOW, {})
    assert TRACING.recorder is None
    (request,) = collector.requests("/v1/traces")
    assert request.headers["authorization"] == "Bearer s3cret"
    assert [span.name for span in collector.spans()] == ["POST /v1/jobs"]


@pytest.mark.parametrize(
    ("status", "pause"), [(400, None), (404, None), (429, 0.0), (500, None), (503, 0.0)]
)
async def test_status_code_decides_about_a_retry(
    collector: Collector, status: int, pause: float | None
) -> None:
    collector.receiver.answers.append(status)
    with pytest.raises(ReceiverFailed, match=f"status {status}") as caught:
        await receiver_at(collector).send("/v1/traces", b"{}")
    assert caught.value.pause == pause


async def test_forbidden_address_gets_nothing(collector: Collector) -> None:
    def permit(_host: str, _port: int) -> None:
        raise EgressDenied("that is the daemon itself")

    with pytest.raises(ReceiverFailed, match="the daemon itself"):
        await OtlpReceiver(collector.url, permit, str).send("/v1/traces", b"{}")
    assert collector.receiver.received == []


# --- messages ---


def test_span_message_has_every_field_of_a_span() -> None:
    link = TraceContext("c" * 32, "d" * 16, is_sampled=True)
    about = {"text": "t", "number": 2**60, "is_true": True}
    made = span(
        kind=SpanKind.PRODUCER, attributes=about, links=(link,), error="Refused", parent_id=""
    )
    (one,) = spans_of(spans_message(ABOUT, [made]))
    assert one.about == {**about, "error.type": "Refused"}
    assert (one.kind, one.status.code, one.parent_span_id) == (4, 2, msgspec.UNSET)
    assert (one.links[0].trace_id, one.links[0].span_id) == ("c" * 32, "d" * 16)


class Value(msgspec.Struct, frozen=True):
    name: str
    value: float
    labels: dict[str, str] = {}


def test_metrics_message_has_gauges_counters_and_timers() -> None:
    timers = Timers(lambda: 100.0)
    timers.count("steward.things", 3)
    timers.add("steward.step", 0.25)
    timers.add("steward.step", 0.75)
    found = metrics_of(
        metrics_message(
            ABOUT,
            [Value("a", 1, {"x": "1"}), Value("a", 2, {"x": "2"}), Value("b", float("nan"))],
            timers.counters,
            timers.timers,
            since=NOW - 5,
            now=NOW,
            clock=100.0,
        )
    )
    assert found.keys() == {"a", "steward.things", "steward.step"}  # JSON has no NaN
    gauge, total, step = (found[name] for name in ("a", "steward.things", "steward.step"))
    assert gauge.gauge is not msgspec.UNSET
    assert [point.as_double for point in gauge.gauge.data_points] == [1, 2]
    assert total.sum is not msgspec.UNSET
    assert total.sum.is_monotonic
    assert [point.as_double for point in total.sum.data_points] == [3]
    assert step.summary is not msgspec.UNSET
    (point,) = step.summary.data_points
    assert (point.count, point.sum) == ("2", 1000.0)
    assert [quantile_value.quantile for quantile_value in point.quantile_values] == [0.5, 0.9, 0.99]
