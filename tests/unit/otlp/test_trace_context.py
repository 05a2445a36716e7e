"""The `traceparent` header, by the rules of W3C Trace Context."""

import pytest

from daemon.otlp import trace_context
from daemon.otlp.trace_context import TraceContext

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # unknown flags are ignored
        (f"cc-{TRACE}-{SPAN}-01", True),  # a later version of the format
        (f"cc-{TRACE}-{SPAN}-01-more", True),
    ],
)
def test_valid_header_has_a_trace_and_a_span(text: str, is_sampled: bool) -> None:
    assert trace_context.parse(text) == TraceContext(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
    ],
)
def test_invalid_header_is_ignored(text: str) -> None:
    assert trace_context.parse(text) is None


def test_header_survives_a_round_trip() -> None:
    one = TraceContext(TRACE, SPAN, is_sampled=True)
    assert trace_context.header(one) == f"00-{TRACE}-{SPAN}-01"
