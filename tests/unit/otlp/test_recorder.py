"""The recorder: operations with spans, their parents, and attributes that spans never contain."""

from collections.abc import Iterator
from itertools import count

import pytest

from daemon.otlp.recorder import Recorder, Span, SpanKind
from storage import request_context

REMOTE = f"00-{'a' * 32}-{'b' * 16}-01"
UNSAMPLED = f"00-{'a' * 32}-{'b' * 16}-00"


class Recorded:
    """A recorder and its spans; its clock advances by one with each reading."""

    def __init__(self, percent: int = 100, chance: float = 0.5) -> None:
        self.spans: list[Span] = []
        self.recorder = Recorder(self.spans.append, count(1).__next__, lambda: chance, percent)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    made = Recorded()
    request_context.TRACING.recorder = made.recorder
    yield made
    request_context.TRACING.recorder = None


def test_write_starts_a_trace_and_a_read_does_not(recorded: Recorded) -> None:
    assert recorded.recorder.begin_request("one", "GET", "") == "one"
    request_id, _, trace = recorded.recorder.begin_request("one", "POST", "").partition(" ")
    assert request_id == "one"
    assert trace.endswith("-01")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_request_continues_the_trace_of_its_client(recorded: Recorded, method: str) -> None:
    origin = recorded.recorder.begin_request("one", method, REMOTE)
    recorded.recorder.end_request(origin, REMOTE, "x", 1, {})
    (span,) = recorded.spans
    assert (span.trace_id, span.parent_id, span.kind) == ("a" * 32, "b" * 16, SpanKind.SERVER)
    assert span.span_id in origin


def test_unsampled_trace_is_passed_on_without_spans(recorded: Recorded) -> None:
    origin = recorded.recorder.begin_request("one", "POST", UNSAMPLED)
    with request_context.request_scope(origin), request_context.span("write"):
        assert request_context.traceparent() == origin.partition(" ")[2]
    recorded.recorder.end_request(origin, UNSAMPLED, "x", 1, {})
    assert recorded.recorder.environment(origin, "a")["TRACEPARENT"].startswith(f"00-{'a' * 32}-")
    assert recorded.spans == []


@pytest.mark.parametrize(("percent", "flags"), [(50, "00"), (51, "01"), (0, "00"), (100, "01")])
def test_percent_is_the_share_of_new_traces(percent: int, flags: str) -> None:
    origin = Recorded(percent).recorder.begin_request("one", "POST", "")
    assert origin.endswith(f"-{flags}")


@pytest.mark.parametrize("status", [401, 403])
def test_refused_caller_creates_no_span(recorded: Recorded, status: int) -> None:
    origin = recorded.recorder.begin_request("one", "POST", REMOTE)
    recorded.recorder.end_request(origin, REMOTE, "x", 1, {"http.response.status_code": status})
    assert recorded.spans == []


def test_span_of_a_block_is_the_parent_of_those_inside(recorded: Recorded) -> None:
    origin = recorded.recorder.begin_request("one", "POST", REMOTE)
    with (
        request_context.request_scope(origin),
        request_context.span("outer"),
        request_context.span("inner"),
    ):
        pass
    inner, outer = recorded.spans
    assert (inner.name, inner.parent_id) == ("inner", outer.span_id)
    assert outer.parent_id == origin.split("-")[2]
    assert outer.start < inner.start < inner.end < outer.end


def test_span_has_the_type_of_an_error_but_not_its_text(recorded: Recorded) -> None:
    origin = recorded.recorder.begin_request("one", "POST", REMOTE)
    scope = request_context.request_scope(origin)
    with pytest.raises(ValueError, match="secret"), scope, request_context.span("write"):
        raise ValueError("secret")
    (span,) = recorded.spans
    assert span.error == "ValueError"
    assert "secret" not in repr(span)


def test_unit_of_work_has_the_same_span_in_every_daemon(recorded: Recorded) -> None:
    for _ in range(2):
        with recorded.recorder.unit(f"one {REMOTE}", ("alloc", "main", "0"), "task", 1, {}):
            pass
    first, second = recorded.spans
    assert first.span_id == second.span_id
    told = recorded.recorder.environment(f"one {REMOTE}", "alloc", "main", "0")
    assert told == {"TRACEPARENT": f"00-{'a' * 32}-{first.span_id}-01"}


def test_cancelled_unit_creates_no_span(recorded: Recorded) -> None:
    unit = recorded.recorder.unit(f"one {REMOTE}", ("alloc",), "allocation", 1, {})
    with pytest.raises(KeyboardInterrupt), unit:
        raise KeyboardInterrupt
    assert recorded.spans == []


def test_child_has_a_trace_of_its_own_with_a_link(recorded: Recorded) -> None:
    origin = recorded.recorder.begin_request("one", "POST", REMOTE)
    child = recorded.recorder.begin_child(origin)
    with request_context.request_scope(origin):
        recorded.recorder.end_child(child, 1, {})
    (span,) = recorded.spans
    assert span.trace_id != "a" * 32
    assert span.parent_id == ""
    (link,) = span.links
    assert (link.trace_id, link.span_id) == ("a" * 32, origin.split("-")[2])


def test_evaluation_without_a_request_starts_a_trace(recorded: Recorded) -> None:
    origin = recorded.recorder.begin_evaluation("")
    recorded.recorder.end_evaluation(origin, "", (1, 2, 3), {})
    evaluation, plan = recorded.spans
    assert (evaluation.name, evaluation.parent_id, evaluation.start) == ("evaluation", "", 1)
    assert (plan.name, plan.parent_id) == ("plan", evaluation.span_id)
    assert (plan.start, plan.end) == (2, 3)


def test_work_without_a_trace_creates_no_span(recorded: Recorded) -> None:
    with request_context.request_scope("one"), request_context.span("write"):
        recorded.recorder.follow("first health", 1)
    with recorded.recorder.unit("", ("alloc",), "allocation", 1, {}):
        pass
    assert recorded.recorder.environment("one", "alloc") == {}
    assert recorded.spans == []
