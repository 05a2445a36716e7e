"""Directories of API-created volumes, named by their IDs, below one directory of the launcher."""

import os

from daemon.launcher import alloc_removal
from daemon.launcher.alloc_dir import made, own_ids
from daemon.launcher.claims_and_logs import below
from daemon.launcher.messages import Owner

_ABOVE = 0o711  # users of tasks traverse it to their own volume


def make(directory: str, volume: str, mode: int, owner: Owner) -> None:
    """Create the directory of a volume, or change its mode and owner. Raises `OSError`."""
    os.makedirs(directory, exist_ok=True)
    os.chmod(directory, _ABOVE)
    uid, gid = own_ids()
    owner_to_set = (uid if owner[0] == -1 else owner[0], gid if owner[1] == -1 else owner[1])
    with below(directory) as above, made(above, volume, mode, owner_to_set, is_handed_on=True):
        pass


def remove(directory: str, volume: str) -> None:
    """Delete the directory of a volume with all its files. Raises `OSError`."""
    alloc_removal.remove(directory, volume)
