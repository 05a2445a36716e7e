"""Keep the pauses by Python's cyclic garbage collection short.

A collection stops all threads. Its duration depends on the number of live objects of the collected
generations. So the survivors of a collection are frozen, and later collections skip them. Reference
counting frees nearly all of them. The few cycles among them are collected while the daemon is idle.

Collections are deferred while threads create many objects, and while these objects exist. Otherwise
a collection takes 0.5 s if the allocations of a node are loaded, and 9 ms for a job with thousands
of tasks.

Freeing a large object also takes long: 10 ms for a job with thousands of tasks. Code that has
created such an object on the event loop passes the object to `free_in_thread`. A thread frees the
object when no other reference to it is left.
"""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import outcome
import trio

from storage.account import CostedBlock, present

T = TypeVar("T")

FEW = 7000  # live young objects; collecting among them takes 0.5 ms
# Ten times Python's default of the youngest generation, so that one collection covers ten requests. It
# costs a third of ten collections, which would each also scan objects that are still in use. Every
# third collection includes the second generation. The oldest generation is not collected
# automatically.
_THRESHOLDS = (FEW, 1, 2**31 - 1)
_OLDEST = 2
_FREEZING = 1  # the youngest generation whose survivors are frozen after its collection
_MOST = 100  # ended `paused` blocks after which a collection runs although other blocks run
_PAUSE = 0.5  # seconds
_PATIENCE = 20  # pauses after which the young objects are frozen, and collections run again
_IDLE = 0.02  # share of a CPU that the event loop of an idle daemon uses
_IDLE_PAUSES = 20  # pauses after which an idle daemon is expected to remain idle
_FEW_FROZEN = 100_000  # objects frozen since the last full collection; an idle daemon keeps them
_MANY_FROZEN = 1_000_000  # the same for a daemon that is never idle

_OWN = 3  # references to an object that nothing else uses, as `sys.getrefcount` counts them
_LONGEST = 120  # maximum number of pauses for an object that is still in use

_lock = threading.Lock()
_kept: list[
    tuple[object, int]
] = []  # objects to be freed by a thread, with the number of checks so far
_keeps = False
_at_work = _ended = 0
_is_due = False
# Objects frozen since the last full collection. Those freed since then count too: the interpreter can
# only count the living ones by a scan.
_frozen = 0


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
            _age_young_objects()


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread without garbage collection, and return its result."""
    account = present()

    def done() -> T:
        with paused(), CostedBlock(account):
            return work()

    return await without_cycles(done)


async def without_cycles(work: Callable[[], T]) -> T:
    """Run `work` in a thread, and return its result; an error of `work` is freed when it is handled.

    If `work` raised its error to Trio, frames of Trio would refer to the error, and the traceback
    of the error to these frames. Such an error keeps the data of all its frames, such as a body of
    16 MiB, until the next garbage collection, and collections are rare.
    """
    results: list[outcome.Outcome[T]] = []

    def run() -> None:
        results.append(outcome.capture(work))

    await trio.to_thread.run_sync(run)
    return results.pop().unwrap()


@contextmanager
def short_pauses() -> Iterator[None]:
    """Freeze all objects, and the survivors of later collections.

    The objects that exist at the beginning belong to the imported modules, and stay in memory.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.callbacks.append(_freeze_survivors)
    try:
        yield
    finally:
        gc.callbacks.remove(_freeze_survivors)
        gc.set_threshold(*before)


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    global _frozen  # the interpreter has one collector
    if phase != "stop" or info["generation"] < _FREEZING:
        return
    if info["generation"] == _OLDEST:
        gc.freeze()
        _frozen = 0
    else:
        _freeze(len(gc.get_objects(generation=_OLDEST)))


def _freeze(count: int) -> None:
    global _frozen  # as above
    gc.freeze()
    _frozen += count


def _age_young_objects() -> None:
    """Collect the youngest objects, or freeze them if they are too many."""
    if (count := gc.get_count()[0]) <= FEW:
        gc.collect(0)
    else:
        _freeze(count)


def collect_frozen() -> None:
    """Collect all objects, including frozen ones. This stops all threads for up to 0.2 s."""
    gc.unfreeze()
    gc.collect()


def frozen_objects() -> list[object]:
    """Return the frozen objects. This stops all threads: 4 ms for 100,000 objects.

    Objects of the oldest generation that are not frozen are included.
    """
    gc.unfreeze()
    objects = gc.get_objects(generation=_OLDEST)
    gc.freeze()
    return objects


def _is_full_collection_due(*, is_idle: bool) -> bool:
    """Return whether to collect the frozen objects, although this stops all threads.

    While a `paused` block runs, its objects would make the collection long. So blocks can delay the
    collection, but not prevent it.
    """
    if _at_work:
        return _frozen > 2 * _MANY_FROZEN
    return _frozen > (_FEW_FROZEN if is_idle else _MANY_FROZEN)


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
    waited, idle, used, _keeps = 0, 0, time.thread_time(), True
    try:
        while True:
            await trio.sleep(_PAUSE)
            if _kept:
                await trio.to_thread.run_sync(_let_go)
            waited = 0 if resume() else waited + 1
            if waited > _PATIENCE:
                _age_young_objects()
            before, used = used, time.thread_time()
            idle = idle + 1 if used - before < _IDLE * _PAUSE else 0
            if _is_full_collection_due(is_idle=idle >= _IDLE_PAUSES):
                collect_frozen()
                used, idle = time.thread_time(), 0
    finally:
        _keeps = False
        _kept.clear()
