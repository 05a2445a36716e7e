"""Which request a piece of work goes back to: what is written and logged in its block says so.

The id stays with what is written, so that work which is taken up later, also after a crash, goes
on under it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# What belongs to a request, not to the place where something is written.
_ORIGIN: ContextVar[str] = ContextVar("origin", default="")


def current() -> str:
    """Return the id of the request that the present work goes back to; empty for none."""
    return _ORIGIN.get()


@contextmanager
def serving(request_id: str) -> Iterator[None]:
    """Do the work of this block for a request."""
    before = _ORIGIN.set(request_id)
    try:
        yield
    finally:
        _ORIGIN.reset(before)
