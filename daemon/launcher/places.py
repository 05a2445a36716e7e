"""The files of an allocation that the launcher opens by itself: claims and logs.

Everything lies below the directory of all allocations, and no step to it follows a link. Names come as
they were checked in messages: they have no slash, and do not begin with a dot.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CLAIM = ".claim."
SHARED = "alloc"
LOGS = "logs"
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC
_CLAIM_MODE, _LOG_MODE = 0o600, 0o644
_MOST = 65536  # bytes that a claim can have: a few lines
_HAS_SHIM = re.compile(rb"^shim \d+\n", re.MULTILINE)
# What a task can have put in the place of a log: a link, a pipe, a directory.
_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})


@contextmanager
def below(directory: str | int, *names: str) -> Iterator[int]:
    """Give a descriptor of a directory some steps below another, which is named or open. Raises `OSError`."""
    if isinstance(directory, int):
        found = os.dup(directory)
    else:
        found = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            deeper = os.open(name, _STEP, dir_fd=found)
            os.close(found)
            found = deeper
        yield found
    finally:
        os.close(found)


def take_claim(folder: int, task: str, attempt: int) -> int | None:
    """Return the claim of an attempt, made and locked; None when the attempt has begun. Raises `OSError`."""
    flags = _FILE | os.O_RDWR | os.O_APPEND | os.O_CREAT
    descriptor = os.open(f"{CLAIM}{task}.{attempt}", flags, _CLAIM_MODE, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _HAS_SHIM.search(os.pread(descriptor, _MOST, 0)):
            return descriptor
    except BlockingIOError:  # a shim holds it
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def is_at_work(folder: int) -> bool:
    """Return whether a shim holds a claim in the directory of an allocation. Raises `OSError`."""
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        names = [name for name in os.listdir(directory) if name.startswith(CLAIM)]
        return any(_is_held(directory, name) for name in names)
    finally:
        os.close(directory)


def _is_held(directory: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        descriptor = os.open(name, _FILE | os.O_RDONLY, dir_fd=directory)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def drop_claim(folder: int, task: str, attempt: int) -> None:
    """Remove the claim of an attempt, if there is one. Raises `OSError`."""
    with suppress(FileNotFoundError):
        os.unlink(f"{CLAIM}{task}.{attempt}", dir_fd=folder)


def open_log(folder: int, name: str) -> int:
    """Return a descriptor for a task to write to. Raises `OSError`.

    A link, a pipe, a directory or a file of somebody else in the file's place is not written to:
    a new file takes it. Nor is a file that has another name elsewhere.
    """
    try:
        return _open_regular(folder, name)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        return _open_regular(folder, name)


def _open_regular(folder: int, name: str) -> int:
    flags = _FILE | os.O_NONBLOCK | os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        descriptor = os.open(name, flags, _LOG_MODE, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise FileExistsError(error.errno, error.strerror, name) from error
        raise
    found = os.fstat(descriptor)
    is_own = (found.st_uid, found.st_nlink) == (os.geteuid(), 1)
    if not (stat.S_ISREG(found.st_mode) and is_own):
        os.close(descriptor)
        raise FileExistsError(errno.EEXIST, "not a regular file of ours", name)
    os.fchmod(descriptor, _LOG_MODE)
    os.set_blocking(descriptor, True)
    return descriptor
