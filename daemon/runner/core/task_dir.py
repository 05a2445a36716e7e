"""The directory layout of an allocation.

<allocation>/
alloc/, <task>/      created by the launcher (`daemon/launcher/alloc_dir.py`)
.claim.<task>.<n>    claim file of the n-th attempt at a task
.resolv.<task>       resolv.conf, if the group has its own name servers
.accounts.*.<task>   passwd and group files for a user that the host does not have
.fetched.<task>      marker: the artifacts of the task were downloaded
.logs/               rotated log data, on file systems without hole punching
"""

import os
import re

from daemon.launcher import alloc_dir as made
from daemon.launcher import claims_and_logs
from daemon.launcher.messages import NAME
from daemon.runner.core.safe_open import PathEscape, relative_path
from daemon.runner.core.task_env import TaskDirectories

SHARED, CLAIM, MOVED = (
    claims_and_logs.SHARED,
    claims_and_logs.CLAIM,
    claims_and_logs.MOVED,
)  # the launcher accepts these paths
SECRETS, PRIVATE = made.SECRETS, made.PRIVATE
OUTPUT_FILE = "steward.outputs"  # outputs file in the `local` directory of a workflow task
_LONGEST = 255  # bytes of a file name


def directories(root: str, task: str) -> TaskDirectories:
    """Return the directories of a task in the allocation directory `root`."""
    return TaskDirectories(
        shared=f"{root}/{SHARED}", local=f"{root}/{task}/local", secrets=f"{root}/{task}/{SECRETS}"
    )


def resolve_task_path(task: str, task_directories: TaskDirectories, path: str) -> str:
    """Resolve a path of a task to a path below the allocation directory.

    A path that begins with one of `task_directories` refers to that directory. Any other path is
    relative to the task directory. Raises `PathEscape` for a path outside the task and shared
    directories.
    """
    resolved = relative_path(f"{task}/{path}")
    for seen, here in (
        (task_directories.shared, SHARED),
        (task_directories.local, f"{task}/local"),
        (task_directories.secrets, f"{task}/{SECRETS}"),
    ):
        if path == seen or path.startswith(f"{seen}/"):
            resolved = relative_path(here + path.removeprefix(seen))
            break
    if resolved.partition("/")[0] not in (task, SHARED):
        raise PathEscape
    return resolved


def can_name(task: str) -> bool:
    """Return whether a task name can be the name of a directory."""
    return bool(re.fullmatch(NAME, task)) and task != SHARED and len(os.fsencode(task)) <= _LONGEST


def exists(root: str) -> bool:
    """Return whether the directory of an allocation exists."""
    return os.path.isdir(root)
