"""Fences: an error of one unit of work costs that unit, and neither its loop nor the daemon.

A unit is named by its kind and its key: an evaluation, a periodic job, a deployment. After an error
the unit pauses, for longer each time. After `ATTEMPTS` errors in a row its fence is closed: the
owner of the unit gives it up, or leaves it out until its key changes. Errors of the store are not of
one unit: they pass through. Only a corrupt page is met by some units and not by others.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec
import trio

from daemon.clock import Clock
from storage.errors import StorageDamaged, StorageError, leaves
from storage.records.base import SECOND

ATTEMPTS = 3
_PAUSES = (1 * SECOND, 5 * SECOND)  # after the first and the second error
_LOOP_PAUSE = 60 * SECOND  # after every further error of a loop, which is never given up
_LOOP = "loop"

_log = logging.getLogger("steward.fences")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """The errors in a row of one unit; times in nanoseconds of the wall clock."""

    kind: str
    key: str
    failures: int
    reason: str
    since: int
    until: int  # the unit pauses until then

    @property
    def is_closed(self) -> bool:
        """Tell whether the unit has had all its attempts."""
        return self.failures >= ATTEMPTS


class Fences:
    """The units of the daemon's work that have raised an error lately. Kept in memory only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._faults: dict[tuple[str, str], Fault] = {}

    def faults(self) -> list[Fault]:
        """Return all faults, the oldest first."""
        found = [fault for fault in self._faults.values() if not self._is_over(fault)]
        return sorted(found, key=lambda fault: fault.since)

    def of(self, kind: str, key: str) -> Fault | None:
        """Return the fault of a unit; None after a success."""
        fault = self._faults.get((kind, key))
        return None if fault is None or self._is_over(fault) else fault

    def _is_over(self, fault: Fault) -> bool:
        """Tell whether a loop has run for long enough since its last error: it never returns."""
        return fault.kind == _LOOP and self._clock.now() > fault.until + _LOOP_PAUSE

    def held(self, kind: str) -> frozenset[str]:
        """Return the keys of a kind that pause now, or whose fence is closed."""
        now = self._clock.now()
        return frozenset(
            fault.key
            for fault in self._faults.values()
            if fault.kind == kind and (fault.is_closed or fault.until > now)
        )

    def next_time(self, kind: str) -> int | None:
        """Return when the next unit of a kind may be tried again; None if none pauses."""
        return min(
            (
                fault.until
                for fault in self._faults.values()
                if fault.kind == kind and not fault.is_closed
            ),
            default=None,
        )

    def forget(self, kind: str, key: str) -> None:
        """Open the fence of a unit: it succeeded, changed, or was given up."""
        self._faults.pop((kind, key), None)

    async def keep_running(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop of the daemon, and begin it anew after an error, for ever.

        A `StorageError` passes through, alone or in a group.
        """
        while True:
            with self.around(_LOOP, name):
                await loop()
            fault = self.of(_LOOP, name)
            pause = fault.until - self._clock.now() if fault else _PAUSES[0]
            await trio.sleep(max(pause, 0) / SECOND)

    @contextmanager
    def around(self, kind: str, key: str) -> Iterator[None]:
        """Run the block as one attempt of a unit, and contain its error.

        A `StorageError` passes through, alone or in a group.
        """
        try:
            yield
        except Exception as error:
            if any(_is_of_all(leaf) for leaf in leaves(error)):
                raise
            self.note(kind, key, error)
        else:
            self.forget(kind, key)

    def note(self, kind: str, key: str, error: Exception) -> Fault:
        """Note an error of a unit that was contained elsewhere; return the fault."""
        now, before = self._clock.now(), self.of(kind, key)
        failures = before.failures + 1 if before else 1
        pause = _PAUSES[failures - 1] if failures <= len(_PAUSES) else _LOOP_PAUSE
        leaf = next(leaves(error))
        fault = Fault(
            kind=kind,
            key=key,
            failures=failures,
            reason=f"{type(leaf).__name__}: {leaf}",
            since=before.since if before else now,
            until=now + pause,
        )
        self._faults[kind, key] = fault
        _log.error(
            "%s %s failed %d times in a row: %s", kind, key, failures, fault.reason, exc_info=error
        )
        return fault


def _is_of_all(error: BaseException) -> bool:
    """Tell whether an error of the store is of every unit."""
    return isinstance(error, StorageError) and not isinstance(error, StorageDamaged)
