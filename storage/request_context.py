"""The request that caused the current work. Writes and log lines of this work carry its ID.

The ID is stored with the data, so later work, even after a crash, has the same ID. If the
work belongs to a trace, a `traceparent` (W3C Trace Context) follows the ID after a space. An ID has
no space.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

# Values of the current request, which all its code can read without a parameter.
_ORIGIN: ContextVar[str] = ContextVar("origin", default="")

_PERSON: ContextVar[str] = ContextVar("person", default="")


class Permission:
    """The authorization state of the current request."""

    __slots__ = ("is_shown",)

    def __init__(self) -> None:
        self.is_shown = False


_PERMISSION: ContextVar[Permission | None] = ContextVar("permission", default=None)


def permission_scope(permission: Permission) -> AbstractContextManager[None]:
    """Return a scope in which `show_permission` records to `permission`."""
    return RequestScope(_PERMISSION, permission)


def show_permission() -> None:
    """Record that the caller of the current request has the permission that the request needs."""
    if (permission := _PERMISSION.get()) is not None:
        permission.is_shown = True


def is_permitted() -> bool:
    """Return whether the caller is known to have the needed permission.

    The result is true if there is no current request.
    """
    return (permission := _PERMISSION.get()) is None or permission.is_shown


class MaskView(Protocol):
    """The form in which a caller sees the data of jobs, with masks in place of secrets.

    `daemon/text/json_masks.py` implements it.
    """

    def document(self, document: object) -> object:
        """Return a JSON document with masks in place of the secrets that the caller may not see."""
        ...

    def text(self, job: tuple[str, str], text: str) -> str:
        """Return a text of a job with masks; `job` is the namespace and the ID of the job."""
        ...


_MASK_VIEW: ContextVar[MaskView | None] = ContextVar("mask_view", default=None)


def mask_view_scope(view: MaskView | None) -> AbstractContextManager[None]:
    """Return a scope in which filters and searches only see data in the form of `view`."""
    return RequestScope(_MASK_VIEW, view)


def mask_view() -> MaskView | None:
    """Return the view of the caller of the current request; None if nothing is masked."""
    return _MASK_VIEW.get()


def current() -> str:
    """Return the ID of the request that caused the current work; empty for none."""
    return _ORIGIN.get().partition(" ")[0]


def origin() -> str:
    """Return the ID of the request, and the trace of the current work if it has one."""
    return _ORIGIN.get()


def traceparent() -> str:
    """Return the trace and the span of the current work; empty for none."""
    return _ORIGIN.get().partition(" ")[2]


class RequestScope(AbstractContextManager[None], Generic[T]):
    """A context manager that sets a context variable for a block."""

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        """Set the value of the context variable."""
        self._before = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        """Restore the previous value of the context variable."""
        self._variable.reset(self._before)


def request_scope(text: str) -> AbstractContextManager[None]:
    """Attribute the work of this block to an origin: a request, and its trace if it has one."""
    return RequestScope(_ORIGIN, text)


Attributes = Mapping[str, str | int | bool]


class SpanRecorder(Protocol):
    """The recorder of spans. It records no spans for an origin without a sampled trace.

    Times are in nanoseconds since the epoch. `daemon/otlp/recorder.py` implements it.
    """

    def now(self) -> int:
        """Return the current time."""
        ...

    def span(self, name: str) -> AbstractContextManager[None]:
        """Record the block as a span of the current trace.

        If the block raises an error, the span has the type of the error.
        """
        ...

    def begin_request(self, request_id: str, method: str, traceparent: str) -> str:
        """Return the origin of a request. `traceparent` is the header of the client, or empty."""
        ...

    def end_request(
        self, origin: str, traceparent: str, name: str, since: int, attributes: Attributes
    ) -> None:
        """Record the span of a request."""
        ...

    def begin_evaluation(self, origin: str) -> str:
        """Return the origin of one decision about an evaluation that has the origin `origin`."""
        ...

    def is_sampled(self, origin: str) -> bool:
        """Return whether the spans of an origin are recorded."""
        ...

    def end_evaluation(
        self,
        origin: str,
        parent: str,
        times: tuple[int, int, int],
        attributes: Attributes,
        causes: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Record a span of an evaluation, and a span of its plan.

        `times` has the creation of the evaluation, the start of the decision, and its end. `origin`
        is the origin of the decision, and `parent` the origin of the evaluation. `causes` has the
        origin and ID of each allocation whose end allowed the evaluation to place others. The span
        has links to these ended allocations.
        """
        ...

    def begin_child(self, origin: str) -> str:
        """Return the origin of a child job, with a new trace.

        `origin` is the origin of the request that creates the child.
        """
        ...

    def end_child(self, origin: str, since: int, attributes: Attributes) -> None:
        """Record the dispatch of a child job, with a link to the current trace."""
        ...

    def unit(
        self, origin: str, parts: tuple[str, ...], name: str, since: int, attributes: Attributes
    ) -> AbstractContextManager[None]:
        """Record the block as a span that began at `since`, unless the block is cancelled.

        The span's ID derives from `parts`, so a later daemon that continues the work records the
        same span.
        """
        ...

    def follow(self, name: str, since: int) -> None:
        """Record a span of the current trace that began at `since` and ends now."""
        ...

    def environment(self, origin: str, *parts: str) -> dict[str, str]:
        """Return the environment variable that passes the span of a task to the task."""
        ...


class Tracing:
    """The recorder of this process; None while traces are disabled."""

    __slots__ = ("recorder",)

    def __init__(self) -> None:
        self.recorder: SpanRecorder | None = None


TRACING = Tracing()
_UNRECORDED = nullcontext()


def span(name: str) -> AbstractContextManager[None]:
    """Record the block as a span of the current trace, if traces are enabled."""
    recorder = TRACING.recorder
    return _UNRECORDED if recorder is None else recorder.span(name)


def person() -> str:
    """Return the person who makes the current request.

    The result is empty without a request, and without access control.
    """
    return _PERSON.get()


def person_scope(person: str) -> AbstractContextManager[None]:
    """Attribute the work of this block to a person."""
    return RequestScope(_PERSON, person)
