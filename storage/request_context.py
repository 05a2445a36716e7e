"""The request that caused the current work; its writes and log lines carry the ID.

The ID is stored with the data, so that later work, even after a crash, continues under it.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

# Values of the current request, independent of the place where something is written.
_ORIGIN: ContextVar[str] = ContextVar("origin", default="")


def current() -> str:
    """Return the ID of the request that caused the current work; empty for none."""
    return _ORIGIN.get()


class RequestScope(AbstractContextManager[None], Generic[T]):
    """A block in which a context variable has a value. Every request enters some."""

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        """Set the value."""
        self._before = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        """Restore the previous value."""
        self._variable.reset(self._before)


def request_scope(request_id: str) -> AbstractContextManager[None]:
    """Attribute the work of this block to a request."""
    return RequestScope(_ORIGIN, request_id)
