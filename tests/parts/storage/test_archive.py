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


async def test_plain_snapshot_is_accepted(archive: Path) -> None:
    assert summary_of(archive.parent / "plain").jobs == 1


async def test_archive_leaves_no_temporary_files(archive: Path) -> None:
    before = sorted(archive.parent.iterdir())
    summary_of(archive)
    assert sorted(archive.parent.iterdir()) == before


async def test_archive_members_have_the_order_expected_by_clients(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        assert opened.getnames() == ["meta.json", "state.bin", "SHA256SUMS"]


async def test_incomplete_archive_is_refused(archive: Path) -> None:
    cut(archive)
    with pytest.raises(StorageUnusable, match="damaged"):
        summary_of(archive)


async def test_snapshot_with_a_wrong_checksum_is_refused(archive: Path) -> None:
    other = archive.parent / "other"
    with tarfile.open(other, "w:gz") as made:
        made.add(archive.parent / "plain", "state.bin")
    with pytest.raises(StorageUnusable, match="sums"):
        summary_of(other)
