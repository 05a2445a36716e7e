"""Corrupt pages: reads of such a page fail, writes stop, and other pages stay readable."""

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trio

from daemon.api.cluster import agent
from daemon.clock import SystemClock
from daemon.config.settings import Settings
from daemon.fences import Fences
from storage import damage
from storage import store as stores
from storage.errors import StorageDamaged, StorageUnusable
from storage.read_pool import ReadSnapshot
from storage.store import FILE_NAME, Store, open_store, tolerate_disk_full
from tests.parts.storage.test_faults import LOG, crashed
from tests.parts.storage.test_writer import add, names

PAGE = 4096


def opened(directory: Path) -> object:
    return open_store(directory, cluster_id="c", now=0)


async def filled(directory: Path) -> None:
    """Make a store whose table of namespaces has many pages."""
    async with opened(directory) as store:
        for number in range(300):
            await store.write(add(f"{number:03}-{'x' * 100}"))


def pages_of(directory: Path, name: str) -> list[int]:
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        found = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno"
        try:
            return [row[0] for row in connection.execute(found, (name,))]
        except sqlite3.OperationalError:
            pytest.skip("this SQLite has no dbstat")


def spoil(directory: Path, page: int) -> None:
    with (directory / FILE_NAME).open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(b"\xff" * 100)


@pytest.fixture
async def spoiled(tmp_path: Path) -> int:
    """Damage a page of the table of namespaces; return the number of the page."""
    await filled(tmp_path)
    page = pages_of(tmp_path, "namespaces")[-1]
    spoil(tmp_path, page)
    return page


async def read(store: Store) -> None:
    names(store)


async def read_long(store: Store) -> None:
    await store.read_long(lambda _: names(store))


async def write(store: Store) -> None:
    await store.write(lambda tx: tx.all("SELECT * FROM namespaces"))


@pytest.mark.parametrize("meet", [read, read_long, write])
async def test_corrupt_page_ends_writes_and_is_named_in_the_log(
    tmp_path: Path, spoiled: int, caplog: pytest.LogCaptureFixture, meet: Callable[[Store], object]
) -> None:
    async with opened(tmp_path) as store:
        assert store.damage == ""
        with pytest.raises(StorageDamaged, match="steward operator snapshot restore"):
            await meet(store)
        with pytest.raises(StorageDamaged, match="no write is accepted"):
            await store.write(lambda tx: tx.touch("jobs"))
        assert store.read(ReadSnapshot.last_index) > 0
        with trio.fail_after(10):
            while len(caplog.records) < 2:
                await trio.lowlevel.checkpoint()
        assert "malformed" in store.damage
    first, *places = [record.getMessage() for record in caplog.records]
    assert "`steward operator check`" in first
    assert any(f"page {spoiled} of table namespaces" in place for place in places)


async def test_damaged_file_without_its_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "at work").mkdir()
    await crashed(tmp_path, *(f"{number:03}-{'x' * 100}" for number in range(100)))
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (tmp_path / LOG).unlink(missing_ok=True)
    spoil(tmp_path, pages_of(tmp_path, "namespaces")[-1])
    with pytest.raises(StorageDamaged, match="steward operator snapshot restore"):
        async with opened(tmp_path):
            pass


async def test_table_is_named_without_a_page_map(
    tmp_path: Path, spoiled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "_CORRUPT_PAGES", "SELECT * FROM no_such_table WHERE :most")
    places = damage.damaged_places(tmp_path / FILE_NAME)
    assert places == ["table namespaces: database disk image is malformed"]


async def test_health_reports_a_damaged_store(tmp_path: Path, spoiled: int) -> None:
    from types import SimpleNamespace

    async with opened(tmp_path) as store:
        query = SimpleNamespace(text=lambda _: "")
        tasks = SimpleNamespace(egress=lambda: (True, ""))
        logs = SimpleNamespace(launcher=SimpleNamespace(unresponsive_message=lambda _: ""))
        clock = SystemClock()
        parts = SimpleNamespace(
            store=store,
            fences=Fences(clock),
            tasks=tasks,
            config=Settings(),
            logs=logs,
            clock=clock,
        )
        request = SimpleNamespace(query=query, parts=parts)
        before = store.read(lambda db: agent.health(request, db))
        with pytest.raises(StorageDamaged):
            names(store)
        after = store.read(lambda db: agent.health(request, db))
    assert (before.status, before.body["server"].ok) == (200, True)
    assert (after.status, after.body["server"].ok, after.body["client"].ok) == (500, False, True)
    assert after.body["server"].message == store.damage


async def test_internal_work_continues_after_a_corrupt_page(
    tmp_path: Path, spoiled: int, autojump_clock: object
) -> None:
    async with opened(tmp_path) as store:
        fences = Fences(SystemClock())
        with fences.around("evaluation", "e"):
            names(store)
        async with tolerate_disk_full("the write"):
            await store.write(add("late"))
    assert [fault.key for fault in fences.faults()] == ["e"]


def test_full_disk_at_a_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    full_disk = pytest.raises(StorageUnusable, match="No space left on device; free some space")
    with full_disk, stores.lock(tmp_path):
        pass
