"""Root's commands on the store of another user: they work, and follow no link of that user."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from daemon.acl.rootkey import KeyFile
from daemon.acl.seal import open_seal
from daemon.admin.operator import operator
from daemon.config.data_directory import store_dir
from daemon.process.service_account import ServiceAccount
from daemon.process.store_ownership import change_owner
from storage.queries import secrets
from storage.queries.secrets import SealedSecret
from storage.store import FILE_NAME, open_store
from tests.parts.runner.conftest import needs_root
from tests.samples import NOW

pytestmark = needs_root
THEM = ServiceAccount("them", 61234, 61234)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Yield a data directory whose store belongs to another user, with a secret in it."""
    made = Path(tempfile.mkdtemp(prefix="steward-commands-"))
    made.chmod(0o711)
    store_dir(made).mkdir(mode=0o700)
    trio.run(_fill, store_dir(made), made / "root.key")
    change_owner(store_dir(made), THEM)
    yield made
    shutil.rmtree(made)


async def _fill(directory: Path, key: Path) -> None:
    async with open_store(directory, cluster_id="cluster", now=NOW) as store:
        seal = await open_seal(store, KeyFile(key, may_make=True), NOW)
        secret = SealedSecret("a", seal.seal(b"kept", "a"))
        await store.write(lambda tx: secrets.put(tx, secret.place, secret.sealed))


async def _opened(directory: Path, key: Path) -> bytes:
    async with open_store(directory, cluster_id="", now=NOW) as store:
        seal = await open_seal(store, KeyFile(key, may_make=False), NOW)
        [(_, sealed)] = store.read(lambda db: [*secrets.below(db)])
        return seal.unseal(sealed, "a")


@pytest.fixture
def victim(data_dir: Path) -> Path:
    file = data_dir / "victim"
    file.write_text("root's")
    file.chmod(0o600)
    return file


def run(data_dir: Path, *words: str) -> Result:
    return CliRunner().invoke(operator, [*words, "--data-dir", str(data_dir)])


def is_theirs(data_dir: Path) -> bool:
    return {path.lstat().st_uid for path in store_dir(data_dir).rglob("*")} == {THEM.uid}


def test_the_store_is_checked(data_dir: Path) -> None:
    assert run(data_dir, "check").output == "the store is intact\n"
    assert is_theirs(data_dir)


def test_snapshot_belongs_to_the_caller_and_can_be_restored(data_dir: Path) -> None:
    file = data_dir / "monday.snap"
    saved = run(data_dir, "snapshot", "save", str(file))
    assert re.search(r"^cluster id +cluster$", saved.output, re.MULTILINE), saved.output
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (0, 0o600)
    again = run(data_dir, "snapshot", "save", str(file))
    assert (again.exit_code, "exists already" in again.output) == (1, True)
    (store_dir(data_dir) / FILE_NAME).unlink()
    assert run(data_dir, "check").exit_code == 1
    restored = run(data_dir, "snapshot", "restore", str(file))
    assert restored.exit_code == 0, restored.output
    assert run(data_dir, "check").exit_code == 0
    assert is_theirs(data_dir)
    assert {path.name for path in store_dir(data_dir).iterdir() if path.name.startswith(".")} <= {
        ".unfinished"
    }


def test_root_key_is_replaced(data_dir: Path) -> None:
    key = data_dir / "root.key"
    before = key.read_text()
    done = run(data_dir, "rekey", "--key-file", str(key))
    assert "encrypted" in done.output, done.output
    assert key.read_text() != before
    assert not key.with_name("root.key.next").exists()
    assert is_theirs(data_dir)
    assert trio.run(_opened, store_dir(data_dir), key) == b"kept"


def test_interrupted_key_replacement_is_completed_first(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = data_dir / "root.key"

    def die(self: KeyFile) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KeyFile, "finish", die)
        run(data_dir, "rekey", "--key-file", str(key))
    assert key.with_name("root.key.next").exists()
    done = run(data_dir, "rekey", "--key-file", str(key))
    assert "encrypted" in done.output, done.output
    assert trio.run(_opened, store_dir(data_dir), key) == b"kept"


def plant_link(place: Path, victim: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(victim)


def plant_pipe(place: Path, victim: Path) -> None:
    place.unlink(missing_ok=True)
    os.mkfifo(place)


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (plant_pipe, "steward.lock"),
        (plant_link, "steward.lock"),
        (plant_link, FILE_NAME),
        (plant_link, f"{FILE_NAME}-wal"),
        (plant_link, "steward.index"),
    ],
)
@pytest.mark.parametrize(
    "words",
    [("check",), ("snapshot", "save", "NEW"), ("snapshot", "restore", "SNAP"), ("rekey", "KEY")],
    ids=lambda words: words[-2] if len(words) > 1 else words[0],
)
def test_files_of_root_are_not_touched(
    data_dir: Path,
    victim: Path,
    plant: Callable[[Path, Path], None],
    name: str,
    words: tuple[str, ...],
) -> None:
    snapshot = data_dir / "first.snap"
    assert run(data_dir, "snapshot", "save", str(snapshot)).exit_code == 0
    plant(store_dir(data_dir) / name, victim)
    given = {
        "NEW": [str(data_dir / "new.snap")],
        "SNAP": [str(snapshot)],
        "KEY": ["--key-file", str(data_dir / "root.key")],
    }
    run(data_dir, *(each for word in words for each in given.get(word, [word])))
    assert victim.read_text() == "root's"
    assert (victim.stat().st_uid, victim.stat().st_nlink) == (0, 1)
