"""The `traceparent` header of W3C Trace Context. No I/O."""

import re
from typing import NamedTuple

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED = 1
_VERSION, _INVALID_VERSION = "00", "ff"
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class TraceContext(NamedTuple):
    """The IDs of a trace and of one of its spans, in hexadecimal digits."""

    trace_id: str
    span_id: str
    is_sampled: bool


def parse(text: str) -> TraceContext | None:
    """Return the content of a header, or None if it is invalid.

    A later version of the standard may add fields at the end.

    >>> parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").span_id
    'b7ad6b7169203331'
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == _INVALID_VERSION or (version == _VERSION and more):
        return None
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def header(context: TraceContext) -> str:
    """Return the `traceparent` header for a span."""
    return f"{_VERSION}-{context.trace_id}-{context.span_id}-{context.is_sampled:02x}"
