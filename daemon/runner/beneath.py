"""Opening what lies below a directory and nothing else, whatever links a task has made there.

The kernel resolves the whole path (openat2, RESOLVE_BENEATH): a link that stays below is followed,
one that leads out is refused, and nobody can change one for another in between. Where the kernel
has no such call, before Linux 5.6 or behind a filter, no link is followed at all.
"""

import errno
import os
import posixpath
import secrets
from contextlib import suppress

from daemon.launcher.beneath import resolver
from daemon.launcher.messages import Owner
from storage.errors import Refused


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
