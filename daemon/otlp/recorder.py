"""The recorder of spans. Spans go into a bounded queue, which `sender.py` empties.

A trace begins with a write request, or with an evaluation that no request has caused. A read is
recorded only if its client sends a `traceparent`. Spans have names and IDs, but no bodies, queries
or error messages, because these may hold secrets.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import msgspec

from daemon.otlp import trace_context
from daemon.otlp.trace_context import TraceContext
from storage import request_context
from storage.request_context import Attributes

_READS = ("GET", "HEAD", "OPTIONS")
_REFUSED = (401, 403)  # unknown clients must not fill the queue
_STATUS = "http.response.status_code"
VARIABLE = "TRACEPARENT"


class SpanKind(IntEnum):
    """The kind of a span, as OTLP numbers it."""

    INTERNAL = 1
    SERVER = 2
    PRODUCER = 4


class Span(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A finished span.

    Times are in nanoseconds since the epoch; `error` is the type of an error.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Attributes = {}
    links: Sequence[TraceContext] = ()
    error: str = ""


def _trace(origin: str) -> TraceContext | None:
    """Return the trace context in the origin of a request, if it has one."""
    _, _, text = origin.partition(" ")
    return trace_context.parse(text) if text else None


def _joined(origin: str, context: TraceContext) -> str:
    """Return the origin of a request with its trace context replaced."""
    return f"{origin.partition(' ')[0]} {trace_context.header(context)}"


def _new_span_id() -> str:
    while (span_id := os.urandom(8).hex()) == "0" * 16:
        pass
    return span_id


def derived_span_id(*parts: str) -> str:
    """Return the span ID of a unit of work; equal `parts` give the same ID in every daemon."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


class Recorder:
    """Records spans and passes them to `put`. Any thread may call `put`, and `put` never waits."""

    def __init__(
        self,
        put: Callable[[Span], None],
        now: Callable[[], int],
        random: Callable[[], float],
        percent: int,
    ) -> None:
        """`percent` % of new traces are sampled. `random` returns uniform numbers in [0, 1)."""
        self._put, self.now = put, now
        self._chance, self._percent = random, percent

    def _new_trace(self) -> TraceContext:
        is_sampled = self._chance() * 100 < self._percent
        return TraceContext(os.urandom(16).hex(), _new_span_id(), is_sampled)

    # --- spans of a block ---

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record the block as a span of the current trace.

        If the block raises an error, the span has the type of the error.
        """
        origin = request_context.origin()
        parent = _trace(origin)
        if parent is None or not parent.is_sampled or not request_context.is_permitted():
            yield
            return
        own = parent._replace(span_id=_new_span_id())
        start, error = self.now(), ""
        try:
            with request_context.request_scope(_joined(origin, own)):
                yield
        except Exception as problem:
            error = type(problem).__name__
            raise
        finally:
            self._end(name, own, parent, start, {}, error=error)

    @contextmanager
    def unit(
        self, origin: str, parts: tuple[str, ...], name: str, since: int, attributes: Attributes
    ) -> Iterator[None]:
        """Record the block as a span whose ID derives from `parts`.

        A block that is cancelled is not recorded.
        """
        parent = _trace(origin)
        if parent is None:
            yield
            return
        own, error = parent._replace(span_id=derived_span_id(*parts)), ""
        try:
            with request_context.request_scope(_joined(origin, own)):
                yield
        except Exception as problem:
            error = type(problem).__name__
            raise
        except BaseException:  # a later daemon continues the work
            parent = parent._replace(is_sampled=False)
            raise
        finally:
            self._end(name, own, parent, since, attributes, error=error)

    def follow(self, name: str, since: int) -> None:
        """Record a span of the current trace from `since` until now."""
        parent = _trace(request_context.origin())
        if parent is not None:
            self._end(name, parent._replace(span_id=_new_span_id()), parent, since, {})

    # --- requests ---

    def begin_request(self, request_id: str, method: str, traceparent: str) -> str:
        """Return the origin of a request. A read has a trace only if its client sent one."""
        parent = trace_context.parse(traceparent) if traceparent else None
        if parent is not None:
            return _joined(request_id, parent._replace(span_id=_new_span_id()))
        return request_id if method in _READS else _joined(request_id, self._new_trace())

    def end_request(
        self, origin: str, traceparent: str, name: str, since: int, attributes: Attributes
    ) -> None:
        """Record the span of a request, unless its caller lacked a permission."""
        own = _trace(origin)
        status = attributes.get(_STATUS, 0)
        if own is None or status in _REFUSED:
            return
        parent = trace_context.parse(traceparent) or TraceContext("", "", own.is_sampled)
        error = str(status) if isinstance(status, int) and status >= 500 else ""
        self._end(name, own, parent, since, attributes, kind=SpanKind.SERVER, error=error)

    # --- evaluations and children ---

    def begin_evaluation(self, origin: str) -> str:
        """Return the origin of an evaluation, with a new trace if its request has none."""
        parent = _trace(origin)
        own = parent._replace(span_id=_new_span_id()) if parent else self._new_trace()
        return _joined(origin, own)

    def is_sampled(self, origin: str) -> bool:
        """Return whether the spans of an origin are recorded."""
        own = _trace(origin)
        return own is not None and own.is_sampled

    def end_evaluation(
        self,
        origin: str,
        parent: str,
        times: tuple[int, int, int],
        attributes: Attributes,
        causes: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Record the spans of an evaluation and of its plan.

        `times` are the creation of the evaluation, the start of planning, and the end of both
        spans.
        """
        own = _trace(origin)
        if own is None or not own.is_sampled:
            return
        before = _trace(parent) or TraceContext("", "", is_sampled=True)
        created, began, decided = times
        links = [
            context._replace(span_id=derived_span_id(alloc_id))
            for origin_of_cause, alloc_id in causes
            if (context := _trace(origin_of_cause)) is not None
        ]
        self._end("evaluation", own, before, created, attributes, links=links)
        self._put(
            Span(
                name="plan",
                trace_id=own.trace_id,
                span_id=_new_span_id(),
                parent_id=own.span_id,
                start=began,
                end=decided,
            )
        )

    def begin_child(self, origin: str) -> str:
        """Return the origin of a child job, with a new trace.

        The new trace is sampled if the trace of `origin` is sampled.
        """
        current = _trace(origin)
        if current is None:
            return origin
        return _joined(origin, self._new_trace()._replace(is_sampled=current.is_sampled))

    def end_child(self, origin: str, since: int, attributes: Attributes) -> None:
        """Record the dispatch of a child job, with a link to the current trace."""
        own, current = _trace(origin), _trace(request_context.origin())
        if own is None or current is None:
            return
        parent = TraceContext("", "", own.is_sampled)
        kind = SpanKind.PRODUCER
        self._end("dispatch", own, parent, since, attributes, kind=kind, links=(current,))

    # --- tasks ---

    def environment(self, origin: str, *parts: str) -> dict[str, str]:
        """Return the variable that gives a task the ID of its span; empty without a trace."""
        parent = _trace(origin)
        if parent is None:
            return {}
        own = parent._replace(span_id=derived_span_id(*parts))
        return {VARIABLE: trace_context.header(own)}

    def _end(
        self,
        name: str,
        own: TraceContext,
        parent: TraceContext,
        since: int,
        attributes: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[TraceContext] = (),
        error: str = "",
    ) -> None:
        if not parent.is_sampled:
            return
        self._put(
            Span(
                name=name,
                trace_id=own.trace_id,
                span_id=own.span_id,
                parent_id=parent.span_id,
                start=since,
                end=max(self.now(), since),
                kind=kind,
                attributes=attributes,
                links=links,
                error=error,
            )
        )
