"""Writes: grouped, in order, independent, and acknowledged only when they are on disk."""

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import outcome
import pytest
import trio

from storage import request_context
from storage.errors import StorageFull
from storage.store import Store, open_store, write_hook
from storage.writer import SHARE, Transaction, storage_error
from tests.samples import NOW
from tests.step_timing import Longest

_ADD = "INSERT INTO namespaces VALUES (:name, '{}', :index, :index)"


def add(name: str) -> Callable[[Transaction], int]:
    def work(tx: Transaction) -> int:
        tx.execute(_ADD, {"name": name, "index": tx.index})
        tx.touch("namespaces", f"namespaces/{name}")
        return tx.index

    return work


def names(store: Store) -> set[str]:
    return {row["name"] for row in store.read(lambda db: db.all("SELECT name FROM namespaces"))}


def fails(tx: Transaction) -> None:
    tx.execute(_ADD, {"name": "lost", "index": tx.index})
    raise ValueError("no")


async def test_each_write_gets_the_next_index(store: Store) -> None:
    first = await store.write(add("a"))
    assert await store.write(add("b")) == first + 1
    assert store.read(lambda db: db.last_index()) == first + 1


async def test_write_without_changes_uses_no_index(store: Store) -> None:
    before = store.read(lambda db: db.last_index())
    await store.write(lambda tx: None)
    assert store.read(lambda db: db.last_index()) == before


async def test_change_number_stays_until_a_change(store: Store) -> None:
    before = store.change_number
    await store.write(lambda tx: None)
    assert store.change_number == before is not None
    await store.write(add("a"))
    assert store.change_number not in (before, None)


async def test_change_number_is_undefined_during_a_change(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is in the database before its author receives the result."""
    seen: list[tuple[int | None, bool]] = []
    run_sync = trio.to_thread.run_sync

    async def commit(*arguments: object) -> object:
        seen.append((store.change_number, "a" in names(store)))
        result = await run_sync(*arguments)
        seen.append((store.change_number, "a" in names(store)))
        return result

    monkeypatch.setattr(trio.to_thread, "run_sync", commit)
    await store.write(add("a"))
    assert seen == [(None, False), (None, True)]
    assert store.change_number is not None


async def test_waiting_writes_share_one_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = []
    run_sync = trio.to_thread.run_sync

    async def counted(function: Callable[..., object], *args: object) -> object:
        commits.append(args)
        return await run_sync(function, *args)

    monkeypatch.setattr(trio.to_thread, "run_sync", counted)
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(store.write, add(f"n{number}"))
    assert len(names(store)) == 21
    # The first write has its own commit. The others wait for it and share one commit.
    assert len(commits) <= 2


@pytest.mark.parametrize(("person", "request_id"), [("ann", ""), ("", "r-1"), ("", "")])
async def test_write_has_the_person_and_the_id_of_its_request(
    store: Store, person: str, request_id: str
) -> None:
    with request_context.person_scope(person), request_context.request_scope(request_id):
        written = await store.write(lambda tx: (tx.person, tx.request_id))
    assert written == (person, request_id)


async def test_note_is_added_only_to_a_write_that_changes_data(store: Store) -> None:
    noted: list[int] = []
    with write_hook(lambda tx: noted.append(tx.index)):
        await store.write(lambda tx: tx.all("SELECT 1"))
        assert noted == []
        index = await store.write(add("a"))
    await store.write(add("b"))
    assert noted == [index]


def test_error_without_a_code_is_reported() -> None:
    error = storage_error(sqlite3.OperationalError("no idea"))
    assert str(error) == "the store cannot be read or written: no idea (unknown)"


async def test_failed_write_does_not_affect_its_batch(store: Store) -> None:
    results: list[outcome.Outcome[int]] = []

    async def keep(work: Callable[[Transaction], int]) -> None:
        results.append(await outcome.acapture(store.write, work))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, add("before"))
        nursery.start_soon(keep, fails)
        nursery.start_soon(keep, add("after"))
    assert names(store) == {"default", "before", "after"}
    failed = [result for result in results if isinstance(result, outcome.Error)]
    assert [type(result.error) for result in failed] == [ValueError]


async def test_constraint_violation_is_raised_only_to_its_caller(store: Store) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        await store.write(add("default"))
    assert await store.write(add("a")) > 0


async def test_a_cancelled_caller_does_not_undo_its_write(store: Store) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.write(add("kept"))
    await store.write(lambda tx: None)
    assert "kept" in names(store)


async def test_write_submitted_before_the_end_is_stored(tmp_path: Path) -> None:
    begun = trio.Event()

    def late(tx: Transaction) -> None:
        begun.set()
        add("late")(tx)

    async with (
        trio.open_nursery() as nursery,
        open_store(tmp_path, cluster_id="c", now=NOW) as store,
    ):
        nursery.start_soon(store.write, late)
        await begun.wait()
    async with open_store(tmp_path, cluster_id="c", now=NOW) as store:
        assert "late" in names(store)


async def test_write_after_the_end_is_an_error(tmp_path: Path) -> None:
    async with open_store(tmp_path, cluster_id="c", now=NOW) as store:
        pass
    with pytest.raises(trio.ClosedResourceError):
        await store.write(add("never"))


async def test_no_waiter_is_woken_before_the_commit(store: Store) -> None:
    seen: list[set[str]] = []

    async def reader(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with store.watch("namespaces/a") as change:
            task_status.started()
            await change.wait()
            seen.append(names(store))

    async with trio.open_nursery() as nursery:
        await nursery.start(reader)
        await store.write(add("a"))
    assert seen == [{"default", "a"}]


async def test_full_disk_is_reported_to_all_affected_callers_and_is_temporary(
    tmp_path: Path,
) -> None:
    async with open_store(tmp_path, cluster_id="c", now=NOW) as store:
        connection = store._writer._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        big = "x" * 100_000
        with pytest.raises(StorageFull, match="full"):
            await store.write(add(big))
        connection.execute("PRAGMA max_page_count = 1000000")
        assert await store.write(add("after")) > 0
        assert names(store) == {"default", "after"}


async def test_full_disk_rolls_back_the_whole_batch(tmp_path: Path) -> None:
    errors: list[type[Exception]] = []

    async def keep(store: Store, name: str) -> None:
        try:
            await store.write(add(name))
        except StorageFull as error:
            errors.append(type(error))

    async with open_store(tmp_path, cluster_id="c", now=NOW) as store:
        connection = store._writer._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep, store, "y" * 100_000)
            nursery.start_soon(keep, store, "small")
        assert names(store) == {"default"} | ({"small"} if len(errors) == 1 else set())
        assert errors


# ---- the share of the event loop ---------------------------------------------------------------------

LONG = 3000  # rows


def add_many(prefix: str, threads: list[threading.Thread]) -> Callable[[Transaction], int]:
    def work(tx: Transaction) -> int:
        threads.append(threading.current_thread())
        for number in range(LONG):
            tx.execute(_ADD, {"name": f"{prefix}{number}", "index": tx.index})
        tx.touch("namespaces", "namespaces/many")
        return tx.index

    return work


async def test_long_write_runs_in_a_thread_and_is_stored_once(store: Store) -> None:
    threads: list[threading.Thread] = []
    before = store.read(lambda db: db.last_index())
    with store.watch("namespaces/many") as watch:
        assert await store.write(add_many("n", threads)) == before + 1
        assert watch.has_changed
    assert [thread is threading.current_thread() for thread in threads] == [True, False]
    assert len(names(store)) == LONG + 1
    assert store.read(lambda db: db.table_index("namespaces")) == before + 1


@pytest.mark.parametrize(
    "step",
    [
        lambda tx: tx.one("SELECT 1"),
        lambda tx: tx.all("SELECT 1"),
        lambda tx: [*tx.each("SELECT 1")],
        lambda tx: tx.execute("UPDATE store SET created_at = 1", {}),
    ],
)
async def test_write_that_used_its_time_in_python_runs_again_in_a_thread(
    store: Store, step: Callable[[Transaction], object]
) -> None:
    threads: list[threading.Thread] = []

    def work(tx: Transaction) -> None:
        threads.append(threading.current_thread())
        until = time.thread_time_ns() + SHARE + 100_000
        while time.thread_time_ns() < until:
            pass
        step(tx)

    await store.write(work)
    assert [thread is threading.current_thread() for thread in threads] == [True, False]


async def test_failed_long_write_is_rolled_back_alone(store: Store) -> None:
    def work(tx: Transaction) -> None:
        add_many("lost", [])(tx)
        raise ValueError("no")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.write, add("first"))
        nursery.start_soon(store.write, add("before"))
        with pytest.raises(ValueError, match="no"):
            await store.write(work)
    assert names(store) == {"default", "first", "before"}


async def test_interrupted_change_of_many_rows_does_not_affect_other_writes(
    store: Store,
) -> None:
    """SQLite undoes the whole transaction when it interrupts a change of rows."""
    ran: list[str] = []

    def change_all(tx: Transaction) -> int:
        ran.append("all")
        many = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 100000)"
        values = {"index": tx.index}
        insert = "INSERT INTO namespaces SELECT 'n' || n, '{}', :index, :index FROM n"
        return tx.execute(f"{many} {insert}", values)

    async with trio.open_nursery() as nursery:
        for item in (add("a"), add("b"), change_all, add("c")):
            nursery.start_soon(store.write, item)
    assert len(names(store)) == 100_004
    assert ran == ["all", "all"]


async def test_event_loop_runs_between_the_writes_of_a_commit(store: Store) -> None:
    """Sixty writes of 1 ms are not one step of 60 ms."""

    def busy(tx: Transaction) -> None:
        until = time.thread_time_ns() + 1_000_000
        while time.thread_time_ns() < until:
            pass
        tx.touch("namespaces")

    longest = Longest()
    async with trio.open_nursery() as nursery:
        trio.lowlevel.add_instrument(longest)
        for _ in range(60):
            nursery.start_soon(store.write, busy)
    trio.lowlevel.remove_instrument(longest)
    assert longest.longest < 10_000_000


async def test_write_that_ignores_its_time_limit_is_restarted(store: Store) -> None:
    def work(tx: Transaction) -> str:
        try:
            add_many("n", [])(tx)
        except Exception:  # any error
            return "swallowed"
        return "done"

    assert await store.write(work) == "done"
    assert len(names(store)) == LONG + 1
