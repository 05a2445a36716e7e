"""Defer cyclic garbage collection while threads create many objects, and while these objects exist.

A collection stops all threads. Its duration depends on the number of live young objects. A
collection takes 0.5 s if the allocations of a node are loaded, and 9 ms for a job with thousands of
tasks. Reference counting frees nearly all of these objects when the work has ended.

Freeing a large object also takes long: 10 ms for a job with thousands of tasks. Code that has
created such an object on the event loop passes the object to `free_in_thread`. A thread frees the
object when no other reference to it is left.
"""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from storage.account import CostedBlock, present

T = TypeVar("T")

FEW = 7000  # live young objects; collecting among them takes 0.5 ms
_MOST = 100  # ended `paused` blocks after which a collection runs although other blocks run
_PAUSE = 0.5  # seconds
_PATIENCE = 20  # pauses after which a collection runs regardless of its duration

_OWN = 3  # references to an object that nothing else uses, as `sys.getrefcount` counts them
_LONGEST = 120  # maximum number of pauses for an object that is still in use

_lock = threading.Lock()
_kept: list[
    tuple[object, int]
] = []  # objects to be freed by a thread, with the number of checks so far
_keeps = False
_at_work = _ended = 0
_is_due = False


@contextmanager
def paused() -> Iterator[None]:
    """Prevent garbage collection in all threads during the block."""
    global _at_work, _ended, _is_due  # the interpreter has one collector
    with _lock:
        _at_work += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _at_work, _ended, _is_due = _at_work - 1, _ended + 1, True
            is_late = _ended >= _MOST
            if is_late:
                _ended = 0
        resume()
        if is_late:
            gc.collect(1)


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread without garbage collection, and return its result."""
    account = present()

    def done() -> T:
        with paused(), CostedBlock(account):
            return work()

    return await trio.to_thread.run_sync(done)


def resume(most: int = FEW) -> bool:
    """Resume garbage collection; return whether it is active now.

    Collection stays disabled while a `paused` block runs, or more than `most` young objects exist.
    """
    global _is_due, _ended  # as above
    with _lock:
        if _is_due and not _at_work and gc.get_count()[0] <= most:
            gc.enable()
            _is_due, _ended = False, 0
        return not _is_due


def collect_newest(most: int = FEW) -> bool:
    """Collect the youngest generation of objects, and return true.

    If a `paused` block runs, or more than `most` young objects exist, do nothing and return false.
    """
    with _lock:
        may = not _at_work and gc.get_count()[0] <= most
    if may:
        gc.collect(0)
    return may


def free_in_thread(value: object) -> None:
    """Let a thread free a large object once the caller has deleted all other references to it."""
    if _keeps:
        _kept.append((value, 0))


def _let_go() -> None:
    with paused():
        for _ in range(len(_kept)):
            value, looks = _kept.pop(0)
            if sys.getrefcount(value) >= _OWN and looks < _LONGEST:
                _kept.append((value, looks + 1))


async def run_collector() -> None:
    """Resume garbage collection and free large objects when possible, until cancelled."""
    global _keeps  # as above
    waited, _keeps = 0, True
    try:
        while True:
            await trio.sleep(_PAUSE)
            if _kept:
                await trio.to_thread.run_sync(_let_go)
            waited = 0 if resume(FEW if waited < _PATIENCE else 2**62) else waited + 1
    finally:
        _keeps = False
        _kept.clear()
