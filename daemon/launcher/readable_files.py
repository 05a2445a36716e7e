"""Open files and logs of an allocation for the daemon.

Links are followed as long as they stay in the allocation directory. If the kernel cannot enforce
this, no link is followed. The launcher opens a file, reads the file's real path from the kernel,
and rejects secret and internal files by this path. It checks the type of a file before it opens the
file for reading.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from daemon.launcher.alloc_dir import ABOUT, PRIVATE, SECRETS
from daemon.launcher.claims_and_logs import LOGS, SHARED, below, home_of, is_own, open_log, open_own
from daemon.launcher.messages import (
    SECRET,
    DirectoryEntry,
    FileStatus,
    ListDirectory,
    OpenFile,
    OpenLog,
)
from daemon.launcher.safe_open import facts_of, open_beneath
from daemon.launcher.task_files import found_of, leads_elsewhere, user_of

_HIDDEN = "."  # prefix of internal names
_OPEN = os.O_RDONLY | os.O_CLOEXEC
_READ = _OPEN | os.O_NONBLOCK | os.O_NOCTTY
_GETDENTS64 = 217 if os.uname().machine == "x86_64" else 61
_HEAD = struct.Struct("<QqHB")  # start of `struct linux_dirent64`: inode, next offset, length, type
_MOST_OWN = 1024 * 1024  # bytes of a certificate with its chain
_ROOM = 12_000  # bytes, enough for up to 500 entries


def open_file(directory: str, request: OpenFile) -> tuple[FileStatus, list[int]]:
    """Return the metadata of a file, and its descriptor if it may be read. Raises `OSError`."""
    with _reached(directory, request) as (home, descriptor, path):
        facts, descriptors = os.fstat(descriptor), []
        if stat.S_ISLNK(facts.st_mode):  # a dangling link, or a link that was not followed
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), request.path)
        if _is_closed(path):
            return msgspec.structs.replace(found_of(facts), is_secret=True), []
        if stat.S_ISREG(facts.st_mode):
            if facts.st_nlink > 1 and facts.st_uid not in _users(home):
                raise PermissionError(errno.EPERM, "refused: a hard link to a file of another user")
            # A task with the launcher's user removed the permissions.
            with suppress(PermissionError):
                descriptors.append(os.open(_name_of(descriptor), _READ))
        return found_of(facts), descriptors


def entries(directory: str, request: ListDirectory) -> tuple[list[DirectoryEntry], int]:
    """Return directory entries, starting at a position, and the next position; -1 at the end.

    Raises `OSError`.
    """
    with _reached(directory, request) as (_, descriptor, path):
        inside = os.open(_name_of(descriptor), _OPEN | os.O_DIRECTORY)
        try:
            names, position = _names(inside, request.position)
            page = []
            for name in names:
                if not path and name.startswith(_HIDDEN):
                    continue
                if not request.sees_secrets and _is_closed([*path, name]):
                    continue
                with suppress(FileNotFoundError):  # removed during the listing
                    try:
                        facts = facts_of(inside, name)
                    except OSError as error:
                        if error.errno != errno.EXDEV:
                            raise
                        continue  # a file system that the task's user has mounted
                    page.append(DirectoryEntry(name=os.fsencode(name), facts=found_of(facts)))
            return page, position
        finally:
            os.close(inside)


def read_own(path: str) -> bytes:
    """Return the content of a file that only root can change. Raises `OSError`.

    Links in the path are resolved first. Each component of the resolved path is opened without
    following links and checked while open. So no component can be replaced after its check.
    """
    descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *above, last = os.path.realpath(path).strip("/").split("/")
    try:
        for name, flags in (*((name, os.O_PATH | os.O_DIRECTORY) for name in above), (last, _OPEN)):
            child = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = child
            _check_own(descriptor, path)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return os.pread(descriptor, _MOST_OWN, 0)
    finally:
        os.close(descriptor)


def _check_own(descriptor: int, path: str) -> None:
    facts = os.fstat(descriptor)
    is_sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
    is_writable_by_others = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky
    if facts.st_uid not in (0, os.geteuid()) or is_writable_by_others:
        raise PermissionError(errno.EPERM, "another user can change the file", path)


def open_a_log(directory: str, request: OpenLog) -> int:
    """Return a descriptor of a log for reading or rotation. Raises `OSError`."""
    name = f"{request.task}.{request.kind}.0"
    with home_of(directory, request.allocation) as home, below(home, SHARED, LOGS) as logs:
        return open_log(logs, name) if request.purpose == "rotate" else open_own(logs, name, _OPEN)


def log_sizes(folder: int, task: str) -> tuple[int, int] | None:
    """Return the sizes of both logs of a task in bytes; None unless both are regular files."""
    # On an error, the caller opens the logs itself.
    with suppress(OSError), below(folder, SHARED, LOGS) as logs:
        out, err = (facts_of(logs, f"{task}.{kind}.0") for kind in ("stdout", "stderr"))
        if is_own(out) and is_own(err):
            return out.st_size, err.st_size
    return None


@contextmanager
def _reached(
    directory: str, request: OpenFile | ListDirectory
) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the allocation directory, the requested file, and the components of its real path.

    The directory and the file are descriptors. Raises `OSError`, with `SECRET` for existing
    and missing files in a secrets directory, unless the request may see secrets.
    """
    names = request.path.split("/") if request.path else []
    if any(map(leads_elsewhere, names)):
        raise OSError(errno.EPERM, "outside the directories of this allocation", request.path)
    with home_of(directory, request.allocation) as home:
        _judge(names, request)
        try:
            descriptor = _follow(home, names)
        except OSError:
            _check_deepest_directory(home, names, request)
            raise
        try:
            path = _real_path(home, descriptor)
            if path and path[0].startswith(_HIDDEN) and not path == names == [ABOUT]:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), request.path)
            _judge(path, request)
            yield home, descriptor, path
        finally:
            os.close(descriptor)


def _judge(segments: Sequence[str], request: OpenFile | ListDirectory) -> None:
    if _is_closed(segments) and not request.sees_secrets:
        raise OSError(SECRET, os.strerror(SECRET), request.path)


def _check_deepest_directory(
    home: int, names: Sequence[str], request: OpenFile | ListDirectory
) -> None:
    """Raise `OSError` if the deepest existing directory of a path is a secrets directory.

    The names alone do not show this, because the path may contain links of a task.
    """
    for length in range(len(names) - 1, 0, -1):
        try:
            descriptor = _follow(home, names[:length])
        except OSError:
            continue
        try:
            _judge(_real_path(home, descriptor), request)
        finally:
            os.close(descriptor)
        break


def _follow(home: int, names: Sequence[str]) -> int:
    return open_beneath(home, "/".join(names), os.O_PATH, follows=True)


def _name_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _real_path(home: int, descriptor: int) -> list[str]:
    """Return an open file's real path as components below `home`. Raises `OSError`."""
    top, path = (os.readlink(_name_of(fd)) for fd in (home, descriptor))
    if not f"{path}/".startswith(f"{top}/"):  # a concurrent rename
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return path.removeprefix(top).split("/")[1:]


def _is_closed(segments: Sequence[str]) -> bool:
    """Return whether a path is a secrets directory or is below one."""
    return len(segments) > 1 and segments[1] in (SECRETS, PRIVATE)


def _users(home: int) -> set[int]:
    """Return the user IDs of the tasks of an allocation. Raises `OSError`."""
    inner = os.open(".", _OPEN | os.O_DIRECTORY, dir_fd=home)
    try:
        tasks = [name for name in os.listdir(inner) if not name.startswith(_HIDDEN)]
        return {user_of(home, name)[0] for name in tasks if name != SHARED}
    finally:
        os.close(inner)


def _names(directory: int, position: int) -> tuple[list[str], int]:
    """Return some names in a directory, starting at `position`, and the next position.

    The next position is -1 at the end of the directory. `os.scandir` is not suitable, because it
    always reads the whole directory. Raises `OSError`.
    """
    os.lseek(directory, position, os.SEEK_SET)
    buffer, names = ctypes.create_string_buffer(_ROOM), []
    size = ctypes.CDLL(None, use_errno=True).syscall(_GETDENTS64, directory, buffer, _ROOM)
    if size < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    raw, offset = buffer.raw, 0
    while offset < size:
        _, position, length, _ = _HEAD.unpack_from(raw, offset)
        names.append(os.fsdecode(raw[offset + _HEAD.size : offset + length].split(b"\0", 1)[0]))
        offset += length
    return [name for name in names if name not in (".", "..")], position if size else -1
