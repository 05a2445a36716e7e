"""The data directory: what lies where in it, and whether others could replace it.

    <data directory>/          with root, others may pass through: 0711
        store/                 the daemon's alone, 0700: the file and all that belongs to it, the
                               first token, the key of a development daemon, snapshots
        tasks/                 with root, 0711
            alloc/             a directory for each allocation
            logs/              logs of allocations that have no directory any more
            uids/              users of allocations
        steward.sock           for operators, unless the settings name another place
        tasks.sock             for tasks
        alloc -> tasks/alloc   where an older version was at work: for tasks that it started
        steward.lock/          keeps older versions from making a second store here

The daemon acts below its data directory, as root in most services. Whoever can rename a directory on
the way to it can put links in its place. A sticky directory such as /tmp is safe: in it only the
owner of an entry can rename that entry.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from storage.errors import StorageUnusable

STORE, TASKS = "store", "tasks"
ALLOC, LOGS, UIDS = "alloc", "logs", "uids"  # below `TASKS`
UNFINISHED = ".store.unfinished"  # the store of an older version, on its way
_FILE = "steward.db"


def store_dir(data_dir: Path) -> Path:
    """Return the directory of the store and of all else that is the daemon's alone."""
    return data_dir / STORE


def tasks_dir(data_dir: Path) -> Path:
    """Return the directory of all that tasks can reach."""
    return data_dir / TASKS


def alloc_dir(data_dir: Path) -> Path:
    """Return the directory that holds a directory for each allocation."""
    return data_dir / TASKS / ALLOC


def logs_dir(data_dir: Path) -> Path:
    """Return the directory of logs whose allocation has none any more."""
    return data_dir / TASKS / LOGS


def uids_dir(data_dir: Path) -> Path:
    """Return the directory that tells the users of allocations."""
    return data_dir / TASKS / UIDS


def find_store(data_dir: Path) -> Path:
    """Return the directory of the store, also where an older version has left it.

    Raises `StorageUnusable` when a daemon was killed while it moved the store.
    """
    found = store_dir(data_dir)
    if found.is_dir():
        return found
    if (data_dir / UNFINISHED).is_dir():
        raise StorageUnusable(
            f"the store in {data_dir} has been moved by half: start the daemon once, and it goes on"
        )
    return data_dir if (data_dir / _FILE).exists() else found


def weak_places(path: Path) -> Iterator[str]:
    """Yield why others could replace a directory, for each directory from the root down to it."""
    trusted = {0, os.geteuid()}
    place = Path(os.path.realpath(path))
    for one in (*reversed(place.parents), place):
        found = one.stat()
        if found.st_uid not in trusted:
            yield f"user {found.st_uid} owns {str(one)!r}: give it to root, or to the daemon's user"
        elif found.st_mode & stat.S_IWOTH and (one == place or not found.st_mode & stat.S_ISVTX):
            yield f"all users can write to {str(one)!r}: run chmod o-w on it"
