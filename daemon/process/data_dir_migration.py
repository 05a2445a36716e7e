"""Layout of the data directory, and its migration from an older version while tasks run.

All moves are renames relative to one open directory. If the daemon is killed between two renames,
the next start continues. After the first rename, older versions refuse to start. docs/service.md
describes the rollback.
"""

import ctypes
import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from daemon.config.data_directory import ALLOC, LOGS, OUTPUT, STORE, TASKS, UIDS, UNFINISHED
from storage.errors import StorageUnusable
from storage.store import FILE_NAME, LOCK_NAME, lock

# Entries of older versions next to the directories of tasks.
_OF_STORE = re.compile(
    r"steward\.(db|index|lock).*|(root\.key|bootstrap-token|acl-bootstrap-reset).*"
    r"|snapshots|\.unfinished"
)
_LINK = f"{TASKS}/{ALLOC}"
_WAITING = ".alloc"  # below `TASKS`: the link before it is moved to its path
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE, _TO_PASS = 0o700, 0o711
_MAY_PASS = stat.S_IXGRP | stat.S_IXOTH
_EXCHANGE = 2  # RENAME_EXCHANGE, linux/fs.h
# Output that older versions stored in the allocation directory.
_MOVED, _CONTAINERS = ".logs", ".podman."
_STAYS = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
_NO_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})


def prepare(data_dir: Path, stays: Collection[Path] = ()) -> None:
    """Create the directories of a data directory, and move entries of older versions into them.

    `stays` are paths from the settings; entries at these paths are not moved. Raises
    `StorageUnusable` if another daemon uses the directory, or if an entry cannot be moved.
    """
    try:
        with _opened(data_dir) as top:
            fcntl.flock(top, fcntl.LOCK_EX)  # if two daemons start at the same time, one waits
            _check(data_dir, top)
            _move_store(data_dir, top, {path.name for path in stays if path.parent == data_dir})
            _move_tasks(top)
            _move_output(top)
            _permit_traversal(top)
            os.fsync(top)
    except OSError as error:
        raise StorageUnusable(
            f"the data directory {data_dir} cannot be prepared: {_fault(error)}; the daemon must "
            "be able to write to it: check its owner, its mode and its file system"
        ) from error


def _fault(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _check(data_dir: Path, top: int) -> None:
    """Raise `StorageUnusable` for an entry that cannot be moved, before anything is moved."""
    if _is(top, STORE, stat.S_ISDIR) and _is(top, FILE_NAME, stat.S_ISREG):
        raise StorageUnusable(
            f"there are two stores, {data_dir / STORE / FILE_NAME} and {data_dir / FILE_NAME}: "
            "an older version has run here; move the store that you do not need to another directory"
        )
    for name in (ALLOC, LOGS):
        path = data_dir / name
        foreign = path.is_symlink() and os.readlink(path) != _LINK
        if foreign or path.is_mount():
            raise StorageUnusable(
                f"{path} is a {'link' if foreign else 'mount point'}: remove it, and create one at "
                f"{data_dir / TASKS / name} instead"
            )


def _move_store(data_dir: Path, top: int, stays: Collection[str]) -> None:
    if _is(top, STORE, stat.S_ISDIR):
        _block_older_versions(top)
        return
    is_old = _is(top, LOCK_NAME, stat.S_ISREG)
    with lock(data_dir) if is_old else nullcontext(), _made(top, UNFINISHED, _PRIVATE) as store:
        if is_old:
            _rename(top, LOCK_NAME, store)
        _block_older_versions(top)
        for name in sorted(os.listdir(top)):
            if _OF_STORE.fullmatch(name) and name not in {LOCK_NAME, *stays}:
                _rename(top, name, store)
        os.fsync(store)
        os.rename(UNFINISHED, STORE, src_dir_fd=top, dst_dir_fd=top)


def _block_older_versions(top: int) -> None:
    """Keep older versions from taking the lock: they would create a second store."""
    with suppress(FileExistsError):  # the migration was interrupted
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
        if not _is(tasks, ALLOC, stat.S_ISLNK):
            with _made(tasks, ALLOC, _TO_PASS):
                pass
        os.fsync(tasks)


def _permit_traversal(top: int) -> None:
    """Permit other users to traverse the data directory.

    These users still have no access to the store: the mode of the store's directory denies it.
    """
    mode = stat.S_IMODE(os.fstat(top).st_mode)
    if os.geteuid() == 0 and mode & _MAY_PASS != _MAY_PASS:
        os.fchmod(top, mode | _MAY_PASS)


def _move_allocations(top: int, tasks: int) -> None:
    """Exchange the directory of allocations with a link to its new path; old paths stay valid."""
    for name in (ALLOC, _WAITING):
        if _is(tasks, name, stat.S_ISLNK):
            os.unlink(name, dir_fd=tasks)
    with suppress(FileNotFoundError):  # the migration was interrupted
        os.rmdir(ALLOC, dir_fd=tasks)  # fails if the directory is not empty
    os.symlink(_LINK, ALLOC, dir_fd=tasks)
    try:
        _exchange(top, tasks, ALLOC)
    except OSError as error:
        if error.errno not in _NO_EXCHANGE:
            raise
        os.rename(ALLOC, _WAITING, src_dir_fd=tasks, dst_dir_fd=tasks)
        _rename(top, ALLOC, tasks)


def _move_output(top: int) -> None:
    """Move the output of tasks out of the allocation directories, unless this was done before."""
    with _made(top, STORE, _PRIVATE) as store, ExitStack() as opened:
        if _is(store, OUTPUT, stat.S_ISDIR):
            return
        output = opened.enter_context(_made(store, f".{OUTPUT}", _PRIVATE))
        for name in (ALLOC, LOGS):
            with suppress(FileNotFoundError):  # some older versions have only one of them
                above = os.open(f"{TASKS}/{name}", _DIRECTORY & ~os.O_NOFOLLOW, dir_fd=top)
                opened.callback(os.close, above)
                for allocation in os.listdir(above):
                    # Output on another file system stays where it is, and Steward no longer finds
                    # it.
                    try:
                        _take_output(above, allocation, output)
                    except OSError as error:
                        if error.errno not in _STAYS:
                            raise
        os.rename(f".{OUTPUT}", OUTPUT, src_dir_fd=store, dst_dir_fd=store)


def _take_output(above: int, allocation: str, output: int) -> None:
    with ExitStack() as opened:

        def enter(directory: int, name: str) -> int:
            descriptor = os.open(name, _DIRECTORY, dir_fd=directory)
            opened.callback(os.close, descriptor)
            return descriptor

        home = enter(above, allocation)
        files = [(home, name) for name in os.listdir(home) if name.startswith(_CONTAINERS)]
        if _is(home, _MOVED, stat.S_ISDIR):
            moved = enter(home, _MOVED)
            files += [(moved, name) for name in os.listdir(moved)]
        if files:
            target = opened.enter_context(_made(output, allocation, _PRIVATE))
            for source, name in files:
                with suppress(FileNotFoundError):  # an interrupted migration has moved it
                    os.rename(name, name.lstrip("."), src_dir_fd=source, dst_dir_fd=target)


def _exchange(top: int, tasks: int, name: str) -> None:
    """Exchange the entries with this name in two directories atomically. Raises `OSError`."""
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
    """Yield a descriptor of a directory with this mode; create it if needed. Raises `OSError`."""
    with suppress(FileExistsError):  # its mode is set below
        os.mkdir(name, mode, dir_fd=top)
    descriptor = os.open(name, _DIRECTORY, dir_fd=top)
    try:
        os.fchmod(descriptor, mode)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened(data_dir: Path) -> Iterator[int]:
    top = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield top
    finally:
        os.close(top)
