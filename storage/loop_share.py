"""The share of the event loop of one read or write, for work that is not a query.

The connection limits the queries of a read or write on the event loop. A part that works for long
between queries counts its work here. Beyond the share, the read or write ends with `LongRead`, and a
thread starts it again. Elsewhere, counting has no effect.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

SHARE = 1_500  # units of work, of about 1 µs of CPU time


class LongRead(Exception):
    """A read has exceeded its limits on the event loop; a thread must start it again."""


class _Left(threading.local):
    """The units that the work of this thread may still take; None means no limit."""

    units: int | None = None


_LEFT = _Left()


@contextmanager
def limited() -> Iterator[None]:
    """Limit the work of this block to one share."""
    before, _LEFT.units = _LEFT.units, SHARE
    try:
        yield
    finally:
        _LEFT.units = before


def spend(units: int) -> None:
    """Count units of work. Raises `LongRead` beyond the share."""
    if _LEFT.units is None:
        return
    _LEFT.units -= units
    if _LEFT.units < 0:
        raise LongRead
