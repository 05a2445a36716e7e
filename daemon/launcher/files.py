"""Files in the directories of tasks: written and read with the rights of the task's user.

As root we step only through directories that nobody else can change. From the first one on that a task
can change, we are the user of the task: a link that the task has put there leads to nothing that the task
could not reach by itself. Tasks of root are served without following any link.

Notes about a task lie beside its directory, where no task can look.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from daemon.launcher.beneath import open_beneath
from daemon.launcher.directories import LOCAL, ours
from daemon.launcher.messages import Found, Note, Owner, Read, Recall, Write
from daemon.launcher.places import SHARED, below

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_INSIDE = os.O_PATH | os.O_DIRECTORY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_NOTE = os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FOLDER, _OWN = 0o755, 0o600
_MASK = 0o022  # folders are open to others, as files can be
_LONGEST = 255  # bytes of a name
_LONGEST_NOTE = 4096  # bytes
_ROOT = 0


def write(directory: str, request: Write, content: bytes) -> None:
    """Put a file where a task can reach it, whole or not at all, with the folders above it.

    Raises `OSError`.
    """
    with _reached(directory, request) as (above, names, user, owner):
        with _being(user):
            if request.is_new and _is_there(above, names):
                return
            folder = _folder(above, names[:-1])
        try:
            _put(folder, names[-1], content, request.mode, user, request.owner or owner)
        finally:
            os.close(folder)


def _put(folder: int, name: str, content: bytes, mode: int, user: Owner, owner: Owner) -> None:
    unfinished = f".{secrets.token_hex(8)}.unfinished"
    with _being(user):
        descriptor = os.open(unfinished, _NEW, _OWN, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _give(descriptor, owner)
            os.fchmod(descriptor, mode)
            file.write(content)
        with _being(user):
            os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with _being(user):
            os.unlink(unfinished, dir_fd=folder)
        raise


def _give(descriptor: int, owner: Owner) -> None:
    """Let a file that we have made belong to somebody; -1 leaves the user or group. Raises `OSError`."""
    found = os.fstat(descriptor)
    if owner[0] not in (-1, found.st_uid) or owner[1] not in (-1, found.st_gid):
        os.fchown(descriptor, *owner)


def read(directory: str, request: Read) -> tuple[Found, bytes]:
    """Return the facts about a file and its first bytes. Raises `OSError`.

    What is no file has no bytes: a task may have put a pipe there, at which one would wait for ever.
    """
    with _reached(directory, request) as (above, names, user, _), _being(user):
        flags = _READ if request.most else os.O_PATH
        descriptor = open_beneath(above, "/".join(names), flags)
        try:
            facts = os.fstat(descriptor)
            if request.most and not stat.S_ISREG(facts.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", names[-1])
            content = os.pread(descriptor, request.most, 0) if request.most else b""
        finally:
            os.close(descriptor)
    found = Found(inode=facts.st_ino, size=facts.st_size, modified=facts.st_mtime_ns)
    return found, content


@contextmanager
def _reached(
    directory: str, request: Write | Read
) -> Iterator[tuple[int, list[str], Owner, Owner]]:
    """Give an open directory, the way from there, who has to go it, and the user of the task.

    Raises `OSError`.
    """
    first, *names = request.path.split("/")
    if first not in (request.task, SHARED) or not names or any(map(_leads_elsewhere, names)):
        raise OSError(errno.EPERM, "not a place of this task", request.path)
    with below(directory, request.allocation) as home:
        owner = _user_of(home, request.task)
        above = os.open(first, _STEP, dir_fd=home)
        try:
            while len(names) > 1 and _is_ours_alone(above):
                try:
                    deeper = os.open(names[0], _STEP, dir_fd=above)
                except (FileNotFoundError, NotADirectoryError):
                    break
                os.close(above)
                above, names = deeper, names[1:]
            yield above, names, ours() if _is_ours_alone(above) else owner, owner
        finally:
            os.close(above)


def _leads_elsewhere(name: str) -> bool:
    return name in ("", ".", "..") or "\0" in name or len(os.fsencode(name)) > _LONGEST


def _user_of(home: int, task: str) -> Owner:
    """Return the user of a task: who owns its `local`, which only that user or we can replace."""
    with below(home, task) as inside:
        try:
            found = os.stat(LOCAL, dir_fd=inside, follow_symlinks=False)
        except FileNotFoundError:  # its task has removed it
            found = os.fstat(inside)
    return found.st_uid, found.st_gid


def _is_ours_alone(directory: int) -> bool:
    found = os.fstat(directory)
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS


@contextmanager
def _being(user: Owner) -> Iterator[None]:
    """Have the rights of a user and no others, and make files as that one. Raises `OSError`."""
    mask = os.umask(_MASK)
    try:
        if os.geteuid() != _ROOT or user[0] == _ROOT:
            yield
            return
        group, groups = os.getegid(), os.getgroups()
        os.setgroups([])
        os.setegid(user[1])
        os.seteuid(user[0])
        try:
            yield
        finally:
            os.seteuid(_ROOT)
            os.setegid(group)
            os.setgroups(groups)
    finally:
        os.umask(mask)


def _is_there(above: int, names: list[str]) -> bool:
    with suppress(FileNotFoundError):
        os.close(open_beneath(above, "/".join(names), os.O_PATH | os.O_NOFOLLOW))
        return True
    return False


def _folder(above: int, names: list[str]) -> int:
    """Return a descriptor of a directory below an open one, made if need be. Raises `OSError`."""
    for number, name in enumerate(names):
        deeper = open_beneath(above, "/".join(names[:number]), _INSIDE)
        try:
            with suppress(FileExistsError):
                os.mkdir(name, _FOLDER, dir_fd=deeper)
        finally:
            os.close(deeper)
    return open_beneath(above, "/".join(names), _INSIDE)


# --- notes ---


def note(directory: str, request: Note) -> None:
    """Keep a note about a task, whole or not at all; without a text, remove it. Raises `OSError`."""
    name = _note_of(request)
    with below(directory, request.allocation) as home:
        if request.text is None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=home)
            return
        unfinished = f"{name}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NOTE
        with open(os.open(unfinished, flags, _OWN, dir_fd=home), "wb") as file:
            file.write(request.text.encode())
        os.rename(unfinished, name, src_dir_fd=home, dst_dir_fd=home)


def recall(directory: str, request: Recall) -> str | None:
    """Return a note about a task; None: there is none. Raises `OSError`."""
    with suppress(FileNotFoundError), below(directory, request.allocation) as home:
        descriptor = os.open(_note_of(request), os.O_RDONLY | _NOTE, dir_fd=home)
        try:
            return os.pread(descriptor, _LONGEST_NOTE, 0).decode(errors="replace")
        finally:
            os.close(descriptor)
    return None


def _note_of(request: Note | Recall) -> str:
    return f".{request.kind}.{request.task}"
