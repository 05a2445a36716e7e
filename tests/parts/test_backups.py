"""Automatic snapshots: their times, their directory, and the number of retained ones."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from daemon.admin.operator import operator
from daemon.config.data_directory import store_dir
from daemon.config.settings import Settings
from daemon.process import backups
from daemon.process.backups import (
    _names,
    expired_snapshots,
    open_backups,
    save_snapshot,
    snapshot_name,
    snapshot_time,
    wait,
)
from storage.errors import StorageUnusable
from storage.records.base import HOUR, SECOND
from storage.snapshot import inspect
from storage.store import Store, open_store
from tests.samples import NOW
from tests.time_limits import HAPPENS_WITHIN

DAY = 24 * HOUR


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Path]:
    """A data directory with a store."""
    store_dir(tmp_path).mkdir()
    async with open_store(store_dir(tmp_path), cluster_id="cluster", now=NOW):
        yield tmp_path


class Clock:
    def now(self) -> int:
        return NOW


def test_backup_name_contains_its_time() -> None:
    assert snapshot_name(NOW) == "steward-20261121T014000Z.snap"
    assert snapshot_time(snapshot_name(NOW + 5)) == NOW
    assert snapshot_time("precious.snap") is None


def test_first_backup_is_made_immediately() -> None:
    assert wait(["precious.snap"], interval=DAY, now=NOW) == 0


def test_next_backup_is_made_on_time() -> None:
    names = [snapshot_name(NOW - DAY), snapshot_name(NOW - 2 * DAY)]
    assert wait(names, interval=DAY, now=NOW) == 0
    assert wait(names, interval=DAY, now=NOW - 60 * SECOND) == 60 * SECOND
    assert (
        wait(names, interval=DAY, now=NOW - DAY) == HOUR
    )  # checks again, because clocks can be set


def test_backup_with_a_future_time_causes_no_delay() -> None:
    assert wait([snapshot_name(NOW + DAY)], interval=DAY, now=NOW) == 0


def test_oldest_backups_are_deleted_and_other_files_are_kept() -> None:
    names = [snapshot_name(NOW + day * DAY) for day in (2, 0, 1)]
    assert expired_snapshots([*names, "precious.snap"], keep=2, latest=names[0]) == [
        snapshot_name(NOW)
    ]
    assert expired_snapshots(names, keep=3, latest=names[0]) == []


async def test_complete_backup_deletes_older_backups(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "snapshots"
    target.mkdir()
    made = [save_snapshot(tmp_path, target, keep=2, now=NOW + day * DAY) for day in range(3)]
    assert sorted(target.glob("*.snap")) == made[1:]
    assert inspect(made[-1]).cluster_id == "cluster"
    assert not list((target / ".unfinished").iterdir())


async def test_failed_snapshot_deletes_no_older_one(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "snapshots"
    target.mkdir()
    kept = save_snapshot(tmp_path, target, keep=1, now=NOW)
    with pytest.raises(StorageUnusable):
        save_snapshot(tmp_path / "elsewhere", target, keep=1, now=NOW + DAY)
    assert list(target.glob("*.snap")) == [kept]


async def test_backups_are_made_while_the_daemon_runs(kept: Path, tmp_path: Path) -> None:
    config = Settings(data_dir=kept, snapshot_hours=24, snapshot_dir=tmp_path / "far")
    async with open_backups(config, Clock()):
        with trio.fail_after(HAPPENS_WITHIN):
            while not (tmp_path / "far" / snapshot_name(NOW)).exists():  # noqa: ASYNC110  # files tell nobody
                await trio.sleep(0.01)


async def test_backup_made_after_the_clock_was_set_back_is_kept(
    store: Store, tmp_path: Path
) -> None:
    target = tmp_path / "snapshots"
    target.mkdir()
    for day in range(2):
        save_snapshot(tmp_path, target, keep=2, now=NOW + day * DAY)
    latest = save_snapshot(tmp_path, target, keep=2, now=NOW - DAY)
    assert sorted(target.glob("*.snap")) == [latest, target / snapshot_name(NOW + DAY)]
    assert wait(_names(target), interval=DAY, now=NOW - DAY) == HOUR


async def test_unreadable_backup_draft_is_deleted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(file: Path) -> None:
        raise StorageUnusable(f"{file} is damaged")

    monkeypatch.setattr(backups, "inspect", damaged)
    target = tmp_path / "snapshots"
    target.mkdir()
    with pytest.raises(StorageUnusable):
        save_snapshot(tmp_path, target, keep=1, now=NOW)
    assert not list((target / ".unfinished").iterdir())


async def test_temporarily_unavailable_directory_does_not_stop_backups(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backups, "_AFTER_A_FAILURE", 0.01)
    far = tmp_path / "far"
    far.touch()
    config = Settings(data_dir=kept, snapshot_hours=24, snapshot_dir=far)
    async with open_backups(config, Clock()):
        with trio.fail_after(HAPPENS_WITHIN):
            while "cannot save a snapshot" not in caplog.text:  # noqa: ASYNC110  # no event reports it
                await trio.sleep(0.01)
            far.unlink()
            while not (far / snapshot_name(NOW)).exists():  # noqa: ASYNC110  # no event reports it
                await trio.sleep(0.01)


async def test_no_backup_is_made_without_a_setting(tmp_path: Path) -> None:
    async with open_backups(Settings(data_dir=tmp_path), Clock()):
        pass
    assert _names(tmp_path) == []


def test_restore_drill_without_space_is_reported(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "x.snap"
    done = CliRunner().invoke(operator, ["snapshot", "drill", str(missing)])
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    assert "No such file or directory" in done.output
