"""The garbage collector runs when few objects are alive, and a thread frees large objects."""

import gc
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from storage import garbage


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
