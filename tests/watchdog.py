"""A time limit for each test, after which it fails.

The limit raises an exception. Ending the process instead would also end the tests that wait in the
same worker, and pytest-xdist can wait forever for a worker that has ended.
"""

import faulthandler
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_GRACE = 60  # seconds until a test that ignores the exception ends the process


class TookTooLong(BaseException):
    """A test exceeded its time limit. No handler of `Exception` may hide this."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in the main thread if the block takes longer."""
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + _GRACE, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


def _interrupt(_: int, __: object) -> None:
    faulthandler.dump_traceback()
    raise TookTooLong


# The default action ends a child at its own time limit.
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL))
