"""The whole store changes its owner, and nothing outside does, despite hostile entries."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.process.service_account import ServiceAccount
from daemon.process.store_ownership import change_owner
from storage.errors import StorageUnusable
from tests.parts.runner.conftest import needs_root

pytestmark = needs_root
THEM = ServiceAccount("them", 65533, 65532)
ROOT = ServiceAccount("root", 0, 0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    (made / "snapshots").mkdir(parents=True)
    for name in ("steward.db", "steward.lock", "snapshots/one.snap"):
        (made / name).write_text(name)
    made.chmod(0o700)
    return made


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "victim"
    file.write_text("root's")
    return file


def owners(store: Path) -> set[tuple[int, int]]:
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in (store, *store.rglob("*"))}


def test_ownership_of_all_files_changes_in_both_directions(store: Path) -> None:
    assert change_owner(store, THEM)
    assert owners(store) == {THEM[1:3]}
    assert not change_owner(store, THEM)
    assert change_owner(store, ROOT)
    assert owners(store) == {(0, 0)}
    assert (store.stat().st_mode & 0o7777) == 0o700


def test_interrupted_change_of_owner_continues(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.fchown, [3]

    def fchown(file: int, uid: int, gid: int) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(file, uid, gid)

    monkeypatch.setattr(os, "fchown", fchown)
    with pytest.raises(KeyboardInterrupt):
        change_owner(store, THEM)
    assert store.stat().st_uid == 0  # only root can enter it until all files have the new owner
    monkeypatch.setattr(os, "fchown", real)
    assert change_owner(store, THEM)
    assert owners(store) == {THEM[1:3]}


def link(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def name(place: Path, victim: Path) -> None:
    place.hardlink_to(victim)


def pipe(place: Path, victim: Path) -> None:
    os.mkfifo(place)


def folder(place: Path, victim: Path) -> None:
    place.symlink_to(victim.parent)


@pytest.mark.parametrize("plant", [link, name, pipe, folder])
@pytest.mark.parametrize("where", ["evil", "snapshots/evil"])
def test_file_planted_by_the_owner_aborts_the_change(
    store: Path, victim: Path, plant: Callable[[Path, Path], None], where: str
) -> None:
    change_owner(store, THEM)
    plant(store / where, victim)
    with pytest.raises(StorageUnusable, match="evil cannot be given"):
        change_owner(store, ROOT)
    assert victim.stat().st_uid == 0
    with pytest.raises(StorageUnusable, match="evil cannot be given"):
        change_owner(store, THEM)
    assert (victim.stat().st_uid, victim.stat().st_gid) == (0, 0)


def test_hard_links_within_the_directory_are_accepted(store: Path) -> None:
    (store / "steward.db.before-restore").hardlink_to(store / "steward.db")
    change_owner(store, THEM)
    assert owners(store) == {THEM[1:3]}
