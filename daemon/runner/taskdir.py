"""The directories of an allocation: where they are, and what the daemon keeps in them.

<allocation>/
    alloc/, <task>/      made by the launcher (`daemon/launcher/directories.py`)
    .claim.<task>.<n>    a driver's trace of the n-th attempt at a task
    .resolv.<task>       its name servers, if its group has its own
    .accounts.*.<task>   users and groups as it sees them, if its user is none of the machine's
    .fetched.<task>      says that what the task brings along has been fetched
    .logs/               what was moved out of a log, where that is necessary
"""

import os
import re
import shutil
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

from daemon.launcher import directories as made
from daemon.launcher import places
from daemon.launcher.messages import ID, NAME
from daemon.runner.beneath import Escapes, inner, open_directory
from daemon.runner.drivers.shim import PATH
from daemon.runner.env import Directories

SHARED, CLAIM = places.SHARED, places.CLAIM  # of whom the launcher opens files
SECRETS, PRIVATE = made.SECRETS, made.PRIVATE
RESOLVER = ".resolv."
ACCOUNTS = ".accounts."
MOVED = ".logs"
GONE = ".removed"  # behind the name of a directory that is being removed
_ABOVE = 0o711
_LONGEST = 255  # bytes of a name


def directories(root: str, task: str) -> Directories:
    """Return where a task of an allocation finds its directories."""
    return Directories(
        shared=f"{root}/{SHARED}", local=f"{root}/{task}/local", secrets=f"{root}/{task}/{SECRETS}"
    )


def meant(task: str, places: Directories, path: str) -> str:
    """Return what a path means to a task, below the directory of its allocation.

    One that begins with a directory of `places`, as the task sees them, means that one; any other
    lies in the task's own directory. Raises `Escapes` for what is not in there or in the shared one.
    """
    found = inner(f"{task}/{path}")
    for seen, here in (
        (places.shared, SHARED),
        (places.local, f"{task}/local"),
        (places.secrets, f"{task}/{SECRETS}"),
    ):
        if path == seen or path.startswith(f"{seen}/"):
            found = inner(here + path.removeprefix(seen))
            break
    if found.partition("/")[0] not in (task, SHARED):
        raise Escapes
    return found


def make_root(alloc_dir: Path) -> None:
    """Make the directory of all allocations; tasks of other users can pass through to their own.

    Pass, not look: what else lies in the directory above it has modes of its own.
    """
    alloc_dir.mkdir(parents=True, exist_ok=True)
    alloc_dir.chmod(_ABOVE)
    if os.geteuid() == 0:  # otherwise there are no other users
        for above in (alloc_dir.parent, alloc_dir.parent.parent):
            above.chmod(stat.S_IMODE(above.stat().st_mode) | stat.S_IXGRP | stat.S_IXOTH)


def can_name(task: str) -> bool:
    """Tell whether a task's name can be that of its directory."""
    return bool(re.fullmatch(NAME, task)) and task != SHARED and len(os.fsencode(task)) <= _LONGEST


def exists(root: str) -> bool:
    """Tell whether an allocation has a directory."""
    return os.path.isdir(root)


def remove(root: str) -> None:
    """Remove the directory of an allocation, also where a task has locked its owner out.

    It goes under another name first: nobody finds a half of it.
    """
    if not root.endswith(GONE):
        with suppress(OSError):  # it is not there, or another such is
            os.rename(root, f"{root}{GONE}")
            root = f"{root}{GONE}"
    remove_tree(root)
    if not os.path.lexists(root):
        return
    # Another sweep may have removed it meanwhile; and a tree may be deeper than the library can go.
    with suppress(RecursionError, OSError):
        top = open_directory(root)
        _unlock(top)
        for _, names, _, above in os.fwalk(root):
            for name in names:
                with suppress(OSError):
                    step = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    _unlock(os.open(name, step, dir_fd=above))
    remove_tree(root)


def _unlock(descriptor: int) -> None:
    """Let the owner of an open directory into it, and close it: a locked one opens for no more than that."""
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IRWXU)
    finally:
        os.close(descriptor)


def remove_tree(root: str) -> None:
    """Remove a directory, however deep a task has made it: the library's own way is recursive."""
    try:
        shutil.rmtree(root, ignore_errors=True)
    except RecursionError:
        with suppress(OSError):
            subprocess.run(  # noqa: S603  # no word of it is a task's
                ["rm", "-rf", "--", root],  # noqa: S607  # found on our own search path
                check=False,
                capture_output=True,
                env={"PATH": PATH},
            )


def present(alloc_dir: Path) -> list[str]:
    """Return the ids of the allocations that have a directory; with `GONE`, one that is being removed."""
    try:
        entries = list(os.scandir(alloc_dir))
    except FileNotFoundError:  # somebody has removed it; it is made again when it is needed
        return []
    found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [name for name in found if re.fullmatch(ID, name.removesuffix(GONE))]
