"""Opening what lies below a directory and nothing else, whatever links a task has made there.

The kernel resolves the whole path (openat2, RESOLVE_BENEATH): a link that stays below is followed,
one that leads out is refused, and nobody can change one for another in between. Where the kernel
has no such call, before Linux 5.6 or behind a filter, no link is followed at all.
"""

import errno
import os
import posixpath
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from daemon.launcher.messages import Owner
from storage.errors import Refused

_OPENAT2 = 437  # the same number on every architecture
_NO_MAGIC_LINKS, _BENEATH = 0x02, 0x08
_HOW_SIZE = 24  # bytes of its argument: flags, mode, resolve
_RETRIES = 8  # the kernel gives up when something is renamed at the same moment
_MISSING = frozenset({errno.ENOSYS, errno.EPERM, errno.E2BIG})

Call = Callable[[int, str, int], int]


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
        return resolver()(above, path, flags | os.O_CLOEXEC)
    finally:
        os.close(above)


def read_beneath(root: str, path: str, most: int) -> bytes:
    """Return the first bytes of a file at `path` below `root`. Raises `Escapes` or `OSError`.

    What is no file is refused: a task may have put a pipe there, at which one would wait for ever.
    """
    descriptor = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return file.read(most)


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


@cache
def resolver() -> Call:
    """Return the best way that this kernel has to open what lies below a directory."""
    with_links = _by_kernel()
    above = os.open("/", os.O_PATH)
    try:
        os.close(with_links(above, ".", os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        return without_links
    finally:
        os.close(above)
    return with_links


def _by_kernel() -> Call:
    import ctypes

    class How(ctypes.Structure):
        _fields_ = (
            ("flags", ctypes.c_uint64),
            ("mode", ctypes.c_uint64),
            ("resolve", ctypes.c_uint64),
        )

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long

    def open_at(above: int, path: str, flags: int) -> int:
        how = How(flags, 0, _BENEATH | _NO_MAGIC_LINKS)
        for _ in range(_RETRIES):
            found = call(_OPENAT2, above, os.fsencode(path), ctypes.byref(how), _HOW_SIZE)
            if found >= 0:
                return int(found)
            if ctypes.get_errno() != errno.EAGAIN:
                break
        number = ctypes.get_errno()
        if number == errno.EXDEV:
            raise Escapes
        raise OSError(number, os.strerror(number), path)

    return open_at


def without_links(above: int, path: str, flags: int) -> int:
    """Open a path step by step, and no link on the way. Raises `OSError`."""
    *folders, last = path.split("/")
    opened: list[int] = []
    try:
        for name in folders:
            step = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            above = os.open(name, step, dir_fd=above)
            opened.append(above)
        return os.open(last, flags | os.O_NOFOLLOW, dir_fd=above)
    finally:
        for descriptor in opened:
            os.close(descriptor)
