"""The layout of the data directory: creation, migration despite interruptions, and rollback."""

import os
import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config.data_directory import (
    alloc_dir,
    find_store,
    logs_dir,
    output_dir,
    store_dir,
    tasks_dir,
    uids_dir,
)
from daemon.process import data_dir_migration
from daemon.process.data_dir_migration import prepare
from storage.errors import StorageLocked, StorageUnusable
from storage.store import FILE_NAME, LOCK_NAME, lock
from tests.parts.runner.conftest import needs_root

GUIDE = Path(__file__).parents[2] / "docs/service.md"
OF_STORE = (
    *(FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", f"{FILE_NAME}.version-0011"),
    *("steward.index", "bootstrap-token", "root.key", "snapshots/one.snap"),
)
OF_TASKS = ("alloc/one/main/local/f", "logs/two/alloc/logs/main.stdout.0", "uids/one")
OTHERS = ("steward.sock", "tasks.sock", "steward.toml", "notes.txt")


class Killed(BaseException):
    """An exception that replaces the end of the process."""


def older(place: Path) -> Path:
    """Return a data directory as an older version has left it."""
    place.mkdir(mode=0o700)
    for name in (*OF_STORE, *OF_TASKS, *OTHERS, LOCK_NAME):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    return place


def tree(place: Path) -> dict[str, str]:
    """Return a directory's contents: files by content, links by target, directories by mode."""
    return {str(path.relative_to(place)): _told(path) for path in place.rglob("*")}


def _told(path: Path) -> str:
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    return path.read_text() if path.is_file() else f"{path.stat().st_mode:o}"


def back(place: Path) -> None:
    """Roll a data directory back to an older version, as the guide describes."""
    [block] = re.findall(
        r"((?:^    .*\n)*^    rmdir .*\n(?:^    .*\n)*)", GUIDE.read_text(), re.MULTILINE
    )
    is_root = os.geteuid() == 0  # only root can change the owner back
    lines = [
        line
        for line in block.splitlines()
        if "systemctl" not in line and (is_root or "chown" not in line)
    ]
    text = "\n".join(lines).replace("/var/lib/steward", str(place))
    subprocess.run(["sh", "-ec", text], check=True)


def killed(place: Path, last: int, *, can_exchange: bool = True) -> None:
    """Prepare a data directory in a simulated daemon that ends after `last` effects."""
    with pytest.MonkeyPatch.context() as patch:
        if not can_exchange:
            without_exchange(patch)
        effects(patch, last)
        with pytest.raises(Killed):
            prepare(place)


def effects(monkeypatch: pytest.MonkeyPatch, last: int) -> Callable[[], int]:
    """Let this many effects happen, then end the process; return a function that counts them."""
    count = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def act(*given: object, **named: object) -> object:
            nonlocal count
            if count == last:
                raise Killed
            count += 1
            return real(*given, **named)

        return act

    for name in ("mkdir", "rename", "rmdir", "symlink", "unlink"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    monkeypatch.setattr(data_dir_migration, "_exchange", counted(data_dir_migration._exchange))
    return lambda: count


def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(data_dir_migration, "_exchange", fail)


def test_new_directory_has_the_current_layout(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    prepare(tmp_path)
    is_root = os.geteuid() == 0
    assert tree(tmp_path) == {
        "store": "40700",
        "store/output": "40700",
        "tasks": "40711" if is_root else "40700",
        "tasks/alloc": "40711",
        LOCK_NAME: "40700",
    }
    assert stat.S_IMODE(tmp_path.stat().st_mode) == (0o711 if is_root else 0o700)
    prepare(tmp_path)
    assert find_store(tmp_path) == store_dir(tmp_path)


def test_older_directory_is_moved_without_entries_of_other_users(tmp_path: Path) -> None:
    place = older(tmp_path / "data")
    prepare(place)
    assert {name: (store_dir(place) / name).read_text() for name in OF_STORE} == dict(
        zip(OF_STORE, OF_STORE, strict=True)
    )
    assert {name: (tasks_dir(place) / name).read_text() for name in OF_TASKS} == dict(
        zip(OF_TASKS, OF_TASKS, strict=True)
    )
    assert sorted(os.listdir(place)) == sorted((*OTHERS, "alloc", LOCK_NAME, "store", "tasks"))
    assert (place / OF_TASKS[0]).read_text() == OF_TASKS[0]  # by the path in running tasks
    assert alloc_dir(place).is_dir()
    assert logs_dir(place).is_dir()
    assert uids_dir(place).is_dir()
    before = tree(place)
    prepare(place)
    assert tree(place) == before


@pytest.mark.parametrize("can_exchange", [True, False])
def test_interrupted_move_continues_after_a_kill_at_any_step(
    tmp_path: Path, can_exchange: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not can_exchange:
            without_exchange(patch)
        whole = older(tmp_path / "whole")
        number = effects(patch, -1)
        prepare(whole)
        wanted = tree(whole)
    assert number() > 12
    for last in range(number()):
        place = older(tmp_path / str(last))
        killed(place, last, can_exchange=can_exchange)
        if can_exchange:
            assert (place / OF_TASKS[0]).read_text() == OF_TASKS[0]
        prepare(place)
        assert tree(place) == wanted, last


def test_output_stored_by_older_versions_is_found(tmp_path: Path) -> None:
    home, kept = tmp_path / "alloc/one", tmp_path / "logs/two"
    for place in (home, kept):
        (place / ".logs").mkdir(parents=True)
        (place / ".logs/main.stdout.0").write_text("moved")
    (home / ".podman.main.0").write_text("printed")
    (home / ".claim.main.0").write_text("claim")
    (tmp_path / "alloc/file").touch()
    (tmp_path / "alloc/link").symlink_to("/etc")
    for _ in range(2):
        prepare(tmp_path)
        found = {
            str(path.relative_to(output_dir(tmp_path))) for path in files_in(output_dir(tmp_path))
        }
        assert found == {"one/main.stdout.0", "one/podman.main.0", "two/main.stdout.0"}
    assert (alloc_dir(tmp_path) / "one/.claim.main.0").exists()


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_interrupted_move_is_reported_by_commands_that_open_the_store(tmp_path: Path) -> None:
    place = older(tmp_path / "data")
    assert find_store(place) == place
    killed(place, 5)
    with pytest.raises(StorageUnusable, match="start the daemon once"):
        find_store(place)
    prepare(place)
    assert find_store(place) == store_dir(place)


def test_older_version_no_longer_starts(tmp_path: Path) -> None:
    place = older(tmp_path / "data")
    prepare(place)
    with pytest.raises(StorageUnusable, match=LOCK_NAME), lock(place):
        pass


def test_no_file_is_moved_under_a_running_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.store._LOCK_TRIES", 1)
    place = older(tmp_path / "data")
    with lock(place):
        before = tree(place)
        with pytest.raises(StorageLocked):
            prepare(place)
    assert tree(place) == before


def test_two_stores_are_refused_with_both_names(tmp_path: Path) -> None:
    place = older(tmp_path / "data")
    prepare(place)
    (place / FILE_NAME).write_text("of an older version")
    with pytest.raises(StorageUnusable, match=f"{place}/store/steward.db and {place}/steward.db"):
        prepare(place)


def test_files_named_in_the_settings_stay(tmp_path: Path) -> None:
    place = older(tmp_path / "data")
    prepare(place, (place / "root.key", place / "snapshots"))
    assert (place / "root.key").exists()
    assert (place / "snapshots").is_dir()
    assert not (store_dir(place) / "root.key").exists()


def test_link_instead_of_allocations_is_refused_before_any_move(
    tmp_path: Path,
) -> None:
    place = older(tmp_path / "data")
    (place / "alloc").rename(tmp_path / "big")
    (place / "alloc").symlink_to(tmp_path / "big")
    before = tree(place)
    with pytest.raises(
        StorageUnusable, match=f"alloc is a link: remove it, and create one at {place}/tasks/alloc"
    ):
        prepare(place)
    assert tree(place) == before


def test_a_revert_restores_the_earlier_version(tmp_path: Path) -> None:
    place = older(tmp_path / "data")
    before = {name: text for name, text in tree(place).items() if not text.startswith("4")}
    prepare(place)
    back(place)
    after = {name: text for name, text in tree(place).items() if not text.startswith("4")}
    # The link remains for tasks that the newer version has started.
    assert after.pop("tasks/alloc") == "-> ../alloc"
    # The lock file contains the process ID of the last daemon.
    assert {**after, LOCK_NAME: LOCK_NAME} == before
    with lock(place):
        pass
    prepare(place)
    assert (place / OF_TASKS[0]).read_text() == OF_TASKS[0]
    assert alloc_dir(place).is_dir()
    assert not alloc_dir(place).is_symlink()


@needs_root
def test_other_users_can_traverse_but_not_read(tmp_path: Path) -> None:
    place = older(tmp_path / "data")
    prepare(place)
    modes = {item: (place / item).stat().st_mode & 0o777 for item in ("store", "tasks", LOCK_NAME)}
    assert modes == {"store": 0o700, "tasks": 0o711, LOCK_NAME: 0o700}
