"""Values that an upgrade preserves come from a file of the data directory, initially from the
store."""

import os
from pathlib import Path

import pytest

from daemon.config.settings import Settings
from daemon.config.stored_defaults import NAME, in_force, stored_settings
from storage.errors import StorageUnusable
from storage.schema import prepare
from storage.store import FILE_NAME
from tests.parts.runner.conftest import needs_root
from tests.parts.storage.test_migrations import STORES, store_of

OLD = {
    "metrics_public": "true",
    "raw_exec": "true",
    "raw_exec_root": "true",
    "task_users": '["*"]',
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    made.mkdir(mode=0o700)
    return made


def test_new_store_preserves_no_old_setting(tmp_path: Path, store: Path) -> None:
    assert stored_settings(tmp_path, store) == {}
    prepare(store / FILE_NAME, cluster_id="c", now=0)
    assert stored_settings(tmp_path, store) == {}
    assert ((tmp_path / NAME).stat().st_mode & 0o777) == 0o600


def test_older_store_is_read_once(tmp_path: Path, store: Path) -> None:
    store_of(STORES[0], store)
    assert stored_settings(tmp_path, store) == OLD
    (store / FILE_NAME).unlink()
    assert stored_settings(tmp_path, store) == OLD


@needs_root
def test_store_of_another_user_is_ignored(tmp_path: Path, store: Path) -> None:
    store_of(STORES[0], store)
    os.chown(store, 65534, 65534)
    assert stored_settings(tmp_path, store) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"raw_exec": true}'])
def test_a_damaged_file_is_named(tmp_path: Path, store: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(StorageUnusable, match=NAME):
        stored_settings(tmp_path, store)


def test_configured_value_has_precedence() -> None:
    settings = in_force(Settings(raw_exec=False), OLD)
    assert (settings.raw_exec, settings.raw_exec_root, settings.task_users) == (False, True, ["*"])


@pytest.mark.parametrize("value", ["7", '"yes"', "{"])
def test_invalid_value_is_named(value: str) -> None:
    with pytest.raises(StorageUnusable, match=NAME):
        in_force(Settings(), {"raw_exec": value})
