"""Layout of the data directory, and the check that other users cannot replace it.

    <data directory>/          0711 if root runs the daemon, so that other users may enter
        store/                 the daemon's private data, 0700: the database, the first token,
                               the key of a development daemon, snapshots
            output/            rotated logs, and the output of containers
            payloads/          input files of jobs
            staging/           files that are on their way to a task or to the input files
        tasks/                 0711 if root runs the daemon
            alloc/             one directory per allocation
            logs/              retained logs of deleted allocation directories
            uids/              OS users of allocations
            volumes/           volumes created through the API
        steward.sock           for operators, unless the settings name another path
        tasks.sock             for tasks
        alloc -> tasks/alloc   after an upgrade, for tasks that an older version started
        steward.lock/          keeps older versions from making a second store here

The daemon works below its data directory, often as root. A user who can rename a directory on the
path to it can put a link there. A sticky directory such as /tmp is safe: only the owner of an entry
can rename it.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from storage.errors import StorageUnusable

STORE, TASKS = "store", "tasks"
OUTPUT, PAYLOADS, STAGING = "output", "payloads", "staging"  # directories below `STORE`
ALLOC, LOGS, UIDS, VOLUMES = "alloc", "logs", "uids", "volumes"  # directories below `TASKS`
UNFINISHED = ".store.unfinished"  # store of an older version while it is moved
_FILE = "steward.db"


def store_dir(data_dir: Path) -> Path:
    """Return the directory of the store and of all other private data of the daemon."""
    return data_dir / STORE


def tasks_dir(data_dir: Path) -> Path:
    """Return the directory of everything that tasks can reach."""
    return data_dir / TASKS


def alloc_dir(data_dir: Path) -> Path:
    """Return the parent of the allocation directories."""
    return data_dir / TASKS / ALLOC


def logs_dir(data_dir: Path) -> Path:
    """Return the directory of the logs that stay after their allocation directory is deleted."""
    return data_dir / TASKS / LOGS


def output_dir(data_dir: Path) -> Path:
    """Return the directory of rotated logs and of container output."""
    return data_dir / STORE / OUTPUT


def payloads_dir(data_dir: Path) -> Path:
    """Return the directory of the input files of jobs."""
    return data_dir / STORE / PAYLOADS


def payloads_beside(store: Path) -> str:
    """Return the directory of input files next to the file of a store."""
    return str(store.parent / PAYLOADS)


def payload_dir(root: str, namespace: str) -> str:
    """Return the directory of a namespace's input files, named by a hash of the namespace."""
    return f"{root}/{hashlib.sha256(namespace.encode()).hexdigest()[:32]}"


def uids_dir(data_dir: Path) -> Path:
    """Return the directory that records the OS users of allocations."""
    return data_dir / TASKS / UIDS


def volumes_dir(data_dir: Path) -> Path:
    """Return the parent of the volumes created through the API."""
    return data_dir / TASKS / VOLUMES


def find_store(data_dir: Path) -> Path:
    """Return the directory of the store, even if an older version left it elsewhere.

    Raises `StorageUnusable` if a daemon was killed while it moved the store.
    """
    directory = store_dir(data_dir)
    if directory.is_dir():
        return directory
    if (data_dir / UNFINISHED).is_dir():
        raise StorageUnusable(
            f"the store in {data_dir} was moved only in part: start the daemon once to finish the move"
        )
    return data_dir if (data_dir / _FILE).exists() else directory


def weak_places(path: Path) -> Iterator[str]:
    """Yield the reasons why other users could replace a directory on the way from `/` to `path`."""
    trusted = {0, os.geteuid()}
    real_path = Path(os.path.realpath(path))
    for parent in (*reversed(real_path.parents), real_path):
        metadata = parent.stat()
        if metadata.st_uid not in trusted:
            yield f"user {metadata.st_uid} owns {str(parent)!r}: give it to root, or to the daemon's user"
        elif metadata.st_mode & stat.S_IWOTH and (
            parent == real_path or not metadata.st_mode & stat.S_ISVTX
        ):
            yield f"all users can write to {str(parent)!r}: run chmod o-w on it"
