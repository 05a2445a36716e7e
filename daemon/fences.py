"""Error isolation: an error of one unit of work stops neither its loop nor the daemon.

A kind and a key identify a unit, such as an evaluation, a periodic job or a deployment. After an
error the unit pauses, longer each time. After `ATTEMPTS` consecutive errors its fence is closed.
The unit's owner then stops retrying it, or skips it until its key changes or an operator releases
it. Store errors do not belong to one unit, so they pass through. The exception is a corrupt page,
which affects only some units.

Faults are stored, so they survive a restart. A unit that was running when the daemon crashed counts
as failed, because it may be the cause.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import trio

from daemon.clock import Clock
from storage.errors import (
    NotFound,
    StorageDamaged,
    StorageError,
    StorageUnreadable,
    is_descriptor_shortage,
    leaf_errors,
)
from storage.queries import faults
from storage.queries.faults import ATTEMPTS, Fault
from storage.records.base import SECOND
from storage.store import Store, tolerate_disk_full
from storage.wal_watermark import Hand, Name
from storage.writer import Transaction

__all__ = ("ATTEMPTS", "LOOP", "TOPIC", "Fault", "Fences", "open_fences")

TOPIC = faults.TOPIC  # a change of this topic wakes the owners of paused units
_PAUSES = (1 * SECOND, 5 * SECOND)  # after the first and the second error
_LOOP_PAUSE = 60 * SECOND  # after every further error of a loop, which is always restarted
LOOP = "loop"  # the kind of the daemon's loops
_ENDED = "the daemon crashed while it processed this"
_LAST_WORD = 1.0  # seconds that the shutdown waits for the store
_LONGEST_REASON = 2000  # characters

_log = logging.getLogger("steward.fences")


class Fences:
    """The faults of units of work that failed recently.

    `open_fences` creates an object that stores its faults. Otherwise, faults are in memory only.
    """

    def __init__(
        self, clock: Clock, stored_faults: Iterable[Fault] = (), hand: Hand | None = None
    ) -> None:
        self._clock, self._hand = clock, hand
        self._faults = {(fault.kind, fault.key): fault for fault in stored_faults}
        self._at_work: set[Name] = set()
        self._changed: set[Name] = set()
        self._news = trio.Event()
        self.wake: Callable[[], None] = lambda: None  # wakes the owners of paused units

    # --- queries
    # ------------------------------------------------------------------------------------

    def faults(self) -> list[Fault]:
        """Return all faults, oldest first."""
        active = [fault for fault in self._faults.values() if not self._is_over(fault)]
        return sorted(active, key=lambda fault: fault.since)

    def of(self, kind: str, key: str) -> Fault | None:
        """Return the fault of a unit, or None if its last attempt succeeded or there was none."""
        fault = self._faults.get((kind, key))
        return None if fault is None or self._is_over(fault) else fault

    def of_kind(self, kind: str) -> list[Fault]:
        """Return the faults of all units of a kind."""
        return [fault for fault in self._faults.values() if fault.kind == kind]

    def _is_over(self, fault: Fault) -> bool:
        """Return whether a loop has run long enough since its last error to count as successful."""
        return fault.kind == LOOP and self._clock.now() > fault.until + _LOOP_PAUSE

    def paused_keys(self, kind: str) -> frozenset[str]:
        """Return the keys of those units of a kind that are paused or whose fence is closed."""
        now = self._clock.now()
        return frozenset(
            fault.key for fault in self.of_kind(kind) if fault.is_closed or fault.until > now
        )

    def next_time(self, kind: str) -> int | None:
        """Return the time at which the next paused unit of a kind may be retried.

        Return None if no unit of the kind is paused.
        """
        now = self._clock.now()
        coming = (fault.until for fault in self.of_kind(kind) if not fault.is_closed)
        return min((time for time in coming if time > now), default=None)

    # --- changes
    # ------------------------------------------------------------------------------------

    def forget(self, kind: str, key: str) -> None:
        """Delete the fault of a unit, because it succeeded, changed, or is no longer retried."""
        if self._faults.pop((kind, key), None) is not None:
            self._log_fault((kind, key))

    def open_others(self, kind: str, keys: Iterable[str]) -> None:
        """Delete the faults of units of a kind that are not in `keys`, and so no longer exist."""
        for key in {fault.key for fault in self.of_kind(kind)}.difference(keys):
            self.forget(kind, key)

    def release(self, kind: str, key: str) -> Fault:
        """Reset a unit, so that it is retried immediately. Raises `NotFound`."""
        fault = self.of(kind, key)
        if fault is None:
            raise NotFound(f'there is no fault of kind "{kind}" with the key "{key}"')
        self.forget(kind, key)
        self.wake()  # the store may not have this fault yet
        _log.info("%s %s was released", kind, key)
        return fault

    async def keep_running(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop of the daemon, and restart it after an error, indefinitely.

        A `StorageError` is raised, also from an exception group. If it concerns only some rows, or
        if writes are not possible now, the loop is restarted instead.
        """
        while True:
            async with tolerate_disk_full(f"{name}: the loop failed and restarts"):
                with self.around(LOOP, name):
                    await loop()
            fault = self.of(LOOP, name)
            pause = fault.until - self._clock.now() if fault else _PAUSES[0]
            await trio.sleep(max(pause, 0) / SECOND)

    @contextmanager
    def around(self, kind: str, key: str) -> Iterator[None]:
        """Run the block as one attempt of a unit, and contain its error.

        A `StorageError` that concerns every unit is raised, also from an exception group.
        """
        try:
            yield
        except Exception as error:
            if any(concerns_every_unit(leaf) for leaf in leaf_errors(error)):
                raise
            self.record(kind, key, error)
        else:
            self.forget(kind, key)

    @contextmanager
    def unless_paused(self, kind: str, key: str) -> Iterator[bool]:
        """Yield whether a unit may run in this round; if so, run the block as one attempt."""
        if key in self.paused_keys(kind):
            yield False
            return
        with self.around(kind, key):
            yield True

    @contextmanager
    def at_work(self, kind: str, keys: Iterable[str]) -> Iterator[None]:
        """Mark units of a kind as running during the block: a crash counts as a failed attempt."""
        names = {(kind, key) for key in keys}
        self._at_work |= names
        self._record_in_progress()
        try:
            yield
        finally:
            self._at_work -= names
            self._record_in_progress()

    def _record_in_progress(self) -> None:
        if self._hand is not None:
            self._hand.record(self._at_work)

    def record(self, kind: str, key: str, error: Exception) -> Fault:
        """Record an error as a failed attempt of a unit; return the fault.

        The caller has caught the error.
        """
        leaf = next(leaf_errors(error))
        fault = self._fail(kind, key, f"{type(leaf).__name__}: {leaf}")
        # A shortage is not a defect of the code, so the traceback explains nothing.
        is_shortage = is_descriptor_shortage(error)
        _log.log(
            logging.WARNING if is_shortage else logging.ERROR,
            "%s %s failed %d consecutive times: %s",
            kind,
            key,
            fault.failures,
            fault.reason,
            exc_info=None if is_shortage else error,
        )
        return fault

    def close(self, kind: str, key: str, reason: str) -> Fault:
        """Close the fence of a unit immediately, because another attempt would cost too much."""
        fault = self._fail(kind, key, reason, failures=ATTEMPTS)
        _log.error("%s %s is skipped until it changes or is released: %s", kind, key, reason)
        return fault

    def record_crashes(self, names: Iterable[Name]) -> None:
        """Record a failed attempt for each unit that was running when the daemon crashed."""
        for kind, key in names:
            fault = self._fail(kind, key, _ENDED, is_at_end=True)
            _log.warning("%s %s failed %d consecutive times: %s", kind, key, fault.failures, _ENDED)

    def _fail(
        self, kind: str, key: str, reason: str, *, failures: int = 1, is_at_end: bool = False
    ) -> Fault:
        now, before = self._clock.now(), self.of(kind, key)
        failures = max(failures, before.failures + 1 if before else 1)
        pause = _PAUSES[failures - 1] if failures <= len(_PAUSES) else _LOOP_PAUSE
        if is_at_end and failures == 1:  # most of these units did not cause the crash
            pause = 0
        fault = Fault(
            kind=kind,
            key=key,
            failures=failures,
            reason=reason[:_LONGEST_REASON],
            since=before.since if before else now,
            until=now + pause,
        )
        self._faults[kind, key] = fault
        self._log_fault((kind, key))
        return fault

    # --- storage
    # ------------------------------------------------------------------------------------

    def _log_fault(self, name: Name) -> None:
        self._changed.add(name)
        self._news.set()

    async def store_changes(self, store: Store) -> None:
        """Write changes of faults to the store until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            async with tolerate_disk_full("cannot store faults"):
                await self.save(store)

    async def save(self, store: Store) -> None:
        """Write the changes that the store does not have yet."""
        names, self._changed = self._changed, set()
        if not names:
            return
        try:
            await store.write(partial(_put, {name: self._faults.get(name) for name in names}))
        except StorageError:
            for name in names:
                self._log_fault(name)
            raise


def _put(faults_by_name: dict[Name, Fault | None], tx: Transaction) -> None:
    for (kind, key), fault in faults_by_name.items():
        if fault is None:
            faults.remove(tx, kind, key)
        else:
            faults.put(tx, fault)


def concerns_every_unit(error: BaseException) -> bool:
    """Return whether a store error affects every unit; an unreadable row affects only one unit."""
    return isinstance(error, StorageError) and not isinstance(
        error, (StorageDamaged, StorageUnreadable)
    )


@asynccontextmanager
async def open_fences(store: Store, clock: Clock, directory: Path) -> AsyncIterator[Fences]:
    """Yield the fences with the stored faults, and store changes while the block runs.

    `directory` is the directory of the store.
    """
    hand = Hand(directory)
    fences = Fences(clock, store.read(faults.list_all), hand)
    fences.wake = store.wake_all
    for fault in fences.of_kind(LOOP):
        if fences.of(LOOP, fault.key) is None:
            fences.forget(LOOP, fault.key)
    fences.record_crashes(hand.found)
    async with tolerate_disk_full("cannot store faults"):
        await fences.save(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fences.keep_running, "faults", partial(fences.store_changes, store))
        try:
            yield fences
        finally:
            nursery.cancel_scope.cancel()
            hand.close()
            # The store may have failed; the faults then remain in the log only.
            with trio.move_on_after(_LAST_WORD, shield=True), suppress(StorageError):
                await fences.save(store)
