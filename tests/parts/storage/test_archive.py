"""Snapshot archives: complete, or refused."""

import tarfile
from pathlib import Path

import pytest

from storage.errors import StorageUnusable
from storage.queries import jobs
from storage.snapshot import SnapshotSummary, inspect, save
from storage.snapshot_archive import pack, unpacked
from storage.store import Store
from tests.samples import job


@pytest.fixture
async def archive(store: Store, tmp_path: Path) -> Path:
    await store.write(lambda tx: jobs.append_version(tx, job("a")))
    summary = save(tmp_path, tmp_path / "plain")
    with (tmp_path / "packed").open("wb") as target:
        pack(tmp_path / "plain", summary, target)
    return tmp_path / "packed"


def summary_of(file: Path) -> SnapshotSummary:
    with unpacked(file) as snapshot:
        return inspect(snapshot)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:2000])


async def test_archive_has_the_summary_of_its_files(archive: Path) -> None:
    assert summary_of(archive) == inspect(archive.parent / "plain")


async def test_a_plain_snapshot_is_taken_as_it_is(archive: Path) -> None:
    assert summary_of(archive.parent / "plain").jobs == 1


async def test_nothing_is_left_behind(archive: Path) -> None:
    before = sorted(archive.parent.iterdir())
    summary_of(archive)
    assert sorted(archive.parent.iterdir()) == before


async def test_the_parts_come_in_the_order_in_which_clients_check_them(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        assert opened.getnames() == ["meta.json", "state.bin", "SHA256SUMS"]


async def test_half_an_archive_is_refused(archive: Path) -> None:
    cut(archive)
    with pytest.raises(StorageUnusable, match="damaged"):
        summary_of(archive)


async def test_a_snapshot_that_is_not_the_one_of_the_sums_is_refused(archive: Path) -> None:
    other = archive.parent / "other"
    with tarfile.open(other, "w:gz") as made:
        made.add(archive.parent / "plain", "state.bin")
    with pytest.raises(StorageUnusable, match="sums"):
        summary_of(other)
