"""Limit the work that one read or write does on the event loop, apart from its queries.

The connection limits the queries. Code that works for long between queries reports its work with
`spend`. A read or write may do `SHARE` units of work on the event loop. If it does more, `spend`
raises `LongRead`, and a thread starts the read or write again. After every `SHARE` units, that
thread lets the event loop run, because the interpreter by default switches threads only every 5 ms.
Work outside of a `limited` block has no limit.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

# Seconds after which a busy thread hands the interpreter to the event loop. Python's default of 5
# ms is as long as any request may hold the loop. With 1 ms, nine of ten waits took at most 1.1 ms,
# instead of 3.9 ms.
SWITCH_INTERVAL = 0.001
AT_ONCE = 128 * 1024  # bytes of JSON that one call decodes, within 1 ms
SHARE = 1_500  # units of work, of about 1 µs of CPU time
_TURN = 50e-6  # seconds in which the event loop gets the interpreter


class LongRead(Exception):
    """A read has exceeded its limits on the event loop; a thread must start the read again."""


class _Left(threading.local):
    """The remaining units of work of the current thread; None means no limit."""

    def __init__(self) -> None:
        self.units: int | None = None
        self.is_worker = threading.current_thread() is not threading.main_thread()
        self.until_turn = SHARE


_LEFT = _Left()


@contextmanager
def limited() -> Iterator[None]:
    """Limit the work of this block to `SHARE` units."""
    before, _LEFT.units = _LEFT.units, SHARE
    try:
        yield
    finally:
        _LEFT.units = before


def spend(units: int) -> None:
    """Subtract units of work from the remaining share. Raises `LongRead` when the share is used up.

    Without a limit, a worker thread instead pauses briefly after each share.
    """
    if _LEFT.units is None:
        if _LEFT.is_worker:
            _take_turns(units)
        return
    _LEFT.units -= units
    if _LEFT.units < 0:
        raise LongRead


async def import_in_thread(*modules: str) -> None:
    """In a thread, import the modules that are not imported yet. An import takes milliseconds.

    Raises `ImportError` or `OSError`.
    """
    import trio  # imported late: pure packages import this module

    for name in modules:
        if name not in sys.modules:
            await trio.to_thread.run_sync(import_module, name)


def _take_turns(units: int) -> None:
    _LEFT.until_turn -= units
    if _LEFT.until_turn < 0:
        _LEFT.until_turn = SHARE
        time.sleep(_TURN)  # a worker thread hands the interpreter to the event loop
