"""Remove the directory of a terminal allocation, and retain its logs.

<tasks>/alloc/<allocation>            before the removal
<tasks>/alloc/<allocation>.removed    during the removal, because a part may already be deleted
<tasks>/logs/<allocation>/            the retained .about, .logs and alloc/logs
"""

import errno
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from daemon.launcher.alloc_dir import ABOUT, made, own_ids
from daemon.launcher.claims_and_logs import LOGS, MOVED, SHARED, below, is_at_work
from daemon.launcher.messages import ID
from daemon.launcher.safe_open import step

MOST_SECONDS = 1800.0  # time limit of one removal: enough for ten million files on a slow disk
GONE = ".removed"  # suffix of a directory that is being removed
_OURS = re.compile(r"\.[0-9a-f]{16}\.folder")  # names of directories that are queued for removal
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def present(directory: str) -> list[str]:
    """Return the names of the subdirectories that belong to allocations.

    The name of a subdirectory that is being removed ends in `GONE`.
    """
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:  # removed; it is created again when needed
        return []
    return [name for name in names if re.fullmatch(ID, name.removesuffix(GONE))]


def check(directory: str, allocation: str) -> None:
    """Raise `OSError` if a task of the allocation is running."""
    for name in (allocation, f"{allocation}{GONE}"):
        # The directory has one of these two names.
        with suppress(FileNotFoundError), below(directory, name) as home:
            if is_at_work(home):
                raise OSError(errno.EBUSY, f"a task of {allocation} is running", allocation)


def retain_logs(directory: str, logs: str, allocation: str) -> None:
    """Retain the logs of an allocation, unless they are empty. Raises `OSError`.

    If a crash interrupts this, the next removal of the directory retains the remaining logs.
    """
    with ExitStack() as opened:
        try:
            home = opened.enter_context(below(directory, allocation))
            shared = opened.enter_context(below(home, SHARED))
        except FileNotFoundError:
            return
        if not _has_printed(shared):
            return
        os.makedirs(logs, 0o700, exist_ok=True)
        above = opened.enter_context(below(logs))
        retained = opened.enter_context(made(above, allocation, 0o700, own_ids()))
        _move(MOVED, home, retained)
        _move(ABOUT, home, retained)
        _move(LOGS, shared, opened.enter_context(made(retained, SHARED, 0o700, own_ids())))


def _move(name: str, source: int, target: int) -> None:
    with suppress(FileNotFoundError):  # it is not moved yet
        os.stat(name, dir_fd=target, follow_symlinks=False)
        return
    with suppress(FileNotFoundError):  # the allocation has no logs
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def _has_printed(shared: int) -> bool:
    with suppress(OSError):  # logs that cannot be read are not retained
        directory = step(shared, LOGS, _READ)
        try:
            with os.scandir(directory) as entries:
                return any(entry.stat(follow_symlinks=False).st_size for entry in entries)
        finally:
            os.close(directory)
    return False


def hide(directory: str, allocation: str) -> None:
    """Rename a directory for its removal, unless the new name exists. Raises `OSError`."""
    with below(directory) as above, suppress(FileNotFoundError):  # it is already removed
        removed_name = f"{allocation}{GONE}"
        try:
            os.stat(removed_name, dir_fd=above, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(allocation, removed_name, src_dir_fd=above, dst_dir_fd=above)


def remove(directory: str, name: str, seconds: float = MOST_SECONDS) -> None:
    """Remove a subdirectory with all its files. Raises `OSError` if files remain.

    A process that still creates files could prolong this indefinitely, so the removal stops after
    `seconds`.
    """
    with below(directory) as above, suppress(FileNotFoundError):  # it is already removed
        with below(above, name) as removed:
            top = os.open(".", _READ, dir_fd=removed)
        try:
            os.fchmod(top, stat.S_IRWXU)
            _Removal(top, seconds).run()
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=above)


class TooLong(OSError):
    """A removal exceeded its time limit."""


class _Removal:
    """Removes a tree of any depth below an open directory, without following links.

    Nested directories are moved up into the open directory and queued there, so two descriptors are
    enough. Mount points and their contents stay.
    """

    def __init__(self, top: int, seconds: float) -> None:
        self._top, self._seconds, self._removed = top, seconds, 0
        self._end = time.monotonic() + seconds
        self._changed = True
        self._trouble: OSError | None = None

    def run(self) -> None:
        """Remove the tree in rounds until nothing changes. Raises `OSError` if files remain."""
        while self._changed:
            self._changed, self._trouble = False, None
            self._remove_entries(self._top, self._remove_tree)
        if self._trouble is not None:
            raise self._trouble

    def _remove_entries(self, descriptor: int, enter: Callable[[int, str], object]) -> None:
        """Delete the files of a directory, and apply `enter` to its subdirectories."""
        with os.scandir(descriptor) as entries:
            for entry in entries:
                self._check_time()
                try:
                    if entry.is_dir(follow_symlinks=False):
                        enter(descriptor, entry.name)
                    else:
                        os.unlink(entry.name, dir_fd=descriptor)
                    self._changed = True
                    self._removed += 1
                except TooLong:
                    raise
                except FileNotFoundError:  # removed concurrently
                    pass
                except OSError as error:
                    self._trouble = error

    def _check_time(self) -> None:
        if time.monotonic() > self._end:
            text = (
                f"not empty after {self._seconds:.0f} s and {self._removed} files:"
                " a process may still create files there"
            )
            raise TooLong(errno.ETIMEDOUT, text)

    def _move_up(self, folder: int, name: str) -> str:
        """Move a directory into the top directory, and return its new name there.

        Raises `OSError`, with EBUSY or EXDEV for mount points.
        """
        waiting = f".{os.urandom(8).hex()}.folder"
        _unlock(folder, name)
        os.rename(name, waiting, src_dir_fd=folder, dst_dir_fd=self._top)
        return waiting

    def _remove_tree(self, top: int, name: str) -> None:
        waiting = name if _OURS.fullmatch(name) else self._move_up(top, name)
        descriptor = os.open(waiting, _READ, dir_fd=top)
        try:
            self._remove_entries(descriptor, self._move_up)
        finally:
            os.close(descriptor)
        os.rmdir(waiting, dir_fd=top)


def _unlock(folder: int, name: str) -> None:
    """Restore the launcher's permissions on a directory that belongs to the launcher's user.

    A task with this user may have removed the permissions. Raises `OSError`.
    """
    descriptor = step(folder, name, _STEP)
    try:
        facts = os.fstat(descriptor)
        if facts.st_uid == os.geteuid() and facts.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            # The descriptor was opened with O_PATH, so only its path in /proc permits the change.
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IRWXU)
    finally:
        os.close(descriptor)
