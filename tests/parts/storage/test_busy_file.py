"""Another program that holds the write lock delays only writes."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.web import reply, vault_envelope
from storage import writer
from storage.errors import StorageBusy, StorageUnavailable
from storage.store import Store, tolerate_disk_full
from tests.parts.storage.test_writer import add, names

TOO_SHORT = 20  # milliseconds


@contextmanager
def held_lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the write lock as a backup tool does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as outside:
        outside.execute("BEGIN IMMEDIATE")
        yield outside


async def test_reads_continue_while_a_write_waits_for_the_lock(store: Store) -> None:
    done = trio.Event()

    async def write() -> None:
        await store.write(add("late"))
        done.set()

    async with trio.open_nursery() as nursery:
        with held_lock(store.path) as outside:
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(100):
                assert names(store) == {"default"}
                await trio.lowlevel.checkpoint()
            assert not done.is_set()
            outside.execute("ROLLBACK")
            await done.wait()
    assert names(store) == {"default", "late"}


async def test_write_is_refused_after_its_timeout_and_the_next_one_succeeds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_WAIT", TOO_SHORT)
    with held_lock(store.path), pytest.raises(StorageBusy, match="holds the write lock"):
        await store.write(add("lost"))
    await store.write(add("kept"))
    assert names(store) == {"default", "kept"}


async def test_queued_writes_are_refused_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the last of a long queue waits for the lock once for each batch before it."""
    monkeypatch.setattr(writer, "BUSY_WAIT", TOO_SHORT)
    waits = 0
    begin = writer.Writer._begin_when_unlocked

    def counted(self: writer.Writer) -> None:
        nonlocal waits
        waits += 1
        begin(self)

    monkeypatch.setattr(writer.Writer, "_begin_when_unlocked", counted)
    refused = 0

    async def write(number: int) -> None:
        nonlocal refused
        try:
            await store.write(add(str(number)))
        except StorageBusy:
            refused += 1

    with held_lock(store.path):
        async with trio.open_nursery() as nursery:
            for number in range(5 * writer.MAX_BATCH):
                nursery.start_soon(write, number)
    assert refused == 5 * writer.MAX_BATCH
    assert waits <= 2  # the first batch may begin before the others arrive


async def test_internal_work_waits_for_the_lock(
    caplog: pytest.LogCaptureFixture, autojump_clock: object
) -> None:
    async with tolerate_disk_full("launches wait"):
        raise StorageBusy("another program holds the write lock")
    assert caplog.messages == ["launches wait: another program holds the write lock"]


@pytest.mark.parametrize("kind", [StorageBusy, *StorageUnavailable.__subclasses__()])
def test_both_apis_return_the_time_of_the_next_attempt(kind: type[StorageUnavailable]) -> None:
    answers = reply.of_error(kind("no")), vault_envelope.of_error(kind("no"), is_login=False)
    for answer in answers:
        assert answer.status in (503, 507)
        assert answer.headers["Retry-After"] == "1"
