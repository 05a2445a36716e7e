"""The garbage collector runs when few objects are alive, and a thread frees large objects."""

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
import trio
import trio.testing

from storage import garbage
from storage.errors import Malformed


class Thing:
    freed_by: threading.Thread | None = None

    def __del__(self) -> None:
        Thing.freed_by = threading.current_thread()


@pytest.fixture(autouse=True)
def left_as_it_was() -> Iterator[None]:
    yield
    garbage.resume(2**62)
    assert gc.isenabled()


async def test_collection_runs_again_after_objects_are_freed() -> None:
    gc.collect()
    made = await garbage.in_thread(lambda: [[n] for n in range(10 * garbage.FEW)])
    assert not gc.isenabled()
    assert not garbage.resume()
    made.clear()
    assert garbage.resume()
    assert gc.isenabled()


class Body:
    """An object that a weak reference can refer to, in contrast to a string."""


async def test_error_of_a_thread_frees_the_data_of_its_frames() -> None:
    bodies = []

    def refuse() -> None:
        body = Body()
        bodies.append(weakref.ref(body))
        raise Malformed(f"{type(body)} is invalid")

    with garbage.paused():
        with suppress(Malformed):  # the test needs only the error's end
            await garbage.in_thread(refuse)
        with suppress(Malformed):  # see above
            await garbage.without_cycles(refuse)
        assert [body() for body in bodies] == [None, None]


async def test_collector_finishes_with_many_surviving_objects(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = await garbage.in_thread(lambda: [[n] for n in range(10 * garbage.FEW)])
    with trio.move_on_after(60):
        await garbage.run_collector()
    assert gc.isenabled()
    assert len(made) == 10 * garbage.FEW


def test_young_garbage_is_collected_only_without_busy_threads() -> None:
    gc.collect()
    with garbage.paused():
        assert not garbage.collect_newest()
        made = [[n] for n in range(2 * garbage.FEW)]
    assert not garbage.collect_newest()
    made.clear()
    assert garbage.collect_newest()


class Ring:
    """An object that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_no_collection_scans_many_living_objects() -> None:
    scanned = list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            scanned.append(len(gc.get_objects()))

    with garbage.short_pauses():
        gc.callbacks.append(note)
        living = [[n] for n in range(50 * garbage.FEW)]
        gc.callbacks.remove(note)
    assert len(living) == 50 * garbage.FEW
    assert len(scanned) > 40
    assert max(scanned) < 4 * garbage.FEW


@pytest.mark.parametrize(
    ("setting", "limit", "is_busy"),
    [("_FEW_FROZEN", 12, False), ("_MANY_FROZEN", 1, False), ("_MANY_FROZEN", 1, True)],
)
async def test_frozen_garbage_is_collected(
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    limit: float,
    is_busy: bool,
) -> None:
    monkeypatch.setattr(garbage, setting, 900)
    monkeypatch.setattr(garbage, "_IDLE", 2**31)  # other programs may slow this thread down
    with garbage.short_pauses(), ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(garbage.run_collector)
            await trio.testing.wait_all_tasks_blocked()
            rings = [Ring() for _ in range(2000)]
            seen = weakref.ref(rings[0])
            gc.collect(1)  # freezes them
            rings.clear()
            if is_busy:
                stack.enter_context(garbage.paused())
            assert seen() is not None
            await trio.sleep(limit)
            assert seen() is None
            nursery.cancel_scope.cancel()


async def test_many_young_objects_are_frozen_when_many_blocks_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "_MOST", 3)
    gc.collect()
    with garbage.short_pauses():
        with garbage.paused():
            living = [[n] for n in range(2 * garbage.FEW)]
            for _ in range(3):
                with garbage.paused():
                    pass
            assert gc.get_count()[0] < garbage.FEW
        assert len(living) == 2 * garbage.FEW


async def test_thread_frees_an_object_without_other_references(nursery: trio.Nursery) -> None:
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(garbage.run_collector)
    await trio.testing.wait_all_tasks_blocked()
    thing = Thing()
    garbage.free_in_thread(thing)
    garbage._let_go()
    assert Thing.freed_by is None  # a reference still exists
    del thing
    await trio.to_thread.run_sync(garbage._let_go)
    assert Thing.freed_by is not None
    assert Thing.freed_by is not threading.current_thread()
    assert not garbage._kept


async def test_no_object_is_kept_without_a_freeing_thread() -> None:
    garbage.free_in_thread(Thing())
    assert not garbage._kept
