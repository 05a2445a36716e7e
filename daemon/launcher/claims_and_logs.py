"""Open the claim files and logs of an allocation; reserve and free their disk space.

All these files are below the directory of all allocations, and no link is followed in a path. Names
were validated with the message: they have no slash and no leading dot.
"""

import errno
import fcntl
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache

from daemon.launcher.safe_open import step

CLAIM = ".claim."
SHARED = "alloc"
LOGS = "logs"
MOVED = ".logs"  # rotated log data, on file systems without hole punching
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC
_CLAIM_MODE, _LOG_MODE = 0o600, 0o644
_ROOM = 8192  # bytes reserved for a claim
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # from linux/falloc.h
_NO_HOLES = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_GET_FLAGS, _SET_FLAGS, _IN_PLACE = 0x80086601, 0x40086602, 0x00800000  # from linux/fs.h
MOST_CLAIM = 32768  # maximum bytes of a claim, which has a few lines
_CLAIMED = re.compile(re.escape(CLAIM) + r"([^/]+)\.([0-9]{1,10})")
_SHIM = re.compile(rb"^shim (\d{1,9})\n", re.MULTILINE)
_KEEPS = re.compile(rb"^logs (\d{1,18})\n", re.MULTILINE)
# Errors for files with which a task may have replaced a log: a link, a pipe, a directory.
_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})


@contextmanager
def below(directory: str | int, *names: str) -> Iterator[int]:
    """Yield a descriptor of the directory at the path `names` below `directory`.

    Without `names`, yield a descriptor of `directory` itself. Raises `OSError`.
    """
    path = "/".join(names) or "."
    if isinstance(directory, int):
        current = step(directory, path, _STEP)
    else:
        above = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            current = step(above, path, _STEP)
        finally:
            os.close(above)
    try:
        yield current
    finally:
        os.close(current)


@contextmanager
def home_of(directory: str, allocation: str) -> Iterator[int]:
    """Yield a descriptor of the directory with an allocation's logs. Raises `OSError`.

    This is the directory of the retained logs if it exists, or else the allocation directory.
    """
    with ExitStack() as opened:
        try:
            retained = f"{os.path.dirname(directory)}/{LOGS}"
            folder = opened.enter_context(below(retained, allocation))
            with below(folder, SHARED, LOGS):
                pass
        except (FileNotFoundError, NotADirectoryError):
            folder = opened.enter_context(below(directory, allocation))
        yield folder


def take_claim(folder: int, task: str, attempt: int) -> int | None:
    """Create and lock the claim of an attempt; return its descriptor.

    Return None if the attempt was started before. Raises `OSError`.
    """
    flags = _FILE | os.O_RDWR | os.O_APPEND | os.O_CREAT
    descriptor = os.open(f"{CLAIM}{task}.{attempt}", flags, _CLAIM_MODE, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _SHIM.search(os.pread(descriptor, MOST_CLAIM, 0)):
            _reserve(descriptor)
            return descriptor
    except BlockingIOError:  # held by a shim
        pass
    except BaseException:  # nothing else closes a bare descriptor
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def is_at_work(folder: int) -> bool:
    """Return whether a shim holds any claim of an allocation. Raises `OSError`."""
    return any(is_held(folder, *attempt) for attempt in attempts(folder))


def attempts(folder: int) -> list[tuple[str, int]]:
    """Return the task and the attempt number of each claim. Raises `OSError`."""
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        matches = map(_CLAIMED.fullmatch, os.listdir(directory))
        return [(match[1], int(match[2])) for match in matches if match]
    finally:
        os.close(directory)


def is_held(folder: int, task: str, attempt: int) -> bool:
    """Return whether a shim holds the claim of an attempt. Raises `OSError`."""
    with _claim(folder, task, attempt) as descriptor:
        return descriptor is not None and is_locked(descriptor)


def is_locked(descriptor: int, kind: int = fcntl.LOCK_SH) -> bool:
    """Return whether another process holds the lock of a file; take the lock if it is free."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _reserve(descriptor: int) -> None:
    """Allocate the blocks of a claim, so that the exit status can be stored on a full disk.

    Raises `OSError`.
    """
    # btrfs only writes in place if copy-on-write is disabled for the file.
    with suppress(OSError):
        flags = array("L", [0])
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        flags[0] |= _IN_PLACE
        fcntl.ioctl(descriptor, _SET_FLAGS, flags)
    _allocate(descriptor, _ROOM)


def shim_of(folder: int, task: str, attempt: int) -> int | None:
    """Return the process ID of the shim that holds the claim, or None. Raises `OSError`."""
    with _claim(folder, task, attempt) as descriptor:
        if descriptor is None or not is_locked(descriptor):
            return None
        match = _SHIM.search(os.pread(descriptor, MOST_CLAIM, 0))
        return int(match[1]) if match else None


def opened_claim(folder: int, task: str, attempt: int) -> tuple[int, int] | None:
    """Return a descriptor of a claim that a shim holds, and how many bytes each log keeps.

    Return None if no shim holds the claim, or if the task has no logs. Raises `OSError`.
    """
    with _claim(folder, task, attempt) as descriptor:
        if descriptor is None or not is_locked(descriptor):
            return None
        match = _KEEPS.search(os.pread(descriptor, MOST_CLAIM, 0))
        return (os.dup(descriptor), int(match[1])) if match else None


def read_claim(folder: int, task: str, attempt: int) -> tuple[bytes, int]:
    """Return the text of a claim and its modification time; the text is empty without a claim.

    Raises `OSError`.
    """
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


def shims(folder: int) -> Iterator[int]:
    """Yield the process IDs of the shims that hold claims of an allocation. Raises `OSError`."""
    for task, attempt in attempts(folder):
        if (pid := shim_of(folder, task, attempt)) is not None:
            yield pid


def put(folder: int, name: str, content: bytes, mode: int) -> None:
    """Write a file, owned by the launcher, atomically. Raises `OSError`."""
    unfinished = f"{name}.new"
    flags = _FILE | os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(os.open(unfinished, flags, _CLAIM_MODE, dir_fd=folder), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
    os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)


def drop_claim(folder: int, task: str, attempt: int) -> None:
    """Delete the claim of an attempt, if it exists. Raises `OSError`."""
    with suppress(FileNotFoundError):  # a repeated request
        os.unlink(f"{CLAIM}{task}.{attempt}", dir_fd=folder)


def open_log(folder: int, name: str) -> int:
    """Return a descriptor for a task's output. Raises `OSError`.

    A link, a pipe, a directory, another user's file, or a file with several links is never written
    to: a new file replaces it.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        return open_own(folder, name, flags)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        return open_own(folder, name, flags)


def is_own(facts: os.stat_result) -> bool:
    """Return whether a file is a regular file of the launcher with only one hard link."""
    return stat.S_ISREG(facts.st_mode) and (facts.st_uid, facts.st_nlink) == (os.geteuid(), 1)


def open_own(folder: int, name: str, flags: int) -> int:
    """Return a descriptor of a log.

    Raises `OSError`: `FileExistsError` for anything but a regular file of the launcher.
    """
    try:
        descriptor = os.open(name, flags | _FILE | os.O_NONBLOCK, _LOG_MODE, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise FileExistsError(error.errno, error.strerror, name) from error
        raise
    if not is_own(os.fstat(descriptor)):
        os.close(descriptor)
        raise FileExistsError(errno.EEXIST, "not a regular file of the agent", name)
    os.fchmod(descriptor, _LOG_MODE)
    os.set_blocking(descriptor, True)
    return descriptor


# --- disk space ---


class HolePunchUnsupported(Exception):
    """The file system does not support hole punching."""


def _allocate(descriptor: int, size: int) -> None:
    """Reserve disk space for `size` bytes of a file, if possible. Raises `OSError`."""
    number = _fallocate()(descriptor, _KEEP_SIZE, 0, size)
    if number and number not in _NO_HOLES:
        raise OSError(number, os.strerror(number))


def punch_hole(descriptor: int, start: int, end: int) -> None:
    """Punch a hole from `start` to `end`. Raises `HolePunchUnsupported` or `OSError`."""
    number = _fallocate()(descriptor, _PUNCH_HOLE | _KEEP_SIZE, start, end - start)
    if number in _NO_HOLES:
        raise HolePunchUnsupported
    if number:
        raise OSError(number, os.strerror(number))


@cache
def _fallocate() -> Callable[[int, int, int, int], int]:
    """Return the C function `fallocate` as a callable that returns an errno or 0."""
    import ctypes  # loaded at the first use

    library = ctypes.CDLL(None, use_errno=True)
    call = library.fallocate64 if hasattr(library, "fallocate64") else library.fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

    def fallocate(descriptor: int, mode: int, offset: int, length: int) -> int:
        result = call(descriptor, mode, offset, length)
        return 0 if result == 0 else ctypes.get_errno()

    return fallocate
