"""Settings that keep their old defaults after an upgrade, until the configuration sets them.

These settings limit tasks, so they cannot come from the store, because the daemon can write to the
store. They are in a file in the data directory that only root can write. The first start without
that file creates it. If the starting user owns the store, the defaults are copied from the store.
Otherwise, another user could have changed the store, so the file is empty.
"""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from daemon.config.settings import FIELDS, ROOTS_PODMAN, Settings
from storage import schema
from storage.errors import StorageUnusable
from storage.queries import kept_defaults
from storage.read_pool import read_once
from storage.store import FILE_NAME

# The settings whose old defaults an upgrade can keep.
KEPT = ("raw_exec", "raw_exec_root", "task_users", "podman_root", "metrics_public")
NAME = "kept-defaults.json"  # a file name in the data directory
_MOST = 65536  # bytes
_log = logging.getLogger("steward")


def stored_settings(
    data_dir: Path, store: Path, before_migration: Callable[[], None] = lambda: None
) -> dict[str, str]:
    """Return the old defaults that still apply, as JSON values by setting.

    The first call writes the file, and migrates the store unless `before_migration` raises an
    error. `store` is the directory of the store, whose lock the caller holds. Raises
    `StorageUnusable`.
    """
    path = data_dir / NAME
    try:
        if not path.exists():
            _write(path, _of_store(store, before_migration))
        return _read(path)
    except OSError as error:
        raise StorageUnusable(
            f"cannot save settings in {path}: {error.strerror}; "
            "change the owner of the directory to the daemon's user (chown)"
        ) from error


def _read(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        content = file.read(_MOST)
    try:
        return msgspec.json.decode(content, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise StorageUnusable(
            f"{path} is damaged: {error}; delete it, and choose {', '.join(KEPT[:-1])} and "
            f"{KEPT[-1]} in the configuration"
        ) from error


def _of_store(store: Path, before_migration: Callable[[], None]) -> dict[str, str]:
    """Return the old defaults in the store; empty if another user could have written them."""
    file = store / FILE_NAME
    if not file.exists() or store.stat().st_uid != os.geteuid():
        return {}
    # a migration stores the kept settings
    schema.prepare(file, cluster_id="", now=0, before_migration=before_migration)
    defaults = dict(read_once(file, kept_defaults.list_all))
    if os.geteuid() == 0 and os.path.exists(
        ROOTS_PODMAN
    ):  # older versions ran as root and used such a store
        defaults["podman_root"] = "true"
    return defaults


def _write(path: Path, defaults: Mapping[str, str]) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(defaults))
        file.flush()
        os.fsync(descriptor)
    unfinished.replace(path)
    schema.fsync_path(path.parent)


def in_force(config: Settings, values: Mapping[str, str]) -> Settings:
    """Return `config` with the stored `values` for those settings that `config` does not set.

    Raises `StorageUnusable` if a stored value is invalid for its setting.
    """
    try:
        old_values = {
            name: msgspec.json.decode(value, type=FIELDS[name].type)
            for name, value in values.items()
            if name in FIELDS and getattr(config, name) in (None, [])
        }
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise StorageUnusable(f"{NAME} in the data directory is damaged: {error}") from error
    if old_values:
        lines = ", ".join(f"{name} = {values[name]}" for name in sorted(old_values))
        _log.warning(
            "this store is older than the stricter defaults of these settings, so the old values "
            "still apply: %s; set each of them in the configuration",
            lines,
        )
    return msgspec.structs.replace(config, **old_values)
