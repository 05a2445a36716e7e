"""A time limit for each test, after which it fails.

The limit raises an exception, because ending the process would also end the tests that wait in the
same worker. In the middle of Trio's own code, an exception would leave the run open, and all later
tests of the worker would fail. So the limit first cancels the run.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import trio

_CLEAN_UP = 30  # seconds from the cancellation of a Trio run to the exception
_GRACE = 60  # seconds until a test that ignores the exception ends the process


class TookTooLong(BaseException):
    """A test exceeded its time limit. No handler of `Exception` may hide this."""


class _Limit:
    """The time limit of one test."""

    def __init__(self) -> None:
        self.is_exceeded = False

    def reach(self, _: int, __: object) -> None:
        """Handle SIGALRM: cancel the Trio run, or raise `TookTooLong`."""
        faulthandler.dump_traceback()
        if not self.is_exceeded and trio.lowlevel.in_trio_run():
            self.is_exceeded = True
            trio.lowlevel.current_trio_token().run_sync_soon(_cancel_run)
            return
        self.is_exceeded = True
        raise TookTooLong


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in the main thread if the block takes longer."""
    reached = _Limit()
    signal.signal(signal.SIGALRM, reached.reach)
    signal.setitimer(signal.ITIMER_REAL, seconds, _CLEAN_UP)
    faulthandler.dump_traceback_later(seconds + _CLEAN_UP + _GRACE, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    if reached.is_exceeded:
        raise TookTooLong


def _cancel_run() -> None:
    """Cancel the main task of the Trio run, so that it closes its resources."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    _print_tasks(root)
    root.child_nurseries[-1].cancel_scope.cancel()


def _print_tasks(task: trio.lowlevel.Task) -> None:
    """Print the places at which a task and its child tasks wait."""
    places = (f"{frame.f_code.co_filename}:{line}" for frame, line in task.iter_await_frames())
    sys.stderr.write("\n  ".join((f"task {task.name}", *places)) + "\n")
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            _print_tasks(child)


# The default action ends a child at its own time limit.
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL))
