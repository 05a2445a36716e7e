"""Read and write files in task directories with the privileges of the task's user.

As root, the launcher only enters directories that no other user can change. From the first
directory that a task can change, it acts as the task's user. Links of a task then reach only files
that the task can reach itself. For tasks of root, links are not followed at all.

Notes about a task are next to its directory, where tasks have no access.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from daemon.launcher.alloc_dir import LOCAL, own_ids
from daemon.launcher.claims_and_logs import SHARED, below, put
from daemon.launcher.messages import FileStatus, Owner, ReadFile, ReadNote, WriteFile, WriteNote
from daemon.launcher.safe_open import facts_of, open_beneath, step
from daemon.launcher.user_policy import being

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_INSIDE = os.O_PATH | os.O_DIRECTORY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_NOTE = os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FOLDER, _OWN = 0o755, 0o600
_LONGEST = 255  # bytes of a file name
_LONGEST_NOTE = 4096  # bytes


def write(directory: str, request: WriteFile, content: bytes) -> None:
    """Write a file for a task atomically, and create its parent directories. Raises `OSError`."""
    with _reached(directory, request) as (above, names, user, owner):
        with being(user):
            if request.is_new and _is_there(above, names):
                return
            folder = _folder(above, names[:-1])
        try:
            _put(folder, names[-1], content, request.mode, user, request.owner or owner)
        finally:
            os.close(folder)


def _put(folder: int, name: str, content: bytes, mode: int, user: Owner, owner: Owner) -> None:
    unfinished = f".{os.urandom(8).hex()}.unfinished"
    with being(user):
        descriptor = os.open(unfinished, _NEW, _OWN, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _set_owner(descriptor, owner)
            os.fchmod(descriptor, mode)
            file.write(content)
        with being(user):
            os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with being(user):
            os.unlink(unfinished, dir_fd=folder)
        raise


def _set_owner(descriptor: int, owner: Owner) -> None:
    """Change the owner of a created file; -1 keeps the user or group. Raises `OSError`."""
    facts = os.fstat(descriptor)
    if owner[0] not in (-1, facts.st_uid) or owner[1] not in (-1, facts.st_gid):
        os.fchown(descriptor, *owner)


def read(directory: str, request: ReadFile) -> tuple[FileStatus, bytes]:
    """Return the metadata and the first bytes of a file. Raises `OSError`.

    Non-regular files have no bytes: opening a pipe of a task could block indefinitely.
    """
    with _reached(directory, request) as (above, names, user, _), being(user):
        flags = _READ if request.most else os.O_PATH
        descriptor = open_beneath(above, "/".join(names), flags)
        try:
            facts = os.fstat(descriptor)
            if request.most and not stat.S_ISREG(facts.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", names[-1])
            content = os.pread(descriptor, request.most, 0) if request.most else b""
        finally:
            os.close(descriptor)
    return found_of(facts), content


def found_of(facts: os.stat_result) -> FileStatus:
    """Return the message with the metadata of a file, given the result of `os.stat`."""
    return FileStatus(
        inode=facts.st_ino, size=facts.st_size, modified=facts.st_mtime_ns, mode=facts.st_mode
    )


@contextmanager
def _reached(
    directory: str, request: WriteFile | ReadFile
) -> Iterator[tuple[int, list[str], Owner, Owner]]:
    """Open the directories of a path, up to the first that another user can change.

    Yield a descriptor of the last open directory, the remaining path components, the user to act
    as, and the task's user. Raises `OSError`.
    """
    first, *names = request.path.split("/")
    if first not in (request.task, SHARED) or not names or any(map(leads_elsewhere, names)):
        raise OSError(errno.EPERM, "outside the directories of this task", request.path)
    with below(directory, request.allocation) as home:
        owner = user_of(home, request.task)
        above = step(home, first, _STEP)
        try:
            while len(names) > 1 and is_ours_alone(above):
                try:
                    deeper = step(above, names[0], _STEP)
                except (FileNotFoundError, NotADirectoryError):
                    break
                os.close(above)
                above, names = deeper, names[1:]
            yield above, names, own_ids() if is_ours_alone(above) else owner, owner
        finally:
            os.close(above)


def leads_elsewhere(name: str) -> bool:
    """Return whether a path component is not a valid file name, or is `.` or `..`."""
    return name in ("", ".", "..") or "\0" in name or len(os.fsencode(name)) > _LONGEST


def user_of(home: int, task: str) -> Owner:
    """Return the user of a task: the owner of its directory, or of `local` if the launcher owns it.

    If a user owns the task's directory, `local` does not count, because the user could replace it.
    Raises `OSError`, including for the shared directory, which belongs to the launcher.
    """
    if task == SHARED:
        raise OSError(errno.EPERM, "a task cannot have the name of the shared directory", task)
    with below(home, task) as inside:
        facts = os.fstat(inside)
        if facts.st_uid == os.geteuid():
            with suppress(FileNotFoundError):  # the task has no directory `local` yet
                facts = facts_of(inside, LOCAL)
    return facts.st_uid, facts.st_gid


def is_ours_alone(directory: int) -> bool:
    """Return whether no other user can change the entries of an open directory.

    Raises `OSError`.
    """
    facts = os.fstat(directory)
    return facts.st_uid == os.geteuid() and not facts.st_mode & _OTHERS


def _is_there(above: int, names: list[str]) -> bool:
    with suppress(FileNotFoundError):  # the file does not exist
        os.close(open_beneath(above, "/".join(names), os.O_PATH | os.O_NOFOLLOW))
        return True
    return False


def _folder(above: int, names: list[str]) -> int:
    """Return a descriptor of the subdirectory with the path components `names`.

    Create missing directories. Raises `OSError`.
    """
    for number, name in enumerate(names):
        deeper = open_beneath(above, "/".join(names[:number]), _INSIDE)
        try:
            with suppress(FileExistsError):  # opened below in any case
                os.mkdir(name, _FOLDER, dir_fd=deeper)
        finally:
            os.close(deeper)
    return open_beneath(above, "/".join(names), _INSIDE)


# --- notes ---


def write_note(directory: str, request: WriteNote) -> None:
    """Write a note about a task atomically, or delete it if the text is None. Raises `OSError`."""
    name = _note_name(request)
    with below(directory, request.allocation) as home:
        if request.text is None:
            with suppress(FileNotFoundError):  # a repeated request
                os.unlink(name, dir_fd=home)
            return
        put(home, name, request.text.encode(), _OWN)


def recall(directory: str, request: ReadNote) -> str | None:
    """Return a note about a task, or None. Raises `OSError`."""
    with suppress(FileNotFoundError), below(directory, request.allocation) as home:  # no note
        descriptor = os.open(_note_name(request), os.O_RDONLY | _NOTE, dir_fd=home)
        try:
            return os.pread(descriptor, _LONGEST_NOTE, 0).decode(errors="replace")
        finally:
            os.close(descriptor)
    return None


def _note_name(request: WriteNote | ReadNote) -> str:
    return f".{request.kind}.{request.task}"
