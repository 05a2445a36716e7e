"""Moving what was fetched into a directory of the allocation, where tasks may have made links.

Every step of the way is opened without following a link, so what a task has put there cannot lead
the daemon elsewhere; directories that are there already are filled, files are replaced.
"""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from daemon.launcher.messages import Owner
from daemon.runner.artifacts.archive import BadArchive

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o755


@contextmanager
def opened(root: str, path: str) -> Iterator[int]:
    """Give a descriptor of a directory below the root, made if need be. Raises `OSError`."""
    descriptor = os.open(root, _DIRECTORY)
    try:
        for name in filter(None, path.split("/")):
            below = _enter(descriptor, name)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(above: int, name: str) -> int:
    is_new = True
    try:
        os.mkdir(name, _MODE, dir_fd=above)
    except FileExistsError:
        is_new = False
    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
    if is_new:  # by the descriptor: a task may have put a link in its place
        os.fchmod(descriptor, _MODE)
    return descriptor


def move(tree: str, target: int, names: Iterable[str] | None = None) -> None:
    """Move everything in a tree, or what has these names, into an open directory."""
    source = os.open(tree, _DIRECTORY)
    try:
        for name in os.listdir(source) if names is None else names:
            _move_one(source, name, target)
    finally:
        os.close(source)


def _move_one(source: int, name: str, target: int) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
        if _is_directory(target, name):
            raise BadArchive(f"{name!r} cannot replace a directory")
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        return
    below, inner = _enter(target, name), os.open(name, _DIRECTORY, dir_fd=source)
    try:
        for one in os.listdir(inner):
            _move_one(inner, one, below)
    finally:
        os.close(below)
        os.close(inner)


def _is_directory(above: int, name: str) -> bool:
    try:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode)


def give(tree: str, owner: Owner) -> None:
    """Let a tree that only we can reach belong to somebody."""
    for folder, directories, files in os.walk(tree):
        for name in (*directories, *files):
            os.chown(f"{folder}/{name}", *owner, follow_symlinks=False)


def discard(tree: str) -> None:
    """Remove a tree of our own."""
    shutil.rmtree(tree, ignore_errors=True)
