"""Snapshots: valid copies of the whole file, and their restore."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from storage import schema
from storage.check import check
from storage.errors import Refused, StorageLocked, StorageUnusable
from storage.queries import job_listings, job_status, jobs
from storage.queries.pages import PageRequest
from storage.snapshot import inspect, restore, save
from storage.store import FILE_NAME, Store, open_store
from storage.writer import Transaction
from tests.samples import NOW, job


async def test_snapshot_of_a_running_store_contains_all_writes(
    store: Store, tmp_path: Path
) -> None:
    await store.write(lambda tx: jobs.append_version(tx, job("a")))
    summary = save(tmp_path, tmp_path / "copy")
    assert (summary.jobs, summary.cluster_id) == (1, "cluster")
    assert inspect(tmp_path / "copy") == summary


async def test_an_existing_file_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.write_text("precious")
    with pytest.raises(Refused, match="already exists"):
        save(tmp_path, target)
    assert target.read_text() == "precious"


async def test_restored_store_is_unchanged(tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    home.mkdir()
    async with open_store(home, cluster_id="c", now=NOW) as store:

        def keep(tx: Transaction) -> None:
            jobs.append_version(tx, job("kept"))
            job_status.refresh_summary(tx, "default", "kept")

        await store.write(keep)
        save(home, copy)
        await store.write(lambda tx: jobs.append_version(tx, job("later")))
    restore(copy, home)
    async with open_store(home, cluster_id="other", now=NOW) as store:
        found = store.read(
            lambda db: list(job_listings.listing_rows(db, PageRequest(namespace="default")))
        )
    assert [job_id for _, job_id, _ in found] == ["kept"]
    assert (home / f"{FILE_NAME}.before-restore").exists()


async def test_restore_under_a_running_daemon_is_refused(store: Store, tmp_path: Path) -> None:
    save(tmp_path, tmp_path / "copy")
    with pytest.raises(StorageLocked):
        restore(tmp_path / "copy", tmp_path)


async def test_a_damaged_snapshot_is_refused(store: Store, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    save(tmp_path, copy)
    damaged = bytearray(copy.read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 4096] = b"\xff" * 4096
    copy.write_bytes(damaged)
    with pytest.raises(StorageUnusable):
        inspect(copy)


def test_invalid_snapshot_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageUnusable, match="there is no file"):
        inspect(tmp_path / "nothing")


async def test_names_of_snapshots_and_directories_are_not_escapes(tmp_path: Path) -> None:
    home = tmp_path / "50%41?mode=rw#1"
    home.mkdir()
    async with open_store(home, cluster_id="c", now=NOW) as store:
        await store.write(lambda tx: jobs.append_version(tx, job("a")))
        copy = tmp_path / "%41 ?.snap"
        summary = save(home, copy)
    assert inspect(copy) == summary
    assert restore(copy, tmp_path / "%42#").jobs == 1


CHANGES = {
    "CREATE TRIGGER evil AFTER UPDATE ON store BEGIN DELETE FROM tokens; END": "evil",
    "CREATE VIEW evil AS SELECT * FROM tokens": "evil",
    "CREATE TABLE evil (x)": "evil",
    "DROP TABLE audit": "audit",
}


def changed(directory: Path, statement: str) -> Path:
    """Return a snapshot of a new store after a change that Steward itself never makes."""
    home = directory / "changed"
    home.mkdir()
    schema.prepare(home / FILE_NAME, cluster_id="c", now=NOW)
    with closing(sqlite3.connect(home / FILE_NAME, isolation_level=None)) as connection:
        connection.execute(statement)
        connection.execute("PRAGMA journal_mode = DELETE")
    return home / FILE_NAME


@pytest.mark.parametrize(("statement", "name"), CHANGES.items())
def test_snapshot_with_another_schema_is_refused(statement: str, name: str, tmp_path: Path) -> None:
    file = changed(tmp_path, statement)
    for act in (inspect, lambda file: restore(file, tmp_path / "home")):
        with pytest.raises(
            StorageUnusable, match=f"the schema of .* differs from version .*: {name}"
        ):
            act(file)
    assert not (tmp_path / "home" / FILE_NAME).exists()
    assert check(file.parent)[0].endswith(f": {name}")


def test_snapshot_without_its_first_row_is_refused(tmp_path: Path) -> None:
    file = changed(tmp_path, "DELETE FROM store")
    with pytest.raises(StorageUnusable, match="table store is empty"):
        inspect(file)
