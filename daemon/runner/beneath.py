"""Opening what lies below a directory and nothing else, whatever links a task has made there.

The kernel resolves the whole path (openat2, RESOLVE_BENEATH): a link that stays below is followed,
one that leads out is refused, and nobody can change one for another in between. Where the kernel
has no such call, before Linux 5.6 or behind a filter, no link is followed at all. Nor is any where
a tree is walked through (RESOLVE_NO_SYMLINKS).
"""

import errno
import os
import posixpath
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from daemon.launcher.beneath import resolver
from daemon.launcher.messages import Owner
from storage.errors import Refused

_MOST_PENDING = 100_000  # directories, or entries of one, that a walk remembers or looks at


class Escapes(Refused):
    """A path leads out of the directory below which it should lie; the text is the peer's."""

    def __init__(self) -> None:
        super().__init__("Path escapes the alloc directory")


def inner(path: str) -> str:
    """Return a path below a directory in its shortest form, without a slash at its beginning.

    Raises `Escapes` when that alone shows that it leads out.
    """
    shortest = posixpath.normpath(path.lstrip("/") or ".")
    if shortest == ".." or shortest.startswith("../"):
        raise Escapes
    return "" if shortest == "." else shortest


def open_directory(path: str) -> int:
    """Return a descriptor of a directory of the daemon's own, in which nobody else can write.

    Raises `OSError`.
    """
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_beneath(root: str, path: str, flags: int) -> int:
    """Return a descriptor of what lies at `path` below `root`. Raises `Escapes` or `OSError`."""
    path = inner(path) or "."
    if "\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    above = open_directory(root)
    try:
        return resolver(follows=True)(above, path, flags | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise Escapes from None
        raise
    finally:
        os.close(above)


def write_beneath(
    root: str,
    path: str,
    content: bytes,
    *,
    owner: Owner | None = None,
    mode: int = 0o600,
) -> None:
    """Put a file at `path` below `root`, with the folders above it.

    Only its owner can read it, unless `mode` says otherwise. It is there whole or not at all, and
    takes the place of what was there. Raises `Escapes` or `OSError`.
    """
    folder, name = posixpath.split(inner(path))
    if not name:
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if "\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    _make_folders(root, folder)
    above = open_beneath(root, folder, os.O_PATH | os.O_DIRECTORY)
    unfinished = f".{secrets.token_hex(8)}.unfinished"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(unfinished, flags, 0o600, dir_fd=above), "wb") as file:
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            file.write(content)
        try:
            os.rename(unfinished, name, src_dir_fd=above, dst_dir_fd=above)
        except OSError:
            os.unlink(unfinished, dir_fd=above)
            raise
    finally:
        os.close(above)


def _make_folders(root: str, folder: str) -> None:
    made = ""
    for name in filter(None, folder.split("/")):
        above = open_beneath(root, made, os.O_PATH | os.O_DIRECTORY)
        try:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=above)
        finally:
            os.close(above)
        made = f"{made}/{name}"


def below(
    root: str, is_wanted: Callable[[os.stat_result], bool] = lambda _: True
) -> Iterator[os.stat_result]:
    """Yield what is known of each file and directory below another; what cannot be seen is left out.

    No link is followed on the way to any of them. A directory that is not wanted is left out with all
    that lies below it.
    """
    try:
        top = open_directory(root)
    except OSError:
        return
    try:
        folders = ["."]
        while folders:
            # Whoever removes or locks something meanwhile has it not counted.
            with suppress(OSError):
                yield from _entries(top, folders, is_wanted)
    finally:
        os.close(top)


def _entries(
    top: int, folders: list[str], is_wanted: Callable[[os.stat_result], bool]
) -> Iterator[os.stat_result]:
    """Yield the entries of the last folder, which goes; the folders in it come in its place."""
    folder = folders.pop()
    directory = resolver(follows=False)(top, folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(directory) as entries:
            for entry in islice(entries, _MOST_PENDING):
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if not is_wanted(found):
                        continue
                    if stat.S_ISDIR(found.st_mode) and len(folders) < _MOST_PENDING:
                        folders.append(f"{folder}/{entry.name}")
                    yield found
    finally:
        os.close(directory)
