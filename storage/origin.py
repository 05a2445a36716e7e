"""Which request a piece of work goes back to: what is written and logged in its block says so.

The id stays with what is written, so that work which is taken up later, also after a crash, goes
on under it.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

# What belongs to a request, not to the place where something is written.
_ORIGIN: ContextVar[str] = ContextVar("origin", default="")


def current() -> str:
    """Return the id of the request that the present work goes back to; empty for none."""
    return _ORIGIN.get()


class Bound(AbstractContextManager[None], Generic[T]):
    """A block in which something of the context has a value. Every request enters some."""

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        """Give it the value."""
        self._before = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        """Give it back the one that it had."""
        self._variable.reset(self._before)


def serving(request_id: str) -> AbstractContextManager[None]:
    """Do the work of this block for a request."""
    return Bound(_ORIGIN, request_id)
