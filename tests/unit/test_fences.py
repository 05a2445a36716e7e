"""Fences: one unit's error affects only that unit; errors of the store pass through."""

import errno

import pytest
import trio
import trio.testing

from daemon.fences import ATTEMPTS, Fences
from storage.errors import StorageFull, StorageUnusable
from storage.records.base import SECOND


class Ticking:
    time = 1000 * SECOND

    def now(self) -> int:
        return self.time


def fail(fences: Fences, error: Exception, key: str = "a", kind: str = "unit") -> None:
    with fences.around(kind, key):
        raise error


def test_failing_unit_pauses_longer_each_time_and_is_closed_after_the_last_attempt() -> None:
    clock = Ticking()
    fences = Fences(clock)
    pauses = []
    for _ in range(ATTEMPTS):
        fail(fences, ValueError("no"))
        fault = fences.of("unit", "a")
        assert fault is not None
        pauses.append((fault.until - clock.time) // SECOND)
        assert fences.paused_keys("unit") == {"a"}
        clock.time = fault.until + 1
    assert pauses == sorted(pauses)
    assert fault.is_closed
    assert fault.reason == "ValueError: no"
    assert fences.paused_keys("unit") == {"a"}
    assert fences.next_time("unit") is None


def test_unit_is_free_after_its_pause_and_success_deletes_its_errors() -> None:
    clock = Ticking()
    fences = Fences(clock)
    fail(fences, ValueError("no"))
    clock.time = fences.next_time("unit") or 0
    assert fences.paused_keys("unit") == frozenset()
    with fences.around("unit", "a"):
        pass
    assert fences.faults() == []


def test_units_and_kinds_are_independent() -> None:
    fences = Fences(Ticking())
    fail(fences, ValueError("no"), "a", "one")
    fail(fences, ValueError("no"), "b", "other")
    assert (fences.paused_keys("one"), fences.paused_keys("other")) == ({"a"}, {"b"})
    fences.forget("one", "a")
    assert [fault.key for fault in fences.faults()] == ["b"]


@pytest.mark.parametrize(
    "error", [StorageFull("no"), ExceptionGroup("", [ValueError("x"), StorageUnusable("no")])]
)
def test_errors_of_the_store_pass_through(error: Exception) -> None:
    fences = Fences(Ticking())
    with pytest.raises(type(error)):
        fail(fences, error)
    assert fences.faults() == []


async def test_cancellation_passes_through(autojump_clock: object) -> None:
    fences = Fences(Ticking())
    with trio.move_on_after(1) as scope, fences.around("unit", "a"):
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert fences.faults() == []


async def test_loop_restarts_after_each_error_and_the_error_expires(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = Ticking()
    fences = Fences(clock)
    began = []

    async def loop() -> None:
        began.append(trio.current_time())
        if len(began) < 2 * ATTEMPTS:
            raise ExceptionGroup("", [ValueError("no")])
        await trio.sleep_forever()

    with trio.move_on_after(3600):
        await fences.keep_running("loop", loop)
    assert len(began) == 2 * ATTEMPTS
    (fault,) = fences.faults()
    clock.time = fault.until + 61 * SECOND
    assert fences.faults() == []


def test_descriptor_shortage_is_one_warning_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fail(Fences(Ticking()), OSError(errno.EMFILE, "Too many open files"))
    [record] = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert "Too many open files" in record.getMessage()
