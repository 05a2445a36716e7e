"""How a data directory gets its form, also one that an older version has left, with running tasks.

Everything moves by renames below one open descriptor. A daemon that is killed between any two of them
leaves a state from which the next one goes on. An older version cannot start from the first of them on.
The way back stands in docs/service.md.
"""

import ctypes
import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from daemon.datadir import ALLOC, LOGS, STORE, TASKS, UIDS, UNFINISHED
from storage.errors import StorageUnusable
from storage.store import FILE_NAME, LOCK_NAME, lock

# What older versions kept beside the directories of tasks.
_OF_STORE = re.compile(
    r"steward\.(db|index|lock).*|(root\.key|bootstrap-token|acl-bootstrap-reset).*"
    r"|snapshots|\.unfinished"
)
_LINK = f"{TASKS}/{ALLOC}"
_WAITING = ".alloc"  # below `TASKS`: the link, until it can have its place
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE, _TO_PASS = 0o700, 0o711
_EXCHANGE = 2  # RENAME_EXCHANGE, linux/fs.h
_NO_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})


def prepare(data_dir: Path, stays: Collection[Path] = ()) -> None:
    """Make the directories in a data directory, and move there what lies beside them.

    `stays` are files and directories that the settings name. Raises `StorageUnusable` where another
    daemon is at work, or where something cannot be moved.
    """
    try:
        with _opened(data_dir) as top:
            fcntl.flock(top, fcntl.LOCK_EX)  # of two daemons that start at once, one waits
            _check(data_dir, top)
            _move_store(data_dir, top, {one.name for one in stays if one.parent == data_dir})
            _move_tasks(top)
            os.fsync(top)
    except OSError as error:
        raise StorageUnusable(
            f"the data directory {data_dir} cannot be brought into its form: "
            f"{error.filename or ''} {error.strerror}"
        ) from error


def _check(data_dir: Path, top: int) -> None:
    """Raise `StorageUnusable` for what cannot be moved, before anything is."""
    if _is(top, STORE, stat.S_ISDIR) and _is(top, FILE_NAME, stat.S_ISREG):
        raise StorageUnusable(
            f"there are two stores, {data_dir / STORE / FILE_NAME} and {data_dir / FILE_NAME}: "
            "an older version has been at work; move the one away that you do not want"
        )
    for name in (ALLOC, LOGS):
        place = data_dir / name
        foreign = place.is_symlink() and os.readlink(place) != _LINK
        if foreign or place.is_mount():
            raise StorageUnusable(
                f"{place} is a {'link' if foreign else 'mount point'}: let {data_dir / TASKS / name} "
                "be one in its place"
            )


def _move_store(data_dir: Path, top: int, stays: Collection[str]) -> None:
    if _is(top, STORE, stat.S_ISDIR):
        _keep_others_out(top)
        return
    is_old = _is(top, LOCK_NAME, stat.S_ISREG)
    with lock(data_dir) if is_old else nullcontext(), _made(top, UNFINISHED, _PRIVATE) as store:
        if is_old:
            _rename(top, LOCK_NAME, store)
        _keep_others_out(top)
        for name in sorted(os.listdir(top)):
            if _OF_STORE.fullmatch(name) and name not in {LOCK_NAME, *stays}:
                _rename(top, name, store)
        os.fsync(store)
        os.rename(UNFINISHED, STORE, src_dir_fd=top, dst_dir_fd=top)


def _keep_others_out(top: int) -> None:
    """Let no older version take the lock: it would make a second store, and end all tasks."""
    with suppress(FileExistsError):
        os.mkdir(LOCK_NAME, _PRIVATE, dir_fd=top)


def _move_tasks(top: int) -> None:
    with _made(top, TASKS, _TO_PASS if os.geteuid() == 0 else _PRIVATE) as tasks:
        if _is(top, ALLOC, stat.S_ISDIR):
            _move_allocations(top, tasks)
        if _is(tasks, _WAITING, stat.S_ISLNK):
            os.rename(_WAITING, ALLOC, src_dir_fd=tasks, dst_dir_fd=top)
        for name in (LOGS, UIDS):
            if _is(top, name, stat.S_ISDIR):
                _rename(top, name, tasks)
        os.fsync(tasks)


def _move_allocations(top: int, tasks: int) -> None:
    """Exchange the directory for a link to its new place: its paths are valid at any moment."""
    for name in (ALLOC, _WAITING):
        if _is(tasks, name, stat.S_ISLNK):
            os.unlink(name, dir_fd=tasks)
    with suppress(FileNotFoundError):
        os.rmdir(ALLOC, dir_fd=tasks)  # fails if anything is in it
    os.symlink(_LINK, ALLOC, dir_fd=tasks)
    try:
        _exchange(top, tasks, ALLOC)
    except OSError as error:
        if error.errno not in _NO_EXCHANGE:
            raise
        os.rename(ALLOC, _WAITING, src_dir_fd=tasks, dst_dir_fd=tasks)
        _rename(top, ALLOC, tasks)


def _exchange(top: int, tasks: int, name: str) -> None:
    """Exchange what has this name in two directories, in one step. Raises `OSError`."""
    text = os.fsencode(name)
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name) from None
    if call(top, text, tasks, text, ctypes.c_uint(_EXCHANGE)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def _rename(top: int, name: str, target: int) -> None:
    os.rename(name, name, src_dir_fd=top, dst_dir_fd=target)


def _is(directory: int, name: str, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


@contextmanager
def _made(top: int, name: str, mode: int) -> Iterator[int]:
    """Give a descriptor of a directory that has this mode, made if need be. Raises `OSError`."""
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=top)
    made = os.open(name, _DIRECTORY, dir_fd=top)
    try:
        os.fchmod(made, mode)
        yield made
    finally:
        os.close(made)


@contextmanager
def _opened(data_dir: Path) -> Iterator[int]:
    top = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield top
    finally:
        os.close(top)
