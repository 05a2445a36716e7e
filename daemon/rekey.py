"""`steward operator rekey`: every secret of the store sealed anew, under a new root key.

Works on the file, like `snapshot restore`: the daemon must not be running. Tasks run on meanwhile.
"""

import getpass
import os
from pathlib import Path

import trio

from daemon.acl.rootkey import (
    Ask,
    KeyFile,
    KeySource,
    RootKey,
    find_source,
    new_key_file,
    passphrase,
)
from daemon.acl.seal import rekey
from daemon.clock import SystemClock
from daemon.config import Config
from daemon.datadir import find_store
from storage.errors import Invalid, StorageUnusable
from storage.store import FILE_NAME, open_store


def replace_key(
    config: Config, *, key_file: Path | None, ask: bool, prompt: Ask = getpass.getpass
) -> int:
    """Replace the root key of a store; return how many secrets were sealed anew.

    The new key is that of `key_file`, or a passphrase if `ask` says so, or else a new one in the
    place of the old. Raises `StewardError`.
    """
    directory = find_store(config.data_dir)
    if not (directory / FILE_NAME).exists():
        raise StorageUnusable(f"there is no store in {directory}: name its data directory")
    source = find_source(config, os.environ, prompt)
    if ask or key_file is not None:
        new = _chosen(prompt) if key_file is None else new_key_file(key_file)
        return trio.run(_rekey, directory, source, new)
    if not isinstance(source, KeyFile):
        raise Invalid(
            "the key is not in a file of the daemon: name a file for the new one with "
            "--new-key-file, or ask for a passphrase with --ask-new-passphrase"
        )
    return _replace_in_place(directory, source)


def _replace_in_place(directory: Path, source: KeyFile) -> int:
    new = source.begin()
    count = trio.run(_rekey, directory, source, new)
    source.finish()
    return count


async def _rekey(directory: Path, source: KeySource, new: RootKey) -> int:
    now = SystemClock().now()
    async with open_store(directory, cluster_id="", now=now) as store:
        return await rekey(store, source, new, now)


def _chosen(prompt: Ask) -> RootKey:
    words = prompt("New passphrase: ")
    if prompt("Once more: ") != words:
        raise Invalid("the two passphrases are not the same: try again")
    return passphrase(words, "the new passphrase")
