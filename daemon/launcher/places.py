"""The files of an allocation that the launcher opens by itself: claims and logs.

Everything lies below the directory of all allocations, and no step to it follows a link. Names come as
they were checked in messages: they have no slash, and do not begin with a dot.
"""

import ctypes
import errno
import fcntl
import os
import re
import stat
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CLAIM = ".claim."
SHARED = "alloc"
LOGS = "logs"
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC
_CLAIM_MODE, _LOG_MODE = 0o600, 0o644
_ROOM = 8192  # bytes that are kept for a claim
_KEEP_SIZE = 1  # linux/falloc.h
_CANNOT = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_GET_FLAGS, _SET_FLAGS, _IN_PLACE = 0x80086601, 0x40086602, 0x00800000  # linux/fs.h
MOST_CLAIM = 32768  # bytes that a claim can have: a few lines
_SHIM = re.compile(rb"^shim (\d{1,9})\n", re.MULTILINE)
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
        if not _SHIM.search(os.pread(descriptor, MOST_CLAIM, 0)):
            _reserve(descriptor)
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


def _reserve(descriptor: int) -> None:
    """Take the room of a claim now, so that no exit status is lost on a full disk. Raises `OSError`."""
    # For btrfs, which writes nothing in place unless it is told to.
    with suppress(OSError):
        flags = array("L", [0])
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        flags[0] |= _IN_PLACE
        fcntl.ioctl(descriptor, _SET_FLAGS, flags)
    library = ctypes.CDLL(None, use_errno=True)
    call = library.fallocate64 if hasattr(library, "fallocate64") else library.fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if call(descriptor, _KEEP_SIZE, 0, _ROOM) and ctypes.get_errno() not in _CANNOT:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def shim_of(folder: int, task: str, attempt: int) -> int | None:
    """Return the number of the shim that holds the claim of an attempt; None: none does. Raises `OSError`."""
    with _claim(folder, task, attempt) as descriptor:
        if descriptor is None:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found = _SHIM.search(os.pread(descriptor, MOST_CLAIM, 0))
            return int(found[1]) if found else None
        return None


def read_claim(folder: int, task: str, attempt: int) -> tuple[bytes, int]:
    """Return the text of a claim, and when it was written; nothing of one that is not there. Raises `OSError`."""
    with _claim(folder, task, attempt) as descriptor:
        if descriptor is None:
            return b"", 0
        return os.pread(descriptor, MOST_CLAIM, 0), os.fstat(descriptor).st_mtime_ns


@contextmanager
def _claim(folder: int, task: str, attempt: int) -> Iterator[int | None]:
    try:
        descriptor = os.open(f"{CLAIM}{task}.{attempt}", os.O_RDONLY | _FILE, dir_fd=folder)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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
