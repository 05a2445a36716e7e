"""CPU time per request. The account of a request sums the time of all threads that work for it."""

import time
import types
from collections.abc import Coroutine, Generator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, TypeVar

from storage.request_context import RequestScope

T = TypeVar("T")


class RequestCost:
    """The CPU time of one request so far."""

    def __init__(self) -> None:
        self.spent = 0  # nanoseconds of CPU time


_PRESENT: ContextVar[RequestCost | None] = ContextVar("account", default=None)


def present() -> RequestCost | None:
    """Return the account of the current request, or None."""
    return _PRESENT.get()


def charged_to(account: RequestCost) -> AbstractContextManager[None]:
    """Charge the work of this block to an account."""
    return RequestScope(_PRESENT, account)


class CostedBlock(AbstractContextManager[None]):
    """A context manager that charges the CPU time of its block to an account, if there is one.

    The block must not contain `await`, because other tasks would run in between.
    """

    def __init__(self, account: RequestCost | None) -> None:
        self._account = account

    def __enter__(self) -> None:
        """Start to measure CPU time."""
        self._begun = time.thread_time_ns()

    def __exit__(self, *_: object) -> None:
        """Charge the measured CPU time to the account."""
        if self._account is not None:
            self._account.spent += time.thread_time_ns() - self._begun


async def charged(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; charge its CPU time on the event loop to the current request.

    Use this function for the work of each Trio task that a request starts. Otherwise the work is
    not charged, because `counted` measures only the task that awaits it.
    """
    account = present()
    return await (work if account is None else counted(account, work))


@types.coroutine
def counted(account: RequestCost, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Return the result of `work`, and charge its CPU time on the event loop to an account."""
    result, error = None, None
    try:
        while True:
            with CostedBlock(account):
                try:
                    trap = work.send(result) if error is None else work.throw(error)
                except StopIteration as end:
                    value: T = end.value
                    return value
            try:
                result, error = (yield trap), None
            except BaseException as thrown:  # passed on to `work`
                error = thrown
    finally:
        # Either may hold an exception whose traceback refers to this frame. Without this cycle, the
        # objects of the request are freed now, and not by the next garbage collection.
        result = error = None
