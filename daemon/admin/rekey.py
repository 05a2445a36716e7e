"""`steward operator rekey`: encryption of all stored secrets with a new root key.

The command reads and writes the files of the store itself, like `snapshot restore`. So the daemon
must not be running. Tasks keep running. The caller reads and writes the key files, and the store's
owner opens the store.
"""

import getpass
import os
from functools import partial
from pathlib import Path

import trio

from daemon.acl.rootkey import (
    Ask,
    KeyFile,
    KeySource,
    ReadKey,
    RootKey,
    find_key_source,
    key_from_passphrase,
    new_key_file,
)
from daemon.acl.seal import check_root_key, fitting, replace_root_key
from daemon.clock import SystemClock
from daemon.config.data_directory import find_store
from daemon.config.settings import Settings
from daemon.process.run_as_owner import as_user, owner_of
from daemon.process.service_account import ServiceAccount
from storage.errors import Invalid, StorageUnusable
from storage.store import FILE_NAME, open_store


def replace_key(
    config: Settings, *, key_file: Path | None, ask: bool, prompt: Ask = getpass.getpass
) -> int:
    """Replace the root key of a store; return the number of secrets encrypted again.

    The new key comes from `key_file`, or from a passphrase if `ask` is true. Otherwise, a new key
    replaces the old one in its file. Raises `StewardError`.
    """
    directory = find_store(config.data_dir)
    if not (directory / FILE_NAME).exists():
        raise StorageUnusable(
            f"there is no store in {directory}: name the data directory with --data-dir"
        )
    source = find_key_source(config, os.environ, prompt)
    owner = owner_of(directory)
    if isinstance(source, KeyFile) and source.is_being_replaced:
        # `is_new=False` keeps a missing key file from being created: a new file would hide the key
        # in use.
        keys = ReadKey(source, is_new=False)
        key_number = as_user(owner, lambda: fitting(directory, keys), int)
        source.settle(keys.candidates()[key_number])
    if ask or key_file is not None:
        new = _chosen(prompt) if key_file is None else new_key_file(key_file)
        return _as_owner(owner, directory, source, new)
    if not isinstance(source, KeyFile):
        raise Invalid(
            "the current key is not in a file: name a file for the new key with "
            "--new-key-file, or use --ask-new-passphrase"
        )
    count = _as_owner(owner, directory, source, source.begin())
    source.finish()
    return count


def _as_owner(
    owner: ServiceAccount | None, directory: Path, source: KeySource, new: RootKey
) -> int:
    """Encrypt the store again as its owner, with keys that were read before."""
    read = ReadKey(source, is_new=False)
    return as_user(owner, lambda: trio.run(_rekey, directory, read, new), int)


async def _rekey(directory: Path, source: KeySource, new: RootKey) -> int:
    now = SystemClock().now()
    check = partial(check_root_key, directory, source)
    async with open_store(directory, cluster_id="", now=now, before_migration=check) as store:
        return await replace_root_key(store, source, new, now)


def _chosen(prompt: Ask) -> RootKey:
    words = prompt("New passphrase: ")
    if prompt("Repeat the passphrase: ") != words:
        raise Invalid("the two passphrases differ: try again")
    return key_from_passphrase(words, "the new passphrase")
